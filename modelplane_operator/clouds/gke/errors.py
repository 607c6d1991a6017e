"""What Google refuses, as our errors: sorted once, here, for gRPC and for HTTP."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final, cast

from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    Conflict,
    Exhausted,
    Forbidden,
    InUse,
    Invalid,
    NotFound,
    NotSettled,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)
from kubeloop.objects import entries, section

_WORDS = 1000  # of Google's message

_REASONS: Final[Mapping[str, type[ApiError]]] = {
    "RATE_LIMIT_EXCEEDED": TooMany,
    "rateLimitExceeded": TooMany,
    "userRateLimitExceeded": TooMany,
    "quotaExceeded": Exhausted,
    "QUOTA_EXCEEDED": Exhausted,
    "GCE_STOCKOUT": Exhausted,
    "ZONE_RESOURCE_POOL_EXHAUSTED": Exhausted,
    "resourceInUseByAnotherResource": InUse,
    "RESOURCE_IN_USE_BY_ANOTHER_RESOURCE": InUse,
    "resourceNotReady": NotSettled,
    "RESOURCE_NOT_READY": NotSettled,
    "SERVICE_DISABLED": NotSettled,  # which we are about to change, or have a moment ago
    "accessNotConfigured": NotSettled,
    "alreadyExists": AlreadyExists,
    "RESOURCE_ALREADY_EXISTS": AlreadyExists,
}
_STATUSES: Final[Mapping[str, type[ApiError]]] = {
    "ABORTED": Conflict,
    "ALREADY_EXISTS": AlreadyExists,
    "CANCELLED": Unreachable,
    "DATA_LOSS": ServerFault,
    "DEADLINE_EXCEEDED": Unreachable,
    "FAILED_PRECONDITION": Conflict,
    "INTERNAL": ServerFault,
    "INVALID_ARGUMENT": Invalid,
    "NOT_FOUND": NotFound,
    "OUT_OF_RANGE": Invalid,
    "PERMISSION_DENIED": Forbidden,
    "RESOURCE_EXHAUSTED": TooMany,
    "UNAUTHENTICATED": Unauthorized,
    "UNAVAILABLE": Unreachable,
    "UNIMPLEMENTED": Invalid,
    "UNKNOWN": ServerFault,
}
_CODES: Final[Mapping[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: TooMany,
}
_SHORT = re.compile(r"insufficient [a-z ]*(quota|capacity)|stockout|does not have enough resources|quota '")
"""Of machines, or of a quota for them: GKE says so by several statuses."""


def translated(asked: str, message: str, *, status: str = "", code: int = 0, reasons: Collection[str] = ()) -> ApiError:
    """The error that an answer of Google is; `asked` says what it answers."""
    words = f"{asked}: {message[:_WORDS] or status or code}"
    kind = next((_REASONS[one] for one in reasons if one in _REASONS), None)
    lower = message.lower()
    if kind is None and _SHORT.search(lower) and "per minute" not in lower:
        kind = Exhausted
    if kind is None and ("being used by" in lower or "in use by" in lower):
        kind = InUse
    if kind is None:
        kind = _STATUSES.get(status) or _CODES.get(code) or (ServerFault if code >= 500 else Invalid)
    return kind(words)


def of_http(asked: str, code: int, body: Mapping[str, Any]) -> ApiError:
    """By the body of an answer, where it has one."""
    said = section(body, "error") if isinstance(body.get("error"), dict) else cast(Mapping[str, Any], {})
    details = [*entries(said, "errors"), *entries(said, "details")]
    reasons = [str(one["reason"]) for one in details if one.get("reason")]
    return translated(asked, str(said.get("message", "")), code=code, reasons=reasons)


def of_operation(asked: str, error: Mapping[str, Any]) -> ApiError:
    """What an operation of Compute Engine has failed for."""
    errors: Sequence[Mapping[str, Any]] = error.get("errors") or [{}]
    first = errors[0]
    return translated(asked, str(first.get("message", "")), code=400, reasons=[str(first.get("code", ""))])
