"""The proxy itself: a call comes in, meets its rules, goes on to the API server, and its answer meets them again."""

import asyncio
import io
import logging
import os
import socket
import struct
from collections.abc import Mapping
from dataclasses import dataclass

import aiohttp
import orjson
from aiohttp import web
from multidict import CIMultiDict
from yarl import URL

from localfleet.faultproxy.book import Book, Ticket
from localfleet.faultproxy.calls import read_call
from localfleet.faultproxy.floods import flood
from localfleet.faultproxy.rules import (
    ActiveRule,
    Answer,
    Delay,
    Drop,
    Flood,
    Hang,
    LoseReply,
    Reset,
    Rules,
    Signal,
    Slow,
    Truncate,
    When,
)
from localfleet.faultproxy.watches import Watches, relay
from localfleet.kubeclient import Access, lines

log = logging.getLogger(__name__)

HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-connection", "te", "trailer", "transfer-encoding", "upgrade"}
)
REASONS: Mapping[int, str] = {
    401: "Unauthorized",
    403: "Forbidden",
    404: "NotFound",
    409: "Conflict",
    410: "Expired",
    422: "Invalid",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}
_LINGER_NOT = struct.pack("ii", 1, 0)


@dataclass(frozen=True, slots=True)
class Cut:
    """The connection is closed without (more of) an answer."""

    reset: bool = False


