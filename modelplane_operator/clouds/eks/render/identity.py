"""Whom AWS takes the cluster, its nodes and what runs in it for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import Ref, Wanted

_READS = (
    "autoscaling:DescribeAutoScalingGroups",
    "autoscaling:DescribeAutoScalingInstances",
    "autoscaling:DescribeLaunchConfigurations",
    "autoscaling:DescribeScalingActivities",
    "ec2:DescribeImages",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeLaunchTemplateVersions",
    "ec2:GetInstanceTypesFromInstanceRequirements",
    "eks:DescribeNodegroup",
)
_WRITES = ("autoscaling:SetDesiredCapacity", "autoscaling:TerminateInstanceInAutoScalingGroup")
_OF_PODS = ("pods.eks.amazonaws.com", "sts:AssumeRole", "sts:TagSession")
ROLES = {
    "role-cluster": ("eks.amazonaws.com", "sts:AssumeRole"),
    "role-node": ("ec2.amazonaws.com", "sts:AssumeRole"),
    "role-cni": _OF_PODS,
    "role-efs-csi": _OF_PODS,
    "role-autoscaler": _OF_PODS,
}
"""The roles of a cluster, with the service that may take each, and by which actions."""
AUTOSCALER = "autoscaler"
"""The policy that is written for the role of the autoscaler alone."""
POLICIES_OF = {
    "role-cluster": ("AmazonEKSClusterPolicy",),
    # Not the CNI's: with that, a node may give any address to any machine of the account. A cluster that
    # was made before the CNI had a role keeps it, as what somebody else gave the role: the cloud cannot say whether
    # every pod of the CNI has been started since, and one that was not would have no permissions left.
    "role-node": ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryReadOnly"),
    "role-cni": ("AmazonEKS_CNI_Policy",),
    "role-efs-csi": ("service-role/AmazonEFSCSIDriverPolicy",),
}
"""The policies that AWS keeps for each role."""


def identity(plan: Blueprint) -> Iterator[Wanted]:
    for key, trusted in ROLES.items():
        said = {"RoleName": plan.name(key), "AssumeRolePolicyDocument": _trust(*trusted)}
        yield Wanted(key, k.ROLE, said, kept=frozenset({"AssumeRolePolicyDocument"}))
    for role, policies in POLICIES_OF.items():
        for policy in policies:
            arn = f"arn:{plan.facts.partition}:iam::aws:policy/{policy}"
            said = {"RoleName": Ref(role), "PolicyArn": arn}
            yield Wanted(f"{role}-{policy.rpartition('/')[2]}", k.ROLE_POLICY, said)
    yield Wanted(
        f"role-autoscaler-{AUTOSCALER}",
        k.INLINE_POLICY,
        {"RoleName": Ref("role-autoscaler"), "PolicyName": AUTOSCALER, "PolicyDocument": _autoscaler(plan)},
        kept=frozenset({"PolicyDocument"}),
    )


def attached_to(role: str) -> tuple[str, ...]:
    """The keys of what a role may do."""
    return tuple(f"{role}-{policy.rpartition('/')[2]}" for policy in POLICIES_OF.get(role, (AUTOSCALER,)))


def _trust(service: str, *actions: str) -> dict[str, Any]:
    allowed = {"Effect": "Allow", "Principal": {"Service": service}, "Action": _one_or_all(actions)}
    return {"Version": "2012-10-17", "Statement": [allowed]}


def _one_or_all(actions: Sequence[str]) -> str | list[str]:
    """As IAM gives it back."""
    return actions[0] if len(actions) == 1 else [*actions]


def _autoscaler(plan: Blueprint) -> dict[str, Any]:
    """What the autoscaler may do: look at everything, and change what is this cluster's."""
    owned = {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{plan.name()}": "owned"}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": [*_READS], "Resource": "*"},
            {"Effect": "Allow", "Action": [*_WRITES], "Resource": "*", "Condition": owned},
        ],
    }
