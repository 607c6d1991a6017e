"""DNS lookups in threads: of the names of users' endpoints, and of servers.

The owner of a name decides how long its lookup takes, and the system's resolver cannot be interrupted. So each lookup
has its own thread, with a limit on all of them and a lower one for each namespace. Reconciles do not wait: the next one
reads the result.
"""

from __future__ import annotations

import asyncio
import socket
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from ipaddress import ip_address
from threading import Thread
from typing import Any

from aiohttp.abc import AbstractResolver, ResolveResult

from kubeloop.client.resolved import Resolved
from kubeloop.client.transport import Worded

LIFETIME = 120.0  # seconds until a name is looked up again
FAILED_LIFETIME = 2.0  # seconds until that after a failure, so that repeated checks observe repeated failures
PATIENCE = 5.0  # seconds for the first lookup of a name until it is reported as failed
AT_ONCE = 32  # lookups
OF_A_NAMESPACE = 4  # concurrent lookups for one namespace
NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

Lookup = Callable[[str], Sequence[str]]
"""Returns the addresses of an absolute name; blocks, and raises OSError."""


def system(name: str) -> Sequence[str]:
    """Look a name up by the system's resolver."""
    entries = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in entries]


@dataclass(slots=True)
class Resolver:
    """Cached addresses of names."""

    now: Callable[[], float]
    lookup: Lookup = system
    _cached: dict[str, tuple[float, Resolved]] = field(default_factory=dict[str, tuple[float, Resolved]], init=False)
    """The time and the result of the last lookup by name."""
    _requested: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """The names without a result yet, and the time of the first request for each."""
    _asking: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """The names that are being looked up, and the namespace for which."""

    def find(self, name: str, namespace: str) -> Resolved | None:
        """Return the addresses of a name, and start a lookup if they are outdated.

        None while a first result may come soon.
        """
        looked_up_at, cached = self._cached.get(name, (0.0, None))
        if cached is None or self.now() - looked_up_at >= (FAILED_LIFETIME if cached.error else LIFETIME):
            self._start_lookup(name, namespace)
        if cached is not None:
            return cached
        waited = self.now() - self._requested.setdefault(name, self.now())
        return Resolved(error=f"no answer within {PATIENCE:g} s") if waited >= PATIENCE else None

    def addresses(self, name: str, namespace: str) -> frozenset[str]:
        """Return the known addresses of a name, even while it is looked up again."""
        resolved = self.find(name, namespace)
        return frozenset(map(str, resolved.addresses if resolved else ()))

    def _start_lookup(self, name: str, namespace: str) -> None:
        """Start a lookup in a thread, unless there are too many."""
        pending = Counter(self._asking.values())[namespace]
        if name in self._asking or len(self._asking) >= AT_ONCE or pending >= OF_A_NAMESPACE:
            return
        self._evict_unused()
        self._asking[name] = namespace
        loop = asyncio.get_running_loop()

        def look_up() -> None:
            """Look the name up in this thread, and hand the result to the event loop."""
            try:
                resolved = Resolved(tuple(ip_address(address.partition("%")[0]) for address in self.lookup(name)))
            except (OSError, ValueError) as error:
                unknown = isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME
                resolved = Resolved(error=str(getattr(error, "strerror", None) or error), unknown=unknown)
            if not loop.is_closed():  # threads may outlive the loop at shutdown
                loop.call_soon_threadsafe(self._store_result, name, resolved)

        Thread(target=look_up, name=f"resolve {name}", daemon=True).start()

    def _store_result(self, name: str, resolved: Resolved) -> None:
        """Store the result of a lookup. After a failure the last addresses stay."""
        _, old = self._cached.get(name, (0.0, Resolved()))
        error = resolved.error or "it has no address"
        result = resolved if resolved.addresses else Resolved(old.addresses, error, unknown=resolved.unknown)
        self._cached[name] = (self.now(), result)
        self._asking.pop(name, None)
        self._requested.pop(name, None)

    def _evict_unused(self) -> None:
        """Remove names that have not been looked up for long."""
        oldest = self.now() - 4 * LIFETIME
        self._cached = {name: cached for name, cached in self._cached.items() if cached[0] > oldest}
        self._requested = {name: first_asked for name, first_asked in self._requested.items() if first_asked > oldest}


