"""The hub's own networks: where its Services and pods have their addresses.

Nodes are listed now and then and not watched: of each no more is kept than its ranges, and a hub with many nodes says
something about one of them all the time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from ipaddress import IPv4Network, IPv6Network, collapse_addresses, ip_network

import structlog

from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.errors import ClientError
from modelplane_operator.kube.objects import Manifest, section
from modelplane_operator.kube.resources import NODE, SERVICE_CIDR, ResourceType

Network = IPv4Network | IPv6Network
LIFETIME = 600.0

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Ranges:
    """Networks of a cluster."""

    services: tuple[Network, ...] = ()
    pods: tuple[Network, ...] = ()


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
                services = await self._read(SERVICE_CIDR, "cidrs", self._known.services)
                pods = await self._read(NODE, "podCIDRs", self._known.pods)
                self._known = Ranges(services, pods)
        return self._known

    async def _read(self, kind: ResourceType, field_: str, last: tuple[Network, ...]) -> tuple[Network, ...]:
        """What a field of the spec says, of all objects; the last that was known when the hub does not tell."""
        try:
            return joined((await self.kube_of().list(kind)).items, field_)
        except ClientError as error:
            log.warning("range unknown", kind=kind.kind, why=str(error))
            return last


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
