"""Fetch files from web servers that users name: permitted addresses, errors, and resumed transfers.

A hydrator's pod may reach what the tenant's engines on the cluster reach, but never its own node or a cloud's
metadata. The cluster's NetworkPolicy enforces the same, in case a name changes in between.

The sources create a Web for their requests; Hugging Face's library only shares the client and the functions for
transfers. Content is not verified here.
"""

from __future__ import annotations

import ipaddress
import os
import socket
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Final

import httpcore
import httpx

from modelplane_operator.addresses import TRANSLATED, embedded_addresses, special, tells_secrets
from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import AccessDeniedError, File, HydrationError, PermanentError, TransientError

LARGEST: Final = 16 << 20  # maximum bytes of a manifest or a list, which are read into memory
PIECE: Final = 1 << 20  # maximum bytes per read; with the library's 64 KiB, a GB takes two more seconds of CPU
TIMEOUT: Final = httpx.Timeout(60, connect=10)
"""Seconds without a byte, and seconds to connect. The total is not limited."""
# Status codes from 400 on that a retry may resolve: too early, too many requests, changed content.
PASSING: Final = frozenset({408, 412, 425, 429})


def check_host(host: str) -> list[str]:
    """Return the addresses of a host.

    Raise PermanentError for an inside one, with the same message as for a missing one.
    """
    if not host.isascii():
        raise _unreachable_host(host)  # Python's resolver and the HTTP libraries encode such a name differently
    try:
        addresses = [str(address[4][0]) for address in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}:
            raise _unreachable_host(host) from error
        raise TransientError(f"host {host} cannot be resolved now; the hydrator tries again") from error
    except UnicodeError as error:
        raise _unreachable_host(host) from error
    for text in addresses:
        address = ipaddress.ip_address(text.partition("%")[0])
        forms = (address, *embedded_addresses(address))
        # It leads to this node or to a cloud's metadata, in any notation.
        if address in TRANSLATED or any(special(form) or tells_secrets(form) for form in forms):
            raise _unreachable_host(host)
    return addresses


def _unreachable_host(host: str) -> PermanentError:
    """Return the error for a host. Its message does not reveal if the host exists inside of the network."""
    return PermanentError(f"host {host} does not exist, or is not allowed as a source: correct the URL")


class _OutsideBackend(httpcore.SyncBackend):
    """A network backend that connects to the checked addresses only, so that a second DNS answer cannot redirect it."""

    def connect_tcp(self, host: str, *told: Any, **more: Any) -> httpcore.NetworkStream:
        """Connect to the first checked address that accepts."""
        *alternatives, last = check_host(host)
        for address in alternatives:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return super().connect_tcp(address, *told, **more)
        return super().connect_tcp(last, *told, **more)


def error_of_status(status: int, headers: Mapping[str, str], description: str, credentials: str) -> HydrationError:
    """Return the error of a response with a status from 400 on.

    Texts of the server are left out: they may contain anything.
    """
    if status in {401, 403}:
        return AccessDeniedError(f"the server refuses {description} with {status}; the request was {credentials}")
    if status == 404:
        return PermanentError(f"{description} does not exist; the request was {credentials}")
    if status < 500 and status not in PASSING:
        return PermanentError(f"the server answers {status} to the request for {description}")
    retry_after = headers.get("Retry-After", "")
    return TransientError(
        f"the server answers {status} to the request for {description}",
        retry_after=float(retry_after) if retry_after.isascii() and retry_after.isdigit() else None,
    )


def client(*, anywhere: bool = False) -> httpx.Client:
    """Return a client that only connects to outside addresses, or to any, and requests uncompressed content."""
    httpcore.HTTP11Connection.READ_NUM_BYTES = PIECE  # pyright: ignore[reportAttributeAccessIssue]  # it knows one number
    transport = httpx.HTTPTransport(trust_env=False)
    if not anywhere:  # httpx has no option for it
        transport._pool._network_backend = _OutsideBackend()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue,reportPrivateUsage]
    return httpx.Client(
        transport=transport,
        # Ranges, sizes and checksums refer to the content as it is stored.
        headers={"Accept-Encoding": "identity"},
        timeout=TIMEOUT,
        follow_redirects=True,
        max_redirects=5,
        trust_env=False,
    )


def read_all(response: httpx.Response, description: str) -> bytes:
    """Return the body of a short response.

    Compressed ones are rejected: a thousandth of their size could have been sent.
    """
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise PermanentError(
            f"the server sends {description} compressed, which it was not asked for: turn that off there"
        )
    content = bytearray()
    for chunk in response.iter_raw():
        content += chunk
        if len(content) > LARGEST:
            raise PermanentError(f"{description} is longer than {LARGEST >> 20} MiB")
    return bytes(content)


@dataclass(frozen=True, slots=True)
class Web:
    """An HTTP client for addresses that users name."""

    description: str
    """Description of the resource, for messages."""
    credentials: str = "without a token: name one in authSecret"
    """Description of the credentials in use, for messages."""
    client: httpx.Client = field(default_factory=client)
    """HTTP client that rejects inside addresses."""

    @contextmanager
    def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        also: Iterable[int] = (),
        form: Mapping[str, str] | None = None,
    ) -> Generator[httpx.Response]:
        """Yield a response with a status below 400, or one of `also`. With a form the request is a POST."""
        try:
            sent = self.client.stream("POST" if form else "GET", url, headers=dict(headers or {}), data=form)
            with sent as response:
                if response.status_code >= 400 and response.status_code not in also:
                    raise error_of_status(response.status_code, response.headers, self.description, self.credentials)
                yield response
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise PermanentError(f"{self.description} does not lead to a web server: {type(error).__name__}") from error
        except httpx.HTTPError as error:
            raise TransientError(f"the download of {self.description} failed: {type(error).__name__}") from error

    def read(self, response: httpx.Response) -> bytes:
        """Return the body of a short response."""
        return read_all(response, self.description)

    def fetch(self, url: str, file: File, folder: Folder, headers: Mapping[str, str] | None = None) -> None:
        """Fetch a file, and continue an interrupted transfer."""
        present = resume_file(file, folder)
        if present == file.size:
            return
        with self.get(url, {**(headers or {}), **request_range(present)}) as response:
            # A server may ignore the range and send everything.
            start = present if response.status_code == 206 else 0
            write(file, folder, start, response.iter_raw())


def request_range(have: int) -> dict[str, str]:
    """Return the headers that request the rest of a file."""
    return {"Range": f"bytes={have}-"} if have else {}


def resume_file(file: File, folder: Folder) -> int:
    """Return the number of bytes that are already there. A file that is too long is deleted."""
    present = folder.size(file.path) or 0
    if present > file.size:
        folder.remove(file.path)
        return 0
    # An empty file needs no transfer, but has to exist to be verified.
    if file.size == 0:
        folder.make(file.path).close()
    return present


def write(file: File, folder: Folder, start: int, chunks: Iterator[bytes]) -> None:
    """Write the chunks to a file, from `start` on. Raise TransientError if they are too few. After too many, the
    write stops, and the verification rejects the file.
    """
    with folder.open(file.path, os.O_RDWR) if start else folder.make(file.path) as content:
        content.truncate(start)
        content.seek(start)
        for chunk in chunks:
            content.write(chunk)
            if content.tell() > file.size:
                break
        written = content.tell()
    if written < file.size:
        raise TransientError(f"the transfer of {file.path} broke off at {written} of {file.size} bytes")
