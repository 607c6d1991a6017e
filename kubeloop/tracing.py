"""Tracing: a span for each reconcile, with its requests and processes as children.

Off by default. Then nothing is created or imported, and each call costs one check. `otlp.py` creates and exports spans.

A request belongs to the reconcile in whose tasks it is made, until the reconcile ends. Background work (watches,
probes, the lease) makes no spans, even if a reconcile has started it. Attributes are names and numbers by
OpenTelemetry's conventions, without queries of URLs, bodies or texts of errors. Attributes of the reconciled or
requested object begin with `modelplane.`, because `k8s.` describes the place where the reporting process runs.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from dataclasses import dataclass
from importlib import import_module
from typing import Any, NamedTuple, Protocol

import structlog
from yarl import URL

from kubeloop.errors import ClientError
from kubeloop.objects import Key

EXTRA = "install modelplane-operator[otel]"
BY_HTTP = "set it to http/protobuf, and the endpoint to the collector's port for OTLP over HTTP, mostly 4318"

Attributes = Mapping[str, str | int]

log = structlog.get_logger()


class Service(NamedTuple):
    """The program that spans belong to, by OpenTelemetry's names."""

    name: str
    version: str
    instance: str


class Span(Protocol):
    """A span, as the code within it uses it."""

    def tell(self, attribute: str, value: str | int) -> None:
        """Set an attribute."""
        ...

    def fail(self, error: str) -> None:
        """Mark the span as failed. `error`: one of few names."""
        ...


class Recorded(Span, Protocol):
    """A span that its creator ends."""

    def end(self) -> None: ...

    @property
    def reference(self) -> Any:
        """The reference that a child needs as its parent."""
        ...


class Tracer(Protocol):
    """Creates spans; must neither wait nor raise."""

    def begin(self, name: str, attributes: Attributes, *, parent: Any, remote: bool) -> Recorded:
        """Start a span.

        `parent`: the reference of another span, or None; `remote`: True for a request to another process.
        """
        ...


class Unrecorded:
    """A span that records nothing, for when tracing is off."""

    def tell(self, attribute: str, value: str | int) -> None:
        pass

    def fail(self, error: str) -> None:
        pass


@dataclass(slots=True)
class Scope:
    """The context of a span. Tasks that outlive the span keep only its reference."""

    reference: Any
    open: bool = True


NOTHING = Unrecorded()
_OFF: AbstractContextManager[Span] = nullcontext(NOTHING)
_tracer: Tracer | None = None
_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


def reconcile(kind: str, key: Key) -> AbstractContextManager[Span]:
    """Return the span of a reconcile, which has no parent."""
    if _tracer is None:
        return _OFF
    attributes = {"modelplane.kind": kind, "modelplane.name": key.name}
    attributes |= {"modelplane.namespace": key.namespace} if key.namespace else {}
    return _open_scope(_tracer, f"reconcile {kind}", attributes, None)


def start_span(name: str, attributes: Attributes) -> AbstractContextManager[Span]:
    """Return the span of work that a reconcile starts and does not wait for."""
    scope = _scope.get()
    if _tracer is None or scope is None:
        return _OFF
    return _open_scope(_tracer, name, attributes, scope.reference)


def call(name: str, attributes: Callable[[], Attributes]) -> AbstractContextManager[Span]:
    """Return the span of a request to another process, if it is made within a reconcile."""
    scope = _scope.get()
    if _tracer is None or scope is None or not scope.open:
        return _OFF
    return _end_span(_tracer.begin(name, attributes(), parent=scope.reference, remote=True))


def by_http(method: str, url: URL) -> Attributes:
    """Return the attributes of an HTTP request."""
    attributes: dict[str, str | int] = {"http.request.method": method, "server.address": url.host or ""}
    if url.port is not None:
        attributes["server.port"] = url.port
    return {**attributes, "url.full": str(url.with_user(None).with_query(None).with_fragment(None))}


@contextmanager
def _open_scope(tracer: Tracer, name: str, attributes: Attributes, parent: Any) -> Generator[Span]:
    """Run a block within a span, to which the requests of the block belong."""
    span = tracer.begin(name, attributes, parent=parent, remote=False)
    scope = Scope(span.reference)
    token = _scope.set(scope)
    try:
        with _end_span(span):
            yield span
    finally:
        scope.open = False
        _scope.reset(token)


@contextmanager
def _end_span(span: Recorded) -> Generator[Span]:
    """End a span after the block, and mark it as failed if the block raises."""
    try:
        yield span
    except BaseException as error:
        span.fail(error.reason if isinstance(error, ClientError) else type(error).__name__)
        raise
    finally:
        span.end()


@contextmanager
def export_spans(endpoint: str | None, service: Service, grpc: str = "") -> Generator[None]:
    """Export spans while the block runs.

    `endpoint`: the collector; empty to use the environment; None turns tracing off.

    `grpc`: the environment variable that asks for gRPC, which is not supported. Every problem is one line in the log:
    the operator works without traces.
    """
    global _tracer  # noqa: PLW0603 - of the whole process, as contexts are
    if endpoint is not None and grpc:
        log.warning("traces are off", why=f"{grpc} is grpc, and they are sent by HTTP alone", remedy=BY_HTTP)
    if endpoint is None or grpc:
        yield
        return
    try:
        tracer, end = import_module("kubeloop.otlp").exporter(endpoint, service)
    except ImportError as error:
        log.warning("traces are off", why=f"there is no {error.name}", remedy=EXTRA)
        tracer, end = None, lambda: None
    except Exception as error:  # noqa: BLE001 - of whatever the environment says to the SDK
        log.warning("traces are off", why=f"{type(error).__name__}: look at the variables OTEL_...")
        tracer, end = None, lambda: None
    _tracer = tracer
    try:
        yield
    finally:
        _tracer = None
        end()
