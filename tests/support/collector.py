"""Somebody who takes traces by OTLP over HTTP, and what is in them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span as Sent
from opentelemetry.proto.trace.v1.trace_pb2 import Status

from kubeloop.probes import serve_app
from localfleet.network import free_ports


@dataclass(frozen=True, slots=True)
class Span:
    """One that was sent."""

    name: str
    id: bytes
    parent: bytes
    trace: bytes
    remote: bool
    failed: bool
    attributes: Mapping[str, Any]


@dataclass(slots=True)
class Collector:
    port: int
    status: int = 200
    hangs: bool = False
    answer: bytes = b""
    headers: Mapping[str, str] = field(default_factory=dict[str, str])
    bodies: list[bytes] = field(default_factory=list[bytes])
    connections: set[int] = field(default_factory=set[int])
    """Whence they came: a port each."""

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def take(self, request: web.Request) -> web.Response:
        self.bodies.append(await request.read())
        self.connections.add(request.transport.get_extra_info("peername")[1] if request.transport else 0)
        if self.hangs:
            await asyncio.Event().wait()
        return web.Response(status=self.status, body=self.answer, headers=self.headers)

    def requests(self) -> list[ExportTraceServiceRequest]:
        return [ExportTraceServiceRequest.FromString(body) for body in self.bodies]

    def spans(self) -> list[Span]:
        return [
            spanned(span)
            for request in self.requests()
            for resource in request.resource_spans
            for scope in resource.scope_spans
            for span in scope.spans
        ]


def spanned(span: Sent) -> Span:
    attributes = {one.key: one.value.string_value or one.value.int_value for one in span.attributes}
    remote, failed = span.kind == Sent.SPAN_KIND_CLIENT, span.status.code == Status.STATUS_CODE_ERROR
    return Span(span.name, span.span_id, span.parent_span_id, span.trace_id, remote, failed, attributes)


@asynccontextmanager
async def collecting() -> AsyncGenerator[Collector]:
    """Takes what is sent while the block runs."""
    (port,) = free_ports(1)
    collector, app = Collector(port), web.Application(client_max_size=1 << 26)
    app.router.add_post("/v1/traces", collector.take)
    async with serve_app(app, ("127.0.0.1", port), grace=1.0):
        yield collector
