"""What a cluster on EKS is made from: its spec, and what was found out of its account and region once."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from modelplane_operator.api import names
from modelplane_operator.api.clusters.eks import EKSCluster, EKSNetworking, EKSPool
from modelplane_operator.clouds.problem import CannotMake

PRIVATE = 48 << 8  # from the first address of a zone's public subnet to that of its private one


@dataclass(frozen=True, slots=True)
class Facts:
    """What only the cloud can say. It is kept in the status, so that the same cluster follows from it for ever."""

    zones: tuple[str, ...]
    """Those of its subnets, in their order."""
    principal: str
    """The ARN of the role or user that the operator is there."""
    cards: Mapping[str, int]
    """How many network cards an instance type has that take EFA."""
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The zones that have an instance type, as far as that was told."""
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many nodes the autoscaler has chosen, by the key of their group. AWS drains those above a lower bound,
    whatever runs there, so that a bound is never below that."""
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """The key of the launch template that each node group on AWS has, by the key of the group; empty for a group that
    was made without a template. A group keeps what it was made with."""
    cni: str = ""
    """The configuration values that the addon vpc-cni has on AWS, as text; empty for none."""

    @property
    def partition(self) -> str:
        return self.principal.split(":")[1] if self.principal.startswith("arn:") else "aws"

    @property
    def account(self) -> str:
        return self.principal.split(":")[4] if self.principal.startswith("arn:") else ""


@dataclass(frozen=True, slots=True)
class Subnets:
    """The subnets of one zone."""

    number: int
    zone: str
    public: str
    private: str


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A cluster, and what follows from it for several of its resources."""

    cluster: EKSCluster
    facts: Facts
    subnets: tuple[Subnets, ...]

    @property
    def networking(self) -> EKSNetworking:
        return self.cluster.spec.networking or EKSNetworking()

    def name(self, *parts: str) -> str:
        return names.on_cloud(self.cluster.metadata.name, self.cluster.metadata.uid or "", *parts)

    @property
    def pools(self) -> Sequence[EKSPool]:
        return self.cluster.spec.node_pools

    @property
    def has_efa(self) -> bool:
        return any(pool.fabric == "EFA" for pool in self.pools)

    def of_zones(self, zones: Sequence[str]) -> Sequence[Subnets]:
        """The subnets of these zones; all without any."""
        return [one for one in self.subnets if one.zone in zones or not zones]


def part_of(principal: str) -> str:
    """By which what is made for one principal is told from what was made for another."""
    return hashlib.sha256(principal.encode()).hexdigest()[:8]


def zones_for(cluster: EKSCluster, available: Sequence[str]) -> tuple[str, ...]:
    """The zones to have subnets in: those that pools name, and more of those that the account has as far as there are
    subnets for them. Raises CannotMake."""
    wanted = _of_pools(cluster.spec.node_pools)
    room = len((cluster.spec.networking or EKSNetworking()).subnet_cidrs)
    if strange := [zone for zone in wanted if zone not in available]:
        raise CannotMake(
            f"the account has no zone {', '.join(strange)} in {cluster.spec.region}; it has {', '.join(available)}"
        )
    if len(wanted) > room:
        raise CannotMake(f"the pools name {len(wanted)} zones, and networking.subnetCidrs has subnets for {room}")
    found = (*wanted, *(zone for zone in available if zone not in wanted))[:room]
    if len(found) < 2:
        raise CannotMake(f"EKS needs two zones, and the account has {len(available)} in {cluster.spec.region}")
    return tuple(sorted(found))


def blueprint(cluster: EKSCluster, facts: Facts) -> Blueprint:
    """Raises CannotMake."""
    networking = cluster.spec.networking or EKSNetworking()
    if strange := [zone for zone in _of_pools(cluster.spec.node_pools) if zone not in facts.zones]:
        raise CannotMake(
            f"a pool names zone {', '.join(strange)}, and the cluster's subnets are in {', '.join(facts.zones)}: "
            "zones are chosen once"
        )
    for pool in cluster.spec.node_pools:
        _refuse_what_is_not_there(pool, facts)
    vpc = IPv4Network(networking.vpc_cidr, strict=False)
    public = [IPv4Network(cidr, strict=False) for cidr in networking.subnet_cidrs[: len(facts.zones)]]
    private = [_private(cidr) for cidr in public]
    for cidr in (*public, *private):
        if not cidr.subnet_of(vpc):
            raise CannotMake(
                f"subnet {cidr} is not within networking.vpcCidr {vpc}: choose subnetCidrs that leave room"
            )
    for one, other in combinations((*public, *private), 2):
        if one.overlaps(other):
            raise CannotMake(f"subnets {one} and {other} overlap: a zone's private subnet is 48 further on")
    rows = zip(facts.zones, public, private, strict=False)
    subnets = tuple(Subnets(i, zone, str(one), str(other)) for i, (zone, one, other) in enumerate(rows))
    return Blueprint(cluster, facts, subnets)


def _refuse_what_is_not_there(pool: EKSPool, facts: Facts) -> None:
    """AWS would say so after a quarter of an hour, in the node group's health."""
    offered = facts.offered.get(pool.instance_type)
    if offered is not None and (lacking := [zone for zone in pool.zones if zone not in offered]):
        where = f"it is in {', '.join(offered)}" if offered else "no zone of the region has it"
        raise CannotMake(f"pool {pool.name}: {', '.join(lacking)} has no {pool.instance_type}; {where}")
    if pool.fabric == "EFA" and facts.cards.get(pool.instance_type) == 0:
        raise CannotMake(f"pool {pool.name}: {pool.instance_type} takes no EFA: choose another, or take `fabric` out")


def _private(public: IPv4Network) -> IPv4Network:
    first = int(public.network_address) + PRIVATE
    if first >= 1 << 32:
        raise CannotMake(f"there is no private subnet for {public}: it would be 48 further on in the third number")
    return IPv4Network((IPv4Address(first), public.prefixlen), strict=False)


def _of_pools(pools: Sequence[EKSPool]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(zone for pool in pools for zone in pool.zones))
