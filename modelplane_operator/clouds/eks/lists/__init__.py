"""List a cluster's resources on AWS: a table of the lists for each kind.

Resources with tags are recognized by them. Resources without tags (routes, attachments, mount targets) are recognized
by the resource that they belong to, and have its owner.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from modelplane_operator.clouds.eks.lists import ec2, efs, eks, iam, left
from modelplane_operator.clouds.eks.lists.look import ListContext, Lister
from modelplane_operator.clouds.eks.render import kinds as k

__all__ = ["LISTERS", "ListContext", "Lister", "listers"]

LISTERS: Final[tuple[tuple[tuple[str, ...], Lister], ...]] = (
    ((k.SUBNET,), ec2.SUBNETS),
    ((k.ADDRESS,), ec2.ADDRESSES),
    ((k.NAT_GATEWAY,), ec2.NAT_GATEWAYS),
    ((k.SECURITY_GROUP,), ec2.GROUPS),
    ((k.LAUNCH_TEMPLATE,), ec2.TEMPLATES),
    ((k.VPC,), ec2.vpcs),
    ((k.INTERNET_GATEWAY, k.ATTACHMENT), ec2.gateways),
    ((k.ROUTE_TABLE, k.ROUTE, k.ASSOCIATION), ec2.tables),
    ((k.RULE,), ec2.rules),
    ((k.ROLE, k.ROLE_POLICY, k.INLINE_POLICY), iam.roles),
    ((k.CLUSTER, k.NODEGROUP, k.ADDON, k.ACCESS_ENTRY, k.ACCESS_POLICY, k.POD_IDENTITY), eks.clusters),
    ((k.FILE_SYSTEM, k.MOUNT_TARGET, k.ACCESS_POINT), efs.files),
    ((k.LOAD_BALANCER,), left.balancers),
    ((k.INTERFACE,), left.interfaces),
    ((k.LEFTOVER_GROUP,), left.groups),
    ((k.VOLUME,), left.volumes),
)
"""Lists, each with the kinds that it returns."""


def listers(kinds: Collection[str]) -> Iterator[tuple[tuple[str, ...], Lister]]:
    """Return the lists that are needed to observe these kinds."""
    return ((listed_kinds, lister) for listed_kinds, lister in LISTERS if {*listed_kinds} & {*kinds})
