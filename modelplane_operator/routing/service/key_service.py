"""The key service: tells the hub's gateway whether a request carries one of a ModelService's keys.

It is a process of its own, so that requests are answered while the operator is not there. It reads the Secrets itself,
by name, when it is asked, and keeps hashes of what it read for a second: so a change counts within two. While the API
server says nothing at all the last that it said holds, as nobody can change a Secret then; what was never read is
refused. An API server that goes on to answer others is there: then what it last said of a Secret holds for a few
seconds more and no longer, whoever keeps it, or us, busy.

What a Secret may hold, and what is asked about one namespace at a time, is bounded: a tenant's Secrets keep nobody
else's requests waiting.
"""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Final
from weakref import WeakValueDictionary

import structlog
from aiohttp import web

from kubeloop.client.access import Access
from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import KIB, OF_HUB
from kubeloop.errors import ClientError, Forbidden, Misbehaving
from kubeloop.objects import Key
from kubeloop.probes import answering
from kubeloop.repeats import Repeats
from kubeloop.types import SECRET
from modelplane_operator.routing.service import api_keys
from modelplane_operator.routing.service.probe import MISSING_KEY

FRESH: Final = 1.0
PATIENCE: Final = 1.0  # with the API server; the two are how late a change counts
MOST: Final = 10_000  # Secrets that are remembered
MOST_DIGESTS: Final = 200_000  # of all of them: some 30 MB
OVERDUE: Final = 10.0  # how long the last word holds although the server answers others
OLDEST: Final = 3600.0  # and although it answers nobody
OF_A_NAMESPACE: Final = 4  # Secrets of one that are read at the same time
LIMITS: Final = replace(OF_HUB, answer=256 * KIB)
"""Four times what a Secret of keys may have: the metadata are the rest. More than that is not even parsed."""
_PROBE: Final = "/healthz"

log = structlog.get_logger(__name__)


class UnknownKeysError(Exception):
    """A Secret could not be read, and never was."""


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    """When it was tried."""
    digests: frozenset[bytes] | None
    """None: it could not be read, and never was, or too long ago."""
    told: float
    """When the server last said so."""
    failing: float | None = None
    """Since when it says nothing of it."""


