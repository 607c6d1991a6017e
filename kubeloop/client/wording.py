"""What the libraries of the network raise, in a sentence: what has happened, and what to look at.

The one place where their errors become words. Their own have class names, addresses of objects, which differ from run
to run, and sometimes what nobody should read. The address is for whoever tells of a cluster to add: what a tenant reads
has none.
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
    errno.ECONNREFUSED: "nothing listens there; look at the server in the kubeconfig, and whether the API server runs",
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
_SILENT = "no answer in time; look at whether the API server runs, and at firewalls on the way"
_PLAIN: Mapping[tuple[type[BaseException], ...], str] = {
    (aiohttp.ConnectionTimeoutError, NotConnected): (
        "no connection in time; look at the server in the kubeconfig, and at firewalls on the way"
    ),
    (aiohttp.ServerTimeoutError,): _SILENT,
    (aiohttp.ServerDisconnectedError, ConnectionResetError): "the connection was closed",
    (aiohttp.ClientPayloadError, BrokenOff): "the answer broke off",
    (Dead,): "the connection is dead: the server answers no PING",
    (Unprocessed,): "the server ends its connections before it looks at what it is asked",
    (aiohttp.InvalidURL,): "the server in the kubeconfig is not a URL",
}
"""Of the errors of libraries that are of several types, the first counts."""
_OF_PEM = "a certificate or key is not PEM, or not whole: write it into the kubeconfig again"


def why(error: BaseException) -> str:
    """Why there is no answer."""
    if words := _plainly(error):
        return words
    match error:
        case aiohttp.ClientConnectorCertificateError() | ssl.SSLCertVerificationError():
            found = getattr(error, "certificate_error", error)
            said = getattr(found, "verify_message", "") or "it names another server"
            return (
                f"the server's certificate is not trusted: {said}; look at certificate-authority-data and "
                "tls-server-name in the kubeconfig"
            )
        case aiohttp.ClientConnectorDNSError() | socket.gaierror():
            found = error.os_error if isinstance(error, aiohttp.ClientConnectorDNSError) else error
            return str(found) if isinstance(found, Worded) else _unresolved(found.errno)
        case aiohttp.ClientProxyConnectionError():
            return f"the kubeconfig's proxy-url takes no connection: {os.strerror(error.errno or 0)}"
        case aiohttp.ClientHttpProxyError():
            return f"the kubeconfig's proxy-url answers {error.status}: it does not lead to the server"
        case aiohttp.ClientConnectorSSLError():
            return tls(error.os_error)  # pyright: ignore[reportUnknownArgumentType, reportUnknownMemberType]
        case ssl.SSLError():
            return tls(error)
        case TimeoutError():
            return str(error) or _SILENT
        case Worded():
            return str(error)
        case OSError(errno=int(number)) if number > 0:
            return _system(number)
        case _:
            return f"the connection failed ({type(error).__name__})"


def _plainly(error: BaseException) -> str:
    """Of an error whose type says all; empty for others."""
    return next((words for kinds, words in _PLAIN.items() if isinstance(error, kinds)), "")


def tls(error: Exception) -> str:
    """Why TLS does not come about, or its certificates cannot be used."""
    if not isinstance(error, ssl.SSLError):
        return why(error) if isinstance(error, OSError) else _OF_PEM
    reason = getattr(error, "reason", None) or ""
    if reason in _TLS:
        return _TLS[reason]
    if not reason or "PEM" in reason or "START_LINE" in reason or "ASN1" in reason:
        return _OF_PEM
    return f"TLS fails: {reason.lower().replace('_', ' ')}"


def _unresolved(number: int | None) -> str:
    if number == socket.EAI_AGAIN:
        return "DNS does not answer for the server's name; look at the DNS of the operator's cluster"
    return "the server's name is not known to DNS; look at the server in the kubeconfig"


def _system(number: int | None) -> str:
    remedy = _REMEDIES.get(number or 0)
    said = os.strerror(number) if number and number > 0 else "it failed"
    return f"{said}: {remedy}" if remedy else said
