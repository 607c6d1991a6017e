"""Getting files from web servers that users name: where they may be, what their answers mean, and how a transfer that
broke off goes on.

A pod of ours may reach what the tenant's engines beside it reach, and no more: never what answers on its own node or
tells a cloud's secrets. The cluster's NetworkPolicy says the same once more, for whoever changes a name in between.
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

from modelplane_operator.addresses import TRANSLATED, Address, carried, special, tells_secrets
from modelplane_operator.hydrate.folder import Folder
from modelplane_operator.hydrate.source import AccessDeniedError, File, HydrationError, PermanentError, TransientError

LARGEST: Final = 16 << 20  # of what is read as a whole: a manifest, a list
PIECE: Final = 1 << 20  # at most so much at once: by the library's 64 KiB a GB takes two seconds more of the processor
TIMEOUT: Final = httpx.Timeout(60, connect=10)
# Of a status of 400 and above, those that another try may mend: too early, too many, another content meanwhile.
PASSING: Final = frozenset({408, 412, 425, 429})


def check_host(host: str) -> list[str]:
    """Return the addresses of a host; refuses one that is inside, in the very words for one that does not exist."""
    if not host.isascii():
        raise _nowhere(host)  # Python's resolver and the libraries that dial ask for two different names
    try:
        found = [str(one[4][0]) for one in socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)]
    except socket.gaierror as error:
        if error.errno in {socket.EAI_NONAME, socket.EAI_NODATA}:
            raise _nowhere(host) from error
        raise TransientError(f"host {host} cannot be resolved for now") from error
    except UnicodeError as error:
        raise _nowhere(host) from error
    if any(_is_inside(ipaddress.ip_address(one.partition("%")[0])) for one in found):
        raise _nowhere(host)
    return found


def _nowhere(host: str) -> PermanentError:
    return PermanentError(f"host {host} leads nowhere that weights may come from")


def _is_inside(address: Address) -> bool:
    """True if it leads to this very node or to a cloud's secrets, in whichever form it is written."""
    forms = (address, *carried(address))
    return address in TRANSLATED or any(special(one) or tells_secrets(one) for one in forms)


class _Outward(httpcore.SyncBackend):
    """Dials the very addresses that were looked at: another answer about the name comes too late."""

    def connect_tcp(self, host: str, *told: Any, **more: Any) -> httpcore.NetworkStream:
        *others, last = check_host(host)
        for address in others:
            with suppress(httpcore.ConnectError, httpcore.ConnectTimeout):
                return super().connect_tcp(address, *told, **more)
        return super().connect_tcp(last, *told, **more)


def answered(status: int, headers: Mapping[str, str], named: str, asked: str) -> HydrationError:
    """What an answer of 400 and above means. What the server says is left out: it may be anything."""
    if status in {401, 403}:
        return AccessDeniedError(f"{named} is refused with {status}; it was asked for {asked}")
    if status == 404:
        return PermanentError(f"{named} does not exist, and was asked for {asked}")
    if status < 500 and status not in PASSING:
        return PermanentError(f"{named} is answered with {status}")
    wait = headers.get("Retry-After", "")
    return TransientError(
        f"{named} is answered with {status}", retry_after=float(wait) if wait.isascii() and wait.isdigit() else None
    )


def client(*, anywhere: bool = False) -> httpx.Client:
    """A client that leads outside alone, or anywhere, and asks for everything as it is."""
    httpcore.HTTP11Connection.READ_NUM_BYTES = PIECE  # pyright: ignore[reportAttributeAccessIssue]  # it knows one number
    transport = httpx.HTTPTransport(trust_env=False)
    if not anywhere:  # httpx has no word for it
        transport._pool._network_backend = _Outward()  # noqa: SLF001  # pyright: ignore[reportAttributeAccessIssue,reportPrivateUsage]
    return httpx.Client(
        transport=transport,
        headers={"Accept-Encoding": "identity"},
        timeout=TIMEOUT,
        follow_redirects=True,
        max_redirects=5,
        trust_env=False,
    )


def read_whole(response: httpx.Response, named: str) -> bytes:
    """The whole of a short answer, which nothing unpacks: a thousandth of what that takes would have come."""
    if response.headers.get("Content-Encoding", "identity").lower() != "identity":
        raise PermanentError(f"{named} comes compressed, although nobody asks for that")
    found = bytearray()
    for chunk in response.iter_raw():
        found += chunk
        if len(found) > LARGEST:
            raise PermanentError(f"{named} is longer than {LARGEST >> 20} MiB")
    return bytes(found)


@dataclass(frozen=True, slots=True)
class Web:
    """An HTTP client for what users name."""

    named: str
    """What is asked for, in messages."""
    asked: str = "without a token: name one in authSecret"
    client: httpx.Client = field(default_factory=client)

    @contextmanager
    def get(
        self,
        url: str,
        headers: Mapping[str, str] | None = None,
        also: Iterable[int] = (),
        form: Mapping[str, str] | None = None,
    ) -> Generator[httpx.Response]:
        """An answer below 400, or of a status that the caller understands too; with a form it is posted."""
        try:
            sent = self.client.stream("POST" if form else "GET", url, headers=dict(headers or {}), data=form)
            with sent as response:
                if response.status_code >= 400 and response.status_code not in also:
                    raise answered(response.status_code, response.headers, self.named, self.asked)
                yield response
        except (httpx.InvalidURL, httpx.UnsupportedProtocol, httpx.TooManyRedirects) as error:
            raise PermanentError(f"{self.named} leads to no web server: {type(error).__name__}") from error
        except httpx.HTTPError as error:
            raise TransientError(f"{self.named} does not come: {type(error).__name__}") from error

    def read(self, response: httpx.Response) -> bytes:
        """The whole of a short answer."""
        return read_whole(response, self.named)

    def fetch(self, url: str, file: File, folder: Folder, headers: Mapping[str, str] | None = None) -> None:
        """Have a file, from where it broke off the last time."""
        have = resumed(file, folder)
        if have == file.size:
            return
        with self.get(url, {**(headers or {}), **wanted(have)}) as response:
            start = have if response.status_code == 206 else 0
            write(file, folder, start, response.iter_raw())


def wanted(have: int) -> dict[str, str]:
    """Headers that ask for the rest of a file."""
    return {"Range": f"bytes={have}-"} if have else {}


def resumed(file: File, folder: Folder) -> int:
    """The bytes of a file that are there; what is longer than it goes."""
    have = folder.size(file.path) or 0
    if have > file.size:
        folder.remove(file.path)
        return 0
    if file.size == 0:
        folder.make(file.path).close()
    return have


def write(file: File, folder: Folder, start: int, chunks: Iterator[bytes]) -> None:
    """Put the chunks into a file, from `start` on; raises TransientError when they are too many or too few."""
    with folder.open(file.path, os.O_RDWR) if start else folder.make(file.path) as content:
        content.truncate(start)
        content.seek(start)
        for chunk in chunks:
            content.write(chunk)
            if content.tell() > file.size:
                break
        there = content.tell()
    if there < file.size:
        raise TransientError(f"the transfer of {file.path} broke off at {there} of {file.size} bytes")
