"""What a kubelet asks of a program that speaks gRPC: is it serving?"""

from __future__ import annotations

import asyncio

import h2.connection
import h2.events
import h2.exceptions

SECONDS = 2.0
SERVING = b"\x08\x01"
PREFIX = 5  # bytes before a message: whether it is compressed, and its length


async def is_serving(address: str, port: int, service: str = "") -> bool:
    """Whether the health service at an address calls a service, or all of it, SERVING; False where it says nothing."""
    try:
        async with asyncio.timeout(SECONDS):
            return await _asked(address, port, service) == SERVING
    except (OSError, TimeoutError, h2.exceptions.ProtocolError):
        return False


async def _asked(address: str, port: int, service: str) -> bytes:
    reader, writer = await asyncio.open_connection(address, port)
    try:
        connection = h2.connection.H2Connection()
        connection.initiate_connection()
        headers = {
            ":method": "POST",
            ":scheme": "http",
            ":authority": f"{address}:{port}",
            ":path": "/grpc.health.v1.Health/Check",
            "content-type": "application/grpc",
            "te": "trailers",
        }
        connection.send_headers(1, [*headers.items()])
        name = service.encode()
        message = bytes([0x0A, len(name)]) + name if name else b""
        connection.send_data(1, b"\0" + len(message).to_bytes(4, "big") + message, end_stream=True)
        answer = b""
        while True:
            writer.write(connection.data_to_send())
            received = await reader.read(65536)
            if not received:
                return b""
            for event in connection.receive_data(received):
                match event:
                    case h2.events.DataReceived(data=data):
                        answer += data or b""
                    case h2.events.StreamEnded() | h2.events.StreamReset():
                        return answer[PREFIX:]
                    case _:
                        pass
    finally:
        writer.close()
