"""Render the IAM roles and policies of a cluster, its nodes and its pods."""

from __future__ import annotations

from collections.abc import Iterator

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
    for key, (service, *actions) in ROLES.items():
        action = actions[0] if len(actions) == 1 else actions  # IAM returns a single action as a string
        statement = {"Effect": "Allow", "Principal": {"Service": service}, "Action": action}
        trust_policy = {"Version": "2012-10-17", "Statement": [statement]}
        parameters = {"RoleName": plan.name(key), "AssumeRolePolicyDocument": trust_policy}
        yield DesiredResource(key, k.ROLE, parameters, updatable=frozenset({"AssumeRolePolicyDocument"}))
    for role, policies in POLICIES_OF.items():
        for policy in policies:
            arn = f"arn:{plan.facts.partition}:iam::aws:policy/{policy}"
            parameters = {"RoleName": Ref(role), "PolicyArn": arn}
            yield DesiredResource(f"{role}-{policy.rpartition('/')[2]}", k.ROLE_POLICY, parameters)
    # The autoscaler may read everything, and change only this cluster's groups.
    condition = {"StringEquals": {f"aws:ResourceTag/kubernetes.io/cluster/{plan.name()}": "owned"}}
    statements = [
        {"Effect": "Allow", "Action": [*_READS], "Resource": "*"},
        {"Effect": "Allow", "Action": [*_WRITES], "Resource": "*", "Condition": condition},
    ]
    document = {"Version": "2012-10-17", "Statement": statements}
    yield DesiredResource(
        f"role-autoscaler-{AUTOSCALER}",
        k.INLINE_POLICY,
        {"RoleName": Ref("role-autoscaler"), "PolicyName": AUTOSCALER, "PolicyDocument": document},
        updatable=frozenset({"PolicyDocument"}),
    )


def policy_keys(role: str) -> tuple[str, ...]:
    """Return the keys of a role's policies."""
    return tuple(f"{role}-{policy.rpartition('/')[2]}" for policy in POLICIES_OF.get(role, (AUTOSCALER,)))
