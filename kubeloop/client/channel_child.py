"""The process that reads from servers that strangers run: TLS and HTTP, and nothing else.

`channel_process.py` starts it with one end of a socket pair as standard input, and limits its memory. It limits its own
share of the processor, because priorities have no effect on a CPU limit of the whole container.
"""

from __future__ import annotations

import asyncio
import logging
import os
import selectors
import signal
import socket
import sys
import threading
import time
from collections.abc import Coroutine, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NoReturn

import aiohttp
from yarl import URL

from kubeloop.client.access import Access
from kubeloop.client.channel import Channel, open_channel, speak_http2
from kubeloop.client.channel_messages import CHUNK, HEADERS, LARGEST_BODY, OUT_OF_MEMORY, read_message, write_message
from kubeloop.client.errors import origin
from kubeloop.client.limits import KIB, Bucket, Share
from kubeloop.client.sockets import shrink_tls_buffers
from kubeloop.client.transport import NotHttp, Outgoing, Response
from kubeloop.client.wording import describe_error
from kubeloop.errors import KubeconfigError

OF_A_PROCESSOR = 0.25  # enough for hundreds of requests a second, or about two handshakes of the maximum length
AT_ONCE = 1.0  # burst in seconds of processor time
LONGEST_TURN = 10.0  # seconds of processor time in one turn of the event loop, after which the kernel ends the process
STACK = 512 * KIB  # of a thread that resolves a name


class Paced(selectors.DefaultSelector):
    """A selector that sleeps when the process has used more than its share of a processor."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket, self._used = Bucket(OF_A_PROCESSOR, AT_ONCE), time.process_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        """Wait for events, after a sleep if the share is used up.

        Restarts the timer that ends a turn that is too long.
        """
        used, now = time.process_time(), time.monotonic()
        if (wait := self._bucket.take(now, used - self._used) - now) > 0:
            time.sleep(wait)
        self._used = used
        signal.setitimer(signal.ITIMER_PROF, LONGEST_TURN)
        return super().select(timeout)


@dataclass(slots=True)
class Answer:
    """A response and its data that was read and not requested yet."""

    response: Response
    keep_open: bool
    buffer: bytearray = field(default_factory=bytearray)

    async def more(self) -> bytes:
        """Return up to CHUNK bytes; of a response that ends, that many if there are, because each message costs."""
        while len(self.buffer) < CHUNK and (chunk := await self.response.chunk()):
            self.buffer += chunk
            if self.keep_open:
                break
        piece = bytes(self.buffer[:CHUNK])
        del self.buffer[:CHUNK]
        return piece


class Child:
    """The channels and the requests in progress."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._channels: dict[int, tuple[Channel, AsyncExitStack]] = {}
        self._answers: dict[int, Answer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._pending_judgements: dict[int, asyncio.Future[str]] = {}
        self._judgement_ids = count(1)

    async def run(self) -> None:
        """Carry out the messages of the operator until its side is closed."""
        while True:
            head, body = await read_message(self._reader, LARGEST_BODY)
            match head:
                case ["open", number, access, http2, events]:
                    self._begin(number, self._open(number, access, http2=http2, events=events))
                case ["send", number, channel, method, url, headers, stays, has_body]:
                    asking = Outgoing(
                        method, URL(url, encoded=True), headers, body if has_body else None, keep_open=stays
                    )
                    self._begin(number, self._send(number, channel, asking))
                case ["more", number]:
                    self._begin(number, self._more(number))
                case ["close", number]:
                    self._close(number)
                case ["judged", number, words] if number in self._pending_judgements:
                    self._pending_judgements.pop(number).set_result(words)
                case _:
                    pass  # a judgement whose request was cancelled

    def _close(self, number: int) -> None:
        """Close the channel or response of a number, and cancel its task."""
        if task := self._tasks.pop(number, None):
            task.cancel()
        if answer := self._answers.pop(number, None):
            answer.response.abort()
        if channel := self._channels.pop(number, None):
            self._begin(number, channel[1].aclose())

    def _begin(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Carry out a message in a task."""

        def done(task: asyncio.Task[None]) -> None:
            if self._tasks.get(number) is task:
                del self._tasks[number]

        task = self._tasks[number] = asyncio.create_task(self._run_reporting(number, work))
        task.add_done_callback(done)

    async def _run_reporting(self, number: int, work: Coroutine[Any, Any, None]) -> None:
        """Run a task, and report its failure to the operator."""
        try:
            await work
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except NotHttp as error:
            self._tell("failed", number, "http", str(error))
        except KubeconfigError as error:
            self._tell("failed", number, "kubeconfig", str(error))
        except (OSError, aiohttp.ClientError) as error:
            self._tell("failed", number, "network", describe_error(error))
        except Exception as error:  # noqa: BLE001 - the operator tells of it, as of every defect of its own
            self._tell("failed", number, "defect", f"{type(error).__name__} at {', '.join(origin(error))}")

    def _tell(self, *head: object, body: bytes = b"") -> None:
        """Send a message to the operator."""
        self._writer.write(write_message(*head, body=body))

    async def _open(self, number: int, access: dict[str, Any], *, http2: bool, events: float) -> None:
        """Open a channel. The operator decides for each resolved name whether it may be dialled."""

        async def refuse(name: str, addresses: Sequence[str]) -> str:
            """Ask the operator whether a name may be dialled; return the reason if not."""
            judgement = next(self._judgement_ids)
            future = self._pending_judgements[judgement] = asyncio.get_running_loop().create_future()
            try:
                self._tell("judge", judgement, number, name, addresses)
                return await future
            finally:
                self._pending_judgements.pop(judgement, None)

        speak_http2(speak=http2)
        share = Share(asyncio.get_running_loop().time, Bucket(events, events))
        async with AsyncExitStack() as exit_stack:
            channel = await exit_stack.enter_async_context(open_channel(Access(**access), share, refuse))
            channel.on_broken = lambda words: self._tell("broken", number, words)
            self._channels[number] = channel, exit_stack.pop_all()
        self._tell("answer", number, 0, [])

    async def _send(self, number: int, channel: int, asking: Outgoing) -> None:
        """Send a request, and return its status and headers to the operator."""
        response = await self._channels[channel][0].send(asking)
        self._answers[number] = Answer(response, asking.keep_open)
        # Messages are UTF-8, while headers may be any bytes; valid values of HEADERS are ASCII.
        headers = [value if (value := response.header(name) or "").isascii() else "" for name in HEADERS]
        self._tell("answer", number, response.status, headers)

    async def _more(self, number: int) -> None:
        """Return more of a response's body to the operator."""
        self._tell("answer", number, 0, [], body=await self._answers[number].more())


def main() -> NoReturn:
    """Run until the other side of standard input is closed."""
    logging.disable()  # asyncio would log each failed handshake
    threading.stack_size(STACK)
    shrink_tls_buffers()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Paced())) as runner:
        runner.run(_serve())
    os._exit(0)


async def _serve() -> None:
    """Serve the operator on standard input, and end the process when memory is used up."""

    def end_without_memory(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            os._exit(OUT_OF_MEMORY)

    asyncio.get_running_loop().set_exception_handler(end_without_memory)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(sys.stdin.fileno())))
    try:
        await Child(reader, writer).run()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (asyncio.IncompleteReadError, ConnectionError):  # the operator has ended
        os._exit(0)


if __name__ == "__main__":
    main()
