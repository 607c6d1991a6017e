"""`placement`, `many-placements`, `first-decision`: the scheduler by itself, without an API server.

Times are CPU time of the deciding thread: it never waits, so that on an idle machine this is the time on the clock, and
on a busy one still comparable.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from pathlib import Path
from time import thread_time

from benchmarks import fleet_generator as generator
from benchmarks.report import Figure, percentile
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.deployment.render import render_replica
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import prose
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.requirement import PlacementRequest, placement_request
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.selectors import cel

NOW = datetime(2026, 1, 2, tzinfo=UTC)
SAMPLES = 300
REPLICAS = 10  # of each deployment
KINDS = {"uniform": (False, False), "mixed": (True, False), "shared": (True, True)}
"""Fleets, by whether their clusters differ, and whether replicas share nodes by device."""


def decide(request: PlacementRequest, fleet: FleetModel) -> Decision:
    """Decide and explain, as a reconcile does."""
    decision = schedule(request, fleet, now=NOW)
    prose.summary(decision)
    return decision


def observe(objects: Sequence[InferenceCluster]) -> FleetModel:
    fleet = FleetModel()
    for cluster in objects:
        fleet.observe_cluster(cluster)
    return fleet


def place(model: ModelDeployment, request: PlacementRequest, fleet: FleetModel) -> tuple[Decision, float]:
    """Decide and observe the replicas of it; return the seconds that took, without rendering and parsing."""
    begin = thread_time()
    decision = decide(request, fleet)
    seconds = thread_time() - begin
    written = [ModelReplica.parse(render_replica(model, placement, None)) for placement in decision.new]
    begin = thread_time()
    for replica in written:
        fleet.observe_replica(replica)
    return decision, seconds + thread_time() - begin


def measure_seconds(work: Callable[[], object]) -> float:
    begin = thread_time()
    work()
    return thread_time() - begin


def resident_megabytes() -> float:
    """Return the resident memory of this process, in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# placement -----------------------------------------------------------------------------------------------------------

MATCHES = {
    "the first pool matches": (generator.product(generator.GPUS[0][0]),),
    "the last pool matches": (generator.product(generator.GPUS[7][0]),),
    "no pool matches": (generator.memory(500),),
}


def measure_placement(size: int) -> Iterator[Figure]:
    """Place one replica of one more deployment, again and again, when the need has been seen before."""
    for fleet_kind, (mixed, shared) in KINDS.items():
        objects = list(generator.clusters(size, mixed=mixed, nodes=64, shared=shared))
        fleet = observe(objects)
        for name, selectors in MATCHES.items():
            if mixed and "last" in name:
                continue  # in a mixed fleet it may be any pool
            kind = f"{fleet_kind}, {name}"
            yield from _placement_figures(size, kind, fleet, selectors)
            if not mixed:
                yield _baseline(size, kind, objects, selectors)


def _placement_figures(size: int, kind: str, fleet: FleetModel, selectors: tuple[str, ...]) -> Iterator[Figure]:
    models = [generator.deployment(f"{kind} {number}", *selectors) for number in range(SAMPLES + 1)]
    requests = [placement_request(model) for model in models]
    cold = measure_seconds(lambda: decide(requests[SAMPLES], fleet))
    times: list[float] = []
    for model, request in zip(models[:SAMPLES], requests[:SAMPLES], strict=True):
        decision, seconds = place(model, request, fleet)
        times.append(seconds * 1000)
        if decision.missing != (0 if decision.new else 1):
            raise AssertionError(prose.summary(decision))
    yield Figure("placement", size, f"{kind}: p50", round(percentile(times, 50), 4), "ms")
    yield Figure("placement", size, f"{kind}: p99", round(percentile(times, 99), 4), "ms")
    yield Figure("placement", size, f"{kind}: first time", round(cold * 1000, 3), "ms")


def _baseline(size: int, kind: str, objects: Sequence[InferenceCluster], selectors: tuple[str, ...]) -> Figure:
    """Evaluate every selector on every device of every cluster, with nothing remembered, as a comparison."""
    compiled = [cel.compile(text) for text in selectors]
    read = [clusters.read(cluster) for cluster in objects[: min(size, 1000)]]

    def every() -> int:
        return sum(
            all(cel.evaluate.__wrapped__(selector, device.device).matched for selector in compiled)
            for cluster in read
            for offer in cluster.pools.profile.offers
            for device in offer.devices
        )

    seconds = min(measure_seconds(every) for _ in range(3)) * size / len(read)
    return Figure("placement", size, f"{kind}: every selector on every device", round(seconds * 1000, 2), "ms")


# many-placements -----------------------------------------------------------------------------------------------------


def measure_many_placements(size: int) -> Iterator[Figure]:
    """Place five replicas for each cluster (two, above 1,000 clusters), ten to a deployment, of 40 kinds of need."""
    for kind, (mixed, shared) in KINDS.items():
        fleet = observe(list(generator.clusters(size, mixed=mixed, nodes=8, shared=shared)))
        models = [*generator.models(max(size * (5 if size <= 1000 else 2) // REPLICAS, 1), replicas=REPLICAS, kinds=40)]
        requests = [placement_request(model) for model in models]
        gc.collect()
        before = resident_megabytes()
        new, seconds = 0, 0.0
        for model, request in zip(models, requests, strict=True):
            decision, took = place(model, request, fleet)
            new, seconds = new + len(decision.new), seconds + took
        grown = resident_megabytes() - before
        yield Figure("many-placements", size, f"{kind}: replicas requested", len(models) * REPLICAS, "replicas")
        yield Figure("many-placements", size, f"{kind}: replicas placed", new, "replicas")
        yield Figure("many-placements", size, f"{kind}: all decisions", round(seconds, 4), "s")
        yield Figure("many-placements", size, f"{kind}: rate", round(new / seconds), "replicas/s")
        yield Figure("many-placements", size, f"{kind}: memory grown", round(grown, 1), "MB")


# first-decision ------------------------------------------------------------------------------------------------------


def measure_first_decision(size: int) -> Iterator[Figure]:
    """Read API objects and take the first decision; the memory is that of objects and fleet."""
    manifests = [cluster.to_manifest() for cluster in generator.clusters(size, mixed=True)]
    request = placement_request(next(generator.models(1, replicas=REPLICAS, kinds=1)))
    gc.collect()
    before = resident_megabytes()
    begin = thread_time()
    objects = [InferenceCluster.parse(manifest) for manifest in manifests]
    parsed = thread_time()
    fleet = observe(objects)
    decide(request, fleet)
    end = thread_time()
    yield Figure("first-decision", size, "read the API objects", round(parsed - begin, 4), "s")
    yield Figure("first-decision", size, "observe them and decide once", round(end - parsed, 4), "s")
    yield Figure("first-decision", size, "memory of objects and fleet", round(resident_megabytes() - before, 1), "MB")
