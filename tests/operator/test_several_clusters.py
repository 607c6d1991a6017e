"""Clusters that one object is on are looked at side by side: a slow or unreadable one holds up no other."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable, Mapping
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.prober import Health
from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.kube import Event
from kubeloop.client.lists import Listing
from kubeloop.errors import ClientError, Defect, Unreachable
from kubeloop.loop import Clients, Controller
from kubeloop.plan import Delete, Plan
from kubeloop.resource import of
from kubeloop.types import DEPLOYMENT, NAMESPACE
from modelplane_operator.api import InferenceCluster, LLMInference, ModelCache, ModelReplica, labels, names
from modelplane_operator.models.cache import controller as model_cache
from modelplane_operator.models.cache.render import Hydrator
from modelplane_operator.models.llm_inference import controller as llm_inference
from modelplane_operator.models.replica import controller as model_replica
from modelplane_operator.models.replica.render import Lifecycle
from tests.support.informers import holding, stored
from tests.support.manifests import Manifest
from tests.support.virtual_time import run

NOW = datetime(2026, 11, 23, tzinfo=UTC)
HOME = names.remote_namespace("team")
REFERENCED = ReferencedObjects(cast("Any", None), lambda: 0.0, 1.0)
UID = "the-uid"
TEMPLATE = {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}}
ENGINE = {"name": "main", "members": [{"role": "Standalone", "nodePoolName": "gpu", "template": TEMPLATE}]}

Answer = Callable[[str], Awaitable[Any]]
"""What an API server says to a request, by the name of the method."""


async def honest(method: str) -> Any:
    found = {"metadata": {"name": "qwen", "namespace": HOME, "uid": "u", "labels": {labels.OWNER_UID: UID}}}
    deployment = {"apiVersion": DEPLOYMENT.api_version, "kind": DEPLOYMENT.kind, **found}
    return {"some": Listing((), "1"), "serves": frozenset[str](), "find": deployment}[method]


async def slow(method: str) -> Any:
    await asyncio.sleep(19)
    return await honest(method)


async def silent(_: str) -> Any:
    await asyncio.Event().wait()


async def garbage(method: str) -> Any:
    nothing = {"metadata": {"name": "qwen", "annotations": "x", "labels": "x"}}
    return {"some": Listing((nothing,), "1"), "serves": frozenset[str](), "find": nothing}[method]


def cluster(name: str, answer: Answer) -> Any:
    def asked(method: str) -> Callable[..., Awaitable[Any]]:
        return lambda *_, **__: answer(method)

    kube = SimpleNamespace(**{method: asked(method) for method in ("some", "find", "serves")})
    held = {NAMESPACE: holding(NAMESPACE, (stored(NAMESPACE, HOME, ""),))}
    return SimpleNamespace(
        name=name, kube=kube, find=held.get, health=Health(last_contact=1.0), synced=True, server=name, unverified=""
    )


def clients(answers: Mapping[str, Answer], replicas: Iterable[Manifest] = ()) -> Clients:
    clusters = [
        {**stored(of(InferenceCluster), name, ""), "spec": {"cluster": {"source": "Existing"}}} for name in answers
    ]
    held = {
        of(ModelCache): holding(of(ModelCache), (), **model_cache.INDEXES[of(ModelCache)]),
        of(ModelReplica): holding(of(ModelReplica), replicas, **model_cache.INDEXES[of(ModelReplica)]),
        of(InferenceCluster): holding(of(InferenceCluster), clusters),
        NAMESPACE: holding(NAMESPACE, (stored(NAMESPACE, "team", ""),)),
    }
    fleet = {name: cluster(name, answer) for name, answer in answers.items()}
    hub = cast("Any", SimpleNamespace(find=held.get, name=""))
    return Clients(hub, fleet.__getitem__, lambda: None, lambda: NOW, executors={})


def decided(controller: Controller[Any, Any], what: Any, answers: Mapping[str, Answer]) -> tuple[Any, Plan, float]:
    """What is seen and planned, and how long it took to look."""

    async def observed() -> tuple[Any, float]:
        return await controller.observe(what, clients(answers)), asyncio.get_running_loop().time()

    seen, seconds = run(observed())
    return seen, controller.plan(seen), seconds


def cache(answers: Mapping[str, Answer], *, terminating: bool = True) -> ModelCache:
    ending = {"deletionTimestamp": NOW.isoformat(), "finalizers": [labels.FINALIZER]} if terminating else {}
    spec = {"source": "PersistentVolumeClaim", "persistentVolumeClaim": {"claimName": "weights"}}
    known = [{"name": name} for name in answers]
    metadata = {"name": "qwen", "namespace": "team", "uid": UID, **ending}
    return ModelCache.parse({"metadata": metadata, "spec": spec, "status": {"clusters": known}})


def deleted(plan: Plan) -> set[str]:
    return {one.target for one in plan.steps if isinstance(one, Delete)}


@pytest.mark.parametrize("bad", [slow, silent, garbage])
def test_a_cache_is_deleted_elsewhere_whatever_one_cluster_answers(bad: Answer) -> None:
    answers = {"a": bad, "b": bad, "good": honest}
    controller = model_cache.controller(REFERENCED, Hydrator())

    _, plan, seconds = decided(controller, cache(answers), answers)

    assert deleted(plan) == {"good"}
    assert seconds <= 20


def placed(name: str, cluster: str, **metadata: Any) -> Manifest:
    return {
        **stored(of(ModelReplica), name, "team", **metadata),
        "spec": {"clusterName": cluster, "engines": [ENGINE]},
    }


@pytest.mark.parametrize("kind", [ModelCache, ModelReplica])
@pytest.mark.parametrize("terminating", [False, True])
def test_a_namespace_stays_in_which_a_replica_is_placed_while_it_is_looked_at(
    kind: type[ModelCache | ModelReplica], *, terminating: bool
) -> None:
    ending = {"deletionTimestamp": NOW.isoformat(), "finalizers": [labels.FINALIZER]}
    leaving = placed("leaving", "a", **ending)
    controller, subject = (
        (model_cache.controller(REFERENCED, Hydrator()), cache({"a": honest}))
        if kind is ModelCache
        else (model_replica.controller(REFERENCED, cast("Any", None), Lifecycle()), ModelReplica.parse(leaving))
    )

    async def observed() -> Plan:
        async def while_asked(method: str) -> Any:
            another = placed("another", "a", **(ending if terminating else {}))
            replicas.on_event(Event("ADDED", another))
            return await honest(method)

        seen = clients({"a": while_asked}, [leaving])
        replicas = seen.hub.find(of(ModelReplica))
        assert replicas is not None
        return controller.plan(await controller.observe(subject, seen))

    assert (HOME in {one.key.name for one in run(observed()).steps if isinstance(one, Delete)}) is terminating


@pytest.mark.parametrize(("bad", "why"), [(silent, Unreachable), (garbage, Defect)])
def test_a_claim_is_looked_for_on_all_clusters_at_once(bad: Answer, why: type[ClientError]) -> None:
    answers = {"a": bad, "b": bad, "good": honest}
    controller = model_cache.controller(REFERENCED, Hydrator())

    seen, _, seconds = decided(controller, cache(answers, terminating=False), answers)

    assert [type(one.error) for one in seen.clusters] == [why, why, type(None)]
    assert [one.existing is not None for one in seen.clusters] == [False, False, True]
    assert seconds <= 20


@pytest.mark.parametrize(("bad", "why"), [(slow, Unreachable), (silent, Unreachable), (garbage, Defect)])
def test_an_old_copy_goes_wherever_it_can_be_read(bad: Answer, why: type[ClientError]) -> None:
    places = [{"target": "InferenceCluster", "name": name, "namespace": HOME} for name in ("a", "b", "good")]
    inference = LLMInference.parse(
        {
            "metadata": {"name": "qwen", "namespace": "team", "uid": UID, "deletionTimestamp": NOW.isoformat()},
            "spec": {"model": "org/model", "placement": "Fleet", "runtime": "Deployment"},
            "status": {"locations": places},
        }
    )
    controller = llm_inference.controller(REFERENCED, cast("Any", SimpleNamespace(run=None)), (), ())

    seen, plan, seconds = decided(controller, inference, {"a": bad, "b": bad, "good": honest})

    assert [type(one.error) for one in seen.states.values()] == [why, why, type(None)]
    assert deleted(plan) == {"good"}
    assert seconds <= 20
