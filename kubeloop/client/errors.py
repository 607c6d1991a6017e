"""Maps responses of servers and failures of networks to our errors, in one place."""

from __future__ import annotations

import re
import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, Final, cast

import aiohttp
import orjson

from kubeloop.client.wording import describe_error
from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Expired,
    Forbidden,
    Invalid,
    NotFound,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)

MESSAGE_LENGTH = 2000  # characters of a server's message, since a refusal may quote a large object
MAX_CHECKS = 3  # named failing checks of a server that is not ready
LONGEST_PAUSE = 60.0  # seconds, even if a server asks for a longer pause


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    410: Expired,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooMany,
}
# Server-side apply returns 500 for a field that the schema lacks; a retry cannot help.
_UNKNOWN_FIELD = "field not declared in schema"
_FAILING: Final = re.compile(r"^\[-\]([\w./-]{1,100}) failed", re.MULTILINE)
_GENERIC_UNAUTHORIZED = frozenset({"Unauthorized", "status 401"})  # texts for any rejected credentials
_NAME = r"[\w.:@/-]{1,253}"
_QUOTES_NOTHING: Final = re.compile(
    rf"""User "{_NAME}" cannot \w+ resource "{_NAME}" in API group "[\w.]*"( in the namespace "{_NAME}")?"""
    rf"""|(admission webhook|failed calling webhook|ValidatingAdmissionPolicy) ["']{_NAME}["']"""
    rf"""|exceeded quota: {_NAME}|namespaces "{_NAME}" not found|because it is being terminated"""
)
"""The parts of a refusal that say who refuses and why, and quote nothing of the object."""


def refusal(
    status: int, payload: bytes, *, operation: str, retry_after: float | None = None, secret: bool = False
) -> ApiError:
    """Return the error for a response with an error status. `operation` names the request for the message.

    `secret`: the message must not quote the request, as many servers do.
    """
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError:
        body = None
    reported = cast(Mapping[str, Any], body if isinstance(body, dict) else {})  # a Status, or nothing
    return _build_error(status, reported, payload, operation=operation, retry_after=retry_after, secret=secret)


def _build_error(
    status: int, body: Mapping[str, Any], payload: bytes, *, operation: str, retry_after: float | None, secret: bool
) -> ApiError:
    """Return the error for a status and body."""
    message = body.get("message")  # used only if it is a string, as anything else may be deeply nested
    text = (
        (isinstance(message, str) and message)
        or _list_failing(status, payload)
        or payload[:200].decode(errors="replace").strip()
        or f"status {status}"
    )
    kind = _BY_STATUS.get(status, ServerFault)
    if kind is Conflict and body.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if kind is ServerFault and _UNKNOWN_FIELD in text:
        kind = Invalid
    if kind is Unauthorized and text in _GENERIC_UNAUTHORIZED:
        text = "the server does not accept the credentials (401): give the kubeconfig others that are valid there"
    elif secret:
        text = _without_quotes(status, body, text)
    error = kind(f"{operation}: {text[:MESSAGE_LENGTH]}")
    error.retry_after = retry_after
    error.details = None if secret else body.get("details")
    return error


def _list_failing(status: int, payload: bytes) -> str:
    """Return the failing checks in the answer of /readyz, which lists all; empty for any other answer."""
    failing = _FAILING.findall(payload.decode(errors="replace"))
    more = f" and {len(failing) - MAX_CHECKS} more" if len(failing) > MAX_CHECKS else ""
    return f"{status}; failing: {', '.join(failing[:MAX_CHECKS])}{more}" if failing else ""


def _without_quotes(status: int, body: Mapping[str, Any], message: str) -> str:
    """Return a message with the status, the reason and the harmless part of a server's message."""
    reason, harmless = body.get("reason"), _QUOTES_NOTHING.search(message)
    word = f" {reason}" if isinstance(reason, str) and re.fullmatch("[A-Za-z]{1,63}", reason) else ""
    part = f" ({harmless[0]})" if harmless else ""
    return f"the server refuses with {status}{word}{part}; what else it says may quote what was sent, and is not told"


def pause(header: str | None, *, now: datetime) -> float | None:
    """Return the seconds of a Retry-After header, given as a number or a date; None if it has neither."""
    text = (header or "").strip()
    try:
        number = text.isascii() and text.isdigit()
        seconds = float(text) if number else (parsedate_to_datetime(text) - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(seconds, LONGEST_PAUSE) if seconds > 0 else None


def from_event(status: Mapping[str, Any], *, operation: str) -> ApiError:
    """Return the error in an ERROR event of a watch."""
    code = status.get("code")
    return _build_error(
        code if isinstance(code, int) else 500, status, b"", operation=operation, retry_after=None, secret=False
    )


@contextmanager
def translate_errors(operation: str) -> Generator[None]:
    """Raise failures of the network and invalid JSON within the block as our errors. `operation` names the request."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError, too
        raise Unreachable(f"{operation}: {describe_error(error)}") from error
    except orjson.JSONDecodeError as error:
        raise ServerFault(f"{operation}: the answer is not JSON") from error


def origin(error: Exception, frames: int = 3) -> tuple[str, ...]:
    """Return where in the code an exception arose, for a log that must not have its text."""
    entries = traceback.extract_tb(error.__traceback__)[-frames:]
    return tuple(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in entries)
