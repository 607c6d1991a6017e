"""The webhook's port, which any pod may reach: one address takes its share, and no turn of the operator."""

from __future__ import annotations

import asyncio
import socket
import ssl
import threading
from collections.abc import AsyncIterator
from dataclasses import dataclass

import aiohttp
import pytest
import trustme
from aiohttp import web

from kubeloop.own_thread import CONNECTIONS, PACE, UNDER_WAY, Admittance, serve_in_thread
from localfleet.network import free_ports

BURST = int(PACE[1])
HOSTILE, HONEST = "127.0.0.2", "127.0.0.1"


@dataclass(frozen=True)
class Port:
    number: int
    trusting: ssl.SSLContext

    async def answer(self) -> str:
        """What a client at an honest address is answered."""
        connector = aiohttp.TCPConnector(ssl=self.trusting, local_addr=(HONEST, 0))
        url = f"https://127.0.0.1:{self.number}/"
        async with aiohttp.ClientSession(connector=connector) as session, session.get(url) as answer:
            return await answer.text()


@pytest.fixture
async def port() -> AsyncIterator[Port]:
    authority = trustme.CA()
    tls, trusting = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH), ssl.create_default_context()
    authority.issue_cert("127.0.0.1").configure_cert(tls)
    authority.configure_trust(trusting)

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text="answered")

    app, (number,) = web.Application(), free_ports(1)
    app.router.add_get("/", answer)
    async with serve_in_thread(app, ("127.0.0.1", number), grace=0.1, tls=tls):
        yield Port(number, trusting)


async def test_one_address_begins_so_many_handshakes_a_second() -> None:
    admittance = Admittance()

    def begins(now: float, host: str = HOSTILE) -> bool:
        if (address := admittance.let_in(host, now)) is not None:
            address.handshakes -= 1
            admittance.release(address)
        return address is not None

    assert sum(begins(0.0) for _ in range(5 * BURST)) == BURST
    assert begins(0.0, HONEST)
    assert abs(sum(begins(number / 1000) for number in range(1000)) - PACE[0]) <= 1


async def test_handshakes_that_nobody_ends_keep_no_other_address_out(port: Port) -> None:
    where = ("127.0.0.1", port.number)
    waiting = [await asyncio.open_connection(*where, local_addr=(HOSTILE, 0)) for _ in range(UNDER_WAY + 20)]
    refused = 0
    for reader, _ in waiting:
        try:
            async with asyncio.timeout(0.05):
                refused += await reader.read(1) == b""
        except ConnectionError:
            refused += 1
        except TimeoutError:
            pass
    assert refused == len(waiting) - UNDER_WAY
    assert await port.answer() == "answered"
    for _, writer in waiting:
        writer.transport.abort()


async def test_it_answers_while_the_operator_computes(port: Port) -> None:
    answers = list[bytes]()

    def ask() -> None:
        plain = socket.create_connection(("127.0.0.1", port.number))
        with plain, port.trusting.wrap_socket(plain, server_hostname="127.0.0.1") as over_tls:
            over_tls.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nConnection: close\r\n\r\n")
            answers.append(b"".join(iter(lambda: over_tls.recv(4096), b"")))

    asking = threading.Thread(target=ask)
    asking.start()
    asking.join(60)  # and this loop has no turn meanwhile
    assert b"answered" in answers[0]


async def test_connections_are_counted_until_they_end() -> None:
    admittance, now = Admittance(), 0.0
    held = []
    for _ in range(CONNECTIONS):
        now += 1.0
        address = admittance.let_in(HOSTILE, now)
        assert address is not None
        address.handshakes -= 1
        held.append(address)
    assert admittance.let_in(HOSTILE, now + 1) is None
    assert admittance.let_in(HONEST, now + 1) is not None
    admittance.release(held[0])
    assert admittance.let_in(HOSTILE, now + 2) is not None


async def test_a_network_of_ipv6_is_one_address() -> None:
    admittance = Admittance()
    let_in = [admittance.let_in(f"2001:db8::{number:x}", 0.0) for number in range(UNDER_WAY + 1)]
    assert let_in[-1] is None
    assert admittance.let_in("2001:db8:0:1::1", 0.0) is not None
    assert admittance.let_in("::ffff:10.0.0.1", 0.0) is not None
