"""Messages for errors of network libraries: the cause, and where to look.

The libraries' own messages have class names, memory addresses that differ from run to run, and sometimes secrets.
Messages do not name the server: the caller may add that, and tenants must not read it.
"""

from __future__ import annotations

import errno
import os
import socket
import ssl
from collections.abc import Mapping

import aiohttp

from kubeloop.client.transport import BrokenOff, Dead, NotConnected, Unprocessed, Worded

_REMEDIES = {
    errno.ECONNREFUSED: "nothing listens there; check the server in the kubeconfig, and that the API server runs",
    errno.EHOSTUNREACH: "look at the server in the kubeconfig, and at routes and firewalls on the way",
    errno.ENETUNREACH: "look at the server in the kubeconfig, and at routes and firewalls on the way",
    errno.ETIMEDOUT: "look at firewalls on the way",
}
_TLS = {
    "WRONG_VERSION_NUMBER": "the server speaks no TLS at that port; look at the server in the kubeconfig",
    "HTTP_REQUEST": "the server speaks no TLS at that port; look at the server in the kubeconfig",
    "KEY_VALUES_MISMATCH": "the client certificate and the key of the kubeconfig do not belong together",
    "TLSV1_ALERT_UNKNOWN_CA": "the server does not know the CA of the kubeconfig's client certificate",
    "TLSV13_ALERT_CERTIFICATE_REQUIRED": "the server asks for a client certificate, and the kubeconfig has none",
}
_TIMED_OUT = "no answer in time; check that the API server runs, and firewalls on the way"
_PLAIN: Mapping[tuple[type[BaseException], ...], str] = {
    (aiohttp.ConnectionTimeoutError, NotConnected): (
        "no connection in time; look at the server in the kubeconfig, and at firewalls on the way"
    ),
    (aiohttp.ServerTimeoutError,): _TIMED_OUT,
    (aiohttp.ServerDisconnectedError, ConnectionResetError): "the connection was closed",
    (aiohttp.ClientPayloadError, BrokenOff): "the answer broke off",
    (Dead,): "the connection is dead: the server answers no PING",
    (Unprocessed,): "the server ends its connections before it reads requests",
    (aiohttp.InvalidURL,): "the server in the kubeconfig is not a URL",
}
"""Messages by type. For an error of several types the first entry counts."""
_INVALID_PEM = "a certificate or key is not PEM, or incomplete: write it into the kubeconfig again"


def describe_error(error: BaseException) -> str:
    """Return the message for a failed request."""
    if message := next((text for kinds, text in _PLAIN.items() if isinstance(error, kinds)), ""):
        return message  # the type says enough
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            cause = getattr(error, "certificate_error", error)
            reason = getattr(cause, "verify_message", "") or "it names another server"
            return (
                f"the server's certificate is not trusted: {reason}; look at certificate-authority-data and "
                "tls-server-name in the kubeconfig"
            )
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            cause = error.os_error if isinstance(error, aiohttp.ClientConnectorDNSError) else error
            return str(cause) if isinstance(cause, Worded) else _dns_message(cause.errno)
        case aiohttp.ClientProxyConnectionError():
            return f"the kubeconfig's proxy-url takes no connection: {os.strerror(error.errno or 0)}"
        case aiohttp.ClientHttpProxyError():
            return f"the kubeconfig's proxy-url answers {error.status}: it does not lead to the server"
        case aiohttp.ClientConnectorSSLError():
            return tls(error.os_error)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        case ssl.SSLError():
            return tls(error)
        case TimeoutError():
            return str(error) or _TIMED_OUT
        case Worded():
            return str(error)
        case OSError(errno=int(number)) if number > 0:
            return _errno_message(number)
        case _:
            return f"the connection failed ({type(error).__name__})"


def tls(error: Exception) -> str:
    """Return the message for a failure of TLS or unusable certificates."""
    if not isinstance(error, ssl.SSLError):
        return describe_error(error) if isinstance(error, OSError) else _INVALID_PEM
    reason = getattr(error, "reason", None) or ""
    if reason in _TLS:
        return _TLS[reason]
    if not reason or "PEM" in reason or "START_LINE" in reason or "ASN1" in reason:
        return _INVALID_PEM
    return f"TLS fails: {reason.lower().replace('_', ' ')}"


def _dns_message(number: int | None) -> str:
    """Return the message for a failed DNS lookup."""
    if number == socket.EAI_AGAIN:
        return "DNS does not answer for the server's name; look at the DNS of the operator's cluster"
    return "the server's name is not known to DNS; look at the server in the kubeconfig"


def _errno_message(number: int | None) -> str:
    """Return the message for an error number of the system."""
    remedy = _REMEDIES.get(number or 0)
    description = os.strerror(number) if number and number > 0 else "it failed"
    return f"{description}: {remedy}" if remedy else description
