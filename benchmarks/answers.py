"""B19: what the command takes for an answer, from the objects that a hub's lists have, without the hub.

Five replicas for each cluster. By reading, the command makes all of it; the operator, which is asked first, has the
scheduler's model at hand. Times are CPU time, as those of the scheduler; what the hub takes for its lists, and
Python to start, comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from statistics import median
from time import thread_time

import orjson

from benchmarks import fleet_generator as generator
from benchmarks.report import Figure
from benchmarks.schedule import NOW, REPLICAS, observed
from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica
from modelplane_operator.planning.answers.forecast import drained, edited, forecast, scaled
from modelplane_operator.planning.answers.snapshot import Snapshot
from modelplane_operator.planning.answers.why import why
from modelplane_operator.rendering.model_deployment import render_replica
from modelplane_operator.scheduling.requirement import ask
from modelplane_operator.scheduling.schedule import schedule

TIMES = 5


def answers(size: int) -> Iterator[Figure]:
    """Of a mixed fleet: `why` of a model that runs and of one that finds no place, and three plans."""
    listed = _listed(size)

    def seen() -> Snapshot:
        kinds = (InferenceCluster, ModelReplica, ModelDeployment)
        clusters, replicas, deployments = (
            tuple(map(kind.parse, orjson.loads(text))) for kind, text in zip(kinds, listed, strict=True)
        )
        return Snapshot(clusters, replicas, deployments, (), NOW)

    ready = seen()
    runs, waits = ready.deployments[0], ready.deployments[-1]
    where = ready.replicas[0].spec.cluster_name

    def again() -> Snapshot:
        return Snapshot(ready.clusters, ready.replicas, ready.deployments, (), NOW)

    def more(before: Snapshot) -> None:
        forecast(before, edited(before, [scaled(runs, REPLICAS + 1)]), asked=[runs.key])

    def drain(before: Snapshot) -> None:
        forecast(before, drained(before, where), clusters=frozenset((where,)))

    questions: tuple[tuple[str, Callable[[Snapshot], object]], ...] = (
        ("why of a model that runs", lambda one: why(runs, (), one)),
        ("why of a model without a place", lambda one: why(waits, (), one)),
        ("plan of one replica more", more),
        ("plan of a drain", drain),
    )
    yield Figure("B19", size, "read all objects", _median(seen), "ms")
    for what, question in questions:
        yield Figure("B19", size, what, _median(lambda asked=question: asked(again())), "ms")
        yield Figure("B19", size, f"{what}, with reading", _median(lambda asked=question: asked(seen())), "ms")
    model, mine = ready.fleet(), orjson.dumps([one.to_manifest() for one in ready.owned[runs.key]], default=str)

    def kept(deployment: ModelDeployment, replicas: bytes) -> Snapshot:
        owned = tuple(map(ModelReplica.parse, orjson.loads(replicas)))
        return Snapshot(ready.clusters, owned, (deployment,), (), NOW, model.copy())

    of_operator: tuple[tuple[str, Callable[[], object]], ...] = (
        ("why of a model that runs", lambda: why(runs, (), kept(runs, mine))),
        ("why of a model without a place", lambda: why(waits, (), kept(waits, b"[]"))),
        ("plan of one replica more", lambda: more(kept(runs, mine))),
    )
    for what, of_one in of_operator:
        yield Figure("B19", size, f"{what}, of the operator", _median(of_one), "ms")


def _median(run: Callable[[], object]) -> float:
    taken: list[float] = []
    for _ in range(TIMES):
        began = thread_time()
        run()
        taken.append((thread_time() - began) * 1000)
    return round(median(taken), 1)


def _listed(size: int) -> tuple[bytes, bytes, bytes]:
    clusters = tuple(generator.clusters(size, mixed=True))
    fleet, replicas = observed(clusters), list[ModelReplica]()
    models = [*generator.models(max(size * 5 // REPLICAS, 1), replicas=REPLICAS, kinds=40)]
    for model in models:
        for placement in schedule(ask(model), fleet, now=NOW).new:
            replicas.append(ModelReplica.parse(render_replica(model, placement, None)))
            fleet.observe_replica(replicas[-1])
    models.append(generator.deployment("no-place", generator.memory(1000), replicas=3))
    clusters_, replicas_, models_ = (
        orjson.dumps([one.to_manifest() for one in objects], default=str) for objects in (clusters, replicas, models)
    )
    return clusters_, replicas_, models_
