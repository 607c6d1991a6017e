"""Probe a gateway by opening a connection, when its cluster's API server does not report its state.

A cluster may report any name as its gateway's, and that name's DNS server may be slow. So names are resolved in
separate threads, a few at a time for each cluster.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from ipaddress import ip_address

from kubeloop.client.resolver import Infos, OwnThreads

CONNECT_SECONDS = 2.0
REMEMBER_SECONDS = 5.0  # all replicas of a lost cluster probe it at the same time
ATTEMPTS = 2  # a lost packet must not count as an outage
OF_A_CLUSTER = 4  # concurrent lookups: one name at two ports, and perhaps a new name


@dataclass(slots=True)
class Gateways:
    """Recent results of probes, by cluster, address and port."""

    now: Callable[[], float]
    """The clock, in seconds."""
    lookup: Callable[..., Infos] = socket.getaddrinfo
    """Function that resolves a name, which tests replace."""
    _probes: dict[tuple[str, str, int], tuple[float, asyncio.Task[bool]]] = field(
        default_factory=dict[tuple[str, str, int], tuple[float, asyncio.Task[bool]]], init=False
    )
    """The start of each recent probe, and its task."""
    _names: dict[str, OwnThreads] = field(default_factory=dict[str, OwnThreads], init=False)
    """Resolver threads by cluster."""

    async def answers(self, cluster: str, address: str, port: int) -> bool:
        """True if the address accepts connections; the result is shared for a few seconds."""
        self._expire()
        question = (cluster, address, port)
        if question not in self._probes:
            task = asyncio.create_task(self._probe(cluster, address, port), name=f"gateway {address}")
            self._probes[question] = (self.now(), task)
        # Shielded, since callers share the probe and one of them may be cancelled.
        return await asyncio.shield(self._probes[question][1])

    async def _probe(self, cluster: str, address: str, port: int) -> bool:
        """True if a connection opens within the attempts."""
        for _ in range(ATTEMPTS):
            try:
                async with asyncio.timeout(CONNECT_SECONDS):
                    writer = await self._connect(cluster, address, port)
            except (OSError, TimeoutError):
                continue
            writer.close()
            return True
        return False

    async def _connect(self, cluster: str, address: str, port: int) -> asyncio.StreamWriter:
        """Return a connection to the first address that accepts one; raise OSError if none does."""
        last_error = OSError(f"{address} has no IP address")
        for host in await self._resolve(cluster, address, port):
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                last_error = error
            else:
                return writer
        raise last_error

    async def _resolve(self, cluster: str, address: str, port: int) -> Sequence[str]:
        """Return the addresses of a name; an IP address is returned unchanged."""
        with suppress(ValueError):
            return [str(ip_address(address))]
        resolver = self._names.setdefault(cluster, OwnThreads(self.lookup, OF_A_CLUSTER))
        return [info["host"] for info in await resolver.resolve(address, port, socket.AF_UNSPEC)]

    def _expire(self) -> None:
        """Drop expired probes, and the resolvers of clusters without probes or lookups."""
        oldest = self.now() - REMEMBER_SECONDS
        self._probes = {key: item for key, item in self._probes.items() if item[0] >= oldest or not item[1].done()}
        active = {cluster for cluster, _, _ in self._probes}
        self._names = {cluster: item for cluster, item in self._names.items() if cluster in active or item.busy}
