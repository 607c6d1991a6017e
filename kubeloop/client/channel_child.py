"""The process in which channels to servers of strangers are: TLS and HTTP are read here, and nothing else.

`channel_process.py` starts it, with its end of a pair of sockets as standard input, and bounds its memory. It bounds
its own share of the processors: priority does not, where a limit for the whole container is used up on two of them.
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
from kubeloop.client.wording import why
from kubeloop.errors import KubeconfigError

OF_A_PROCESSOR = 0.25  # hundreds of requests a second, and some two handshakes as long as they may be
AT_ONCE = 1.0  # seconds of a processor
LONGEST_TURN = 10.0  # seconds of a processor: then the kernel ends us
STACK = 512 * KIB  # of a thread, which resolves one name


class Paced(selectors.DefaultSelector):
    """Has the event loop wait when it has had more than its share of a processor."""

    def __init__(self) -> None:
        super().__init__()
        self._bucket, self._used = Bucket(OF_A_PROCESSOR, AT_ONCE), time.process_time()

    def select(self, timeout: float | None = None) -> list[tuple[selectors.SelectorKey, int]]:
        used, now = time.process_time(), time.monotonic()
        if (wait := self._bucket.take(now, used - self._used) - now) > 0:
            time.sleep(wait)
        self._used = used
        signal.setitimer(signal.ITIMER_PROF, LONGEST_TURN)
        return super().select(timeout)


@dataclass(slots=True)
class Answer:
    """A response, and what has come of it and was not asked for yet."""

    response: Response
    stays: bool
    rest: bytearray = field(default_factory=bytearray)

    async def more(self) -> bytes:
        """Return what has come, up to CHUNK; of a response that ends, as much as that: each message costs."""
        while len(self.rest) < CHUNK and (chunk := await self.response.chunk()):
            self.rest += chunk
            if self.stays:
                break
        part = bytes(self.rest[:CHUNK])
        del self.rest[:CHUNK]
        return part


class Child:
    """The channels, and what is under way."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self._channels: dict[int, tuple[Channel, AsyncExitStack]] = {}
        self._answers: dict[int, Answer] = {}
        self._tasks: dict[int, asyncio.Task[None]] = {}
        self._judging: dict[int, asyncio.Future[str]] = {}
        self._judgements = count(1)

    async def run(self) -> None:
        """Do what is asked, until nobody is there to ask any more."""
        while True:
            head, body = await read_message(self._reader, LARGEST_BODY)
            match head:
                case ["open", number, access, http2, events]:
                    self._begin(number, self._open(number, access, http2=http2, events=events))
                case ["send", number, channel, method, url, headers, stays, has_body]:
                    asking = Outgoing(method, URL(url, encoded=True), headers, body if has_body else None, stays=stays)
                    self._begin(number, self._send(number, channel, asking))
                case ["more", number]:
                    self._begin(number, self._more(number))
                case ["close", number]:
                    self._close(number)
                case ["judged", number, words] if number in self._judging:
                    self._judging.pop(number).set_result(words)
                case _:
                    pass  # a judgement that nobody waits for any more

    def _close(self, number: int) -> None:
        if task := self._tasks.pop(number, None):
            task.cancel()
        if answer := self._answers.pop(number, None):
            answer.response.cut()
        if known := self._channels.pop(number, None):
            self._begin(number, known[1].aclose())

    def _begin(self, number: int, doing: Coroutine[Any, Any, None]) -> None:
        def done(task: asyncio.Task[None]) -> None:
            if self._tasks.get(number) is task:
                del self._tasks[number]

        task = self._tasks[number] = asyncio.create_task(self._tried(number, doing))
        task.add_done_callback(done)

    async def _tried(self, number: int, doing: Coroutine[Any, Any, None]) -> None:
        """Do it, or tell why it cannot be done."""
        try:
            await doing
        except MemoryError:
            os._exit(OUT_OF_MEMORY)
        except NotHttp as error:
            self._tell("failed", number, "http", str(error))
        except KubeconfigError as error:
            self._tell("failed", number, "kubeconfig", str(error))
        except (OSError, aiohttp.ClientError) as error:
            self._tell("failed", number, "network", why(error))
        except Exception as error:  # noqa: BLE001 - the operator tells of it, as of every defect of its own
            self._tell("failed", number, "defect", f"{type(error).__name__} at {', '.join(origin(error))}")

    def _tell(self, *head: object, body: bytes = b"") -> None:
        self._writer.write(write_message(*head, body=body))

    async def _open(self, number: int, access: dict[str, Any], *, http2: bool, events: float) -> None:
        async def refuse(name: str, addresses: Sequence[str]) -> str:
            judgement = next(self._judgements)
            judging = self._judging[judgement] = asyncio.get_running_loop().create_future()
            try:
                self._tell("judge", judgement, number, name, addresses)
                return await judging
            finally:
                self._judging.pop(judgement, None)

        speak_http2(http2)
        share = Share(asyncio.get_running_loop().time, Bucket(events, events))
        async with AsyncExitStack() as ends:
            channel = await ends.enter_async_context(open_channel(Access(**access), share, refuse))
            channel.on_broken = lambda words: self._tell("broken", number, words)
            self._channels[number] = channel, ends.pop_all()
        self._tell("answer", number, 0, [])

    async def _send(self, number: int, channel: int, asking: Outgoing) -> None:
        response = await self._channels[channel][0].send(asking)
        self._answers[number] = Answer(response, asking.stays)
        # A message is UTF-8, which bytes of a header need not be; of HEADERS, all that is meant for us is ASCII.
        headers = [said if (said := response.header(name) or "").isascii() else "" for name in HEADERS]
        self._tell("answer", number, response.status, headers)

    async def _more(self, number: int) -> None:
        self._tell("answer", number, 0, [], body=await self._answers[number].more())


def main() -> NoReturn:
    """Do what is asked on standard input, until its other side is closed."""
    logging.disable()  # asyncio would tell of each handshake that fails
    threading.stack_size(STACK)
    shrink_tls_buffers()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(Paced())) as runner:
        runner.run(_serve())
    os._exit(0)


async def _serve() -> None:
    def failed(_: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        if isinstance(context.get("exception"), MemoryError):
            os._exit(OUT_OF_MEMORY)

    asyncio.get_running_loop().set_exception_handler(failed)
    reader, writer = await asyncio.open_connection(sock=socket.socket(fileno=os.dup(sys.stdin.fileno())))
    try:
        await Child(reader, writer).run()
    except MemoryError:
        os._exit(OUT_OF_MEMORY)
    except (asyncio.IncompleteReadError, ConnectionError):  # the operator has ended, however it has
        os._exit(0)


if __name__ == "__main__":
    main()
