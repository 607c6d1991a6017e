"""Spans by OpenTelemetry's SDK, and OTLP over HTTP. Imported only where traces are asked for: `tracing.py`.

A thread of the SDK sends them, a batch at a time. Where nobody takes them they are dropped, and nothing waits for it.
What is in spans and what a collector answers has bounds, of which the SDK has none.
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
LONGEST = 4096  # characters of an attribute, unless the SDK's variables say another number
ANSWER = 4096  # bytes of a collector's answer, in which nobody reads
LAST_SECONDS = 1.0  # that the end of the process waits for the last batch

log = structlog.get_logger()


def exporter(endpoint: str, service: Service) -> tuple[OtlpTracer, Callable[[], None]]:
    """What makes spans and sends them there, and how to end it. What the environment says of the resource wins."""
    ours = {"service.name": service.name, "service.version": service.version, "service.instance.id": service.instance}
    resource = Resource.create({**ours, **OTELResourceDetector().detect().attributes})
    limits = SpanLimits()
    if limits.max_span_attribute_length is None:
        limits = SpanLimits(max_span_attribute_length=LONGEST)
    provider = TracerProvider(resource=resource, shutdown_on_exit=False, span_limits=limits)
    where = f"{endpoint.rstrip('/')}{TRACES}" if endpoint else None
    sending = OTLPSpanExporter(endpoint=where, session=session())
    provider.add_span_processor(BatchSpanProcessor(Sending(sending)))

    def end() -> None:
        last = Thread(target=provider.shutdown, name="last traces", daemon=True)
        last.start()
        last.join(LAST_SECONDS)

    return OtlpTracer(provider.get_tracer(service.name, service.version)), end


class Bounded(HTTPAdapter):
    """Reads the beginning of an answer, where requests would read all of it, unpacked."""

    def send(self, *given: Any, **more: Any) -> requests.Response:
        answer = super().send(*given, **more)
        raw = answer.raw
        answer.raw = BytesIO(raw.read(ANSWER, decode_content=False))
        raw.close()  # the connection stays, if that was all
        return answer


def session() -> requests.Session:
    """By which spans are sent."""
    made = requests.Session()
    for scheme in ("http://", "https://"):
        made.mount(scheme, Bounded())
    return made


@dataclass(frozen=True, slots=True)
class Traced:
    """One span of the SDK."""

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
    tracer: SdkTracer

    def begin(self, name: str, attributes: Attributes, *, parent: Any, remote: bool) -> Traced:
        context = set_span_in_context(NonRecordingSpan(parent)) if parent else None
        kind = SpanKind.CLIENT if remote else SpanKind.INTERNAL
        return Traced(self.tracer.start_span(name, context=context, kind=kind, attributes=attributes))


@dataclass(slots=True)
class Sending(SpanExporter):
    """Sends spans, and says it once when that ceases to work and once when it works again.

    What the SDK says of each attempt is not logged (`logs.QUIET`).
    """

    inner: SpanExporter
    failing: bool = False

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        result = self.inner.export(spans)
        if (fails := result is not SpanExportResult.SUCCESS) != self.failing:
            self.failing = fails
            tell = log.warning if fails else log.info
            tell("traces are not taken" if fails else "traces are taken again", spans=len(spans))
        return result

    def shutdown(self) -> None:
        self.inner.shutdown()
