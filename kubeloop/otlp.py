"""Export of spans by OpenTelemetry's SDK with OTLP over HTTP. Imported only if tracing is on, see `tracing.py`.

A thread of the SDK sends them in batches. If no collector takes them they are dropped, and nothing waits. The size of
spans and of the collector's responses is bounded here, because the SDK does not do that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from io import BytesIO
from threading import Thread
from typing import Any

import requests
import structlog
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import OTELResourceDetector, Resource
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import NonRecordingSpan, SpanContext, SpanKind, StatusCode, set_span_in_context
from opentelemetry.trace import Span as SdkSpan
from opentelemetry.trace import Tracer as SdkTracer
from requests.adapters import HTTPAdapter

from kubeloop.tracing import Attributes, Service

TRACES = "/v1/traces"
LONGEST = 4096  # characters of an attribute, unless the SDK's variables set another limit
ANSWER = 4096  # bytes read of a collector's response, which is not used
LAST_SECONDS = 1.0  # time for the last batch at shutdown

log = structlog.get_logger()


def exporter(endpoint: str, service: Service) -> tuple[OtlpTracer, Callable[[], None]]:
    """Return a tracer that exports spans, and a function to shut it down. The environment's resource attributes win."""
    own_attributes = {
        "service.name": service.name,
        "service.version": service.version,
        "service.instance.id": service.instance,
    }
    resource = Resource.create({**own_attributes, **OTELResourceDetector().detect().attributes})
    limits = SpanLimits()
    if limits.max_span_attribute_length is None:
        limits = SpanLimits(max_span_attribute_length=LONGEST)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=limits)
    url = f"{endpoint.rstrip('/')}{TRACES}" if endpoint else None
    span_exporter = OTLPSpanExporter(endpoint=url, session=session())
    provider.add_span_processor(BatchSpanProcessor(Sending(span_exporter)))

    def end() -> None:
        """Shut the exporter down, and wait a moment for the last batch."""
        shutdown = Thread(target=provider.shutdown, name="last traces", daemon=True)
        shutdown.start()
        shutdown.join(LAST_SECONDS)

    return OtlpTracer(provider.get_tracer(service.name, service.version)), end


class Bounded(HTTPAdapter):
    """An HTTP adapter that reads only the beginning of a response, where requests would read and decompress all of
    it."""

    def send(self, *given: Any, **more: Any) -> requests.Response:
        """Send a request, and cut off the body of the response."""
        answer = super().send(*given, **more)
        raw = answer.raw
        answer.raw = BytesIO(raw.read(ANSWER, decode_content=False))
        raw.close()  # the connection is kept alive if the body was read completely
        return answer


def session() -> requests.Session:
    """Return the HTTP session for the exporter."""
    created = requests.Session()
    for scheme in ("http://", "https://"):
        created.mount(scheme, Bounded())
    return created


@dataclass(frozen=True, slots=True)
class Traced:
    """A span of the SDK, as a `tracing.Recorded`."""

    span: SdkSpan

    def tell(self, attribute: str, value: str | int) -> None:
        self.span.set_attribute(attribute, value)

    def fail(self, error: str) -> None:
        self.span.set_attribute("error.type", error)
        self.span.set_status(StatusCode.ERROR)

    def end(self) -> None:
        self.span.end()

    @property
    def reference(self) -> SpanContext:
        return self.span.get_span_context()


@dataclass(frozen=True, slots=True)
class OtlpTracer:
    """A tracer of the SDK, as a `tracing.Tracer`."""

    tracer: SdkTracer

    def begin(self, name: str, attributes: Attributes, *, parent: Any, remote: bool) -> Traced:
        """Start a span."""
        context = set_span_in_context(NonRecordingSpan(parent)) if parent else None
        kind = SpanKind.CLIENT if remote else SpanKind.INTERNAL
        return Traced(self.tracer.start_span(name, context=context, kind=kind, attributes=attributes))


@dataclass(slots=True)
class Sending(SpanExporter):
    """Exports spans, and logs once when exporting starts to fail and once when it works again.

    The SDK's own log lines about each attempt are suppressed (`logs.QUIET`).
    """

    inner: SpanExporter
    failing: bool = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Export a batch, and log a change between success and failure."""
        result = self.inner.export(spans)
        if (is_failing := result is not SpanExportResult.SUCCESS) != self.failing:
            self.failing = is_failing
            log_at_level = log.warning if is_failing else log.info
            log_at_level("traces are not taken" if is_failing else "traces are taken again", spans=len(spans))
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()
