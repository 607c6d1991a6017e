"""Nothing that a deployment says of an engine is lost on the way to its replicas."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest

from kubeloop.model import Model
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import DeployedEngine, Member, ModelDeployment, ReplicaSpec
from modelplane_operator.api.model_replica import ModelReplica, ModelReplicaSpec, PlacedEngine, PlacedMember
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.models.deployment.render import not_allowed, render_replica
from tests.support.manifests import ROOT, load

ELSEWHERE = {
    "ReplicaSpec": {"cluster_selector", "tolerations", "failover", "rollout"},
    "Member": {"node_selector"},
    "DeployedEngine": set[str](),
}
"""What becomes of a field by the placement, or is for the scheduler alone."""
TWINS = [(ReplicaSpec, ModelReplicaSpec), (DeployedEngine, PlacedEngine), (Member, PlacedMember)]


def filled() -> ModelDeployment:
    """A deployment that sets every field; some are one by default."""
    rich = next(one for one in load(ROOT / "tests/api/rich.yaml") if one["kind"] == "ModelDeployment")
    rich["metadata"]["uid"] = "uid-of-rich"
    for engine in rich["spec"]["template"]["spec"]["engines"]:
        engine["copies"] = engine["ranks"] = 2
    return ModelDeployment.parse(rich)


@cache
def written() -> tuple[ModelDeployment, ModelReplica]:
    deployment = filled()
    pods = {
        "allowedCapabilities": ["IPC_LOCK"],
        "allowedServiceAccounts": ["reader"],
        "allowedPriorityClasses": ["serving"],
        "allowedTolerations": ["example.com/gpu"],
        "allowedStorageClasses": ["local-nvme"],
        "allowedSeccompProfiles": ["profiles/engine.json"],
        "allowedPaths": ["/my-route"],
    }
    spec = {"cluster": {"source": "Existing"}, "isolation": {"pods": pods}}
    cluster = InferenceCluster.parse({"metadata": {"name": "a"}, "spec": spec})
    assert not_allowed(deployment, cluster) == []
    claims = (Claim("gpu", "gpu.nvidia.com", 1, ("true",)),)
    engines = tuple(
        EnginePlacement(engine.name, tuple(MemberPlacement(each.role, "h100", 1, claims) for each in engine.members))
        for engine in deployment.replica.engines
    )
    return deployment, ModelReplica.parse(render_replica(deployment, Placement("a", 0, engines), cluster))


def pairs() -> Iterator[tuple[Model, Model]]:
    """What is asked for, and what is placed."""
    deployment, replica = written()
    yield deployment.replica, replica.spec
    for engine, placed in zip(deployment.replica.engines, replica.spec.engines, strict=True):
        yield engine, placed
        yield from zip(engine.members, placed.members, strict=True)


@pytest.mark.parametrize(("asked", "placed"), TWINS)
def test_a_field_that_a_replica_lacks_is_known_to_be_for_the_scheduler(asked: type[Model], placed: type[Model]) -> None:
    assert asked.model_fields.keys() - placed.model_fields.keys() == ELSEWHERE[asked.__name__]


FIELDS = [
    (asked, name)
    for asked, placed in TWINS
    for name in asked.model_fields
    if name in placed.model_fields and name not in {"engines", "members", "serving"}
]


@pytest.mark.parametrize(("kind", "name"), FIELDS, ids=lambda part: getattr(part, "__name__", part))
def test_what_a_deployment_says_its_replica_says(kind: type[Model], name: str) -> None:
    found = [(getattr(asked, name), getattr(placed, name)) for asked, placed in pairs() if isinstance(asked, kind)]

    assert any(asked != kind.model_fields[name].default for asked, _ in found), "tests/api/rich.yaml sets it"
    assert [_plain(placed) for _, placed in found] == [_plain(asked) for asked, _ in found]


def _plain(value: object) -> object:
    """What it says: what is placed may say more of itself, as a type of its own."""
    return value.to_manifest() if isinstance(value, Model) else value


def test_a_replica_serves_as_its_deployment_says() -> None:
    deployment, replica = written()

    assert deployment.replica.serving is not None
    assert replica.spec.serving is not None
    assert replica.spec.serving.mode == deployment.replica.serving.mode == "PrefillDecode"
