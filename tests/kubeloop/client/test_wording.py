"""No text of a library reaches a condition: each error is a sentence that says what to look at."""

from __future__ import annotations

import errno
import os
import re
import socket
import ssl
from types import SimpleNamespace
from typing import Any, cast

import aiohttp
import pytest
from aiohttp.client_reqrep import ConnectionKey
from yarl import URL

from kubeloop.client.errors import refusal, translate_errors
from kubeloop.client.transport import BrokenOff, Dead, NotConnected, Unprocessed
from kubeloop.client.wording import describe_error, tls
from kubeloop.errors import Unauthorized, Unreachable

PLACE = ConnectionKey(
    "secret.example", 6443, is_ssl=True, ssl=True, proxy=None, proxy_auth=None, proxy_headers_hash=None
)
ANSWER = cast("Any", SimpleNamespace(real_url=URL("https://secret.example:6443")))


def os_error(number: int) -> OSError:
    return OSError(number, os.strerror(number))


def ssl_error(reason: str) -> ssl.SSLError:
    error = ssl.SSLError(1, f"[SSL: {reason}] {reason.lower()} (_ssl.c:4020)")
    error.reason = reason
    return error


def unproven(message: str) -> ssl.SSLCertVerificationError:
    error = ssl.SSLCertVerificationError(1, "[SSL: CERTIFICATE_VERIFY_FAILED]")
    error.verify_message = message
    return error


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (
            aiohttp.ClientConnectorDNSError(PLACE, socket.gaierror(socket.EAI_NONAME, "x")),
            "name is not known to DNS; look",
        ),
        (aiohttp.ClientConnectorDNSError(PLACE, socket.gaierror(socket.EAI_AGAIN, "x")), "DNS does not answer"),
        (
            aiohttp.ClientConnectorError(PLACE, os_error(errno.ECONNREFUSED)),
            "Connection refused: nothing listens there; check",
        ),
        (aiohttp.ClientConnectorError(PLACE, os_error(errno.EHOSTUNREACH)), "No route to host: look at"),
        (aiohttp.ClientConnectorError(PLACE, os_error(errno.EMFILE)), "Too many open files"),
        (
            aiohttp.ClientConnectorCertificateError(PLACE, unproven("self-signed certificate")),
            "not trusted: self-signed",
        ),
        (unproven("self-signed certificate"), "not trusted: self-signed"),
        (aiohttp.ClientConnectorCertificateError(PLACE, ssl.CertificateError("x")), "it names another server; look"),
        (aiohttp.ClientConnectorSSLError(PLACE, ssl_error("WRONG_VERSION_NUMBER")), "speaks no TLS at that port; look"),
        (aiohttp.ClientConnectorSSLError(PLACE, ssl_error("SOME_NEW_THING")), "TLS fails: some new thing"),
        (aiohttp.ClientProxyConnectionError(PLACE, os_error(errno.ECONNREFUSED)), "proxy-url takes no connection"),
        (aiohttp.ClientHttpProxyError(ANSWER, (), status=407, message="x"), "proxy-url answers 407"),
        (
            aiohttp.ConnectionTimeoutError("Connection timeout to host https://secret.example"),
            "no connection in time; look",
        ),
        (aiohttp.SocketTimeoutError("secret.example"), "no answer in time"),
        (aiohttp.ServerDisconnectedError(), "the connection was closed"),
        (aiohttp.ClientConnectionResetError("Cannot write to closing transport"), "the connection was closed"),
        (aiohttp.ClientPayloadError("<Response 0x7f>"), "the answer broke off"),
        (aiohttp.InvalidURL("https://secret.example"), "is not a URL"),
        (aiohttp.ClientConnectionError("Connector is closed."), "the connection failed (ClientConnectionError)"),
        (NotConnected(), "no connection in time; look"),
        (BrokenOff(), "the answer broke off"),
        (Dead(), "answers no PING"),
        (Unprocessed(), "before it reads requests"),
        (ConnectionResetError(), "the connection was closed"),
        (TimeoutError(), "no answer in time"),
        (TimeoutError("silent for 60 s"), "silent for 60 s"),
        (socket.gaierror(socket.EAI_NONAME, "x"), "not known to DNS"),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_an_error_of_the_network_is_a_sentence_without_addresses_and_names_of_classes(
    error: Exception, says: str
) -> None:
    with pytest.raises(Unreachable) as told, translate_errors("get Node a"):
        raise error

    assert str(told.value) == f"get Node a: {describe_error(error)}"
    assert says in describe_error(error)
    assert not re.search(r"0x|secret|_ssl|\[", describe_error(error))


@pytest.mark.parametrize(
    ("error", "says"),
    [
        (ssl_error("KEY_VALUES_MISMATCH"), "do not belong together"),
        (ssl_error("NO_START_LINE"), "is not PEM"),
        (ssl.SSLError("no start line: cadata does not contain a certificate (_ssl.c:4020)"), "is not PEM"),
        (ValueError("embedded null byte"), "is not PEM"),
        (os_error(errno.ENOSPC), "No space left on device"),
    ],
)
def test_certificates_that_cannot_be_used_say_what_is_wrong_with_them(error: Exception, says: str) -> None:
    assert says in tls(error)
    assert "_ssl" not in tls(error)


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b'{"kind": "Status", "message": "Unauthorized", "code": 401}', "does not accept the credentials (401): give"),
        (b"", "does not accept the credentials (401): give"),
        (b'{"message": "the token has expired"}', "the token has expired"),
    ],
)
def test_credentials_that_are_refused_say_so(body: bytes, says: str) -> None:
    error = refusal(401, body, operation="GET /readyz")

    assert isinstance(error, Unauthorized)
    assert says in str(error)
