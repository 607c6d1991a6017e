"""What servers answer and networks do, as our errors: sorted once, here."""

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

from kubeloop.client.wording import why
from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    NotFound,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)

MESSAGE_LENGTH = 2000  # of a server's message: a refusal of a large object may quote all of it
LONGEST_PAUSE = 60.0  # what is waited for a server that wants to be left alone, however long it asks for


_BY_STATUS: Mapping[int, type[ApiError]] = {
    400: Invalid,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    405: Invalid,
    409: Conflict,
    410: Gone,
    413: Invalid,
    415: Invalid,
    422: Invalid,
    429: TooMany,
}
# Server-side apply answers 500 for a field that the schema lacks: no repetition mends that.
_UNKNOWN_FIELD = "field not declared in schema"
_NO_WORDS = frozenset({"Unauthorized", "status 401"})  # what API servers say of any credentials that they refuse
_NAME = r"[\w.:@/-]{1,253}"
_QUOTES_NOTHING: Final = re.compile(
    rf"""User "{_NAME}" cannot \w+ resource "{_NAME}" in API group "[\w.]*"( in the namespace "{_NAME}")?"""
    rf"""|(admission webhook|failed calling webhook|ValidatingAdmissionPolicy) ["']{_NAME}["']"""
    rf"""|exceeded quota: {_NAME}|namespaces "{_NAME}" not found|because it is being terminated"""
)
"""Of a refusal, what tells who refuses and why, and nothing of the object."""


def refusal(
    status: int, payload: bytes, *, asked: str, retry_after: float | None = None, secret: bool = False
) -> ApiError:
    """The error that an answer is; `asked` says what it answers. `secret`: that must not be quoted, as many do."""
    return _error(status, _status_body(payload), payload, asked=asked, retry_after=retry_after, secret=secret)


def _error(
    status: int, body: Mapping[str, Any], payload: bytes, *, asked: str, retry_after: float | None, secret: bool
) -> ApiError:
    message = body.get("message")  # of any shape, and written out only where it is a text: it may be nested deep
    said = (
        (isinstance(message, str) and message) or payload[:200].decode(errors="replace").strip() or f"status {status}"
    )
    kind = _BY_STATUS.get(status, ServerFault)
    if kind is Conflict and body.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if kind is ServerFault and _UNKNOWN_FIELD in said:
        kind = Invalid
    if kind is Unauthorized and said in _NO_WORDS:
        said = "the server does not accept the credentials (401): give the kubeconfig others that are valid there"
    elif secret:
        said = _unquoted(status, body, said)
    error = kind(f"{asked}: {said[:MESSAGE_LENGTH]}")
    error.retry_after = retry_after
    error.details = None if secret else body.get("details")
    return error


def _unquoted(status: int, body: Mapping[str, Any], said: str) -> str:
    reason, known = body.get("reason"), _QUOTES_NOTHING.search(said)
    word = f" {reason}" if isinstance(reason, str) and re.fullmatch("[A-Za-z]{1,63}", reason) else ""
    who = f" ({known[0]})" if known else ""
    return f"the server refuses with {status}{word}{who}; what else it says may quote what was sent, and is not told"


def pause(said: str | None, *, now: datetime) -> float | None:
    """The seconds that a Retry-After asks for, as seconds or as a date; None when it asks for none, or is neither."""
    text = (said or "").strip()
    try:
        number = text.isascii() and text.isdigit()
        wanted = float(text) if number else (parsedate_to_datetime(text) - now).total_seconds()
    except (TypeError, ValueError, OverflowError):
        return None
    return min(wanted, LONGEST_PAUSE) if wanted > 0 else None


def _status_body(payload: bytes) -> Mapping[str, Any]:
    try:
        body = orjson.loads(payload)
    except orjson.JSONDecodeError:
        return {}
    return cast(Mapping[str, Any], body) if isinstance(body, dict) else {}


def from_event(status: Mapping[str, Any], *, asked: str) -> ApiError:
    """The error that an ERROR event of a watch carries."""
    code = status.get("code")
    return _error(code if isinstance(code, int) else 500, status, b"", asked=asked, retry_after=None, secret=False)


@contextmanager
def translated(asked: str) -> Generator[None]:
    """What the network and the answers' bytes can do, as our errors; `asked` says during what."""
    try:
        yield
    except (aiohttp.ClientError, OSError) as error:  # a TimeoutError is an OSError, too
        raise Unreachable(f"{asked}: {why(error)}") from error
    except orjson.JSONDecodeError as error:
        raise ServerFault(f"{asked}: the answer is not JSON") from error


def origin(error: Exception, frames: int = 3) -> tuple[str, ...]:
    """Where in the code it arose, for a log that must not have the error's own text."""
    found = traceback.extract_tb(error.__traceback__)[-frames:]
    return tuple(f"{frame.filename.rpartition('/')[2]}:{frame.lineno}" for frame in found)
