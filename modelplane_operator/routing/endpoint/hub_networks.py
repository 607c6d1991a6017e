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

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Forbidden, NotFound
from kubeloop.objects import Manifest, entries, section
from kubeloop.types import NODE, SERVICE_CIDR, ResourceType

Network = IPv4Network | IPv6Network
Address = IPv4Address | IPv6Address
LIFETIME = 600.0
RETRY_AFTER = 5.0  # seconds until a hub that has not answered is asked again

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
    _known: Ranges | None = field(default=None, init=False)
    _error: ClientError | None = field(default=None, init=False)
    """Why it was not seen when it was last looked at."""
    _due: float = field(default=float("-inf"), init=False)
    """When it is looked at again."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def find(self) -> Ranges:
        """Raises what the client does while they have never been seen: nobody can tell then what leads inside."""
        async with self._asking:  # many who ask at once are one question
            if self.now() >= self._due:
                await self._look()
        if self._known is None and self._error is not None:
            raise self._error.kept()
        return self._known or Ranges()

    async def _look(self) -> None:
        try:
            cidrs, nodes = await self._list(SERVICE_CIDR), await self._list(NODE)
        except ClientError as error:
            if self._error is None:
                log.warning("ranges unknown", why=str(error))
            self._error, self._due = error.kept(), self.now() + RETRY_AFTER
            return
        known = self._known or Ranges()  # stays where the hub does not tell
        self._known = Ranges(
            known.services if cidrs is None else joined(cidrs, "cidrs"),
            known.pods if nodes is None else joined(nodes, "podCIDRs"),
            known.nodes if nodes is None else frozenset(_addresses(nodes)),
        )
        self._error, self._due = None, self.now() + LIFETIME

    async def _list(self, kind: ResourceType) -> Sequence[Manifest] | None:
        """None where the hub does not have them, or does not show them to us: that is an answer."""
        try:
            return (await self.kube_of().list(kind)).items
        except (Forbidden, NotFound) as error:
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
