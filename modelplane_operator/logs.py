"""Configure logging: one JSON object a line, or readable text on a terminal, on standard error.

An event is a fixed phrase with fields. Log lines of libraries get the same format.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import MutableMapping
from typing import Any

import orjson
import structlog

Fields = MutableMapping[str, Any]
LONGEST = 16 * 1024
"""Maximum characters of a field. A longer one, such as a server's message, keeps its beginning and its end."""

# Levels of noisy loggers. Kopf warns of each handler that a stop interrupts, asyncio and aiohttp log every selector and
# request, hpack logs every header. botocore logs responses, including the keys of an assumed role, and OpenTelemetry
# every batch that cannot be delivered. Kopf logs each object that the webhook refuses as an error: the webhook does so
# at info.
QUIET = {
    "kopf": logging.ERROR,
    "kopf.objects": logging.CRITICAL,
    "opentelemetry": logging.CRITICAL,
    **dict.fromkeys(("aiohttp.access", "asyncio", "boto3", "botocore", "hpack", "urllib3"), logging.WARNING),
}

# structlog's default formatter prints the variables of each frame, Secrets included, and takes seconds for it.
FOR_EYES = structlog.dev.ConsoleRenderer(exception_formatter=structlog.dev.plain_traceback)


def configure(*, level: str, json: bool) -> None:
    """Configure logging for the whole process, from this level on. `__main__` calls it once."""
    shared: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="time"),
    ]
    renderer = [structlog.processors.format_exc_info, _shorten_fields, _to_json if json else FOR_EYES]
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
    for name, minimum in QUIET.items():
        logging.getLogger(name).setLevel(max(threshold, minimum))


def _shorten_fields(_: Any, __: str, fields: Fields) -> Fields:
    return {name: _shorten(value) for name, value in fields.items()}


def _shorten(value: Any) -> Any:
    """Return a value with the middle of a long text left out."""
    if not isinstance(value, str) or len(value) <= LONGEST:
        return value
    half = LONGEST // 2
    return f"{value[:half]} ... {value[-half:]}"


def _to_json(_: Any, __: str, fields: Fields) -> str:
    """Render a log line as JSON, with time, level and event first."""
    first = {name: fields.pop(name) for name in ("time", "level", "event") if name in fields}
    return orjson.dumps({**first, **fields}, default=str).decode()
