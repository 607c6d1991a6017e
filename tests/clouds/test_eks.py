"""A cluster on AWS from first to last, by the real SDK over HTTP: moto, and an EKS that keeps to botocore's model."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Any

import pytest

from kubeloop.errors import NotFound
from modelplane_operator.clouds.eks import permissions
from modelplane_operator.clouds.eks.render import kinds, quotas
from modelplane_operator.clouds.resources import Endpoint, Quota, Reservation
from tests.support.aws.clusters import FABRIC, eks_cluster
from tests.support.aws.server import Fault
from tests.support.aws.world import AwsWorld
from tests.support.cloud_life import OWNER, Life
from tests.support.cloud_world import HOURS, PACE, ended, one_of_each
from tests.support.manifests import Manifest

pytestmark = pytest.mark.processes

TRIES = 5
PLAIN: Manifest = {
    "name": "l4",
    "role": "GPU",
    "instanceType": "g6.12xlarge",
    "minNodeCount": 1,
    "maxNodeCount": 4,
    "gpu": {"acceleratorType": "nvidia-l4"},
    "zones": ["us-west-2a"],
}


def _made(aws: AwsWorld, *pools: Manifest) -> Life[AwsWorld]:
    life = aws.live(eks_cluster(*(pools or (PLAIN,))), pace=PACE)
    life.until_settled(HOURS)
    return life


def _group(aws: AwsWorld, name: str) -> Mapping[str, Any]:
    return next(one for one in aws.listed().existing if one.key == f"nodegroup-{name}").live


def test_a_cluster_is_made_and_goes_without_leaving_anything(aws: AwsWorld) -> None:
    life = _made(aws, PLAIN, FABRIC)

    one_of_each(life)
    calls = aws.server.changes
    life.turn()
    assert aws.server.changes == calls, "at rest nothing is changed"
    ended(life)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("stride", "first"), [(11, 3), *(pytest.param(5, n, marks=pytest.mark.long) for n in range(5))]
)
def test_a_process_that_ends_all_the_time_makes_one_of_everything(aws: AwsWorld, stride: int, first: int) -> None:
    """Before calls, after them, and around reports: it lives long enough to announce a call and make it, no longer."""
    life = aws.live(eks_cluster(PLAIN, FABRIC), pace=PACE, kills=range(first, 100_000, stride))

    life.until_settled(HOURS)

    one_of_each(life)
    ended(life)


@pytest.mark.slow
@pytest.mark.parametrize(
    "fault", ["after", *(pytest.param(one, marks=pytest.mark.long) for one in ("before", "throttled"))]
)
def test_every_call_can_fail(aws: AwsWorld, fault: Fault) -> None:
    aws.server.faults = dict.fromkeys(range(1, 10_000, 2), fault)
    life = aws.live(eks_cluster(PLAIN, FABRIC), pace=PACE)

    life.until_settled(HOURS)

    one_of_each(life)
    ended(life)


def test_a_version_is_reached_one_by_one_and_nodes_follow_at_once(aws: AwsWorld) -> None:
    life = _made(aws)
    life.wanted = eks_cluster(PLAIN, version="1.38")

    life.until_settled(HOURS)

    asked = [
        operation for service, operation in aws.server.calls if operation.startswith("Update") and service == "eks"
    ]
    assert asked == ["UpdateClusterVersion", "UpdateClusterVersion", "UpdateNodegroupVersion", "UpdateNodegroupVersion"]
    assert {_group(aws, name)["version"] for name in ("system", "l4")} == {"1.38"}


def test_a_pool_changes_its_bounds_and_keeps_what_the_autoscaler_chose(aws: AwsWorld) -> None:
    life = _made(aws)
    life.wanted = eks_cluster({**PLAIN, "minNodeCount": 2, "maxNodeCount": 9})

    life.until_settled(HOURS)

    group = _group(aws, "l4")
    assert group["scaling"] == {"minSize": 2, "maxSize": 9}
    assert group["desiredSize"] == 2


def test_a_pool_that_is_removed_goes_alone_and_another_comes(aws: AwsWorld) -> None:
    life = _made(aws, PLAIN, FABRIC)
    before = {one.key: one.id for one in aws.listed().existing}
    life.wanted = eks_cluster(PLAIN)

    life.until_settled(HOURS)

    after = {one.key: one.id for one in aws.listed().existing}
    gone = before.keys() - after.keys()
    assert "nodegroup-h100" in gone
    assert all(key.startswith(("nodegroup-h100", "launch-template-h100", "efa-security-group")) for key in gone)
    assert after == {key: name for key, name in before.items() if key not in gone}


def test_a_machine_that_is_another_is_told_and_changes_nothing(aws: AwsWorld) -> None:
    life = _made(aws)
    calls = aws.server.changes
    life.wanted = eks_cluster({**PLAIN, "instanceType": "g6.48xlarge", "zones": ["us-west-2b"]})

    decision = life.turn()

    assert decision is not None and decision.steps == ()
    record = next(one for one in life.records if one.key == "nodegroup-l4")
    assert record.state == "Ready"
    words = "instanceTypes, subnets cannot be changed: add another one, then remove this one"
    assert record.message == words
    assert [(one.key, str(error)) for one, error in decision.errors] == [("nodegroup-l4", words)]
    assert aws.server.changes == calls


def test_a_pool_that_failed_is_told_and_made_again(aws: AwsWorld) -> None:
    life = aws.live(eks_cluster(PLAIN), pace=PACE)
    aws.server.eks.fail_next = {"nodegroup"}
    words = "Could not launch On-Demand Instances. VcpuLimitExceeded"
    aws.server.eks.issues = {"nodegroup": ("AsgInstanceLaunchFailures", words)}
    told: set[str] = set()
    for _ in range(200):
        decision = life.turn()
        assert decision is not None
        told |= {one.message or "" for one in life.records if one.state == "Failed"}
        aws.now += timedelta(seconds=max(PACE, decision.requeue_after))
        if all(one.state == "Ready" for one in life.records):
            break

    assert any(words in one for one in told)
    one_of_each(life)


def test_what_somebody_deleted_is_made_again(aws: AwsWorld) -> None:
    life = _made(aws)
    aws.ec2("disassociate_route_table", AssociationId=aws.id_of("route-table-association-0"))
    aws.iam("delete_role_policy", RoleName=aws.id_of("role-autoscaler"), PolicyName="autoscaler")
    aws.now += timedelta(minutes=5)

    life.turn()
    life.until_settled(HOURS)

    one_of_each(life)


def test_two_clusters_in_one_account_know_nothing_of_each_other(aws: AwsWorld) -> None:
    """Keys are the same; answers that tell of another's resources, too, change nothing."""
    _made(aws)
    before = sorted(aws.left)
    other = replace(OWNER, uid="uid-of-paris", cluster="paris")

    seen = aws.runner.run(aws.cloud.observe(other, [*kinds.KINDS], aws.now))
    assert (seen.existing, seen.unseen) == ((), {})
    assert sorted(aws.left) == before


