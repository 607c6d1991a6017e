"""A gateway that answers as a test says."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from modelplane_operator.routing.service.probe import ServiceAddress

PREFIX = "/team/chat/"

Answering = Callable[[str], str]


class Gateway:
    """Says what it is told to, by path, and keeps what it was asked."""

    def __init__(self) -> None:
        self.says: Answering = lambda _: reply(200)
        self.asked: list[str] = []
        self.port = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        self.asked.append(head)
        answer = self.says(head.split()[1])
        if answer == "hang":
            await reader.read()
        writer.write(answer.encode())
        writer.close()

    def way(self, host: str = "models.example.com", port: int = 0) -> ServiceAddress:
        return ServiceAddress("127.0.0.1", "http", host, port or self.port, PREFIX)


def reply(status: int, body: str = "", headers: str = "") -> str:
    return f"HTTP/1.1 {status} x\r\n{headers or f'content-length: {len(body)}{chr(13)}{chr(10)}'}\r\n{body}"
