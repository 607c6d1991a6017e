"""The hub's own networks: where its Services, pods and nodes have their addresses.

Nodes are listed now and then and not watched: of each no more is kept than its ranges, and a hub with many nodes says
something about one of them all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, collapse_addresses, ip_address, ip_network

import structlog

from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.errors import ClientError
from modelplane_operator.kube.objects import Manifest, entries, section
from modelplane_operator.kube.resources import NODE, SERVICE_CIDR, ResourceType

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
LIFETIME = 600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Networks of a cluster."""

    services: tuple[Network, ...] = ()
    pods: tuple[Network, ...] = ()
    nodes: frozenset[Address] = frozenset()


@dataclass(slots=True)
class HubRanges:
    """The hub's networks, as it was last seen to have them."""

    kube_of: Callable[[], Kube]
    now: Callable[[], float]
    _known: Ranges = field(default=Ranges(), init=False)
    _since: float | None = field(default=None, init=False)
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def find(self) -> Ranges:
        async with self._asking:  # many who ask at once are one question
            if self._since is None or self.now() - self._since >= LIFETIME:
                self._since = self.now()
                cidrs, nodes = await self._list(SERVICE_CIDR), await self._list(NODE)
                known = self._known  # stays where the hub does not tell
                self._known = Ranges(
                    known.services if cidrs is None else joined(cidrs, "cidrs"),
                    known.pods if nodes is None else joined(nodes, "podCIDRs"),
                    known.nodes if nodes is None else frozenset(_addresses(nodes)),
                )
        return self._known

    async def _list(self, kind: ResourceType) -> Sequence[Manifest] | None:
        try:
            return (await self.kube_of().list(kind)).items
        except ClientError as error:
            log.warning("range unknown", kind=kind.kind, why=str(error))
            return None


def joined(manifests: Iterable[Manifest], field_: str) -> tuple[Network, ...]:
    """The networks that a field of many objects names, as few as say the same."""
    found = list(_networks(manifests, field_))
    four = collapse_addresses(one for one in found if isinstance(one, IPv4Network))
    six = collapse_addresses(one for one in found if isinstance(one, IPv6Network))
    return (*four, *six)


def _networks(manifests: Iterable[Manifest], field_: str) -> Iterator[Network]:
    for manifest in manifests:
        for text in section(manifest, "spec").get(field_) or ():
            try:
                yield ip_network(text, strict=False)
            except ValueError:
                continue


def _addresses(nodes: Iterable[Manifest]) -> Iterator[Address]:
    """Under which addresses nodes are reached, inside and outside; names of theirs are passed over."""
    for node in nodes:
        for one in entries(node, "status", "addresses"):
            try:
                yield ip_address(one.get("address", ""))
            except ValueError:
                continue
