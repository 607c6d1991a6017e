"""Where log lines go: one JSON object a line, or something for eyes, on standard error.

An event is a fixed phrase with fields. What libraries log through `logging` comes out in the same form.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog

Fields = MutableMapping[str, Any]
LONGEST = 16 * 1024  # characters of a field: of more, such as what a server says, the beginning and the end

# Kopf warns of each handler that a stop interrupts; asyncio and aiohttp tell of every selector and request, hpack of
# every header; botocore tells of each answer, keys of an assumed role included; OpenTelemetry of each batch that nobody
# takes.
QUIET = {
    "kopf": logging.ERROR,
    "opentelemetry": logging.CRITICAL,
    **dict.fromkeys(("aiohttp.access", "asyncio", "boto3", "botocore", "hpack", "urllib3"), logging.WARNING),
}

# Its own way with exceptions shows what each call has in its variables, Secrets too, and takes seconds for it.
FOR_EYES = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def configure(*, level: str, json: bool) -> None:
    """Log from this level on. For the whole process, so `__main__` calls it once."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    renderer = [structlog.processors.format_exc_info, _bounded, _to_json if json else FOR_EYES]
    threshold = logging.getLevelNamesMapping()[level.upper()]
    structlog.configure(
        processors=[*shared, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        cache_logger_on_first_use=True,
    )
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*shared, structlog.stdlib.add_logger_name],
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *renderer],
        )
    )
    logging.basicConfig(handlers=[output], level=threshold, force=True)
    for name, least in QUIET.items():
        logging.getLogger(name).setLevel(max(threshold, least))


def _bounded(_: Any, __: str, fields: Fields) -> Fields:
    return {name: _shortened(value) for name, value in fields.items()}


def _shortened(value: Any) -> Any:
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    half = LONGEST // 2
    return f"{value[:half]} ... {value[-half:]}"


def _to_json(_: Any, __: str, fields: Fields) -> str:
    first = {name: fields.pop(name) for name in ("time", "level", "event") if name in fields}
    return orjson.dumps({**first, **fields}, default=str).decode()
