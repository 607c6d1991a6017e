"""The errors of requests to clusters and clouds, classified in one place.

  ClientError                 a cluster did not do what it was asked
  ├── KubeconfigError         the kubeconfig cannot be used; a person has to change it
  ├── NotLeading              another process holds the lease; nothing was sent
  ├── Foreign                 the existing object is not ours; nothing was sent
  ├── Terminating             the existing object is being deleted; nothing was sent
  ├── Defect                  our own code failed on its input
  └── ApiError                the result of a request
      ├── Unreachable         no response in time, or none at all; a write may have had its effect
      │   └── Connecting      the credentials are still being created; nothing was sent
      ├── Unauthorized        401: the credentials are not accepted, or no longer
      ├── Forbidden           403: these credentials may not do this
      ├── NotFound            404: no such object, namespace or kind
      │   └── InvalidName     no object can have such a name; nothing was sent
      ├── Conflict            409: the object has changed, or another precondition does not hold
      │   └── AlreadyExists   409: an object of this name exists
      ├── Expired             410: the version is too old; list again
      ├── Invalid             400, 405, 413, 415, 422: the server will never accept this request
      ├── TooMany             429: try later; `retry_after` says when
      ├── InUse               a cloud: something else still needs the resource
      ├── NotPropagated       a cloud: a new resource is not known everywhere yet
      ├── Exhausted           a cloud: a quota or the capacity for a machine type is used up
      └── ServerFault         5xx, and malformed responses
          └── Misbehaving     larger or other responses than an API server sends; the server is avoided for minutes

`reason` is the name for a condition. `retry` is True if the same request may succeed soon without a change by a person.
A retry starts from a new observation, and does not send the same bytes again.
"""

# ruff: noqa: N818 - a finding is named for what was found

from __future__ import annotations

from typing import ClassVar, Self


class ClientError(Exception):
    """A cluster did not do what it was asked."""

    retry: ClassVar[bool] = True
    """True if a retry may succeed without a change by a person."""
    retry_after: float | None = None
    """The seconds that the server asks to wait."""
    details: object = None
    """The details in the server's Status, besides the message."""
    is_own_message: bool = False
    """True if the message is the operator's own text, although it is about a response."""

    @property
    def reason(self) -> str:
        return type(self).__name__

    def without_details(self) -> Self:
        """Return the error without traceback, cause and details, which may hold many megabytes, for storing it."""
        self.details = self.__cause__ = self.__context__ = None
        return self.with_traceback(None)


class KubeconfigError(ClientError):
    """The kubeconfig lacks something, or asks for something that we do not do for its author."""

    retry = False


class NotLeading(ClientError):
    """Another process may hold the lease, so this one must not write."""


class Foreign(ClientError):
    """An object of this name exists and is not ours."""

    retry = False


class Terminating(ClientError):
    """The object is being deleted; its successor has to wait."""


class Defect(ClientError):
    """Our own code failed on its input."""

    retry = False

    @classmethod
    def by(cls, error: Exception) -> Self:
        """Return the error to report for an exception, without its text, which may quote secrets."""
        return cls(f"internal error ({type(error).__name__}); the operator's log has the details")


class ApiError(ClientError):
    """The result of a failed request, with the server's message where there is one."""


class Unreachable(ApiError):
    """No response in time, or none at all. A write may have had its effect."""


class Connecting(Unreachable):
    """There is no connection yet because its credentials are being created. Nothing is wrong."""


class Unauthorized(ApiError):
    """The credentials are not accepted, or no longer."""


class Forbidden(ApiError):
    """These credentials may not do this."""

    retry = False


class NotFound(ApiError):
    """No such object, namespace or kind."""


class InvalidName(NotFound):
    """No object can have such a name. Nothing was sent."""

    retry = False


class Conflict(ApiError):
    """The object has changed since it was read, or another precondition does not hold."""


class AlreadyExists(Conflict):
    """An object of this name exists."""


class Expired(ApiError):
    """The resourceVersion, or the continuation of a list, is too old."""


class Invalid(ApiError):
    """This request will never be accepted."""

    retry = False


class TooMany(ApiError):
    """The server asks to send fewer requests for a while."""


class InUse(ApiError):
    """Another resource still needs this one."""


class NotPropagated(ApiError):
    """A new resource is not known everywhere yet."""


class Exhausted(ApiError):
    """A quota is used up, or there is no capacity for a machine type."""


class ServerFault(ApiError):
    """The server failed, or sent a malformed response."""


class Misbehaving(ServerFault):
    """The server sent more than its limits allow, or something that no API server sends. It is avoided for minutes."""
