"""A new leader has no way to clusters on clouds until it has made tokens: nothing is said of what is there for that."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.client.access import Access
from kubeloop.client.kube import Event
from kubeloop.errors import Unauthorized, Unreachable
from kubeloop.helm.release import Run
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.plan import Plan
from kubeloop.resource import Resource, of
from kubeloop.types import NAMESPACE, ResourceType
from kubeloop.wiring import Runner
from modelplane_operator.api import InferenceCluster, LLMInference, ModelCache, ModelReplica, ServingStack
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.resources import Account
from modelplane_operator.clouds.tokens import Tokens
from modelplane_operator.kinds import kinds
from modelplane_operator.operator import Operator, assemble
from modelplane_operator.settings import Settings

TEAM, SYSTEM = "team", "modelplane-system"
OWNED = {"owner-kind": "InferenceCluster", "owner-name": "berlin", "owner-uid": "uid-of-berlin"}
READY = {"type": "Ready", "status": "True", "reason": "Available", "lastTransitionTime": "2026-01-01T00:00:00Z"}
MEMBER = {
    "role": "Standalone",
    "nodePoolName": "h100",
    "template": {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}},
}
HUGGING_FACE = {"source": "HuggingFace", "huggingFace": {"repo": "Qwen/Qwen3-8B", "sizeGiB": 20}}


def known(name: str, namespace: str = "", labels: Manifest | None = None, **rest: Any) -> Manifest:
    marks = {f"modelplane.ai/{key}": value for key, value in (labels or {}).items()}
    metadata = {"name": name, "uid": f"uid-of-{name}", "resourceVersion": "1", "labels": marks}
    return {"metadata": {**metadata, **({"namespace": namespace} if namespace else {})}, **rest}


REPLICA = known(
    "m",
    TEAM,
    spec={"clusterName": "berlin", "engines": [{"name": "main", "members": [MEMBER]}]},
    status={"conditions": [READY]},
)
STACK = known(
    "berlin-serving-stack",
    SYSTEM,
    OWNED,
    spec={"secrets": [{"type": "Kubeconfig", "name": "berlin", "key": "kubeconfig"}]},
    status={"conditions": [READY]},
)
INFERENCE = known(
    "qwen",
    TEAM,
    spec={"model": "Qwen/Qwen3-8B", "providerConfigName": "berlin", "targetNamespace": "models"},
    status={"locations": [{"target": "InferenceCluster", "name": "berlin", "namespace": "models"}]},
)
CACHE = known(
    "qwen",
    TEAM,
    spec=HUGGING_FACE,
    status={"clusters": [{"name": "berlin", "phase": "Ready", "since": "2026-01-01T00:00:00Z"}]},
)
CLUSTER = known(
    "berlin",
    spec={
        "cluster": {"source": "EKS", "eks": {"region": "eu-west-1"}},
        "nodePools": [],
        "llmInferences": [{"namespace": TEAM, "targetNamespaces": ["models"]}],
    },
    status={"cache": {"storageClassName": "efs"}},
)
ON_CLOUD = known(
    "berlin",
    SYSTEM,
    OWNED,
    spec={"region": "eu-west-1", "nodePools": []},
    status={"endpoint": {"server": "https://127.0.0.1:1", "authority": "", "cluster": "berlin-0123456789"}},
)
FOUND: dict[type[Resource[Any, Any]], Manifest] = {
    ModelReplica: REPLICA,
    ServingStack: STACK,
    LLMInference: INFERENCE,
    ModelCache: CACHE,
}


def begun() -> Operator:
    """Of a process that has seen the hub, and begins to lead."""
    made = assemble(Settings(helm="helm"), Access("https://127.0.0.1:1"), kinds)
    seen = {of(kind): manifest for kind, manifest in FOUND.items()}
    others: dict[ResourceType, Manifest] = {of(InferenceCluster): CLUSTER, of(EKSCluster): ON_CLOUD}
    for kind, manifest in {**seen, **others, NAMESPACE: known(TEAM)}.items():
        informer = made.manager.hub.find(kind)
        assert informer is not None
        informer.on_event(Event("ADDED", {"apiVersion": kind.api_version, "kind": kind.kind, **manifest}))
    return made


def runner(operator: Operator, kind: type[Resource[Any, Any]]) -> Runner:
    return next(one for one in operator.manager.runners if one.controller.kind is kind)


def tokens(operator: Operator) -> Tokens:
    run = next(one for one in operator.manager.runners.while_leading if one.__qualname__ == "Tokens.run")
    return run.__self__  # type: ignore[attr-defined,no-any-return]


async def planned(operator: Operator, kind: type[Resource[Any, Any]]) -> Plan:
    one = runner(operator, kind)
    return one.controller.plan(await one.controller.observe(kind.parse(FOUND[kind]), one.clients))


@pytest.mark.parametrize("kind", [ModelReplica, ServingStack, LLMInference])
async def test_what_is_on_a_cluster_whose_first_token_is_being_made_stays_as_it_was(
    kind: type[Resource[Any, Any]],
) -> None:
    decided = await planned(begun(), kind)

    assert (decided.steps, decided.status, decided.failure) == ((), None, None)


async def test_a_cache_says_of_such_a_cluster_what_it_said() -> None:
    decided = await planned(begun(), ModelCache)

    assert decided.status is not None
    assert decided.status.to_manifest()["clusters"] == CACHE["status"]["clusters"]


@pytest.mark.parametrize("refused", [False, True])
async def test_they_are_woken_when_there_is_a_token_and_when_none_can_be_made(
    monkeypatch: pytest.MonkeyPatch, *, refused: bool
) -> None:
    operator = begun()

    async def token(_: Accounts, __: Account, ___: str) -> str:
        if refused:
            raise Unauthorized("eks sign: no credentials")
        return "made"

    monkeypatch.setattr(Accounts, "fetch_token", token)
    for kind in FOUND:
        runner(operator, kind).workers.enqueue_all(())
    await tokens(operator).renew()

    queues = {kind: runner(operator, kind).workers.queue for kind in FOUND}
    assert {kind: queue.take(operator.manager.hub._prober.now()) for kind, queue in queues.items()} == {
        kind: key_of(manifest) for kind, manifest in FOUND.items()
    }
    assert (operator.manager.fleet.find("berlin") is None) is refused
    failure = (await planned(operator, ModelReplica)).failure
    assert isinstance(failure, Unreachable) is refused, "what is wrong is told"


async def test_a_cluster_that_has_the_name_of_an_earlier_one_has_its_charts_tried_at_once() -> None:
    operator = begun()
    helm, way = operator.helm, Access("https://127.0.0.1:1")
    assert helm is not None
    operator.manager.fleet.set("east", way)
    failed = Run("install", now := datetime.now(UTC), ended=now, error="no such host", failures=6)
    helm._runs["east", Key("cert-manager", "mp-cert-manager")] = failed
    operator.manager.fleet.set("east", way)
    assert helm.runs("east"), "it is the same cluster"

    operator.manager.fleet.remove("east")
    operator.manager.fleet.set("east", way)

    assert not helm.runs("east")


async def test_a_cluster_that_nobody_makes_a_token_for_is_out_of_reach() -> None:
    operator = begun()
    tokens(operator)._sources.clear()

    assert isinstance((await planned(operator, ModelReplica)).failure, Unreachable)
