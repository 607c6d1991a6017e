"""Translate the errors of Google into the operator's own, in one place, for gRPC and HTTP."""

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
    NotPropagated,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)
from kubeloop.objects import entries, section

_MAX_MESSAGE = 1000  # maximum length of a message from Google

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
    "resourceNotReady": NotPropagated,
    "RESOURCE_NOT_READY": NotPropagated,
    "SERVICE_DISABLED": NotPropagated,  # the operator enables the service, or did so a moment ago
    "accessNotConfigured": NotPropagated,
    "alreadyExists": AlreadyExists,
    "RESOURCE_ALREADY_EXISTS": AlreadyExists,
}
"""Errors by Google's reason, the most exact information in a response."""
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
"""Errors by the status of gRPC, for responses without a known reason."""
_CODES: Final[Mapping[int, type[ApiError]]] = {
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    412: Conflict,
    429: TooMany,
}
"""Errors by the status of HTTP, for responses without a known reason."""
_NO_CAPACITY = re.compile(r"insufficient [a-z ]*(quota|capacity)|stockout|does not have enough resources|quota '")
"""Matches messages about missing machines or quota, which GKE reports with several statuses."""


def translate_error(
    request: str, message: str, *, status: str = "", code: int = 0, reasons: Collection[str] = ()
) -> ApiError:
    """Return the operator's error for an error response of Google. `request` describes the request, for the message."""
    text = f"{request}: {message[:_MAX_MESSAGE] or status or code}"
    kind = next((_REASONS[reason] for reason in reasons if reason in _REASONS), None)
    lower = message.lower()
    # A quota "per minute" limits calls and recovers by itself.
    if kind is None and _NO_CAPACITY.search(lower) and "per minute" not in lower:
        kind = Exhausted
    if kind is None and ("being used by" in lower or "in use by" in lower):
        kind = InUse
    if kind is None:
        kind = _STATUSES.get(status) or _CODES.get(code) or (ServerFault if code >= 500 else Invalid)
    return kind(text)


def of_http(request: str, code: int, body: Mapping[str, Any]) -> ApiError:
    """Return the error of an HTTP response, from its body if it has one."""
    error = section(body, "error") if isinstance(body.get("error"), dict) else cast(Mapping[str, Any], {})
    details = [*entries(error, "errors"), *entries(error, "details")]
    reasons = [str(detail["reason"]) for detail in details if detail.get("reason")]
    return translate_error(request, str(error.get("message", "")), code=code, reasons=reasons)


def of_operation(request: str, error: Mapping[str, Any]) -> ApiError:
    """Return the error that an operation of Compute Engine failed with."""
    errors: Sequence[Mapping[str, Any]] = error.get("errors") or [{}]
    first = errors[0]
    return translate_error(request, str(first.get("message", "")), code=400, reasons=[str(first.get("code", ""))])
