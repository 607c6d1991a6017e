"""What can go wrong on the way to a cluster, sorted once, here.

ClientError                 a cluster did not do what it was asked
├── KubeconfigError         the kubeconfig cannot be used; somebody has to change it
├── NotLeading              the lease is another's: nothing was sent
├── Foreign                 the object there is not ours: nothing was sent
├── Terminating             the object there is on its way out: nothing was sent
├── Defect                  our own code failed on what it was given
└── ApiError                what became of a request
    ├── Unreachable         no answer in time, or none at all; a write may have had its effect
    │   └── Connecting      the credentials are still being made: nothing was sent
    ├── Unauthorized        401: the credentials are not, or no longer, accepted
    ├── Forbidden           403: these credentials may not do this
    ├── NotFound            404: no such object, namespace or kind
    │   └── InvalidName     no object can have such a name: nothing was sent
    ├── Conflict            409: what the request was based on is no longer so
    │   └── AlreadyExists   409: an object of that name is there
    ├── Gone                410: too long ago; list again
    ├── Invalid             400, 405, 413, 415, 422: this request will never be accepted
    ├── TooMany             429: later; `retry_after` says when
    ├── InUse               a cloud: something else still needs it
    ├── NotSettled          a cloud: what was just made is not known everywhere yet
    ├── Exhausted           a cloud: a quota, or what there is of a kind of machine, is used up
    └── ServerFault         5xx, and answers that are none
        └── Misbehaving     more than any API server says, or what none says: it is not listened to for a while

`reason` is the word for a condition. `retry` tells whether the same request may succeed soon, without anybody's help.
Whoever asks again does so from what is seen by then, not by sending the same bytes.
"""

# ruff: noqa: N818 - a finding is named for what was found

from __future__ import annotations

from typing import ClassVar, Self


class ClientError(Exception):
    """A cluster did not do what it was asked."""

    retry: ClassVar[bool] = True
    retry_after: float | None = None
    """The seconds that the server asks to be left alone for."""
    details: object = None
    """What the server says of it beside the message."""
    ours: bool = False
    """Whether its words are the operator's own, though it is about an answer."""

    @property
    def reason(self) -> str:
        return type(self).__name__

    def kept(self) -> Self:
        """The same for whoever keeps it: without what was read where it arose, which may be many megabytes."""
        self.details = self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


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


class Connecting(Unreachable):
    """There is no connection yet, and nothing is wrong: the credentials for it are being made."""


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


class InUse(ApiError):
    """Something else still needs it."""


class NotSettled(ApiError):
    """What was just made is not known everywhere yet."""


class Exhausted(ApiError):
    """A quota is used up, or there are no more machines of a kind."""


class ServerFault(ApiError):
    """The server failed, or answered what no API server answers."""


class Misbehaving(ServerFault):
    """The server said more than any API server says, or what none says. It is left alone for minutes."""
