"""Serve the page to a browser on this machine: files, rows as they change, and details of one object.

Any web page can send requests to a loopback port, and any user of the machine can connect to it. So rows require a
token, which is in the fragment of the printed address. Only loopback host names are accepted, so that no foreign DNS
name leads here.

The rows come from `Live`. Details are computed for a request, from the objects that `Live` has cached, or by the
operator for users of one namespace.
"""

from __future__ import annotations

import asyncio
import hmac
from collections.abc import Awaitable, Callable, Mapping
from importlib import resources
from typing import Any, Final

import orjson
from aiohttp import web

from kubeloop.errors import ClientError
from modelplane_operator.api import ModelDeployment, ModelService
from modelplane_operator.ask.answers.hardware import hardware
from modelplane_operator.ask.answers.overview import cluster
from modelplane_operator.ask.answers.why import explain
from modelplane_operator.cli.hub import query_operator
from modelplane_operator.cli.output import No
from modelplane_operator.cli.page.live import Live, Rows, changes, to_json

FILES: Final = {
    "/": ("index.html", "text/html"),
    "/page.css": ("page.css", "text/css"),
    "/page.js": ("page.js", "text/javascript"),
}
"""Static files by path, each with its name in the folder `static` and its media type."""
HEADERS: Final = {
    "Cache-Control": "no-store",
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src data:; base-uri 'none'; "
        "form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
    ),
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
}
"""Headers of every response: nothing is stored, framed, or loaded from another origin."""
HEARTBEAT: Final = 15.0
"""Seconds without a change after which the stream sends a comment, by which a closed tab is detected."""
STREAMS: Final = 16  # maximum streams, one for each tab

_Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


class Server:
    """The HTTP server of the page. `token` is required for all data."""

    def __init__(self, live: Live, token: str) -> None:
        self._live, self._token = live, token
        self._streams = 0
        self._detail_slot = asyncio.Semaphore(1)

    def application(self) -> web.Application:
        """Return the application with all routes."""

        @web.middleware
        async def guard(request: web.Request, handler: _Handler) -> web.StreamResponse:
            return await self._handle(request, handler)

        app = web.Application(middlewares=[guard])
        for path in FILES:
            app.router.add_get(path, self._file)
        app.router.add_get("/api/rows", self._rows)
        for name, fetch in (("model", self._model), ("cluster", self._cluster), ("hardware", self._hardware)):
            app.router.add_get(f"/api/{name}", self._detail(fetch))
        return app

    async def _handle(self, request: web.Request, handler: _Handler) -> web.StreamResponse:
        """Check a request, handle it, and add the security headers."""
        response = self._rejection(request)
        if response is None:
            try:
                response = await handler(request)
            except web.HTTPException as error:
                response = _error_response(error.status, error.reason)
        # The headers of a stream were sent when it was prepared.
        if not response.prepared:
            response.headers.update(HEADERS)
        return response

    def _rejection(self, request: web.Request) -> web.Response | None:
        """Return the rejection of a request; None if it is allowed."""
        address = request.transport.get_extra_info("sockname") if request.transport else None
        port = address[1] if address else 0
        if request.host not in {f"127.0.0.1:{port}", f"localhost:{port}"}:
            return _error_response(421, "this is not the address that `modelplane page` has printed")
        if request.headers.get("Origin", own := f"http://{request.host}") != own:
            return _error_response(403, "another page asks")
        # A link from elsewhere may open the page itself, which has no data.
        if request.headers.get("Sec-Fetch-Site", "none") not in {"none", "same-origin"} and request.path != "/":
            return _error_response(403, "another page asks")
        if request.path in FILES:
            return None
        authorization = request.headers.get("Authorization", "").encode(errors="surrogateescape")
        # Compared in constant time, so that its duration does not reveal how much of a guess is right.
        if not hmac.compare_digest(authorization, f"Bearer {self._token}".encode()):
            return _error_response(401, "open the address that `modelplane page` has printed")
        return None

    async def _file(self, request: web.Request) -> web.Response:
        """Return a static file. The paths are those of FILES, so that no other file can be requested."""
        name, kind = FILES[request.path]
        content = resources.files("modelplane_operator.cli.page").joinpath("static", name).read_text()
        return web.Response(text=content, content_type=kind, charset="utf-8")

    async def _rows(self, request: web.Request) -> web.StreamResponse:
        """Stream rows as server-sent events: first all rows, then changes."""
        if self._streams >= STREAMS:
            return _error_response(503, "too many tabs are open")
        response = web.StreamResponse(headers={**HEADERS, "Content-Type": "text/event-stream"})
        self._streams += 1
        try:
            await response.prepare(request)
            sent: Rows = {}
            while True:
                now = await self._live.wait_for_change(sent, HEARTBEAT)
                message = orjson.dumps(changes(sent, now)) if now is not sent else b""
                await response.write(b"event: rows\ndata: " + message + b"\n\n" if message else b":\n\n")
                sent = now
        except ConnectionError:
            return response
        finally:
            self._streams -= 1

    def _detail(self, fetch: Callable[[Mapping[str, str]], Awaitable[Any]]) -> _Handler:
        """Return a handler for details. Only one runs at a time, since each searches the fleet."""

        async def handle(request: web.Request) -> web.Response:
            """Fetch the detail, and return it as JSON or as an error."""
            async with self._detail_slot:
                try:
                    detail = await fetch(request.query)
                except (ClientError, No) as error:
                    return _error_response(502, str(error))
            if detail is None:
                return _error_response(404, "nothing of that name exists any more")
            return web.Response(body=orjson.dumps(to_json(detail)), content_type="application/json")

        return handle

    async def _model(self, query: Mapping[str, str]) -> Any:
        """Return the explanation of a model, from the operator if the user only has a namespace."""
        namespace, name = query.get("namespace", ""), query.get("name", "")
        if self._live.namespace:
            return await query_operator(self._live.connection.kube, namespace, ask="Why", modelDeployment=name)
        return await asyncio.to_thread(self._explain, namespace, name, self._live.cached_objects())

    def _explain(self, namespace: str, name: str, manifests: Any) -> Any:
        """Compute the explanation; None if the deployment does not exist."""
        fleet = self._live.snapshot(manifests)
        deployment = next((candidate for candidate in fleet.deployments if candidate.key == (namespace, name)), None)
        services = self._live.parse_kind(ModelService, manifests)
        return explain(deployment, services, fleet) if isinstance(deployment, ModelDeployment) else None

    async def _cluster(self, query: Mapping[str, str]) -> Any:
        manifests = self._live.cached_objects()
        return await asyncio.to_thread(lambda: cluster(query.get("name", ""), self._live.snapshot(manifests)))

    async def _hardware(self, _: Mapping[str, str]) -> Any:
        """Return the list of devices, from the operator if the user only has a namespace."""
        if self._live.namespace:
            return await query_operator(self._live.connection.kube, self._live.namespace, ask="Hardware")
        manifests = self._live.cached_objects()
        return {"items": await asyncio.to_thread(lambda: hardware(self._live.snapshot(manifests)))}


def _error_response(status: int, message: str) -> web.Response:
    """Return a message as JSON, in the form that the page's script shows."""
    return web.Response(status=status, body=orjson.dumps(to_json({"error": message})), content_type="application/json")
