"""Generate the operator's IAM policy from the tables of calls, for `examples/access/eks-policy.json`.

A test compares it with every call of a cluster's lifecycle, in both directions.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Final

from modelplane_operator.clouds.eks.changes import ROWS, service_of
from modelplane_operator.clouds.eks.render import kinds as k

PREFIXES: Final[Mapping[str, str]] = {
    "efs": "elasticfilesystem",
    "elb": "elasticloadbalancing",
    "elbv2": "elasticloadbalancing",
    "service-quotas": "servicequotas",
}
"""IAM's name of a service, where it differs from the SDK's."""
READS: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2": (
        "describe_addresses",
        "describe_availability_zones",
        "describe_capacity_reservations",
        "describe_instance_type_offerings",
        "describe_instance_types",
        "describe_instances",
        "describe_internet_gateways",
        "describe_launch_templates",
        "describe_nat_gateways",
        "describe_network_interfaces",
        "describe_route_tables",
        "describe_security_group_rules",
        "describe_security_groups",
        "describe_subnets",
        "describe_volumes",
        "describe_vpc_attribute",
        "describe_vpcs",
    ),
    "efs": ("describe_access_points", "describe_file_systems", "describe_mount_targets"),
    "eks": (
        "describe_access_entry",
        "describe_addon",
        "describe_cluster",
        "describe_cluster_versions",
        "describe_nodegroup",
        "describe_pod_identity_association",
        "list_access_entries",
        "list_addons",
        "list_associated_access_policies",
        "list_clusters",
        "list_nodegroups",
        "list_pod_identity_associations",
    ),
    "elb": ("describe_load_balancers", "describe_tags"),
    "iam": ("get_role", "get_role_policy", "list_attached_role_policies", "list_role_policies"),
    "service-quotas": ("get_aws_default_service_quota", "get_service_quota"),
    "sts": ("get_caller_identity",),
}
"""Operations that change nothing, by service."""
_UPDATES: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2": ("modify_subnet_attribute", "modify_vpc_attribute", "replace_route"),
    "eks": ("update_addon", "update_cluster_version", "update_nodegroup_config", "update_nodegroup_version"),
    "iam": ("update_assume_role_policy",),
}
"""Operations that update a resource, by service."""
_BY_DIRECTION: Final = tuple(
    f"{verb}_security_group_{direction}" for verb in ("authorize", "revoke") for direction in ("egress", "ingress")
)
"""Operations on rules of security groups."""
IMPLIED: Final = (
    "ec2:CreateTags",
    "ec2:RunInstances",
    "eks:TagResource",
    "elasticfilesystem:TagResource",
    "iam:CreateServiceLinkedRole",
    "iam:PassRole",
    "iam:TagRole",
)
"""Actions that AWS requires in addition to the call itself: tags at creation, passed roles, nodes of a template."""


def action(service: str, operation: str) -> str:
    """Return IAM's name of an operation of the SDK."""
    name = "".join("AWS" if part == "aws" else part.capitalize() for part in operation.split("_"))
    return f"{PREFIXES.get(service, service)}:{name}"


def reads() -> frozenset[str]:
    return frozenset(action(service, operation) for service, operations in READS.items() for operation in operations)


def changes() -> frozenset[str]:
    """Return all changing actions of the tables.

    Kinds that are deleted with another one have no deletion of their own.
    """
    rows = (
        (service_of(kind), operation)
        for kind, row in ROWS.items()
        for operation in (row.create, row.delete)
        if operation
    )
    updates = ((service, operation) for service, operations in _UPDATES.items() for operation in operations)
    others = (
        *(("ec2", operation) for operation in _BY_DIRECTION),
        (service_of(k.LOAD_BALANCER), "delete_load_balancer"),
    )
    return frozenset(action(service, operation) for service, operation in (*rows, *updates, *others))


def policy() -> Mapping[str, Any]:
    """Return the policy for the operator's role or user on AWS."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            _statement("Look", reads()),
            _statement("Change", changes()),
            _statement("Implied", IMPLIED),
        ],
    }


def _statement(name: str, actions: Iterable[str]) -> Mapping[str, Any]:
    """Return a statement that allows the actions on every resource: many of them support no restriction."""
    return {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
