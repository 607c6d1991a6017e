"""What is watched and kept of the hub's objects, and of those of clusters, by what controllers declare."""

from __future__ import annotations

from typing import Any, cast

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.cache.watches import Watched
from kubeloop.loop import Controller, map_to_nothing
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.types import DEPLOYMENT, LEADER_WORKER_SET, SECRET, ResourceType
from kubeloop.watched import collect_watches, indexes
from modelplane_operator.api import KINDS, ModelCache, ModelEndpoint, ModelReplica, ServingStack, names
from modelplane_operator.api.labels import APPLIED, FIELD_MANAGER
from modelplane_operator.operator import OWN_TYPES
from tests.api.contract import rich
from tests.support.declared import declared

REPLICAS = of(ModelReplica)
HUB_ALONE = {"ModelDeployment", "ModelService", "ModelEndpoint", "InferenceClass", "InferenceGateway"}
"""They are woken by what is on clusters, and ask only the hub."""


def controller(kind: Any, **declares: Any) -> Controller[Any, Any]:
    return Controller(kind, cast("Any", None), cast("Any", None), **declares)


async def test_who_asks_clusters_has_an_end_and_leaves_others_room() -> None:
    """A cluster that answers each request a moment before its deadline would keep all workers, and look stuck."""
    asking = [one for one in await declared() if one.remote_watches or one.on_connection is not map_to_nothing]

    assert {one.type.kind for one in asking} >= {"ModelReplica", "ModelCache", "InferenceCluster", "LLMInference"}
    for one in asking:
        example = rich()[one.type.kind]
        metadata = {"namespace": "team", **example["metadata"]}
        assert one.type.kind in HUB_ALONE or one.concurrency_key({**example, "metadata": metadata}), one.type


@pytest.mark.parametrize("kind", [DEPLOYMENT, LEADER_WORKER_SET], ids=lambda kind: kind.kind)
async def test_nothing_is_kept_of_the_pods_of_a_clusters_workloads(kind: ResourceType) -> None:
    """Whatever other controller has the type watched, too."""
    _, remote = collect_watches(await declared(), OWN_TYPES, names.SYSTEM_NAMESPACE)
    (one,) = (each for each in remote if each.type == kind)
    informer = Informer(kind, lambda: 0.0, keeping=one.keeping)
    metadata = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1", "annotations": {APPLIED: "0f"}}
    applied = {"manager": FIELD_MANAGER, "operation": "Apply", "fieldsV1": {"f:spec": {}}}
    told = {"metadata": {**metadata, "managedFields": [applied]}, "spec": {"template": "x" * 2**20}, "status": {}}

    informer.on_write(told)

    entry = informer.entry(Key("team", "a"))
    assert entry is not None
    assert one.only_ours
    assert (informer.size < 1000, entry.owned, entry.manifest["metadata"]) == (True, '{"f:spec":{}}', metadata)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.definition.kind)
@pytest.mark.parametrize("gateway", ["helm", "apart"])
async def test_nothing_is_kept_of_what_is_there_for_crossplane(kind: type[ModelEndpoint], gateway: str) -> None:
    """Objects composed by hundreds are accepted for every kind, and nobody here reads them.

    InferenceGateways are read by the operator, too, where a pod of its own reconciles them.
    """
    near, _ = collect_watches(await declared(hub_gateway=gateway), OWN_TYPES, names.SYSTEM_NAMESPACE)
    (one,) = (each for each in near if each.type == of(kind))
    informer = Informer(of(kind), lambda: 0.0, keeping=one.keeping)
    composed = [{"apiVersion": "v1", "kind": "ConfigMap", "name": "x" * 200}] * 1000
    metadata = {"name": "a", "namespace": "team", "uid": "u", "resourceVersion": "1"}

    informer.on_write({"metadata": metadata, "spec": {"crossplane": {"resourceRefs": composed}, "kept": "this"}})

    assert informer.size < 1000
    kept = informer.get(Key("team", "a"))
    assert kept is not None
    assert kept["spec"] == {"kept": "this"}


async def test_each_kind_has_its_controller_in_a_folder_of_its_name() -> None:
    folders = {one.type.kind: one.observe.__module__.split(".")[-2:] for one in await declared()}

    assert len(folders) == len(await declared()), "each kind has one controller"
    for kind, (folder, module) in folders.items():
        assert folder.replace("_", "") in kind.lower()
        assert module == "controller"


async def test_the_order_in_which_kinds_are_declared_changes_nothing() -> None:
    controllers = await declared()

    assert collect_watches(controllers, OWN_TYPES, names.SYSTEM_NAMESPACE) == collect_watches(
        controllers[::-1], OWN_TYPES, names.SYSTEM_NAMESPACE
    )
    assert {one.type.kind for one in controllers} >= {"InferenceCluster", "ServingStack"}, "they share indexes"


def test_several_controllers_may_declare_one_index_and_each_adds_its_own() -> None:
    def by_name(manifest: Any) -> tuple[str, ...]:
        return (manifest["metadata"]["name"],)

    def by_uid(manifest: Any) -> tuple[str, ...]:
        return (manifest["metadata"]["uid"],)

    one = controller(ModelReplica, indexes={REPLICAS: {"name": by_name}})
    other = controller(ModelCache, indexes={REPLICAS: {"name": by_name, "uid": by_uid}, SECRET: {"name": by_uid}})

    assert indexes((one, other)) == {REPLICAS: {"name": by_name, "uid": by_uid}, SECRET: {"name": by_uid}}


@pytest.mark.parametrize(
    ("one", "other", "said"),
    [
        (
            {"indexes": {REPLICAS: {"cluster": lambda _: ("a",)}}},
            {"indexes": {REPLICAS: {"cluster": lambda _: ("b",)}}},
            "The controllers of ModelReplica and ServingStack declare the index cluster of ModelReplicas differently",
        ),
        (
            {"watched_remotely": (Watched(SECRET, bare=True),)},
            {"watched_remotely": (Watched(SECRET, spare=True),)},
            "The controllers of ModelReplica and ServingStack declare how Secrets are watched on workload clusters "
            "differently",
        ),
    ],
    ids=["indexes", "watched remotely"],
)
def test_two_controllers_that_contradict_each_other_are_named(
    one: dict[str, Any], other: dict[str, Any], said: str
) -> None:
    with pytest.raises(ValueError, match=f"^{said}$"):
        collect_watches(
            (controller(ModelReplica, **one), controller(ServingStack, **other)), OWN_TYPES, names.SYSTEM_NAMESPACE
        )