@dataclass(slots=True)
class Keyring:
    """Hashes of the keys in Secrets, as they were a second ago at most."""

    kube: Kube
    now: Callable[[], float]
    _known: OrderedDict[Key, _Reading] = field(default_factory=OrderedDict[Key, _Reading], init=False)
    _asking: dict[Key, asyncio.Lock] = field(default_factory=dict[Key, asyncio.Lock], init=False)
    _turns: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary[str, asyncio.Semaphore], init=False
    )
    _digests: int = field(default=0, init=False)
    _answered: float = field(default=float("-inf"), init=False)
    """When the server last said anything, of whichever Secret."""
    _silent: bool = field(default=False, init=False)
    """Whether it said nothing when it was last asked."""
    _repeats: Repeats = field(default_factory=Repeats, init=False)
    _signing: tuple[str, datetime | None] | None = field(default=None, init=False, repr=False)
    """What paths are signed by, and until when others are answered; None while that was never read."""
    _looked: float = field(default=float("-inf"), init=False)
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def secrets_at(self, path: str) -> tuple[Key, ...] | None:
        """The Secrets that a path names; None when the operator has not written it, and raises UnknownKeysError."""
        signing, until = await self._signed_by()
        if until is not None and datetime.now(UTC) >= until and not api_keys.is_signed(path, signing):
            return None
        return api_keys.secrets_at(path, signing)

    async def _signed_by(self) -> tuple[str, datetime | None]:
        """What was last said of the Secret that signs, a second ago at most while the server answers."""
        async with self._looking:
            if self.now() - self._looked >= FRESH:
                try:
                    async with asyncio.timeout(PATIENCE):
                        secret = await self.kube.find(SECRET, api_keys.PATHS)
                    self._signing = api_keys.signing_of(secret), api_keys.unsigned_until(secret) if secret else None
                except (ClientError, TimeoutError) as error:
                    if so_far := self._repeats.worth((api_keys.PATHS, type(error))):
                        log.warning("what signs paths not read", error=type(error).__name__, so_far=so_far)
                    if isinstance(error, Forbidden) and self._signing is None:
                        self._signing = "", None  # an answer: nothing is signed here
                self._looked = self.now()
        if self._signing is None:
            raise UnknownKeysError(api_keys.PATHS)
        return self._signing

    async def allows(self, key: str, secrets: Sequence[Key]) -> bool:
        """Whether one of the Secrets holds the key; raises UnknownKeysError when that cannot be known."""
        found = await asyncio.gather(*map(self._find, secrets), return_exceptions=True)
        if any(api_keys.matches(key, one) for one in found if not isinstance(one, BaseException)):
            return True
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return False

    async def _find(self, secret: Key) -> frozenset[bytes]:
        lock = self._asking.setdefault(secret, asyncio.Lock())
        try:
            async with lock:  # many who ask at once are one question
                known = self._known.get(secret)
                if known is None or self.now() - known.at >= FRESH:
                    known = await self._read(secret, known)
                    self._keep(secret, known)
                if known.digests is None:
                    raise UnknownKeysError(secret)
                return known.digests
        finally:
            if not lock.locked():
                self._asking.pop(secret, None)

    def _keep(self, secret: Key, reading: _Reading) -> None:
        """Remember a reading, and forget those that nobody has asked for in the longest time."""
        before = self._known.pop(secret, None)
        self._known[secret] = reading
        self._digests += len(reading.digests or ()) - len((before and before.digests) or ())
        while len(self._known) > MOST or self._digests > MOST_DIGESTS or self._is_old():
            _, oldest = self._known.popitem(last=False)
            self._digests -= len(oldest.digests or ())

    def _is_old(self) -> bool:
        """Whether the reading that is the oldest can be of no use to anybody."""
        return next(iter(self._known.values())).at < self.now() - OLDEST

    async def _read(self, secret: Key, known: _Reading | None) -> _Reading:
        began = self.now()
        turn = self._turns.setdefault(secret.namespace, asyncio.Semaphore(OF_A_NAMESPACE))
        try:
            async with asyncio.timeout(PATIENCE), turn:
                manifest = await self.kube.find(SECRET, secret)
        except (Forbidden, Misbehaving) as error:  # an answer: nothing of it counts
            if so_far := self._repeats.worth((secret, type(error))):
                log.warning("Secret not taken", secret=str(secret), error=type(error).__name__, so_far=so_far)
            self._heard(began)
            return _Reading(began, frozenset(), began)
        except (ClientError, TimeoutError) as error:
            reading = self._unread(known, began)
            held = reading.digests is not None
            tell = log.debug if self._silent else log.warning
            tell("Secrets not read", secret=str(secret), error=type(error).__name__, known=held)
            self._silent = True
            return reading
        self._heard(began)
        return _Reading(began, api_keys.digests(manifest) if manifest else frozenset(), began)

    def _heard(self, began: float) -> None:
        self._answered = max(self._answered, began)
        if self._silent:
            log.info("Secrets read again")
        self._silent = False

    def _unread(self, known: _Reading | None, began: float) -> _Reading:
        """The last word on a Secret of which the server says nothing now, as long as that may hold."""
        now = self.now()  # from the end on: or each who waits would wait for an answer of his own
        if known is None:
            return _Reading(now, None, began, began)
        failing = began if known.failing is None else known.failing
        holds = now - known.told <= OLDEST and self._answered - failing <= OVERDUE
        return _Reading(now, known.digests if holds else None, known.told, failing)


def _refusal(status: int, message: str, code: str) -> web.Response:
    """An error as OpenAI's API says it, which clients can show."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=status, headers={"WWW-Authenticate": "Bearer"} if status == 401 else {})


def serving(listen: tuple[str, int], keyring: Keyring) -> AbstractAsyncContextManager[None]:
    """Answer while the block runs; raises OSError when the address is taken."""

    async def answer(request: web.Request) -> web.Response:
        if request.raw_path == _PROBE:
            return web.Response(text="ok\n")
        if not request.raw_path.startswith(api_keys.PREFIX):
            return _refusal(403, "There is nothing here.", "not_found")
        keys = api_keys.keys_of(request.headers)
        if not keys:
            how = "send Authorization: Bearer KEY, or x-api-key: KEY"
            return _refusal(401, f"This model needs a key: {how}.", MISSING_KEY)
        try:
            secrets = await keyring.secrets_at(request.raw_path.partition("?")[0])
            if secrets is None:
                return _refusal(403, "There is nothing here.", "not_found")
            for key in keys:
                if await keyring.allows(key, secrets):
                    return web.Response()
        except UnknownKeysError:
            return _refusal(503, "API keys cannot be checked at the moment: try again.", "keys_unavailable")
        return _refusal(401, "This API key is not one of this model's.", "invalid_api_key")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    return answering(app, listen, grace=5.0)


async def run(listen: tuple[str, int], access: Access) -> None:
    """Answer until a signal tells to stop."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connect(access, limits=LIMITS) as kube, serving(listen, Keyring(kube, loop.time)):
        log.info("Key service listens", address=f"{listen[0]}:{listen[1]}")
        await stop.wait()
