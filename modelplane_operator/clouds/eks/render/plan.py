"""Inputs of a cluster on EKS: its spec, and the properties of its account and region, which are discovered once.

`blueprint` checks the spec against these properties and derives the subnets. The other modules of this package render
resources from the Blueprint.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network
from itertools import combinations

from modelplane_operator.api import names
from modelplane_operator.api.clusters.eks import EKSCluster, EKSNetworking, EKSPool
from modelplane_operator.clouds.problem import CannotMake

PRIVATE = 48 << 8  # offset from a zone's public subnet to its private one: 48 in the third number of the address


@dataclass(frozen=True, slots=True)
class Facts:
    """Properties that only the cloud knows.

    They are stored in the status, so that the same resources follow from them.
    """

    zones: tuple[str, ...]
    """Zones of the subnets, in their order."""
    principal: str
    """ARN of the operator's role or user."""
    cards: Mapping[str, int]
    """Number of EFA-capable network cards by instance type."""
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Zones that offer an instance type, as far as known."""
    nodes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of nodes that the autoscaler has chosen, by the key of the group.

    AWS drains nodes above an upper bound, whatever runs on them, so the bound is never lower than this.
    """
    templates: Mapping[str, str] = field(default_factory=dict[str, str])
    """Key of each existing node group's launch template, by the key of the group.

    Empty for a group without a template. A group keeps the template that it was created with.
    """
    cni: str = ""
    """Configuration values of the addon vpc-cni on AWS; empty for none."""

    @property
    def partition(self) -> str:
        """Partition of AWS, such as `aws-cn`, which is part of every ARN."""
        return self.principal.split(":")[1] if self.principal.startswith("arn:") else "aws"

    @property
    def account(self) -> str:
        """Number of the account; empty while the principal is unknown."""
        return self.principal.split(":")[4] if self.principal.startswith("arn:") else ""


@dataclass(frozen=True, slots=True)
class Subnets:
    """The subnets of one zone."""

    number: int
    """Index of the zone, part of the keys of its resources."""
    zone: str
    public: str
    """Address range of the public subnet."""
    private: str
    """Address range of the private subnet."""


@dataclass(frozen=True, slots=True)
class Blueprint:
    """A cluster, with the values that several of its resources are derived from."""

    cluster: EKSCluster
    facts: Facts
    """Properties of the account and the region."""
    subnets: tuple[Subnets, ...]
    """Subnets in the order of the zones."""

    @property
    def networking(self) -> EKSNetworking:
        """Address ranges of the spec, or the defaults."""
        return self.cluster.spec.networking or EKSNetworking()

    def name(self, *parts: str) -> str:
        """Return the name of a resource on AWS, or of the cluster itself without any part."""
        return names.on_cloud(self.cluster.metadata.name, self.cluster.metadata.uid or "", *parts)

    @property
    def pools(self) -> Sequence[EKSPool]:
        """Declared pools, without the default one for the cluster's own pods."""
        return self.cluster.spec.node_pools

    @property
    def has_efa(self) -> bool:
        return any(pool.fabric == "EFA" for pool in self.pools)

    def of_zones(self, zones: Sequence[str]) -> Sequence[Subnets]:
        """Return the subnets of these zones; all subnets if no zones are given."""
        return [subnet for subnet in self.subnets if subnet.zone in zones or not zones]


def part_of(principal: str) -> str:
    """Return an id of a principal, which is part of the keys of its resources."""
    return hashlib.sha256(principal.encode()).hexdigest()[:8]


def zones_for(cluster: EKSCluster, available: Sequence[str]) -> tuple[str, ...]:
    """Return the zones for subnets: the ones that pools name, and further available ones while there are subnets left.

    Raise CannotMake when a zone does not exist, or there are fewer than two.
    """
    required = _zones_of_pools(cluster.spec.node_pools)
    room = len((cluster.spec.networking or EKSNetworking()).subnet_cidrs)
    if unknown := [zone for zone in required if zone not in available]:
        raise CannotMake(
            f"the account has no zone {', '.join(unknown)} in {cluster.spec.region}; it has {', '.join(available)}"
        )
    if len(required) > room:
        raise CannotMake(f"the pools name {len(required)} zones, and networking.subnetCidrs has subnets for {room}")
    chosen = (*required, *(zone for zone in available if zone not in required))[:room]
    if len(chosen) < 2:
        raise CannotMake(f"EKS needs two zones, and the account has {len(available)} in {cluster.spec.region}")
    return tuple(sorted(chosen))


def blueprint(cluster: EKSCluster, facts: Facts) -> Blueprint:
    """Derive the subnets. Raise CannotMake when a pool or the network cannot work."""
    networking = cluster.spec.networking or EKSNetworking()
    if missing := [zone for zone in _zones_of_pools(cluster.spec.node_pools) if zone not in facts.zones]:
        raise CannotMake(
            f"a pool names zone {', '.join(missing)}, and the cluster's subnets are in {', '.join(facts.zones)}: "
            "zones are chosen once"
        )
    for pool in cluster.spec.node_pools:
        _require_offered(pool, facts)
    vpc = IPv4Network(networking.vpc_cidr, strict=False)
    public = [IPv4Network(cidr, strict=False) for cidr in networking.subnet_cidrs[: len(facts.zones)]]
    private = [_private_subnet(cidr) for cidr in public]
    for cidr in (*public, *private):
        if not cidr.subnet_of(vpc):
            raise CannotMake(
                f"subnet {cidr} is not within networking.vpcCidr {vpc}: choose subnetCidrs that leave room"
            )
    for first, second in combinations((*public, *private), 2):
        if first.overlaps(second):
            raise CannotMake(f"subnets {first} and {second} overlap: a zone's private subnet is 48 further on")
    rows = zip(facts.zones, public, private, strict=False)
    subnets = tuple(Subnets(i, zone, str(first), str(second)) for i, (zone, first, second) in enumerate(rows))
    return Blueprint(cluster, facts, subnets)


def _require_offered(pool: EKSPool, facts: Facts) -> None:
    """Raise CannotMake for a machine type that a zone does not offer.

    AWS would report it only after fifteen minutes.
    """
    offered = facts.offered.get(pool.instance_type)
    if offered is not None and (missing := [zone for zone in pool.zones if zone not in offered]):
        alternatives = f"it is in {', '.join(offered)}" if offered else "no zone of the region has it"
        raise CannotMake(f"pool {pool.name}: {', '.join(missing)} has no {pool.instance_type}; {alternatives}")
    if pool.fabric == "EFA" and facts.cards.get(pool.instance_type) == 0:
        raise CannotMake(f"pool {pool.name}: {pool.instance_type} takes no EFA: choose another, or take `fabric` out")


def _private_subnet(public: IPv4Network) -> IPv4Network:
    """Return the private subnet that belongs to a public one. Raise CannotMake past the end of the address space."""
    first = int(public.network_address) + PRIVATE
    if first >= 1 << 32:
        raise CannotMake(f"there is no private subnet for {public}: it would be 48 further on in the third number")
    return IPv4Network((IPv4Address(first), public.prefixlen), strict=False)


def _zones_of_pools(pools: Sequence[EKSPool]) -> tuple[str, ...]:
    """Return the zones that pools name, each once and in their order."""
    return tuple(dict.fromkeys(zone for pool in pools for zone in pool.zones))
