"""B1, B2, B9: the scheduler by itself, from API objects to an explained decision, without an API server.

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
from modelplane_operator.rendering.model_deployment import render_replica
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


def decide(asked: PlacementRequest, fleet: FleetModel) -> Decision:
    """Decide and explain, as a reconcile does."""
    decision = schedule(asked, fleet, now=NOW)
    prose.summary(decision)
    return decision


def observed(objects: Sequence[InferenceCluster]) -> FleetModel:
    fleet = FleetModel()
    for cluster in objects:
        fleet.observe_cluster(cluster)
    return fleet


def placed(model: ModelDeployment, asked: PlacementRequest, fleet: FleetModel) -> tuple[Decision, float]:
    """Decide, and see what was written for it; in how many seconds, without those of rendering and parsing."""
    begin = thread_time()
    decision = decide(asked, fleet)
    seconds = thread_time() - begin
    written = [ModelReplica.parse(render_replica(model, placement, None)) for placement in decision.new]
    begin = thread_time()
    for replica in written:
        fleet.observe_replica(replica)
    return decision, seconds + thread_time() - begin


def timed(work: Callable[[], object]) -> float:
    begin = thread_time()
    work()
    return thread_time() - begin


def memory() -> float:
    """Resident memory in MB."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


# B1: one replica ------------------------------------------------------------------------------------------------------

MATCHES = {
    "the first pool matches": (generator.product(generator.GPUS[0][0]),),
    "the last pool matches": (generator.product(generator.GPUS[7][0]),),
    "no pool matches": (generator.memory(500),),
}


def one_replica(size: int) -> Iterator[Figure]:
    """Place one replica of one more deployment, again and again, when the need has been seen before."""
    for mixed in (False, True):
        objects = list(generator.clusters(size, mixed=mixed, nodes=64))
        fleet = observed(objects)
        for name, selectors in MATCHES.items():
            if mixed and "last" in name:
                continue  # in a mixed fleet it may be any pool
            kind = f"{'mixed' if mixed else 'uniform'}, {name}"
            yield from _one_replica(size, kind, fleet, selectors)
            if not mixed:
                yield _baseline(size, kind, objects, selectors)


def _one_replica(size: int, kind: str, fleet: FleetModel, selectors: tuple[str, ...]) -> Iterator[Figure]:
    models = [generator.deployment(f"{kind} {number}", *selectors) for number in range(SAMPLES + 1)]
    asks = [placement_request(model) for model in models]
    cold = timed(lambda: decide(asks[SAMPLES], fleet))
    times: list[float] = []
    for model, asked in zip(models[:SAMPLES], asks[:SAMPLES], strict=True):
        decision, seconds = placed(model, asked, fleet)
        times.append(seconds * 1000)
        if decision.missing != (0 if decision.new else 1):
            raise AssertionError(prose.summary(decision))
    yield Figure("B1", size, f"{kind}: p50", round(percentile(times, 50), 4), "ms")
    yield Figure("B1", size, f"{kind}: p99", round(percentile(times, 99), 4), "ms")
    yield Figure("B1", size, f"{kind}: first time", round(cold * 1000, 3), "ms")


def _baseline(size: int, kind: str, objects: Sequence[InferenceCluster], selectors: tuple[str, ...]) -> Figure:
    """Every selector on every device of every cluster, with nothing remembered: what a decision cost before."""
    compiled = [cel.compile(text) for text in selectors]
    read = [clusters.read(cluster) for cluster in objects[: min(size, 1000)]]

    def every() -> int:
        return sum(
            all(cel.evaluate.__wrapped__(selector, device.device).matched for selector in compiled)
            for cluster in read
            for offer in cluster.pools.profile.offers
            for device in offer.devices
        )

    seconds = min(timed(every) for _ in range(3)) * size / len(read)
    return Figure("B1", size, f"{kind}: baseline, every selector on every device", round(seconds * 1000, 2), "ms")


# B2: many replicas ----------------------------------------------------------------------------------------------------


def all_replicas(size: int) -> Iterator[Figure]:
    """Place five replicas for each cluster (two, above 1,000 clusters), ten to a deployment, of 40 kinds of need."""
    for mixed in (False, True):
        fleet = observed(list(generator.clusters(size, mixed=mixed, nodes=8)))
        models = [*generator.models(max(size * (5 if size <= 1000 else 2) // REPLICAS, 1), replicas=REPLICAS, kinds=40)]
        asks = [placement_request(model) for model in models]
        gc.collect()
        before = memory()
        new, seconds = 0, 0.0
        for model, asked in zip(models, asks, strict=True):
            decision, took = placed(model, asked, fleet)
            new, seconds = new + len(decision.new), seconds + took
        grown = memory() - before
        kind = f"{'mixed' if mixed else 'uniform'}, 40 kinds of need"
        yield Figure("B2", size, f"{kind}: replicas asked for", len(models) * REPLICAS, "replicas")
        yield Figure("B2", size, f"{kind}: replicas placed", new, "replicas")
        yield Figure("B2", size, f"{kind}: all decisions", round(seconds, 4), "s")
        yield Figure("B2", size, f"{kind}: rate", round(new / seconds), "replicas/s")
        yield Figure("B2", size, f"{kind}: memory grown", round(grown, 1), "MB")


# B9: from nothing -----------------------------------------------------------------------------------------------------


def cold_start(size: int) -> Iterator[Figure]:
    """From objects as they come over the wire to the first decision, and what the fleet takes in memory."""
    manifests = [cluster.to_manifest() for cluster in generator.clusters(size, mixed=True)]
    asked = placement_request(next(generator.models(1, replicas=REPLICAS, kinds=1)))
    gc.collect()
    before = memory()
    begin = thread_time()
    objects = [InferenceCluster.parse(manifest) for manifest in manifests]
    parsed = thread_time()
    fleet = observed(objects)
    decide(asked, fleet)
    end = thread_time()
    yield Figure("B9", size, "read the API objects", round(parsed - begin, 4), "s")
    yield Figure("B9", size, "observe them and decide once", round(end - parsed, 4), "s")
    yield Figure("B9", size, "memory of objects and fleet", round(memory() - before, 1), "MB")