def test_a_strangers_role_of_the_same_name_stops_it_and_stays(aws: AwsWorld) -> None:
    wanted = eks_cluster(PLAIN)
    name = next(one.parameters["RoleName"] for one in wanted if one.key == "role-node")
    aws.iam("create_role", RoleName=name, AssumeRolePolicyDocument="{}")
    life = aws.live(wanted, pace=PACE)
    for _ in range(3):
        decision = life.turn()
        assert decision is not None
        aws.now += timedelta(seconds=max(PACE, decision.requeue_after))

    message = {one.key: one.message or "" for one in life.records}["role-node"]
    assert "has no tag of the operator, so the operator leaves it alone" in message
    life.terminating = True
    life.until_settled(HOURS)
    assert {*aws.left} == {name}


@pytest.mark.slow
def test_what_ran_in_the_cluster_is_swept_and_what_others_made_in_its_network_is_not(aws: AwsWorld) -> None:
    life = _made(aws)
    vpc, cluster = aws.id_of("vpc"), aws.id_of("cluster")
    owned = {"Key": f"kubernetes.io/cluster/{cluster}", "Value": "owned"}
    group = aws.ec2("create_security_group", GroupName="k8s-elb-1", Description="-", VpcId=vpc)["GroupId"]
    aws.ec2("create_tags", Resources=[group], Tags=[owned])
    aws.ask(
        "elb",
        "create_load_balancer",
        LoadBalancerName="a1",
        Listeners=[{"Protocol": "tcp", "LoadBalancerPort": 80, "InstancePort": 80}],
        Subnets=[aws.id_of("subnet-0")],
        SecurityGroups=[group],
        Tags=[owned],
    )
    volume = aws.ec2("create_volume", AvailabilityZone="us-west-2a", Size=1)["VolumeId"]
    aws.ec2("create_tags", Resources=[volume], Tags=[owned])
    theirs = aws.ec2("create_subnet", VpcId=vpc, CidrBlock="10.0.200.0/24")["Subnet"]["SubnetId"]

    life.turn()
    assert not any(one.state == "Deleting" for one in life.records), "while the cluster is there, it stays"
    life.terminating = True
    for _ in range(120):
        decision = life.turn()
        assert decision is not None
        aws.now += timedelta(seconds=max(PACE, decision.requeue_after))
        if {one.key for one in life.records} == {"vpc"} and life.records[0].message:
            break
    assert {one.key for one in life.records} == {"vpc"}
    assert "DependencyViolation" in (life.records[0].message or "")

    aws.ec2("delete_subnet", SubnetId=theirs)
    life.until_settled(HOURS)
    assert aws.left == []


