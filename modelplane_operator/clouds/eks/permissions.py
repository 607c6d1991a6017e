"""What the operator may do on AWS: made from the tables of calls, for `examples/access/eks-policy.json`.

A test holds it against every call of a cluster's life, both ways.
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
"""What IAM calls a service, where that is not its name."""
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
_UPDATES: Final[Mapping[str, tuple[str, ...]]] = {
    "ec2": ("modify_subnet_attribute", "modify_vpc_attribute", "replace_route"),
    "eks": ("update_addon", "update_cluster_version", "update_nodegroup_config", "update_nodegroup_version"),
    "iam": ("update_assume_role_policy",),
}
_BY_DIRECTION: Final = tuple(
    f"{verb}_security_group_{direction}" for verb in ("authorize", "revoke") for direction in ("egress", "ingress")
)
IMPLIED: Final = (
    "ec2:CreateTags",
    "ec2:RunInstances",
    "eks:TagResource",
    "elasticfilesystem:TagResource",
    "iam:CreateServiceLinkedRole",
    "iam:PassRole",
    "iam:TagRole",
)
"""What AWS asks for beside the action of a call: tags at creation, roles that are handed on, nodes of a template."""


def action(service: str, operation: str) -> str:
    """What IAM calls an operation of the SDK."""
    name = "".join("AWS" if part == "aws" else part.capitalize() for part in operation.split("_"))
    return f"{PREFIXES.get(service, service)}:{name}"


def reads() -> frozenset[str]:
    return frozenset(action(service, one) for service, operations in READS.items() for one in operations)


def changes() -> frozenset[str]:
    """Everything that the tables can ask for. What goes with something else is not deleted by itself."""
    rows = ((service_of(kind), one) for kind, row in ROWS.items() for one in (row.create, row.delete) if one)
    updates = ((service, one) for service, operations in _UPDATES.items() for one in operations)
    others = (*(("ec2", one) for one in _BY_DIRECTION), (service_of(k.LOAD_BALANCER), "delete_load_balancer"))
    return frozenset(action(service, one) for service, one in (*rows, *updates, *others))


def policy() -> Mapping[str, Any]:
    """The policy of the role or user that the operator is on AWS."""
    return {
        "Version": "2012-10-17",
        "Statement": [
            _allowed("Look", reads()),
            _allowed("Change", changes()),
            _allowed("Implied", IMPLIED),
        ],
    }


def _allowed(name: str, actions: Iterable[str]) -> Mapping[str, Any]:
    return {"Sid": name, "Effect": "Allow", "Action": sorted(actions), "Resource": "*"}
