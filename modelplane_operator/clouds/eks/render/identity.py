"""Render the IAM roles and policies of a cluster, its nodes and its pods."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import DesiredResource, Ref

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
"""Roles of a cluster, each with the service that may assume it and the actions for that."""
AUTOSCALER = "autoscaler"
"""Name of the inline policy of the autoscaler's role."""
POLICIES_OF = {
    "role-cluster": ("AmazonEKSClusterPolicy",),
    # The CNI's policy is not here: with it, a node could give any address to any machine of the account. A cluster
    # from before the CNI had its own role keeps the policy, as if it were attached by hand: AWS cannot tell whether
    # every pod of the CNI was restarted since, and an old pod would be left without permissions.
    "role-node": ("AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryReadOnly"),
    "role-cni": ("AmazonEKS_CNI_Policy",),
    "role-efs-csi": ("service-role/AmazonEFSCSIDriverPolicy",),
}
"""Policies managed by AWS that are attached to each role."""


def identity(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield the roles and their policies."""
    for key, trusted in ROLES.items():
        parameters = {"RoleName": plan.name(key), "AssumeRolePolicyDocument": _trust_policy(*trusted)}
        yield DesiredResource(key, k.ROLE, parameters, updatable=frozenset({"AssumeRolePolicyDocument"}))
    for role, policies in POLICIES_OF.items():
        for policy in policies:
            arn = f"arn:{plan.facts.partition}:iam::aws:policy/{policy}"
            parameters = {"RoleName": Ref(role), "PolicyArn": arn}
            yield DesiredResource(f"{role}-{policy.rpartition('/')[2]}", k.ROLE_POLICY, parameters)
    yield DesiredResource(
        f"role-autoscaler-{AUTOSCALER}",
        k.INLINE_POLICY,
        {"RoleName": Ref("role-autoscaler"), "PolicyName": AUTOSCALER, "PolicyDocument": _autoscaler_policy(plan)},
        updatable=frozenset({"PolicyDocument"}),
    )


def policy_keys(role: str) -> tuple[str, ...]:
    """Return the keys of a role's policies."""
    return tuple(f"{role}-{policy.rpartition('/')[2]}" for policy in POLICIES_OF.get(role, (AUTOSCALER,)))


def _trust_policy(service: str, *actions: str) -> dict[str, Any]:
    """Return the trust policy that lets a service assume a role."""
    statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": _as_iam_returns(actions)}
    return {"Version": "2012-10-17", "Statement": [statement]}


def _as_iam_returns(actions: Sequence[str]) -> str | list[str]:
    """Return the actions in the form in which IAM returns them: a string if there is only one."""
    return actions[0] if len(actions) == 1 else [*actions]


def _autoscaler_policy(plan: Blueprint) -> dict[str, Any]:
    """Return the autoscaler's policy: read everything, and change only this cluster's groups."""
    condition = {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{plan.name()}": "owned"}}
    return {
        "Version": "2012-10-17",
        "Statement": [
            {"Effect": "Allow", "Action": [*_READS], "Resource": "*"},
            {"Effect": "Allow", "Action": [*_WRITES], "Resource": "*", "Condition": condition},
        ],
    }
