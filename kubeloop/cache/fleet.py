"""The fleet: a connection with its own task for each workload cluster.

A cluster that does not answer, rejects us or sends garbage delays only its own connection.
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
    """The connections of workload clusters by name. `open` creates one, and callbacks of `on_open` complete it."""

    store: Store
    """The informers of all clusters."""
    open: Callable[[str, Access], Connection]
    awaits: Callable[[str], bool] = lambda _: False
    """True if credentials are being created for a cluster without a connection, and `set` will follow."""
    _ways: dict[str, Access] = field(default_factory=dict[str, Access], init=False)
    """The access by cluster."""
    _connections: dict[str, Connection] = field(default_factory=dict[str, Connection], init=False)
    _tasks: dict[str, asyncio.Task[None]] = field(default_factory=dict[str, asyncio.Task[None]], init=False)
    _opened: list[Callable[[Connection], None]] = field(default_factory=list[Callable[[Connection], None]], init=False)
    _background: list[Fleet] = field(default_factory=list["Fleet"], init=False)
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
        """Call this with each new connection, before it runs."""
        self._opened.append(opened)

    def set(self, name: str, access: Access) -> bool:
        """Connect to a cluster with this access, or update its connection. The same access changes nothing.

        Return True if the change matters to others than the connection: a renewed token does only if its lifetime is
        readable.
        """
        old, self._ways[name] = self._ways.get(name), access
        if (existing := self._connections.get(name)) is not None:
            existing.update(access)
        else:
            connection = self._connections[name] = self.open(name, access)
            for opened in self._opened:
                opened(connection)
            self._start(connection)
        return old is None or _public_access(old) != _public_access(access)

    def remove(self, name: str) -> None:
        """Close the connection to a cluster and drop its informers."""
        self._ways.pop(name, None)
        if self._connections.pop(name, None) is not None:
            if task := self._tasks.pop(name, None):
                task.cancel()
            self.store.close(name)

    def run_in_background(self, other: Fleet) -> None:
        """Let `cluster` find the clusters of another fleet too.

        They are not part of this one: no models are placed on them.
        """
        self._background.append(other)

    def find(self, name: str) -> Connection | None:
        return self._connections.get(name)

    def cluster(self, name: str) -> Connection:
        """Return the connection to a cluster.

        Raises Connecting while its credentials are created, and else Unreachable.
        """
        connection = self._connections.get(name) or next(
            filter(None, (fleet.find(name) for fleet in self._background)), None
        )
        if connection is None and self.awaits(name):
            raise Connecting(f"cluster {name}: the credentials for it are being made")
        if connection is None:
            raise Unreachable(f"cluster {name}: there is no connection to it")
        return connection

    def __iter__(self) -> Iterator[Connection]:
        return iter(tuple(self._connections.values()))

    def _start(self, connection: Connection) -> None:
        """Start the task of a connection, if the fleet runs."""
        if self._group is not None:
            self._tasks[connection.name] = self._group.create_task(connection.run(), name=f"cluster {connection.name}")


def _public_access(access: Access) -> tuple[Access, Token | None]:
    """Return the part of an access that matters to others than its connection."""
    return access.without_token(), read_token(access.token)
