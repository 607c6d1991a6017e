"""Fences that something enforces: on clusters that are made now, and what becomes of those that were made before."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from datetime import timedelta
from hashlib import sha256
from typing import Any

import pytest

from modelplane_operator.api.clusters.gke import GKECluster
from modelplane_operator.clouds.conditions import compute_conditions
from modelplane_operator.clouds.eks.plan import template_keys
from modelplane_operator.clouds.eks.render import kinds
from modelplane_operator.clouds.eks.render.nodes import CNI, CNI_IDENTITY
from modelplane_operator.clouds.eks.render.plan import Facts
from modelplane_operator.clouds.gke import render as gke
from modelplane_operator.clouds.gke.plan import GKE
from modelplane_operator.clouds.preflight import PreflightResult
from modelplane_operator.clouds.resources import DesiredResource, Ref
from tests.support.aws.clusters import FABRIC, FACTS, eks_cluster
from tests.support.aws.world import AwsWorld
from tests.support.cloud_life import OWNER, Life
from tests.support.cloud_world import HOURS, PACE, CloudWorld, ended, one_of_each
from tests.support.google.server import PROJECT
from tests.support.google.world import GoogleWorld
from tests.support.manifests import Manifest

pytestmark = pytest.mark.processes

L4: Manifest = {
    "name": "l4",
    "role": "GPU",
    "instanceType": "g6.12xlarge",
    "gpu": {"acceleratorType": "nvidia-l4"},
    "zones": ["us-west-2a"],
}
CNI_POLICY = "arn:aws:iam::aws:policy/AmazonEKS_CNI_Policy"
OF_THE_CNI = {CNI_IDENTITY, "role-cni", "role-cni-AmazonEKS_CNI_Policy"}


def _on_gke() -> tuple[DesiredResource, ...]:
    cluster = GKECluster.parse(
        {
            "apiVersion": GKECluster.definition.api_version,
            "kind": "GKECluster",
            "metadata": {"name": OWNER.cluster, "namespace": "modelplane-system", "uid": OWNER.uid},
            "spec": {
                "region": "us-central1",
                "nodePools": [{"name": "l4", "role": "System", "machineType": "e2-standard-4"}],
            },
        }
    )
    return gke.resources(cluster, gke.Facts(PROJECT))


def _without(
    wanted: tuple[DesiredResource, ...], *parameters: str, keys: Collection[str] = ()
) -> tuple[DesiredResource, ...]:
    """Return the same without these parameters, and without the resources of these keys."""

    def cut(one: DesiredResource) -> DesiredResource:
        said = {name: value for name, value in one.parameters.items() if name not in parameters}
        needs = tuple(need for need in one.needs if need not in keys)
        return replace(one, parameters=said, needs=needs, updatable=one.updatable - {*parameters})

    return tuple(cut(one) for one in wanted if one.key not in keys)


def _with_old_templates(wanted: tuple[DesiredResource, ...]) -> tuple[DesiredResource, ...]:
    """Return the same with templates as they were before pods were kept from the metadata service."""
    renamed: dict[str, str] = {}

    def older(one: DesiredResource) -> DesiredResource:
        if one.kind == kinds.LAUNCH_TEMPLATE:
            content = {k: v for k, v in one.parameters["LaunchTemplateData"].items() if k != "MetadataOptions"}
            digest = sha256(repr(content).encode()).hexdigest()[:8]
            renamed[one.key] = f"{one.key.rpartition('-')[0]}-{digest}"
            return replace(one, key=renamed[one.key], parameters={**one.parameters, "LaunchTemplateData": content})
        if ref := one.parameters.get("launchTemplate"):
            other = {**ref, "id": replace(ref["id"], key=renamed[ref["id"].key])}
            return replace(one, parameters={**one.parameters, "launchTemplate": other})
        return one

    return tuple(older(one) for one in wanted)


def _made_before(aws: AwsWorld, *pools: Manifest) -> Life[AwsWorld]:
    """Have a cluster made as operators before made it: L4 without a template, FABRIC with one of another content."""
    plain = replace(FACTS, templates={"nodegroup-l4": ""})
    wanted = _with_old_templates(_without(eks_cluster(*pools, facts=plain), "configurationValues", keys=OF_THE_CNI))
    aws.server.eks.takes_unfenced = True
    life = aws.live(wanted, pace=PACE)
    life.until_settled(HOURS)
    aws.iam("attach_role_policy", RoleName=aws.id_of("role-node"), PolicyArn=CNI_POLICY)
    aws.server.calls.clear()
    return life


def _facts(aws: AwsWorld) -> Facts:
    """Return what the operator knows of the cluster."""
    found = aws.listed().existing
    values = next(str(one.live["configurationValues"]) for one in found if one.key == CNI)
    return replace(FACTS, templates=template_keys(found), cni=values)


def _groups(aws: AwsWorld) -> Mapping[str, Any]:
    return {one.key: one.live for one in aws.listed().existing if one.kind == kinds.NODEGROUP}


def _policies_of_nodes(aws: AwsWorld) -> set[str]:
    said = aws.iam("list_attached_role_policies", RoleName=aws.id_of("role-node"))
    return {one["PolicyName"] for one in said["AttachedPolicies"]}


def test_a_new_cluster_on_eks_has_its_fences_and_nodes_without_the_permissions_of_the_cni(aws: AwsWorld) -> None:
    life = aws.live(eks_cluster(L4, FABRIC), pace=PACE)
    life.until_settled(HOURS)

    one_of_each(life)
    assert _policies_of_nodes(aws) == {"AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryReadOnly"}
    assert _facts(aws).cni == '{"enableNetworkPolicy": "true"}'


def test_a_cluster_on_eks_that_was_made_before_keeps_its_nodes_and_gets_fences(aws: AwsWorld) -> None:
    life = _made_before(aws, L4, FABRIC)
    before = _groups(aws)
    life.wanted = eks_cluster(L4, FABRIC, facts=_facts(aws))

    life.until_settled(HOURS)

    one_of_each(life)
    assert _groups(aws) == before
    assert all(one.message is None for one in life.records), "nothing is reported that nobody can change"
    changes = [one for _, one in aws.server.calls if not one.startswith(("Describe", "Get", "List"))]
    assert changes == ["CreateRole", "AttachRolePolicy", "CreatePodIdentityAssociation", "UpdateAddon"]
    assert json.loads(_facts(aws).cni) == {"enableNetworkPolicy": "true"}
    assert "AmazonEKS_CNI_Policy" in _policies_of_nodes(aws), "nobody can tell whether all pods of the CNI do without"
    ended(life)


def test_a_pool_that_comes_to_a_cluster_that_was_made_before_is_as_on_a_new_one(aws: AwsWorld) -> None:
    life = _made_before(aws, L4)
    other = {**L4, "name": "other"}
    life.wanted = eks_cluster(L4, other, facts=_facts(aws))

    life.until_settled(HOURS)

    one_of_each(life)
    assert "launchTemplate" not in _groups(aws)["nodegroup-l4"]
    assert "launchTemplate" in _groups(aws)["nodegroup-other"]


@pytest.mark.parametrize("pool", [L4, FABRIC], ids=["plain", "fabric"])
def test_a_group_whose_template_would_be_another_says_so_and_keeps_it(aws: AwsWorld, pool: Manifest) -> None:
    """AWS never takes another template for a group, and a group without its template makes no nodes."""
    life = aws.live(eks_cluster(pool), pace=PACE)
    life.until_settled(HOURS)
    before, calls = _groups(aws), aws.server.changes
    life.wanted = eks_cluster({**pool, "diskSizeGb": 500}, facts=_facts(aws))

    decision = life.turn()

    assert decision is not None and decision.steps == ()
    words = "launchTemplate cannot be changed: add another one, then remove this one"
    assert [(one.key, str(error)) for one, error in decision.errors] == [(f"nodegroup-{pool['name']}", words)]
    assert (_groups(aws), aws.server.changes) == (before, calls)
    ended(life)


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ("", {"enableNetworkPolicy": "true"}),
        ('{"enableNetworkPolicy": "false"}', {"enableNetworkPolicy": "true"}),
        ("env:\n  WARM_IP_TARGET: '5'\n", {"enableNetworkPolicy": "true", "env": {"WARM_IP_TARGET": "5"}}),
    ],
)
def test_what_somebody_has_set_for_the_cni_stays_beside_it(values: str, expected: Manifest) -> None:
    addon = next(one for one in eks_cluster(L4, facts=replace(FACTS, cni=values)) if one.key == CNI)

    assert json.loads(addon.parameters["configurationValues"]) == expected


def test_what_is_right_for_the_cni_stays_as_it_is_written() -> None:
    values = "enableNetworkPolicy: true\nenv: {WARM_IP_TARGET: '5'}"
    addon = next(one for one in eks_cluster(L4, facts=replace(FACTS, cni=values)) if one.key == CNI)

    assert addon.parameters["configurationValues"] == values


def _is_refused(life: Life[Any], words: str) -> bool:
    """True if a life comes to be refused with these words."""
    world: CloudWorld[Any, Any] = life.cloud
    for _ in range(100):
        decision = life.turn()
        assert decision is not None
        if any(words in str(error) for _, error in decision.errors):
            return True
        world.now += timedelta(seconds=max(PACE, decision.requeue_after))
    return False


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda one: _without(one, "configurationValues"), "NetworkPolicies would not be enforced"),
        (_with_old_templates, "would reach the metadata service"),
        (lambda one: _without(one, keys=OF_THE_CNI), "The CNI would have no permissions"),
    ],
    ids=["policies", "metadata", "identity"],
)
def test_the_stand_in_for_eks_refuses_a_cluster_without_its_fences(
    aws: AwsWorld, change: Callable[[tuple[DesiredResource, ...]], tuple[DesiredResource, ...]], words: str
) -> None:
    assert _is_refused(aws.live(change(eks_cluster(L4)), pace=PACE), words)


def test_the_stand_in_for_eks_refuses_nodes_with_the_permissions_of_the_cni(aws: AwsWorld) -> None:
    policy = DesiredResource("extra", kinds.ROLE_POLICY, {"RoleName": Ref("role-node"), "PolicyArn": CNI_POLICY})

    assert _is_refused(aws.live((*eks_cluster(L4), policy), pace=PACE), "permissions of the CNI")


@pytest.mark.parametrize(
    ("without", "words"),
    [
        ("network_config", "NetworkPolicies would not be enforced"),
        ("workload_identity_config", "GKE_METADATA needs a workload pool"),
    ],
)
def test_the_stand_in_for_gke_refuses_a_cluster_without_its_fences(
    google: GoogleWorld, without: str, words: str
) -> None:
    life = google.live(_without(_on_gke(), without), pace=PACE)

    assert _is_refused(life, words)


def test_a_cluster_on_gke_that_was_made_before_stays_and_says_that_its_fences_are_not_enforced(
    google: GoogleWorld,
) -> None:
    google.server.state.takes_unfenced = True
    life = google.live(_without(_on_gke(), "network_config"), pace=PACE)
    life.until_settled(HOURS)
    calls = google.server.changes
    life.wanted = _on_gke()
    google.now += timedelta(minutes=6)

    decision = life.turn()

    assert decision is not None
    assert (decision.steps, decision.errors) == ((), ())
    assert google.server.changes == calls
    said = {
        one.type: one
        for one in compute_conditions(decision, GKE.parts, google.now, PreflightResult(), (), terminating=False)
    }
    assert said["ControlPlaneReady"].message.startswith("Resource cluster is Ready: NetworkPolicies are not enforced")
    assert (said["Ready"].status, said["Stalled"].status) == ("True", "False")


def test_a_new_cluster_on_gke_says_nothing_of_its_fences(google: GoogleWorld) -> None:
    life = google.live(_on_gke(), pace=PACE)
    life.until_settled(HOURS)

    assert {one.message for one in life.records} == {None}
