"""Byte pipes: what is carried arrives, also when one side has said all that it has to say."""

from __future__ import annotations

import asyncio
import gc
import socket

import pytest

from localfleet import forwarder

PATIENCE = 60  # seconds; the machine may be busy


async def answer_late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Answer when the other side has closed its half, and some time has passed."""
    received = await reader.read()
    for _ in range(3):  # each takes half a second in a worker that has run many tests
        await asyncio.sleep(0.01)
        gc.collect()
    writer.write(b"late: " + received)
    writer.close()


@pytest.mark.parametrize("latency", [None, lambda: 0.01])
async def test_an_answer_to_a_half_closed_connection_arrives(latency: forwarder.Latency | None) -> None:
    backend = await asyncio.start_server(answer_late, "127.0.0.1", 0)
    address = backend.sockets[0].getsockname()
    listener = socket.create_server(("127.0.0.1", 0))
    entry = await forwarder.serve(listener, lambda: address, latency)
    async with backend, entry:
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        writer.write(b"hello")
        writer.write_eof()
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b"late: hello"
        writer.close()
        await asyncio.gather(*forwarder.CARRYING)


async def test_a_connection_to_nothing_is_closed() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = silent.getsockname()
    listener = socket.create_server(("127.0.0.1", 0))
    async with await forwarder.serve(listener, lambda: address):
        reader, writer = await asyncio.open_connection(*listener.getsockname())
        assert await asyncio.wait_for(reader.read(), PATIENCE) == b""
        writer.close()