def test_credentials_that_are_refused_are_told_and_change_nothing(aws: AwsWorld) -> None:
    life = _made(aws)
    before = [(one.key, one.id) for one in life.records]
    aws.server.denied = "ec2"
    aws.now += timedelta(minutes=5)

    decision = life.turn()

    assert decision is not None and decision.steps == ()
    assert {type(error).__name__ for _, error in decision.errors} == {"Forbidden"}
    assert [(one.key, one.id) for one in life.records] == before


def test_a_cluster_of_any_owner_is_found_by_its_name(aws: AwsWorld) -> None:
    _made(aws, PLAIN)
    found = aws.runner.run(aws.cloud.endpoint(name := aws.id_of("cluster")))

    assert found == Endpoint(f"https://{name}.invalid", "Y2E=")
    with pytest.raises(NotFound):
        aws.runner.run(aws.cloud.endpoint("another"))


def test_what_there_is_and_may_be_had_is_told_before_anything_is_made(aws: AwsWorld) -> None:
    block = {
        "InstanceType": "p5.48xlarge",
        "AvailabilityZone": "us-west-2b",
        "TotalInstanceCount": 4,
        "State": "active",
    }
    aws.server.quotas.blocks = {"cr-1": block}
    aws.server.quotas.own = {quotas.PARALLEL: 96}

    for _ in range(TRIES):  # a busy machine may take longer for an answer than AWS is given
        offer = aws.runner.run(aws.cloud.fetch_offer({"p5.48xlarge", "m6i.xlarge"}, {"cr-1", "cr-2"}))
        if not offer.unasked:
            break

    assert (offer.unasked, offer.later) == ((), "")
    assert {"1.36", "1.31"} & offer.versions == {"1.36"}
    assert offer.cores == {"p5.48xlarge": 192, "m6i.xlarge": 4}
    assert offer.reservations == {"cr-1": Reservation("p5.48xlarge", "us-west-2b", 4, "active"), "cr-2": None}
    assert offer.quotas[quotas.PARALLEL].limit == 96
    assert offer.quotas[quotas.PARALLEL].used == 0
    assert offer.quotas[quotas.VPCS] == Quota("VPCs per Region (L-F678F1CE)", 5, 1)
    assert offer.quotas[quotas.STANDARD].limit == 640, "the quota that nobody has changed is AWS's own"
    assert quotas.GRAPHICS not in offer.quotas


def test_a_question_that_is_refused_is_told_and_the_others_are_asked(aws: AwsWorld) -> None:
    aws.server.denied = "servicequotas"

    offer = aws.runner.run(aws.cloud.fetch_offer({"m6i.xlarge"}, ()))

    assert offer.quotas == {}
    assert offer.versions
    assert all("service-quotas get_service_quota" in one for one in offer.unasked)
    assert offer.unasked


@pytest.mark.slow
def test_the_policy_allows_what_is_called_and_nothing_else(aws: AwsWorld) -> None:
    """In a life in which everything happens that there are calls for."""
    life = _made(aws, PLAIN, FABRIC)
    trust = next(one for one in life.wanted if one.key == "role-cluster").parameters["AssumeRolePolicyDocument"]
    aws.iam("update_assume_role_policy", RoleName=aws.id_of("role-node"), PolicyDocument=json.dumps(trust))
    life.wanted = eks_cluster({**PLAIN, "maxNodeCount": 9}, FABRIC, version="1.37")
    life.until_settled(HOURS)
    life.wanted = eks_cluster(PLAIN, version="1.37")  # without a fabric its security group goes, and its rules before
    life.until_settled(HOURS)
    life.terminating = True
    life.until_settled(HOURS)
    aws.runner.run(aws.cloud.fetch_offer({"p5.48xlarge"}, {"cr-1"}))
    prefixes = permissions.PREFIXES
    called = {f"{prefixes.get(service, service)}:{operation}" for service, operation in aws.server.calls}

    allowed = permissions.reads() | permissions.changes()
    assert called - allowed == set()
    assert allowed - called == UNCALLED


UNCALLED = {
    # What is asked of the account before, and of what ran in the cluster.
    "ec2:DescribeAvailabilityZones",
    "ec2:DescribeInstanceTypeOfferings",
    "sts:GetCallerIdentity",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteVolume",
    "elasticfilesystem:DeleteAccessPoint",
    "elasticloadbalancing:DeleteLoadBalancer",
    "elasticloadbalancing:DescribeTags",
    # What goes with its cluster or its table, unless it goes alone, and what is right when it is made.
    "ec2:DeleteRoute",
    "eks:UpdateAddon",
    "ec2:ReplaceRoute",
    "eks:DeleteAccessEntry",
    "eks:DeleteAddon",
    "eks:DeletePodIdentityAssociation",
    "eks:DisassociateAccessPolicy",
}
"""The calls that this life has no occasion for; other tests have."""
