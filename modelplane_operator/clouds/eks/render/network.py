"""Render the network of a cluster on EKS: a public and a private subnet in each zone, and one NAT gateway."""

from __future__ import annotations

from collections.abc import Iterator

from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import DesiredResource, Ref

ANYWHERE = "0.0.0.0/0"
OUT = "private-route-default"
"""Key of the nodes' default route; without it they cannot pull images."""


def network(plan: Blueprint) -> Iterator[DesiredResource]:
    """Yield the VPC, its subnets, gateways and route tables."""
    dns = {"EnableDnsSupport": True, "EnableDnsHostnames": True}
    yield DesiredResource("vpc", k.VPC, {"CidrBlock": plan.networking.vpc_cidr, **dns}, updatable=frozenset(dns))
    for zone in plan.subnets:
        location = {"VpcId": Ref("vpc"), "AvailabilityZone": zone.zone}
        public = {
            **location,
            "CidrBlock": zone.public,
            "MapPublicIpOnLaunch": True,
            "Tags": {"kubernetes.io/role/elb": "1"},
        }
        yield DesiredResource(f"subnet-{zone.number}", k.SUBNET, public, updatable=frozenset({"MapPublicIpOnLaunch"}))
        yield DesiredResource(f"private-subnet-{zone.number}", k.SUBNET, {**location, "CidrBlock": zone.private})
    yield DesiredResource("internet-gateway", k.INTERNET_GATEWAY, {})
    yield DesiredResource(
        "internet-gateway-attachment",
        k.ATTACHMENT,
        {"InternetGatewayId": Ref("internet-gateway"), "VpcId": Ref("vpc")},
    )
    yield DesiredResource("nat-eip", k.ADDRESS, {"Domain": "vpc"})
    yield DesiredResource(
        "nat-gateway",
        k.NAT_GATEWAY,
        {"SubnetId": Ref("subnet-0"), "AllocationId": Ref("nat-eip")},
        needs=("internet-gateway-attachment",),
    )
    yield DesiredResource("route-table", k.ROUTE_TABLE, {"VpcId": Ref("vpc")})
    yield DesiredResource(
        "route-default",
        k.ROUTE,
        {"RouteTableId": Ref("route-table"), "DestinationCidrBlock": ANYWHERE, "GatewayId": Ref("internet-gateway")},
        needs=("internet-gateway-attachment",),
    )
    yield DesiredResource("private-route-table", k.ROUTE_TABLE, {"VpcId": Ref("vpc")})
    yield DesiredResource(
        OUT,
        k.ROUTE,
        {
            "RouteTableId": Ref("private-route-table"),
            "DestinationCidrBlock": ANYWHERE,
            "NatGatewayId": Ref("nat-gateway"),
        },
        updatable=frozenset({"NatGatewayId"}),
    )
    for zone in plan.subnets:
        for side in ("", "private-"):
            subnet, table = Ref(f"{side}subnet-{zone.number}"), Ref(f"{side}route-table")
            key = f"{side}route-table-association-{zone.number}"
            yield DesiredResource(key, k.ASSOCIATION, {"RouteTableId": table, "SubnetId": subnet})
