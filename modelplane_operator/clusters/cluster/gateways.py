"""Whether a gateway answers, asked by opening a connection: for when the API server behind it does not say.

A cluster may tell any name as its gateway's, and whoever runs that answers as slowly as they like. So names are
resolved in threads of their own, and of each cluster few at once.
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
REMEMBER_SECONDS = 5.0  # all replicas of a lost cluster ask at once
ATTEMPTS = 2  # one lost packet is no outage
OF_A_CLUSTER = 4  # names that are resolved at once: its gateway has one, by two ports, and may have got another


@dataclass(slots=True)
class Gateways:
    """What the gateways have answered lately, by address."""

    now: Callable[[], float]
    lookup: Callable[..., Infos] = socket.getaddrinfo
    _asked: dict[tuple[str, str, int], tuple[float, asyncio.Task[bool]]] = field(
        default_factory=dict[tuple[str, str, int], tuple[float, asyncio.Task[bool]]], init=False
    )
    _names: dict[str, OwnThreads] = field(default_factory=dict[str, OwnThreads], init=False)
    """By cluster, what resolves its names."""

    async def answers(self, cluster: str, address: str, port: int) -> bool:
        """Whether something takes connections there, where a cluster says that its gateway is."""
        self._forget()
        question = (cluster, address, port)
        if question not in self._asked:
            task = asyncio.create_task(self._knock(cluster, address, port), name=f"gateway {address}")
            self._asked[question] = (self.now(), task)
        return await asyncio.shield(self._asked[question][1])

    async def _knock(self, cluster: str, address: str, port: int) -> bool:
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
        refused = OSError(f"{address} stands for nothing")
        for host in await self._hosts(cluster, address, port):
            try:
                _, writer = await asyncio.open_connection(host, port)
            except OSError as error:
                refused = error
            else:
                return writer
        raise refused

    async def _hosts(self, cluster: str, address: str, port: int) -> Sequence[str]:
        """The addresses that a name stands for; of an address itself."""
        with suppress(ValueError):
            return [str(ip_address(address))]
        names = self._names.setdefault(cluster, OwnThreads(self.lookup, OF_A_CLUSTER))
        return [found["host"] for found in await names.resolve(address, port, socket.AF_UNSPEC)]

    def _forget(self) -> None:
        """Let go of answers that are too old to be given again, and of clusters that nothing is resolved for."""
        oldest = self.now() - REMEMBER_SECONDS
        self._asked = {key: one for key, one in self._asked.items() if one[0] >= oldest or not one[1].done()}
        asking = {cluster for cluster, _, _ in self._asked}
        self._names = {cluster: one for cluster, one in self._names.items() if cluster in asking or one.busy}
