"""The hub's own networks: the addresses of its Services, pods and nodes.

Nodes are listed from time to time and not watched: only their ranges matter, and nodes of a large hub change all the
time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
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
"""Seconds until the networks are listed again."""
RETRY_AFTER = 5.0  # seconds until the next attempt after an error

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ranges:
    """The networks of a cluster."""

    services: tuple[Network, ...] = ()
    """Ranges of Services' addresses."""
    pods: tuple[Network, ...] = ()
    """Ranges of pods' addresses."""
    nodes: frozenset[Address] = frozenset()
    """Addresses of nodes, also their external ones."""


@dataclass(slots=True)
class HubRanges:
    """The hub's networks, as of the last successful list."""

    kube_of: Callable[[], Kube]
    """The function that returns the hub's client."""
    now: Callable[[], float]
    _networks: Ranges | None = field(default=None, init=False)
    """The last networks; None before the first successful list."""
    _error: ClientError | None = field(default=None, init=False)
    """The error of the last list, if it failed."""
    _due: float = field(default=float("-inf"), init=False)
    """The time of the next list."""
    _asking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def find(self) -> Ranges:
        """Return the networks.

        Raises the client's error while they have never been listed, since no address can be checked then.
        """
        async with self._asking:  # concurrent callers share one list
            if self.now() >= self._due:
                await self._refresh()
        if self._networks is None and self._error is not None:
            raise self._error.without_details()
        return self._networks or Ranges()

    async def _refresh(self) -> None:
        """List Service ranges and nodes, and schedule the next list."""
        try:
            cidrs, nodes = await self._list(SERVICE_CIDR), await self._list(NODE)
        except ClientError as error:
            if self._error is None:
                log.warning("ranges unknown", why=str(error))
            self._error, self._due = error.without_details(), self.now() + RETRY_AFTER
            return
        addresses: set[Address] = set()  # internal and external ones, without names
        for node in nodes or ():
            for address in entries(node, "status", "addresses"):
                with suppress(ValueError):
                    addresses.add(ip_address(address.get("address", "")))
        last = self._networks or Ranges()  # ranges that cannot be listed keep their last value
        self._networks = Ranges(
            last.services if cidrs is None else join_networks(cidrs, "cidrs"),
            last.pods if nodes is None else join_networks(nodes, "podCIDRs"),
            last.nodes if nodes is None else frozenset(addresses),
        )
        self._error, self._due = None, self.now() + LIFETIME

    async def _list(self, kind: ResourceType) -> Sequence[Manifest] | None:
        """Return the objects of a type; None if the hub does not have the type, or forbids it."""
        try:
            return (await self.kube_of().list(kind)).items
        except (Forbidden, NotFound) as error:
            log.warning("range unknown", kind=kind.kind, why=str(error))
            return None


def join_networks(manifests: Iterable[Manifest], field_: str) -> tuple[Network, ...]:
    """Return the valid networks in a field of many objects, merged where possible."""
    networks: list[Network] = []
    for manifest in manifests:
        for text in section(manifest, "spec").get(field_) or ():
            with suppress(ValueError):
                networks.append(ip_network(text, strict=False))
    four = collapse_addresses(network for network in networks if isinstance(network, IPv4Network))
    six = collapse_addresses(network for network in networks if isinstance(network, IPv6Network))
    return (*four, *six)
