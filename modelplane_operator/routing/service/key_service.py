"""The key service: answers the hub's gateway whether a request has one of a ModelService's API keys.

It is a separate process, so that requests are served while the operator is not running. It reads the Secrets by name on
demand and caches their hashes for a second, so a change takes effect within two. While the API server does not respond
at all, the last content stays valid, since no Secret can change then; Secrets that were never read are rejected. While
the API server responds to other reads, a Secret's last content stays valid for a few seconds only, whatever delays its
own read.

The size of Secrets and the parallel reads per namespace are limited, so that one tenant's Secrets do not delay other
tenants' requests.
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
from kubeloop.probes import serve_app
from kubeloop.repeats import Repeats
from kubeloop.types import SECRET
from modelplane_operator.routing.service import api_keys
from modelplane_operator.routing.service.probe import MISSING_KEY

FRESH: Final = 1.0
PATIENCE: Final = 1.0  # timeout of reads; a change takes effect within FRESH + PATIENCE
MOST: Final = 10_000  # Secrets in the cache
MOST_DIGESTS: Final = 200_000  # for all Secrets: some 30 MB
OVERDUE: Final = 10.0  # how long the last content is valid while the server responds to other reads
OLDEST: Final = 3600.0  # and while it responds to none
OF_A_NAMESPACE: Final = 4  # parallel reads of one namespace's Secrets
LIMITS: Final = replace(OF_HUB, answer=256 * KIB)
"""Four times the limit for a Secret of keys, which leaves room for metadata. Larger responses are not parsed."""
_PROBE: Final = "/healthz"

log = structlog.get_logger(__name__)


class UnknownKeysError(Exception):
    """A Secret could not be read, and there is no earlier content."""


@dataclass(frozen=True, slots=True)
class _Reading:
    """One read of a Secret."""

    at: float
    """The time of the read."""
    digests: frozenset[bytes] | None
    """Hashes of the keys; None if it could not be read and no earlier content is valid."""
    read_at: float
    """The time of the last successful read."""
    failing: float | None = None
    """The time since which reads have failed."""


@dataclass(slots=True)
class Keyring:
    """Hashes of the keys in Secrets, at most a second old."""

    kube: Kube
    now: Callable[[], float]
    _readings: OrderedDict[Key, _Reading] = field(default_factory=OrderedDict[Key, _Reading], init=False)
    """The last reading of each Secret, oldest first."""
    _asking: dict[Key, asyncio.Lock] = field(default_factory=dict[Key, asyncio.Lock], init=False)
    """Locks by Secret, for reads that are running."""
    _turns: WeakValueDictionary[str, asyncio.Semaphore] = field(
        default_factory=WeakValueDictionary[str, asyncio.Semaphore], init=False
    )
    """Limits of parallel reads, by namespace."""
    _digests: int = field(default=0, init=False)
    """The number of hashes in all readings."""
    _answered: float = field(default=float("-inf"), init=False)
    """The time of the server's last response for any Secret."""
    _silent: bool = field(default=False, init=False)
    """True if the last read got no response."""
    _repeats: Repeats = field(default_factory=Repeats, init=False)
    _signing: tuple[str, datetime | None] | None = field(default=None, init=False, repr=False)
    """The key that signs paths and the end of unsigned paths; None while it was never read."""
    _looked: float = field(default=float("-inf"), init=False)
    """The time of the last read of the signing key."""
    _looking: asyncio.Lock = field(default_factory=asyncio.Lock, init=False)

    async def secrets_at(self, path: str) -> tuple[Key, ...] | None:
        """Return the Secrets that a path names; None if the path must be signed and is not.

        Raises UnknownKeysError if the signing key was never read.
        """
        signing, until = await self._read_signing()
        if until is not None and datetime.now(UTC) >= until and not api_keys.is_signed(path, signing):
            return None
        return api_keys.secrets_at(path, signing)

    async def _read_signing(self) -> tuple[str, datetime | None]:
        """Return the signing key and the end of unsigned paths, at most a second old while the server responds."""
        async with self._looking:
            if self.now() - self._looked >= FRESH:
                try:
                    async with asyncio.timeout(PATIENCE):
                        secret = await self.kube.find(SECRET, api_keys.PATHS)
                    self._signing = (
                        api_keys.signing_key(secret),
                        api_keys.read_unsigned_until(secret) if secret else None,
                    )
                except (ClientError, TimeoutError) as error:
                    if so_far := self._repeats.worth((api_keys.PATHS, type(error))):
                        log.warning("what signs paths not read", error=type(error).__name__, so_far=so_far)
                    if isinstance(error, Forbidden) and self._signing is None:
                        self._signing = "", None  # a valid response: no path is signed here
                self._looked = self.now()
        if self._signing is None:
            raise UnknownKeysError(api_keys.PATHS)
        return self._signing

    async def allows(self, key: str, secrets: Sequence[Key]) -> bool:
        """True if one of the Secrets holds the key.

        Raises UnknownKeysError if a Secret could not be read and no other has the key.
        """
        results = await asyncio.gather(*map(self._find, secrets), return_exceptions=True)
        if any(api_keys.matches(key, result) for result in results if not isinstance(result, BaseException)):
            return True
        for result in results:
            if isinstance(result, BaseException):
                raise result
        return False

    async def _find(self, secret: Key) -> frozenset[bytes]:
        """Return the hashes of a Secret, from the cache or by a read."""
        lock = self._asking.setdefault(secret, asyncio.Lock())
        try:
            async with lock:  # concurrent callers share one read
                reading = self._readings.get(secret)
                if reading is None or self.now() - reading.at >= FRESH:
                    reading = await self._read(secret, reading)
                    self._keep(secret, reading)
                if reading.digests is None:
                    raise UnknownKeysError(secret)
                return reading.digests
        finally:
            if not lock.locked():
                self._asking.pop(secret, None)

    def _keep(self, secret: Key, reading: _Reading) -> None:
        """Cache a reading, and drop the least recently used ones beyond the limits, and too old ones."""
        old = self._readings.pop(secret, None)
        self._readings[secret] = reading
        self._digests += len(reading.digests or ()) - len((old and old.digests) or ())
        while (
            len(self._readings) > MOST
            or self._digests > MOST_DIGESTS
            or next(iter(self._readings.values())).at < self.now() - OLDEST
        ):
            _, oldest = self._readings.popitem(last=False)
            self._digests -= len(oldest.digests or ())

    async def _read(self, secret: Key, last: _Reading | None) -> _Reading:
        """Read a Secret; on failure, return the last content as long as it is valid."""
        started_at = self.now()
        semaphore = self._turns.setdefault(secret.namespace, asyncio.Semaphore(OF_A_NAMESPACE))
        try:
            async with asyncio.timeout(PATIENCE), semaphore:
                manifest = await self.kube.find(SECRET, secret)
        except (Forbidden, Misbehaving) as error:  # a valid response: the Secret has no keys
            if so_far := self._repeats.worth((secret, type(error))):
                log.warning("Secret not taken", secret=str(secret), error=type(error).__name__, so_far=so_far)
            self._on_response(started_at)
            return _Reading(started_at, frozenset(), started_at)
        except (ClientError, TimeoutError) as error:
            reading = self._keep_last(last, started_at)
            is_valid = reading.digests is not None
            log_method = log.debug if self._silent else log.warning
            log_method("Secrets not read", secret=str(secret), error=type(error).__name__, known=is_valid)
            self._silent = True
            return reading
        self._on_response(started_at)
        return _Reading(started_at, api_keys.digests(manifest) if manifest else frozenset(), started_at)

    def _on_response(self, started_at: float) -> None:
        """Record a response of the server."""
        self._answered = max(self._answered, started_at)
        if self._silent:
            log.info("Secrets read again")
        self._silent = False

    def _keep_last(self, last: _Reading | None, started_at: float) -> _Reading:
        """Return a reading with the last content, as long as that may be used."""
        now = self.now()  # after the timeout, so that waiting callers use this result instead of reading again
        if last is None:
            return _Reading(now, None, started_at, started_at)
        failing = started_at if last.failing is None else last.failing
        is_valid = now - last.read_at <= OLDEST and self._answered - failing <= OVERDUE
        return _Reading(now, last.digests if is_valid else None, last.read_at, failing)


