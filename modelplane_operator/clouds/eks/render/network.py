"""Render the network of a cluster on EKS: a public and a private subnet in each zone, and one NAT gateway."""

from __future__ import annotations

from collections.abc import Iterator

from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import Ref, Wanted

ANYWHERE = "0.0.0.0/0"
OUT = "private-route-default"
"""Key of the nodes' default route; without it they cannot pull images."""


def network(plan: Blueprint) -> Iterator[Wanted]:
    """Yield the VPC, its subnets, gateways and route tables."""
    dns = {"EnableDnsSupport": True, "EnableDnsHostnames": True}
    yield Wanted("vpc", k.VPC, {"CidrBlock": plan.networking.vpc_cidr, **dns}, kept=frozenset(dns))
    for zone in plan.subnets:
        location = {"VpcId": Ref("vpc"), "AvailabilityZone": zone.zone}
        public = {
            **location,
            "CidrBlock": zone.public,
            "MapPublicIpOnLaunch": True,
            "Tags": {"kubernetes.io/role/elb": "1"},
        }
        yield Wanted(f"subnet-{zone.number}", k.SUBNET, public, kept=frozenset({"MapPublicIpOnLaunch"}))
        yield Wanted(f"private-subnet-{zone.number}", k.SUBNET, {**location, "CidrBlock": zone.private})
    yield Wanted("internet-gateway", k.INTERNET_GATEWAY, {})
    yield Wanted(
        "internet-gateway-attachment",
        k.ATTACHMENT,
        {"InternetGatewayId": Ref("internet-gateway"), "VpcId": Ref("vpc")},
    )
    yield Wanted("nat-eip", k.ADDRESS, {"Domain": "vpc"})
    yield Wanted(
        "nat-gateway",
        k.NAT_GATEWAY,
        {"SubnetId": Ref("subnet-0"), "AllocationId": Ref("nat-eip")},
        needs=("internet-gateway-attachment",),
    )
    yield Wanted("route-table", k.ROUTE_TABLE, {"VpcId": Ref("vpc")})
    yield Wanted(
        "route-default",
        k.ROUTE,
        {"RouteTableId": Ref("route-table"), "DestinationCidrBlock": ANYWHERE, "GatewayId": Ref("internet-gateway")},
        needs=("internet-gateway-attachment",),
    )
    yield Wanted("private-route-table", k.ROUTE_TABLE, {"VpcId": Ref("vpc")})
    yield Wanted(
        OUT,
        k.ROUTE,
        {
            "RouteTableId": Ref("private-route-table"),
            "DestinationCidrBlock": ANYWHERE,
            "NatGatewayId": Ref("nat-gateway"),
        },
        kept=frozenset({"NatGatewayId"}),
    )
    for zone in plan.subnets:
        for side in ("", "private-"):
            subnet, table = Ref(f"{side}subnet-{zone.number}"), Ref(f"{side}route-table")
            key = f"{side}route-table-association-{zone.number}"
            yield Wanted(key, k.ASSOCIATION, {"RouteTableId": table, "SubnetId": subnet})
