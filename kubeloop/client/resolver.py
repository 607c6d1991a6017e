"""What the names of users' endpoints stand for, as the resolver of the operator's own machine says it.

Whoever runs a name decides how long its answer takes, and the system's resolver cannot be cut short. So each question
has a thread of its own, there are few of them and fewer of one namespace, and nobody waits for one: whoever looks again
sees what has been found out by then.
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

LIFETIME = 120.0  # of an answer; then the name is asked about again
FAILED_LIFETIME = 2.0  # of a failure, so that several in a row are several failures
PATIENCE = 5.0  # with the first answer about a name
AT_ONCE = 32
OF_A_NAMESPACE = 4
NO_SUCH_NAME = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}

Lookup = Callable[[str], Sequence[str]]
"""The addresses of a name from its root on; blocks, and raises OSError."""


def system(name: str) -> Sequence[str]:
    found = socket.getaddrinfo(f"{name}.", None, type=socket.SOCK_STREAM)
    return [str(address[0]) for *_, address in found]


@dataclass(slots=True)
class Resolver:
    """Names and their addresses."""

    now: Callable[[], float]
    lookup: Lookup = system
    _known: dict[str, tuple[float, Resolved]] = field(default_factory=dict[str, tuple[float, Resolved]], init=False)
    _wanted: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Names that nothing is known of, and since when somebody wants to know."""
    _asking: dict[str, str] = field(default_factory=dict[str, str], init=False)
    """Names that are being asked about, for whose namespace."""

    def find(self, name: str, namespace: str) -> Resolved | None:
        """What a name stands for; None while there is hope to find out soon."""
        answered, known = self._known.get(name, (0.0, None))
        if known is None or self.now() - answered >= (FAILED_LIFETIME if known.error else LIFETIME):
            self._ask(name, namespace)
        if known is not None:
            return known
        waited = self.now() - self._wanted.setdefault(name, self.now())
        return Resolved(error=f"no answer within {PATIENCE:g} s") if waited >= PATIENCE else None

    def addresses(self, name: str, namespace: str) -> frozenset[str]:
        """The addresses that a name is known to stand for, be it that more is being found out."""
        found = self.find(name, namespace)
        return frozenset(map(str, found.addresses if found else ()))

    def _ask(self, name: str, namespace: str) -> None:
        of_namespace = Counter(self._asking.values())[namespace]
        if name in self._asking or len(self._asking) >= AT_ONCE or of_namespace >= OF_A_NAMESPACE:
            return
        self._forget()
        self._asking[name] = namespace
        loop = asyncio.get_running_loop()

        def ask() -> None:
            try:
                found = Resolved(tuple(ip_address(address.partition("%")[0]) for address in self.lookup(name)))
            except (OSError, ValueError) as error:
                unknown = isinstance(error, socket.gaierror) and error.errno in NO_SUCH_NAME
                found = Resolved(error=str(getattr(error, "strerror", None) or error), unknown=unknown)
            if not loop.is_closed():  # nobody waits for threads when the operator ends
                loop.call_soon_threadsafe(self._answered, name, found)

        Thread(target=ask, name=f"resolve {name}", daemon=True).start()

    def _answered(self, name: str, found: Resolved) -> None:
        """What was known of a name stays when nobody can say what it stands for now."""
        _, before = self._known.get(name, (0.0, Resolved()))
        lack = found.error or "it has no address"
        known = found if found.addresses else Resolved(before.addresses, lack, unknown=found.unknown)
        self._known[name] = (self.now(), known)
        self._asking.pop(name, None)
        self._wanted.pop(name, None)

    def _forget(self) -> None:
        """Let go of names that nobody has asked about for long."""
        oldest = self.now() - 4 * LIFETIME
        self._known = {name: one for name, one in self._known.items() if one[0] > oldest}
        self._wanted = {name: since for name, since in self._wanted.items() if since > oldest}


Infos = Sequence[tuple[int, int, int, str, tuple[Any, ...]]]
NUMERIC = socket.AI_NUMERICHOST | socket.AI_NUMERICSERV


Refuse = Callable[[str, Sequence[str]], Awaitable[str]]
"""Why a name may not be dialled, given its addresses, of which it may have none; empty when it may."""
MOST_ADDRESSES = 100  # of a name that are judged and dialled


async def unrefused(_: str, __: Sequence[str]) -> str:
    """For names of the platform team's own."""
    return ""


class OwnThreads(AbstractResolver):
    """Resolves the names of one connection, each question in a thread of its own, and never the same one twice at once.

    The loop's own threads are few and everybody's: names of some dozen clusters that answer slowly would keep all other
    names, and whatever else is done in these threads, waiting. A question cannot be cut short; whoever asks again joins
    it.
    """

    def __init__(
        self, lookup: Callable[..., Infos] = socket.getaddrinfo, at_once: int = AT_ONCE, refuse: Refuse = unrefused
    ) -> None:
        """`refuse` judges the very addresses that are dialled, so that no later answer takes their place."""
        self._lookup, self._refuse = lookup, refuse
        self._at_once = at_once
        self._asking: dict[tuple[str, int, int], asyncio.Future[Infos]] = {}

    @property
    def busy(self) -> bool:
        """Whether a thread of its is still asking."""
        return bool(self._asking)

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        question = (host, port, int(family))
        answer = self._asking.get(question)
        if answer is None and len(self._asking) >= self._at_once:
            raise OSError(f"{host} is not resolved before other names are")
        if answer is None:
            answer = self._asking[question] = self._ask(question)
        try:
            found = (await asyncio.shield(answer))[:MOST_ADDRESSES]
        except socket.gaierror as error:
            if error.errno in NO_SUCH_NAME and (why := await self._refuse(host, ())):
                raise Worded(why) from None
            raise
        if why := await self._refuse(host, [str(address[0]) for *_, address in found]):
            raise Worded(why)
        return [
            ResolveResult(hostname=host, host=_numeric(address), port=port, family=of, proto=proto, flags=NUMERIC)
            for of, _, proto, _, address in found
        ]

    async def close(self) -> None:
        """Nobody waits for threads."""

    def _ask(self, question: tuple[str, int, int]) -> asyncio.Future[Infos]:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Infos] = loop.create_future()

        def answered(found: Infos | OSError) -> None:
            self._asking.pop(question, None)
            if isinstance(found, OSError):
                answer.set_exception(found)
                answer.exception()  # it may be that nobody waits any more
            else:
                answer.set_result(found)

        def ask() -> None:
            host, port, family = question
            found: Infos | OSError
            try:
                found = self._lookup(host, port, family, socket.SOCK_STREAM, 0, socket.AI_ADDRCONFIG)
            except OSError as error:
                found = error
            except UnicodeError as error:  # a label of more than 63 characters, for one
                found = socket.gaierror(socket.EAI_NONAME, str(error))
            if not loop.is_closed():
                loop.call_soon_threadsafe(answered, found)

        Thread(target=ask, name=f"resolve {question[0]}", daemon=True).start()
        return answer


def _numeric(address: tuple[Any, ...]) -> str:
    """The address, with the number of the link that it is on where it has one."""
    link = address[3:4]
    return f"{address[0]}%{link[0]}" if any(link) else f"{address[0]}"
