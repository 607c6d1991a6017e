"""The sockets: which engine a connection is for, and what each path answers."""

import asyncio
import hashlib
import logging
from collections.abc import Callable
from contextlib import aclosing
from typing import TypeAlias

import aiohttp
import orjson
from aiohttp import web
from prometheus_client import CONTENT_TYPE_LATEST

from localfleet.engine.dialects import DIALECTS, Dialect, RequestError, count_tokens, parse_body
from localfleet.engine.engine import Engine, reset
from localfleet.engine.lifecycle import Health
from localfleet.engine.pods import Server
from localfleet.kubeclient import Manifest

log = logging.getLogger(__name__)

PREFILLER_HEADER = "x-prefiller-host-port"
POD_HEADER, PREFILL_HEADER, BODY_HEADER = "x-localfleet-pod", "x-localfleet-prefill", "x-localfleet-body"
PREFILL_DEADLINE = 60.0
VERSION = "localfleet"

Find: TypeAlias = Callable[[str], Engine | None]
Page: TypeAlias = tuple[str, bytes]


class Door(web.Server):
    """Accepts connections for living engines and closes all others at once."""

    def __init__(self, find: Find, session: aiohttp.ClientSession) -> None:
        # a client that goes away frees its place in the engine, as vLLM does
        super().__init__(self._answer, handler_cancellation=True, access_log=None)
        self._find = find
        self._session = session
        self._engines: dict[web.RequestHandler, tuple[Engine, int]] = {}

    def connection_made(self, handler: web.RequestHandler, transport: asyncio.Transport) -> None:
        """Let a connection in when somebody lives at the address that it was made to."""
        super().connection_made(handler, transport)
        address, port = transport.get_extra_info("sockname")[:2]
        engine = self._find(address)
        if engine is None or engine.health(port) is Health.REFUSED:
            reset(transport)
            return
        self._engines[handler] = engine, port
        engine.connect(handler, transport)

    def connection_lost(self, handler: web.RequestHandler, exc: BaseException | None = None) -> None:
        """Forget a connection."""
        engine, _ = self._engines.pop(handler, (None, 0))
        if engine is not None:
            engine.disconnect(handler)
        super().connection_lost(handler, exc)

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        engine, port = self._engines[request.protocol]
        engine.busy.add(request.protocol)
        try:
            payload = await request.content.read()  # request.read() refuses what is larger than 1 MiB
            headers = _headers(engine)
            if payload:
                headers[BODY_HEADER] = hashlib.sha256(payload).hexdigest()
            if engine.pod.servers[port] is Server.SIDECAR:
                headers |= await self._prefill(request, payload)
                if not engine.listens:
                    return web.Response(status=502, text="the engine does not listen yet", headers=headers)
            await engine.flow()
            return await _respond(engine, request, payload, headers)
        finally:
            engine.busy.discard(request.protocol)
            if engine.draining:
                request.protocol.close()

    async def _prefill(self, request: web.BaseRequest, payload: bytes) -> dict[str, str]:
        """What a sidecar does first: have the prompt read elsewhere. Without an answer the engine reads it itself."""
        prefiller = request.headers.get(PREFILLER_HEADER)
        if prefiller is None or request.path not in DIALECTS:
            return {}
        try:
            body = {**parse_body(payload), "stream": False, "max_tokens": 1}
            body |= {"kv_transfer_params": {"do_remote_decode": True, "do_remote_prefill": False}}
            body.pop("stream_options", None)
            async with (
                asyncio.timeout(PREFILL_DEADLINE),
                self._session.post(f"http://{prefiller}{request.path}", data=orjson.dumps(body)) as response,
            ):
                await response.read()
                return {PREFILL_HEADER: response.headers.get(POD_HEADER, prefiller)} if response.ok else {}
        except (RequestError, aiohttp.ClientError, TimeoutError) as error:
            log.info("prefill at %s failed, decoding alone: %s", prefiller, error or type(error).__name__)
            return {}


