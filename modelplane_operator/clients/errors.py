"""What can go wrong on the way to a cluster, sorted once, here.

ClientError                 a cluster did not do what it was asked
├── KubeconfigError         the kubeconfig cannot be used; somebody has to change it
├── NotLeading              the lease is another's: nothing was sent
├── Foreign                 the object there is not ours: nothing was sent
├── Terminating             the object there is on its way out: nothing was sent
├── Defect                  our own code failed on what it was given
└── ApiError                what became of a request
    ├── Unreachable         no answer in time, or none at all; a write may have had its effect
    ├── Unauthorized        401: the credentials are not, or no longer, accepted
    ├── Forbidden           403: these credentials may not do this
    ├── NotFound            404: no such object, namespace or kind
    │   └── InvalidName     no object can have such a name: nothing was sent
    ├── Conflict            409: what the request was based on is no longer so
    │   └── AlreadyExists   409: an object of that name is there
    ├── Gone                410: too long ago; list again
    ├── Invalid             400, 405, 413, 415, 422: this request will never be accepted
    ├── TooMany             429: later; `retry_after` says when
    └── ServerFault         5xx, and answers that are none
        └── Misbehaving     more than any API server says, or what none says: it is not listened to for a while

`reason` is the word for a condition. `retry` tells whether the same request may succeed soon, without anybody's help.
Whoever asks again does so from what is seen by then, not by sending the same bytes.
"""

# ruff: noqa: N818 - a finding is named for what was found

from __future__ import annotations

import traceback
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from datetime import datetime
from email.utils import parsedate_to_datetime
from typing import Any, ClassVar, Self, cast

import aiohttp
import orjson

from modelplane_operator.clients.wording import why

MESSAGE_LENGTH = 2000  # of a server's message: a refusal of a large object may quote all of it
LONGEST_PAUSE = 60.0  # what is waited for a server that wants to be left alone, however long it asks for


class ClientError(Exception):
    """A cluster did not do what it was asked."""

    retry: ClassVar[bool] = True
    retry_after: float | None = None
    """The seconds that the server asks to be left alone for."""

    @property
    def reason(self) -> str:
        return type(self).__name__


class KubeconfigError(ClientError):
    """The kubeconfig lacks something, or asks for something that we do not do for whoever wrote it."""

    retry = False


class NotLeading(ClientError):
    """Another operator may be writing; this one must not."""


class Foreign(ClientError):
    """An object of that name is there, and it is not ours."""

    retry = False


class Terminating(ClientError):
    """The object is being deleted; what follows it has to wait."""


class Defect(ClientError):
    """Our own code failed on what it was given."""

    retry = False

    @classmethod
    def by(cls, error: Exception) -> Self:
        """What to tell of it: the error's own text may quote what nobody should read."""
        return cls(f"internal error ({type(error).__name__}); the operator's log has the details")


class ApiError(ClientError):
    """What became of a request, in the server's words where it has said any."""


class Unreachable(ApiError):
    """No answer in time, or none at all. A write may have had its effect."""


class Unauthorized(ApiError):
    """The credentials are not accepted, or no longer."""


class Forbidden(ApiError):
    """These credentials may not do this."""

    retry = False


class NotFound(ApiError):
    """No such object; or no such namespace, or kind."""


class InvalidName(NotFound):
    """No object can have such a name, so there is none of it; nothing was sent."""

    retry = False


class Conflict(ApiError):
    """What the request was based on is no longer so."""


class AlreadyExists(Conflict):
    """An object of that name is there."""


class Gone(ApiError):
    """The resourceVersion, or the continuation of a list, is too old."""


class Invalid(ApiError):
    """This request will never be accepted."""

    retry = False


class TooMany(ApiError):
    """The server wants to be left alone for a while."""


class ServerFault(ApiError):
    """The server failed, or answered what no API server answers."""


class Misbehaving(ServerFault):
    """The server said more than any API server says, or what none says. It is left alone for minutes."""


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


def refusal(status: int, payload: bytes, *, asked: str, retry_after: float | None = None) -> ApiError:
    """The error that an answer is; `asked` says what it answers."""
    body = _status_body(payload)
    said = str(body.get("message") or "") or payload[:200].decode(errors="replace").strip() or f"status {status}"
    kind = _BY_STATUS.get(status, ServerFault)
    if kind is Conflict and body.get("reason") == "AlreadyExists":
        kind = AlreadyExists
    if kind is ServerFault and _UNKNOWN_FIELD in said:
        kind = Invalid
    if kind is Unauthorized and said in _NO_WORDS:
        said = "the server does not accept the credentials (401): give the kubeconfig others that are valid there"
    error = kind(f"{asked}: {said[:MESSAGE_LENGTH]}")
    error.retry_after = retry_after
    return error


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
    return refusal(code if isinstance(code, int) else 500, orjson.dumps(dict(status)), asked=asked)


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
