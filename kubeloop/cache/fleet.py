"""The fleet: one connection for each workload cluster, each with a task of its own.

A cluster that does not answer, refuses us or sends nonsense costs its own connection's time, and nobody else's.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

from kubeloop.cache.connection import Connection
from kubeloop.cache.store import Store
from kubeloop.client.access import Access, read_token
from kubeloop.errors import Connecting, Unreachable
from kubeloop.tokens import Token


@dataclass(slots=True)
class Fleet:
    """The workload clusters by name. `open` makes a connection; who asks to be told of it makes it complete."""

    store: Store
    open: Callable[[str, Access], Connection]
    awaits: Callable[[str], bool] = lambda _: False
    """Whether somebody is making the credentials for a cluster to which there is no connection, and will call `set`."""
    _ways: dict[str, Access] = field(default_factory=dict[str, Access], init=False)
    _connections: dict[str, Connection] = field(default_factory=dict[str, Connection], init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], init=False)
    _opened: list[Callable[[Connection], None]] = field(default_factory=list[Callable[[Connection], None]], init=False)
    _beside: list[Fleet] = field(default_factory=list["Fleet"], init=False)
    _group: asyncio.TaskGroup | None = field(default=None, init=False)

    async def run(self) -> None:
        """Stay connected to all clusters until cancelled."""
        async with asyncio.TaskGroup() as group:
            self._group = group
            try:
                for connection in self._connections.values():
                    self._start(connection)
                await asyncio.Event().wait()
            finally:
                self._group = None
                self._tasks.clear()

    def on_open(self, opened: Callable[[Connection], None]) -> None:
        """Have each new connection told before it runs."""
        self._opened.append(opened)

    def set(self, name: str, access: Access) -> bool:
        """Reach a cluster this way; nothing happens when that is how it is reached already.

        Answers whether that is news to others: a renewed token is none, unless it says how long it lasts.
        """
        before, self._ways[name] = self._ways.get(name), access
        if (known := self._connections.get(name)) is not None:
            known.update(access)
        else:
            connection = self._connections[name] = self.open(name, access)
            for opened in self._opened:
                opened(connection)
            self._start(connection)
        return before is None or _told(before) != _told(access)

    def remove(self, name: str) -> None:
        """Close the connection to a cluster and forget what was seen there."""
        self._ways.pop(name, None)
        if self._connections.pop(name, None) is not None:
            if task := self._tasks.pop(name, None):
                task.cancel()
            self.store.close(name)

    def beside(self, other: Fleet) -> None:
        """Have `cluster` find those of another, too, which are none of the fleet: no models are placed on them."""
        self._beside.append(other)

    def find(self, name: str) -> Connection | None:
        return self._connections.get(name)

    def cluster(self, name: str) -> Connection:
        """The connection to a cluster; raises Unreachable when there is none, and Connecting when there is none yet."""
        known = self._connections.get(name) or next(filter(None, (one.find(name) for one in self._beside)), None)
        if known is None and self.awaits(name):
            raise Connecting(f"cluster {name}: the credentials for it are being made")
        if known is None:
            raise Unreachable(f"cluster {name}: there is no connection to it")
        return known

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._connections.values()))

    def _start(self, connection: Connection) -> None:
        if self._group is not None:
            self._tasks[connection.name] = self._group.create_task(connection.run(), name=f"cluster {connection.name}")


def _told(access: Access) -> tuple[Access, Token | None]:
    """What others than the connection know of a way."""
    return access.without_token(), read_token(access.token)
