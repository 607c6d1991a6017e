"""Properties of each kind of resource of a cluster on EKS: its usual duration, and what must be deleted before it.

Names of kinds are abbreviated from CloudFormation's. Workloads of the cluster create the kinds in `SWEPT`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modelplane_operator.clouds.resources import Kind

VPC: Final = "ec2.VPC"
SUBNET: Final = "ec2.Subnet"
INTERNET_GATEWAY: Final = "ec2.InternetGateway"
ATTACHMENT: Final = "ec2.GatewayAttachment"
ADDRESS: Final = "ec2.EIP"
NAT_GATEWAY: Final = "ec2.NatGateway"
ROUTE_TABLE: Final = "ec2.RouteTable"
ROUTE: Final = "ec2.Route"
ASSOCIATION: Final = "ec2.RouteTableAssociation"
SECURITY_GROUP: Final = "ec2.SecurityGroup"
RULE: Final = "ec2.SecurityGroupRule"
LAUNCH_TEMPLATE: Final = "ec2.LaunchTemplate"
ROLE: Final = "iam.Role"
ROLE_POLICY: Final = "iam.RolePolicy"
INLINE_POLICY: Final = "iam.InlinePolicy"
CLUSTER: Final = "eks.Cluster"
ACCESS_ENTRY: Final = "eks.AccessEntry"
ACCESS_POLICY: Final = "eks.AccessPolicy"
ADDON: Final = "eks.Addon"
NODEGROUP: Final = "eks.Nodegroup"
POD_IDENTITY: Final = "eks.PodIdentityAssociation"
FILE_SYSTEM: Final = "efs.FileSystem"
MOUNT_TARGET: Final = "efs.MountTarget"

LOAD_BALANCER: Final = "elb.LoadBalancer"
INTERFACE: Final = "ec2.NetworkInterface"
LEFTOVER_GROUP: Final = "ec2.LeftSecurityGroup"
VOLUME: Final = "ec2.Volume"
ACCESS_POINT: Final = "efs.AccessPoint"
SWEPT: Final = (LOAD_BALANCER, INTERFACE, LEFTOVER_GROUP, VOLUME, ACCESS_POINT)


def _kind(name: str, usual: float, *gone_first: str, goes_with: str = "", announced: bool = False) -> Kind:
    """Return a kind. `gone_first` are the kinds that must be gone before it is deleted."""
    return Kind(name, usual, frozenset(gone_first), goes_with, announced)


_ROWS = (
    _kind(
        VPC,
        30,
        SUBNET,
        ATTACHMENT,
        ROUTE_TABLE,
        SECURITY_GROUP,
        LEFTOVER_GROUP,
        INTERFACE,
        LOAD_BALANCER,
        announced=True,
    ),
    _kind(SUBNET, 30, ASSOCIATION, NAT_GATEWAY, CLUSTER, NODEGROUP, MOUNT_TARGET, INTERFACE, LOAD_BALANCER),
    _kind(INTERNET_GATEWAY, 30, ATTACHMENT, announced=True),
    # A gateway cannot be detached while anything in the VPC has a public address.
    _kind(ATTACHMENT, 30, NAT_GATEWAY, ADDRESS, LOAD_BALANCER),
    _kind(ADDRESS, 30, NAT_GATEWAY, announced=True),
    _kind(NAT_GATEWAY, 180, NODEGROUP, CLUSTER),
    _kind(ROUTE_TABLE, 30, ASSOCIATION),
    _kind(ROUTE, 30, goes_with=ROUTE_TABLE),
    _kind(ASSOCIATION, 30, NODEGROUP),
    _kind(SECURITY_GROUP, 30, RULE, CLUSTER, NODEGROUP, LAUNCH_TEMPLATE, MOUNT_TARGET, INTERFACE),
    # EKS cannot delete a cluster's security group while a rule of another group refers to it.
    _kind(RULE, 30, NODEGROUP),
    _kind(LAUNCH_TEMPLATE, 30, NODEGROUP),
    _kind(ROLE, 30, ROLE_POLICY, INLINE_POLICY, CLUSTER, NODEGROUP, POD_IDENTITY),
    # A cluster and its nodes need these permissions to clean up after themselves.
    _kind(ROLE_POLICY, 30, CLUSTER, NODEGROUP, POD_IDENTITY),
    _kind(INLINE_POLICY, 30, CLUSTER, NODEGROUP, POD_IDENTITY),
    _kind(CLUSTER, 900, NODEGROUP, RULE, LAUNCH_TEMPLATE),
    _kind(ACCESS_ENTRY, 30, goes_with=CLUSTER),
    _kind(ACCESS_POLICY, 30, goes_with=CLUSTER),
    _kind(ADDON, 300, goes_with=CLUSTER),
    _kind(NODEGROUP, 600),
    _kind(POD_IDENTITY, 30, goes_with=CLUSTER),
    _kind(FILE_SYSTEM, 60, MOUNT_TARGET, ACCESS_POINT),
    _kind(MOUNT_TARGET, 180, NODEGROUP),
    # As long as the cluster exists, it would create them again.
    _kind(LOAD_BALANCER, 60, CLUSTER),
    _kind(INTERFACE, 60, CLUSTER, LOAD_BALANCER, NAT_GATEWAY, MOUNT_TARGET),
    _kind(LEFTOVER_GROUP, 60, CLUSTER, LOAD_BALANCER, INTERFACE, RULE),
    _kind(VOLUME, 60, CLUSTER),
    _kind(ACCESS_POINT, 60, CLUSTER),
)

KINDS: Final[Mapping[str, Kind]] = {row.name: row for row in _ROWS}

NETWORK: Final = frozenset(
    {VPC, SUBNET, INTERNET_GATEWAY, ATTACHMENT, ADDRESS, NAT_GATEWAY, ROUTE_TABLE, ROUTE, ASSOCIATION}
)
"""Kinds that must exist before nodes can reach any network."""
