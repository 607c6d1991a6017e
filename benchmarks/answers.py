"""B19: what the command takes for an answer, from the objects that a hub's lists have, without the hub.

Five replicas for each cluster. By reading, the command makes all of it; the operator, which is asked first, has its
watches' objects and the scheduler's model at hand, and reads the question. Times are CPU time, as those of the
scheduler; what the hub takes for its lists, and Python to start, comes to it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from statistics import median
from time import thread_time
from types import SimpleNamespace
from typing import Any

import orjson

from benchmarks import fleet_generator as generator
from benchmarks.report import Figure
from benchmarks.schedule import NOW, REPLICAS, observed
from modelplane_operator.api import InferenceCluster, Kind, ModelDeployment, ModelReplica
from modelplane_operator.api.base import of
from modelplane_operator.clients.informer import Informer
from modelplane_operator.clients.kube import Event
from modelplane_operator.controllers.admission.questions import looked_up, stored
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.kube.resources import ResourceType
from modelplane_operator.planning.answers.documents import Outcomes
from modelplane_operator.planning.answers.forecast import drained, edited, forecast, scaled, without
from modelplane_operator.planning.answers.questions import QuestionAnswer, asked
from modelplane_operator.planning.answers.schema import document
from modelplane_operator.planning.answers.snapshot import Snapshot
from modelplane_operator.planning.answers.why import why
from modelplane_operator.rendering.model_deployment import render_replica
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule

TIMES = 5


def answers(size: int) -> Iterator[Figure]:
    """Of a mixed fleet: `why` of a model that runs and of one that finds no place, and plans of all kinds."""
    listed = _listed(size)

    def seen() -> Snapshot:
        kinds = (InferenceCluster, ModelReplica, ModelDeployment)
        clusters, replicas, deployments = (
            tuple(map(kind.parse, orjson.loads(text))) for kind, text in zip(kinds, listed, strict=True)
        )
        return Snapshot(clusters, replicas, deployments, (), NOW)

    ready = seen()
    runs, waits = ready.deployments[0], ready.deployments[-1]
    where, new = (
        ready.replicas[0].spec.cluster_name,
        [generator.deployment(name, generator.memory(40), replicas=3) for name in ("a", "b")],
    )
    file = orjson.dumps({"kind": "List", "items": [one.to_manifest() for one in new]}, default=str).decode()

    def again() -> Snapshot:
        return Snapshot(ready.clusters, ready.replicas, ready.deployments, (), NOW)

    def applied(*deployments: ModelDeployment) -> Callable[[Snapshot], object]:
        keys = [one.key for one in deployments]
        return lambda before: Outcomes(forecast(before, edited(before, deployments), asked=keys))

    def moved(change: Callable[[Snapshot, str], Snapshot]) -> Callable[[Snapshot], object]:
        return lambda before: Outcomes(forecast(before, change(before, where), clusters=frozenset((where,))))

    questions: tuple[tuple[str, Callable[[Snapshot], object], dict[str, object]], ...] = (
        (
            "why of a model that runs",
            lambda one: why(runs, (), one),
            {"placement_request": "Why", "modelDeployment": runs.key.name},
        ),
        (
            "why of a model without a place",
            lambda one: why(waits, (), one),
            {"placement_request": "Why", "modelDeployment": waits.key.name},
        ),
        (
            "plan of one replica more",
            applied(scaled(runs, REPLICAS + 1)),
            {"placement_request": "Plan", "modelDeployment": runs.key.name, "replicas": REPLICAS + 1},
        ),
        ("plan of a file with two models", applied(*new), {"placement_request": "Plan", "manifest": file}),
        ("plan of a drain", moved(drained), {"placement_request": "Plan", "drain": where}),
        ("plan without a cluster", moved(without), {"placement_request": "Plan", "without": where}),
    )
    yield Figure("B19", size, "read all objects", _median(seen), "ms")
    clients, fleet = _watched(listed)
    for what, of_reading, spec in questions:
        asked_for = {"metadata": {"namespace": runs.key.namespace}, "spec": spec}

        def of_operator(manifest: dict[str, Any] = asked_for) -> QuestionAnswer:
            question = asked(manifest)
            return looked_up(question, stored(question, fleet, clients, None), None)

        if of_operator().document != document(str(spec["placement_request"]), of_reading(again())):
            raise AssertionError(f"the operator answers something else: {what}")
        yield Figure("B19", size, what, _median(lambda one=of_reading: one(again())), "ms")
        yield Figure("B19", size, f"{what}, with reading", _median(lambda one=of_reading: one(seen())), "ms")
        yield Figure("B19", size, f"{what}, of the operator", _median(of_operator), "ms")


def _watched(listed: Sequence[bytes]) -> tuple[Any, FleetView]:
    """What the operator has at hand: the objects as its watches keep them, and the scheduler's model."""
    kinds: tuple[Kind, ...] = (InferenceCluster, ModelReplica, ModelDeployment)
    fleet, informers = FleetView(lambda: NOW), dict[ResourceType, Informer]()
    for kind, text in zip(kinds, listed, strict=True):
        informer = informers[of(kind)] = Informer(of(kind), now=lambda: 0.0)
        fleet.listen(informer)
        for number, one in enumerate(orjson.loads(text)):
            given = {"uid": f"uid-{kind.definition.kind}-{number}", **one["metadata"], "resourceVersion": "1"}
            informer.seen(Event("ADDED", {**one, "metadata": given}))
    return SimpleNamespace(hub=SimpleNamespace(find=informers.get), now=lambda: NOW), fleet


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
        for placement in schedule(placement_request(model), fleet, now=NOW).new:
            replicas.append(ModelReplica.parse(render_replica(model, placement, None)))
            fleet.observe_replica(replicas[-1])
    models.append(generator.deployment("no-place", generator.memory(1000), replicas=3))
    clusters_, replicas_, models_ = (
        orjson.dumps([one.to_manifest() for one in objects], default=str) for objects in (clusters, replicas, models)
    )
    return clusters_, replicas_, models_
