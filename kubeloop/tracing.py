"""What reconciles are made of, as spans: each with the requests and processes that it takes as children.

Off unless somebody asks for it. Then nothing is made and nothing imported; what there is costs a question each time.
Who makes spans and where they go is `otlp.py`'s.

A request counts to the reconcile in whose tasks it is made, until that ends: what goes on beside reconciles (watches,
probes, the lease) makes no spans, though a reconcile may have begun it. Attributes are names and numbers, by
OpenTelemetry's conventions: no query of a URL, no body, no word of an error. Of an object that something is done for or
to they begin with `modelplane.`: by these conventions `k8s.` says where whoever tells it runs.
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
    """The program that spans are of, as OpenTelemetry names it."""

    name: str
    version: str
    instance: str


class Span(Protocol):
    """One span, as whoever is in it sees it."""

    def tell(self, attribute: str, value: str | int) -> None: ...

    def fail(self, error: str) -> None:
        """`error`: a name of few."""
        ...


class Recorded(Span, Protocol):
    def end(self) -> None: ...

    @property
    def reference(self) -> Any:
        """What a child needs to know of it."""
        ...


class Tracer(Protocol):
    """Makes spans; may neither wait nor raise."""

    def begin(self, name: str, attributes: Attributes, *, parent: Any, remote: bool) -> Recorded:
        """`parent`: the reference of another one, or None; `remote`: whether it is a request to somebody else."""
        ...


class Unrecorded:
    """Where nobody wants to know."""

    def tell(self, attribute: str, value: str | int) -> None:
        pass

    def fail(self, error: str) -> None:
        pass


@dataclass(slots=True)
class Scope:
    """What counts to a span. Tasks that it began may outlive it, and then hold nothing but its reference."""

    reference: Any
    open: bool = True


NOTHING = Unrecorded()
_OFF: AbstractContextManager[Span] = nullcontext(NOTHING)
_tracer: Tracer | None = None
_scope: ContextVar[Scope | None] = ContextVar("scope", default=None)


def reconcile(kind: str, key: Key) -> AbstractContextManager[Span]:
    """The span of one reconcile, which has no parent."""
    if _tracer is None:
        return _OFF
    attributes = {"modelplane.kind": kind, "modelplane.name": key.name}
    attributes |= {"modelplane.namespace": key.namespace} if key.namespace else {}
    return _within(_tracer, f"reconcile {kind}", attributes, None)


def begun(name: str, attributes: Attributes) -> AbstractContextManager[Span]:
    """The span of what a reconcile has begun and does not wait for."""
    scope = _scope.get()
    if _tracer is None or scope is None:
        return _OFF
    return _within(_tracer, name, attributes, scope.reference)


def call(name: str, attributes: Callable[[], Attributes]) -> AbstractContextManager[Span]:
    """The span of a request to somebody else, if anything is under way that it counts to."""
    scope = _scope.get()
    if _tracer is None or scope is None or not scope.open:
        return _OFF
    return _recorded(_tracer.begin(name, attributes(), parent=scope.reference, remote=True))


def by_http(method: str, url: URL) -> Attributes:
    """What is told of a request by HTTP."""
    found: dict[str, str | int] = {"http.request.method": method, "server.address": url.host or ""}
    if url.port is not None:
        found["server.port"] = url.port
    return {**found, "url.full": str(url.with_user(None).with_query(None).with_fragment(None))}


@contextmanager
def _within(tracer: Tracer, name: str, attributes: Attributes, parent: Any) -> Generator[Span]:
    made = tracer.begin(name, attributes, parent=parent, remote=False)
    scope = Scope(made.reference)
    token = _scope.set(scope)
    try:
        with _recorded(made):
            yield made
    finally:
        scope.open = False
        _scope.reset(token)


@contextmanager
def _recorded(span: Recorded) -> Generator[Span]:
    try:
        yield span
    except BaseException as error:
        span.fail(error.reason if isinstance(error, ClientError) else type(error).__name__)
        raise
    finally:
        span.end()


@contextmanager
def exporting(endpoint: str | None, service: Service, grpc: str = "") -> Generator[None]:
    """Have spans made while the block runs. `endpoint`: where they go; empty: as the environment says; None: none are.
    `grpc`: the variable that asks for gRPC.

    What keeps it from that is one line in the log: the operator does without.
    """
    global _tracer  # noqa: PLW0603 - of the whole process, as contexts are
    if endpoint is not None and grpc:
        log.warning("traces are off", why=f"{grpc} is grpc, and they are sent by HTTP alone", remedy=BY_HTTP)
    if endpoint is None or grpc:
        yield
        return
    try:
        made, end = import_module("kubeloop.otlp").exporter(endpoint, service)
    except ImportError as error:
        log.warning("traces are off", why=f"there is no {error.name}", remedy=EXTRA)
        made, end = None, lambda: None
    except Exception as error:  # noqa: BLE001 - of whatever the environment says to the SDK
        log.warning("traces are off", why=f"{type(error).__name__}: look at the variables OTEL_...")
        made, end = None, lambda: None
    _tracer = made
    try:
        yield
    finally:
        _tracer = None
        end()