async def _respond(
    engine: Engine, request: web.BaseRequest, payload: bytes, headers: dict[str, str]
) -> web.StreamResponse:
    if request.method == "POST" and (dialect := DIALECTS.get(request.path)):
        try:
            return await _generate(engine, dialect, request, payload, headers)
        except RequestError as refusal:
            return _json(dialect.refusal(refusal), headers, status=refusal.status)
    if request.method == "POST" and request.path == "/v1/messages/count_tokens":
        try:
            return _json(count_tokens(parse_body(payload)), headers)
        except RequestError as refusal:
            return _json(DIALECTS["/v1/messages"].refusal(refusal), headers, status=refusal.status)
    if page := PAGES.get(request.path):
        if request.method not in ("GET", "HEAD"):
            return _json({"detail": "Method Not Allowed"}, headers, status=405)
        content_type, body = page(engine)
        return web.Response(body=body, headers={**headers, "Content-Type": content_type})
    known = request.path in DIALECTS
    return _json({"detail": "Method Not Allowed" if known else "Not Found"}, headers, status=405 if known else 404)


async def _generate(
    engine: Engine, dialect: Dialect, request: web.BaseRequest, payload: bytes, headers: dict[str, str]
) -> web.StreamResponse:
    ask = dialect.parse(parse_body(payload))
    reply = engine.accept(ask)
    async with aclosing(engine.tokens(reply)) as tokens:
        if not ask.stream:
            async for _ in tokens:
                pass
            return _json(dialect.whole(reply), headers)
        response = web.StreamResponse(headers={**headers, "Content-Type": "text/event-stream; charset=utf-8"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        for frame in dialect.opening(reply):
            await response.write(frame)
        async for token in tokens:
            await response.write(dialect.piece(reply, token))
        for frame in dialect.closing(reply, ask):
            await response.write(frame)
        await response.write_eof()
        return response


def _models(engine: Engine) -> Page:
    cards: list[Manifest] = [
        {
            "id": model,
            "object": "model",
            "created": 0,
            "owned_by": "vllm",
            "root": model,
            "parent": None,
            "permission": [],
        }
        for model in engine.pod.models
    ]
    return "application/json", orjson.dumps({"object": "list", "data": cards})


PAGES: dict[str, Callable[[Engine], Page]] = {
    "/health": lambda engine: ("text/plain", b""),
    "/ping": lambda engine: ("text/plain", b""),
    "/version": lambda engine: ("application/json", orjson.dumps({"version": VERSION})),
    "/v1/models": _models,
    "/metrics": lambda engine: (CONTENT_TYPE_LATEST, engine.metrics.text()),
}


def _headers(engine: Engine) -> dict[str, str]:
    return {
        POD_HEADER: engine.name,
        "x-localfleet-cluster": engine.cluster,
        "x-localfleet-model": engine.pod.models[0],
        "x-localfleet-role": engine.pod.role,
    }


def _json(body: Manifest, headers: dict[str, str], *, status: int = 200) -> web.Response:
    return web.Response(body=orjson.dumps(body), status=status, headers={**headers, "Content-Type": "application/json"})


class Listeners:
    """One listening socket per port, opened when somebody first needs it."""

    def __init__(self, door: Door, hosts: list[str]) -> None:
        self._door = door
        self._hosts = hosts
        self._servers: dict[int, asyncio.Server] = {}

    async def open(self, port: int) -> None:
        """Listen on a port, once; raises OSError when it is taken."""
        if port not in self._servers:
            self._servers[port] = await asyncio.get_running_loop().create_server(
                self._door, self._hosts, port, backlog=1024, reuse_address=True
            )

    def close(self) -> None:
        """Stop listening; connections that are open break off."""
        for server in self._servers.values():
            server.close()
        for connection in self._door.connections:
            connection.force_close()
