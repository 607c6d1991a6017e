"""The key service: tells the hub's gateway whether a request carries one of a ModelService's keys.

It is a process of its own, so that requests are answered while the operator is not there. It reads the Secrets itself,
by name, when it is asked, and keeps hashes of what it read for a second: so a change counts within two. While the API
server says nothing the last that it said holds, as nobody can change a Secret then; what was never read is refused.
"""

from __future__ import annotations

import asyncio
import signal
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Final

import structlog
from aiohttp import web

from modelplane_operator.api.base import Key
from modelplane_operator.api.model_endpoint import AUTHORIZATION
from modelplane_operator.clients.access import Access
from modelplane_operator.clients.errors import ClientError
from modelplane_operator.clients.kube import Kube, connect
from modelplane_operator.clients.limits import OF_HUB
from modelplane_operator.clients.resources import SECRET
from modelplane_operator.rendering import api_keys

FRESH: Final = 1.0
PATIENCE: Final = 1.0  # with the API server; the two are how late a change counts
MOST: Final = 10_000  # Secrets that are remembered
_PROBE: Final = "/healthz"

log = structlog.get_logger(__name__)


class UnknownKeysError(Exception):
    """A Secret could not be read, and never was."""


@dataclass(frozen=True, slots=True)
class _Reading:
    at: float
    digests: tuple[bytes, ...] | None
    """None: it could not be read, and never was."""


@dataclass(slots=True)
class Keyring:
    """Hashes of the keys in Secrets, as they were a second ago at most."""

    kube: Kube
    now: Callable[[], float]
    _known: OrderedDict[Key, _Reading] = field(default_factory=OrderedDict[Key, _Reading], init=False)
    _asking: dict[Key, asyncio.Lock] = field(default_factory=dict[Key, asyncio.Lock], init=False)

    async def allows(self, key: str, secrets: Sequence[Key]) -> bool:
        """Whether one of the Secrets holds the key; raises UnknownKeysError when that cannot be known."""
        found = await asyncio.gather(*map(self._find, secrets), return_exceptions=True)
        held = [digest for one in found if not isinstance(one, BaseException) for digest in one]
        if api_keys.matches(key, held):
            return True
        for one in found:
            if isinstance(one, BaseException):
                raise one
        return False

    async def _find(self, secret: Key) -> tuple[bytes, ...]:
        lock = self._asking.setdefault(secret, asyncio.Lock())
        try:
            async with lock:  # many who ask at once are one question
                known = self._known.get(secret)
                if known is None or self.now() - known.at >= FRESH:
                    known = await self._read(secret, known)
                    self._known[secret] = known
                    self._known.move_to_end(secret)
                    if len(self._known) > MOST:
                        self._known.popitem(last=False)
                if known.digests is None:
                    raise UnknownKeysError(secret)
                return known.digests
        finally:
            if not lock.locked():
                self._asking.pop(secret, None)

    async def _read(self, secret: Key, known: _Reading | None) -> _Reading:
        began = self.now()
        try:
            async with asyncio.timeout(PATIENCE):
                manifest = await self.kube.find(SECRET, secret)
        except (ClientError, TimeoutError) as error:
            last = known.digests if known else None
            log.warning("Secret not read", secret=str(secret), error=type(error).__name__, known=last is not None)
            return _Reading(self.now(), last)  # from the end on: or each who waits would wait for an answer of his own
        return _Reading(began, api_keys.digests(manifest) if manifest else ())


def _refusal(status: int, message: str, code: str) -> web.Response:
    """An error as OpenAI's API says it, which clients can show."""
    body = {"error": {"message": message, "type": "invalid_request_error", "param": None, "code": code}}
    return web.json_response(body, status=status, headers={"WWW-Authenticate": "Bearer"} if status == 401 else {})


@asynccontextmanager
async def serving(listen: tuple[str, int], keyring: Keyring) -> AsyncGenerator[None]:
    """Answer while the block runs; raises OSError when the address is taken."""

    async def answer(request: web.Request) -> web.Response:
        if request.raw_path == _PROBE:
            return web.Response(text="ok\n")
        if not request.raw_path.startswith(api_keys.PREFIX):
            return _refusal(403, "There is nothing here.", "not_found")
        key = api_keys.sent(request.headers.get(AUTHORIZATION, ""))
        if key is None:
            return _refusal(401, "This model needs a key: send Authorization: Bearer KEY.", "missing_api_key")
        try:
            if await keyring.allows(key, api_keys.secrets_at(request.raw_path.partition("?")[0])):
                return web.Response()
        except UnknownKeysError:
            return _refusal(503, "API keys cannot be checked at the moment: try again.", "keys_unavailable")
        return _refusal(401, "This API key is not one of this model's.", "invalid_api_key")

    app = web.Application()
    app.router.add_route("*", "/{any:.*}", answer)
    runner = web.AppRunner(app, handle_signals=False, access_log=None, shutdown_timeout=5.0)
    await runner.setup()
    try:
        host, port = listen
        await web.TCPSite(runner, host or None, port).start()
        yield
    finally:
        await runner.cleanup()


async def run(listen: tuple[str, int], access: Access) -> None:
    """Answer until a signal tells to stop."""
    loop, stop = asyncio.get_running_loop(), asyncio.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, stop.set)
    async with connect(access, limits=OF_HUB) as kube, serving(listen, Keyring(kube, loop.time)):
        log.info("Key service listens", address=f"{listen[0]}:{listen[1]}")
        await stop.wait()
