"""The network of a cluster on EKS: a public and a private subnet in each zone, and one way out."""

from __future__ import annotations

from collections.abc import Iterator

from modelplane_operator.clouds.eks.render import kinds as k
from modelplane_operator.clouds.eks.render.plan import Blueprint
from modelplane_operator.clouds.resources import Ref, Wanted

ANYWHERE = "0.0.0.0/0"
OUT = "private-route-default"
"""The way out for nodes: without it they pull no images."""


def network(plan: Blueprint) -> Iterator[Wanted]:
    dns = {"EnableDnsSupport": True, "EnableDnsHostnames": True}
    yield Wanted("vpc", k.VPC, {"CidrBlock": plan.networking.vpc_cidr, **dns}, kept=frozenset(dns))
    for one in plan.subnets:
        place = {"VpcId": Ref("vpc"), "AvailabilityZone": one.zone}
        public = {
            **place,
            "CidrBlock": one.public,
            "MapPublicIpOnLaunch": True,
            "Tags": {"kubernetes.io/role/elb": "1"},
        }
        yield Wanted(f"subnet-{one.number}", k.SUBNET, public, kept=frozenset({"MapPublicIpOnLaunch"}))
        yield Wanted(f"private-subnet-{one.number}", k.SUBNET, {**place, "CidrBlock": one.private})
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
    for one in plan.subnets:
        for side in ("", "private-"):
            subnet, table = Ref(f"{side}subnet-{one.number}"), Ref(f"{side}route-table")
            key = f"{side}route-table-association-{one.number}"
            yield Wanted(key, k.ASSOCIATION, {"RouteTableId": table, "SubnetId": subnet})