class Proxy:
    """Forwards to one API server under the rules of the moment."""

    def __init__(self, access: Access, token: str, book: Book, rules: Rules) -> None:
        self.book = book
        self.rules = rules
        self.watches = Watches()
        self._access = access
        self._token = token
        self._changed = asyncio.Condition()
        self._own = _session(access, certificate=True)
        self._callers = _session(access, certificate=False)

    async def close(self) -> None:
        """Let go of the API server."""
        await self._own.close()
        await self._callers.close()

    async def rules_changed(self) -> None:
        """Let open watches and hanging calls look at the rules again."""
        self.watches.wake()
        async with self._changed:
            self._changed.notify_all()

    async def forward(self, request: web.BaseRequest) -> web.StreamResponse:
        """One call from arrival to answer."""
        call = read_call(request.method, request.path, request.query_string, request.headers)
        ticket = self.book.open(call)
        body, hits = b"", list[ActiveRule]()
        try:
            body = await request.content.read()  # request.read() refuses what is larger than 1 MiB
            hits = self.rules.fire(call, ticket.mutating_call)
            return await self._forward(request, body, ticket, hits)
        finally:
            await self.book.close(ticket, body, tuple(active.id for active in hits))

    async def _forward(
        self, request: web.BaseRequest, body: bytes, ticket: Ticket, hits: list[ActiveRule]
    ) -> web.StreamResponse:
        if "upgrade" in request.headers.get("Connection", "").lower():
            return self._answer(ticket, Answer(501, message="the fault proxy passes no upgraded connections on"))
        match await self._obstacle(hits, When.BEFORE):
            case Answer() as answer:
                return self._answer(ticket, answer)
            case Cut() as cut:
                return self._cut(request, ticket, cut, "dropped before forwarding")
            case Flood(how):
                ticket.outcome = f"flooded: {how}"
                return await flood(request, ticket.call, how)
            case None:
                pass
        session, headers = self._credentials(request)
        try:
            async with session.request(
                request.method,
                URL(self._access.server + request.raw_path, encoded=True),
                data=io.BytesIO(body) if body else None,
                headers=headers,
                allow_redirects=False,
            ) as upstream:
                ticket.status = upstream.status
                return await self._reply(request, upstream, ticket, hits)
        except aiohttp.ClientConnectionError as error:
            if request.transport is None or request.transport.is_closing():
                raise  # it was the client that went
            log.info("the API server is out of reach: %s", error)
            return self._cut(request, ticket, Cut(), f"no answer from the API server: {type(error).__name__}")

    async def _reply(
        self, request: web.BaseRequest, upstream: aiohttp.ClientResponse, ticket: Ticket, hits: list[ActiveRule]
    ) -> web.StreamResponse:
        watching = ticket.call.verb == "watch" and upstream.status == 200
        # the effect is complete before a reply is lost, delayed or replaced
        body = await upstream.read() if hits and not watching else None
        match await self._obstacle(hits, When.AFTER):
            case Answer() as answer:
                return self._answer(ticket, answer)
            case Cut() as cut:
                return self._cut(request, ticket, cut, "reply lost")
            case _:
                pass
        headers = CIMultiDict(
            (name, value) for name, value in upstream.headers.items() if name.lower() not in HOP_BY_HOP
        )
        response = web.StreamResponse(status=upstream.status, reason=upstream.reason, headers=headers)
        if "Content-Length" not in headers:
            response.enable_chunked_encoding()
        await response.prepare(request)
        if watching and upstream.content_type == "application/json":
            ticket.outcome = "watch cut by the client"
            ticket.events, ticket.outcome = await relay(
                lines(upstream.content), response.write, ticket.call, self.rules, self.watches
            )
        elif body is None:
            async for chunk in upstream.content.iter_any():
                await response.write(chunk)
            ticket.outcome = "answered"
        else:
            shapers = [rule.rule.action for rule in hits if isinstance(rule.rule.action, Slow | Truncate)]
            if await _shaped(body, response, shapers):
                return self._cut(request, ticket, Cut(), "truncated")
            ticket.outcome = "answered"
        await response.write_eof()
        return response

    async def _obstacle(self, hits: list[ActiveRule], when: When) -> Answer | Cut | Flood | None:
        """What the rules put in the way on this side of the effect; waits are over when it answers."""
        for active in hits:
            match active.rule.action:
                case Drop() if when is When.BEFORE:
                    return Cut()
                case LoseReply() if when is When.AFTER:
                    return Cut()
                case Reset(when=side) if side is when:
                    return Cut(reset=True)
                case Delay(seconds, when=side) if side is when:
                    await asyncio.sleep(seconds)
                case Hang(seconds, when=side) if side is when:
                    await self._until_removed(active, seconds)
                case Answer(when=side) as answer if side is when:
                    return answer
                case Flood() as flooding if when is When.BEFORE:
                    return flooding
                case Signal(pid, number, when=side) if side is when:
                    os.kill(pid, number)
                    return Cut()
                case _:
                    pass
        return None

    async def _until_removed(self, active: ActiveRule, seconds: float | None) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(lambda: active.id not in self.rules.active)
        except TimeoutError:
            pass

    def _credentials(self, request: web.BaseRequest) -> tuple[aiohttp.ClientSession, CIMultiDict[str]]:
        headers = CIMultiDict(
            (name, value) for name, value in request.headers.items() if name.lower() not in HOP_BY_HOP
        )
        headers.pop("Host", None)
        if headers.get("Authorization", f"Bearer {self._token}") != f"Bearer {self._token}":
            return self._callers, headers
        headers.pop("Authorization", None)
        if self._access.token:
            headers["Authorization"] = f"Bearer {self._access.token}"
        return self._own, headers

    def _answer(self, ticket: Ticket, answer: Answer) -> web.Response:
        ticket.status, ticket.outcome = answer.status, "answered by a rule"
        return web.Response(
            status=answer.status,
            body=orjson.dumps(status_object(answer)),
            content_type="application/json",
            headers={} if answer.retry_after is None else {"Retry-After": str(answer.retry_after)},
        )

    def _cut(self, request: web.BaseRequest, ticket: Ticket, cut: Cut, outcome: str) -> web.Response:
        ticket.outcome = outcome
        transport = request.transport
        if transport is not None:
            if cut.reset:
                transport.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _LINGER_NOT)
            transport.abort()
        return web.Response()  # nobody is left to read it


def status_object(answer: Answer) -> dict[str, object]:
    """The Status object that an API server would send."""
    details = {} if answer.retry_after is None else {"details": {"retryAfterSeconds": answer.retry_after}}
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": answer.message,
        "reason": REASONS.get(answer.status, ""),
        **details,
        "code": answer.status,
    }


async def _shaped(body: bytes, response: web.StreamResponse, shapers: list[Slow | Truncate]) -> bool:
    """Send a body slowly, or only its beginning; True when the connection is to be closed after it."""
    cuts = [shaper.bytes for shaper in shapers if isinstance(shaper, Truncate)]
    paces = [shaper.bytes_per_second for shaper in shapers if isinstance(shaper, Slow)]
    body = body[: min(cuts)] if cuts else body
    step = max(1, min(paces) // 10) if paces else max(1, len(body))
    for start in range(0, len(body), step):
        await response.write(body[start : start + step])
        if paces:
            await asyncio.sleep(step / min(paces))
    return bool(cuts)


def _session(access: Access, *, certificate: bool) -> aiohttp.ClientSession:
    tls = access.tls if certificate else access.tls_without_certificate
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(ssl=tls, limit=0),
        timeout=aiohttp.ClientTimeout(total=None),
        auto_decompress=False,
        skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
        cookie_jar=aiohttp.DummyCookieJar(),
    )