Infos = Sequence[tuple[int, int, int, str, tuple[Any, ...]]]
"""The result of `socket.getaddrinfo`."""
NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


Refuse = Callable[[str, Sequence[str]], Awaitable[str]]
"""Returns the reason why a name with these addresses, perhaps none, may not be dialled; empty if it may."""
MOST_ADDRESSES = 100  # of a name that are checked and dialled


async def allow_all(_: str, __: Sequence[str]) -> str:
    """Allow every name, for names of the platform team."""
    return ""


class OwnThreads(AbstractResolver):
    """Resolves the names of one connection, each lookup in its own thread, and each name only once at a time.

    The event loop's own few threads are shared: slow names of a few dozen clusters would delay all others. A lookup
    cannot be interrupted, so a repeated request joins the one in progress.
    """

    def __init__(
        self, lookup: Callable[..., Infos] = socket.getaddrinfo, at_once: int = AT_ONCE, refuse: Refuse = allow_all
    ) -> None:
        """Set the limits.

        `refuse` checks the very addresses that are dialled, so that no later lookup can replace them.
        """
        self._lookup, self._refuse = lookup, refuse
        self._at_once = at_once
        self._asking: dict[tuple[str, int, int], asyncio.Future[Infos]] = {}

    @property
    def busy(self) -> bool:
        """True if a lookup is in progress."""
        return bool(self._asking)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        """Return the addresses of a host for aiohttp.

        Raises Worded if they may not be dialled, and OSError if lookups fail.
        """
        question = (host, port, int(family))
        future = self._asking.get(question)
        if future is None and len(self._asking) >= self._at_once:
            raise OSError(f"{host} is not resolved before other names are")
        if future is None:
            future = self._asking[question] = self._start_lookup(question)
        try:
            entries = (await asyncio.shield(future))[:MOST_ADDRESSES]
        except socket.gaierror as error:
            if error.errno in NO_SUCH_NAME and (reason := await self._refuse(host, ())):
                raise Worded(reason) from None
            raise
        if reason := await self._refuse(host, [str(address[0]) for *_, address in entries]):
            raise Worded(reason)
        return [
            ResolveResult(
                hostname=host,
                # With the scope id (the number of its link), if it has one.
                host=f"{address[0]}%{address[3]}" if any(address[3:4]) else f"{address[0]}",
                port=port,
                family=address_family,
                proto=proto,
                flags=NUMERIC,
            )
            for address_family, _, proto, _, address in entries
        ]

    async def close(self) -> None:
        """Do nothing: lookups in progress end by themselves."""

    def _start_lookup(self, question: tuple[str, int, int]) -> asyncio.Future[Infos]:
        """Start a lookup in a thread."""
        loop = asyncio.get_running_loop()
        future: asyncio.Future[Infos] = loop.create_future()

        def set_result(result: Infos | OSError) -> None:
            """Resolve the future on the event loop."""
            self._asking.pop(question, None)
            if isinstance(result, OSError):
                future.set_exception(result)
                future.exception()  # mark it as retrieved, as the caller may be gone
            else:
                future.set_result(result)

        def look_up() -> None:
            """Look the name up in this thread, and hand the result to the event loop."""
            host, port, family = question
            result: Infos | OSError
            try:
                result = self._lookup(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
            except OSError as error:
                result = error
            except UnicodeError as error:  # such as a label of more than 63 characters
                result = socket.gaierror(socket.EAI_NONAME, str(error))
            if not loop.is_closed():
                loop.call_soon_threadsafe(set_result, result)

        Thread(target=look_up, name=f"resolve {question[0]}", daemon=True).start()
        return future