def _build_error(status: int, message: str, code: str) -> web.Response:
    """Return an error in the format of OpenAI's API, which clients can show."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=status, headers={"WWW-Authenticate": "Bearer"} if status == 401 else {})


def serve_keys(listen: tuple[str, int], keyring: Keyring) -> AbstractAsyncContextManager[None]:
    """Answer requests while the block runs; raises OSError if the address is in use."""

    async def answer(request: web.Request) -> web.Response:
        """Answer one request of the gateway: 200 if a key is valid, else an error."""
        if request.raw_path == _PROBE:
            return web.Response(text="ok\n")
        if not request.raw_path.startswith(api_keys.PREFIX):
            return _build_error(403, "No model has this path.", "not_found")
        keys = api_keys.keys_of(request.headers)
        if not keys:
            remedy = "send Authorization: Bearer KEY, or x-api-key: KEY"
            return _build_error(401, f"This model needs a key: {remedy}.", MISSING_KEY)
        try:
            secrets = await keyring.secrets_at(request.raw_path.partition("?")[0])
            if secrets is None:
                return _build_error(403, "No model has this path.", "not_found")
            for key in keys:
                if await keyring.allows(key, secrets):
                    return web.Response()
        except UnknownKeysError:
            return _build_error(503, "The gateway cannot check API keys at the moment: try again.", "keys_unavailable")
        return _build_error(401, "This API key is not one of this model's.", "invalid_api_key")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    return serve_app(app, listen, grace=5.0)


async def run(listen: tuple[str, int], access: Access) -> None:
    """Answer requests until a signal arrives."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connect(access, limits=LIMITS) as kube, serve_keys(listen, Keyring(kube, loop.time)):
        log.info("Key service listens", address=f"{listen[0]}:{listen[1]}")
        await stop.wait()
