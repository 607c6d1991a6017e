"""Channels in a separate process to servers that strangers run: all data of such servers is parsed there.

One process (`channel_child.py`) serves all of these servers, from the first connection until the operator ends. Its
messages are few and small, since responses are requested chunk by chunk. A process that sends an invalid message is
killed. When the process ends, requests in progress fail, and another one is started.
"""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sys
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from itertools import count
from resource import RLIMIT_DATA, RLIMIT_FSIZE, RLIMIT_NOFILE
from typing import Final, cast

import structlog

from kubeloop.backoff import Backoff
from kubeloop.client.access import Access
from kubeloop.client.channel import Channel
from kubeloop.client.channel_messages import (
    CHUNK,
    FAILURES,
    HEADERS,
    OUT_OF_MEMORY,
    Garbled,
    Message,
    read_message,
    write_message,
)
from kubeloop.client.limits import KIB, MIB, Bucket, Share, format_size
from kubeloop.client.process_limits import confine
from kubeloop.client.transport import Outgoing, Worded

MODULE: Final = "kubeloop.client.channel_child"
MEMORY: Final = 256 * MIB  # 25 at start, and 0.07 for each connection, or 0.9 with the machine's authorities
NICENESS: Final = 19  # gets a seventieth of the operator's processor time under contention
BOUNDS: Final = {RLIMIT_NOFILE: 4096, RLIMIT_FSIZE: 64 * KIB}  # the latter must fit a client key in a memory file
PASSED: Final = ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_DIR", "SSL_CERT_FILE")  # environment variables
NOISE: Final = (1000.0, 10_000.0)  # unrequested messages per second, and the burst
MAX_MESSAGE: Final = 1000  # characters of a message from the process
START_SECONDS: Final = 15.0  # until a first connection that is still not open is left to the requests
PAUSE: Final = Backoff(first=1.0, longest=30.0)
SOUND: Final = 60.0  # seconds of life after which the next process starts without a pause

log = structlog.get_logger()

Answer = tuple[int, Mapping[str, str], bytes]
"""The status, the headers and the data of an answer."""
Judge = Callable[[str, Sequence[str]], str]
"""Returns the reason why a name with these addresses may not be dialled; empty if it may."""


class ChannelProcess:
    """The process, which `run` keeps running. `name` is its name in messages."""

    def __init__(self, name: str, judge: Judge, jitter: Callable[[], float], memory: int = MEMORY) -> None:
        self.judge, self._name, self._chance, self._memory = judge, name, jitter, memory
        self._needed, self._runs = asyncio.Event(), asyncio.Event()
        self._life: Life | None = None
        self._pause = ""
        """The error of the last process during the pause before the next."""

    async def run(self) -> None:
        """Keep the process running from its first use until cancelled."""
        now, failures = asyncio.get_running_loop().time, 0
        while True:
            await self._needed.wait()
            started_at = now()
            error = await self._run_process()
            failures = 0 if now() - started_at > SOUND else failures
            pause = PAUSE.delay(failures, self._chance())
            failures += 1
            log.warning("process has ended", process=self._name, error=error, pause=round(pause))
            self._pause = error if pause else ""
            await asyncio.sleep(pause)
            self._pause = ""

    @asynccontextmanager
    async def open(self, access: Access, share: Share | None) -> AsyncGenerator[RemoteChannel]:
        """Open a channel to an API server and close it at the end.

        A failure to connect is left to the requests to report.
        """
        channel = RemoteChannel(self, access, share)
        with suppress(OSError):  # each request tries again, and reports the error
            async with asyncio.timeout(START_SECONDS):
                await channel.open_connection()
        try:
            yield channel
        finally:
            channel.close()

    async def life(self) -> Life:
        """Return the running process, and wait for it if needed; raises an OSError during a pause."""
        self._needed.set()
        if self._pause:
            raise Worded(self._pause)
        while self._life is None:
            await self._runs.wait()
        return self._life

    async def _run_process(self) -> str:
        """Run one process to its end and return the reason of its end."""
        own_socket, child_socket = socket.socketpair()
        with child_socket:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-B", "-m", MODULE),
                    stdin=child_socket.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    env={name: os.environ[name] for name in PASSED if name in os.environ},
                    start_new_session=True,
                )
            except OSError as error:
                own_socket.close()
                return f"{self._name} cannot be started: {os.strerror(error.errno or 0)}"
        confine(process.pid, NICENESS, {**BOUNDS, RLIMIT_DATA: self._memory})
        reader, writer = await asyncio.open_connection(sock=own_socket)
        life, message = Life(writer, self.judge), ""
        self._life = life
        self._runs.set()
        try:
            await life.read_messages(reader)
        except Garbled as error:
            message = f"{self._name} was ended, as it said what it may not: {error}"
        except (ConnectionError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(1.0):
                    await process.wait()
            except TimeoutError:
                message = f"{self._name} was ended, as it listens no more"
        finally:
            self._life = None
            self._runs.clear()
            writer.transport.abort()
            with suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
            life.end(message := message or f"{self._name} has ended: {self._exit_reason(code)}")
        return message

    def _exit_reason(self, code: int) -> str:
        """Return the message for an exit code."""
        match code:
            case _ if code == OUT_OF_MEMORY:
                size = format_size(self._memory)
                return f"it took more than the {size} of memory that it may, for what some server sends"
            case _ if code == -signal.SIGKILL:
                return "it was killed, as the kernel does where the pod's memory is short"
            case _ if code == -signal.SIGPROF:
                return "what some server sends took too long to read"
            case _:
                return f"it ended with {code}"


class Life:
    """The connection to one process, from its start to its end."""

    def __init__(self, writer: asyncio.StreamWriter, judge: Judge) -> None:
        self.ended = ""
        self.channels: dict[int, RemoteChannel] = {}
        self.numbers = count(1)
        self._writer, self._judge = writer, judge
        self._pending: dict[int, asyncio.Future[Answer]] = {}
        self._noise_bucket = Bucket(*NOISE)

    async def ask(self, verb: str, number: int, *rest: object, body: bytes = b"") -> Answer:
        """Send a request to the process and return its answer; raises one of FAILURES."""
        if self.ended:
            raise Worded(self.ended)
        future = self._pending[number] = asyncio.get_running_loop().create_future()
        try:
            self.tell(verb, number, *rest, body=body)
            with suppress(ConnectionError):  # the process has ended, which `read_messages` notices
                await self._writer.drain()
            return await future
        finally:
            self._pending.pop(number, None)

    def tell(self, *head: object, body: bytes = b"") -> None:
        """Send a message to the process, unless it has ended."""
        if not self.ended:
            self._writer.write(write_message(*head, body=body))

    def end(self, message: str) -> None:
        """Fail all requests in progress."""
        self.ended = message
        for future in self._pending.values():
            if not future.done():
                future.set_exception(Worded(message))

    async def read_messages(self, reader: asyncio.StreamReader) -> None:
        """Handle the messages of the process. Raises Garbled for an invalid one, and IncompleteReadError at the end."""
        while True:
            self._take(await read_message(reader, CHUNK))
            await asyncio.sleep(0)  # buffered messages are read without waiting, so let other tasks run after each

    def _take(self, message: Message) -> None:
        """Handle one message; raises Garbled if it is invalid."""
        match message:
            case (["answer", int(number), int(status), headers], body):
                self._resolve(number, (status, dict(zip(HEADERS, _parse_strings(headers), strict=False)), body))
            case (["failed", int(number), str(kind), str(words)], b"") if kind in FAILURES:
                self._resolve(number, FAILURES[kind](words[:MAX_MESSAGE]))
            case (["judge", int(number), int(channel), str(name), addresses], b""):
                self._count_noise()
                address_list = _parse_strings(addresses)
                if channel in self.channels:
                    self.tell("judged", number, self._judge(name, address_list))
            case (["broken", int(channel), str(words)], b""):
                self._count_noise()
                if remote := self.channels.get(channel):
                    remote.on_broken(words[:MAX_MESSAGE])
            case _:
                raise Garbled("it is none of its messages")

    def _resolve(self, number: int, result: Answer | Exception) -> None:
        """Resolve the future of a request."""
        future = self._pending.pop(number, None)
        if future is None or future.done():
            self._count_noise()  # the answer to a cancelled request
        elif isinstance(result, Exception):
            future.set_exception(result)
        else:
            future.set_result(result)

    def _count_noise(self) -> None:
        """Count an unrequested message; raises Garbled if there are too many."""
        now = asyncio.get_running_loop().time()
        if self._noise_bucket.take(now) > now:
            raise Garbled("nobody has asked for most of it")


def _parse_strings(value: object) -> Sequence[str]:
    """Return the value as a list of strings; raises Garbled if it is none."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in cast(list[object], value)):
        raise Garbled("it is no list of texts")
    return cast(list[str], value)


class RemoteChannel:
    """A channel to one server in the process; it is opened again in each new process."""

    def __init__(self, process: ChannelProcess, access: Access, share: Share | None) -> None:
        self.on_broken: Callable[[str], object] = lambda _: None
        self._process, self._access = process, access
        self._events = share.bucket.rate if share is not None else sys.maxsize
        self._life: Life | None = None
        self._number = 0
        self._opening = asyncio.Lock()

    async def open_connection(self) -> Life:
        """Return the running process, with the channel opened in it if needed; raises one of FAILURES."""
        async with self._opening:
            life = await self._process.life()
            if life is not self._life:
                number = next(life.numbers)
                life.channels[number] = self
                try:
                    access = {name: getattr(self._access, name) for name in SENT}
                    await life.ask("open", number, access, Channel.http2, self._events)
                except BaseException:
                    life.channels.pop(number, None)
                    life.tell("close", number)
                    raise
                self._life, self._number = life, number
        return life

    async def send(self, asking: Outgoing) -> RemoteResponse:
        """Send a request and return the response; raises one of FAILURES."""
        life = await self.open_connection()
        number, body = next(life.numbers), asking.payload
        request = (asking.method, str(asking.url), dict(asking.headers), asking.keep_open, body is not None)
        try:
            status, headers, _ = await life.ask("send", number, self._number, *request, body=body or b"")
        except BaseException:
            life.tell("close", number)
            raise
        return RemoteResponse(life, number, status, headers)

    def close(self) -> None:
        """Close the channel in the process."""
        if (life := self._life) is not None and life.channels.pop(self._number, None):
            life.tell("close", self._number)


SENT: Final = ("server", "authority", "certificate", "key", "server_name", "proxy", "verify")
"""The fields of an Access that are passed on. The token is in the headers of requests."""


@dataclass(slots=True)
class RemoteResponse:
    """A response that the process holds."""

    life: Life
    number: int
    status: int
    headers: Mapping[str, str]

    def header(self, name: str) -> str | None:
        return self.headers.get(name) or None

    async def chunk(self) -> bytes:
        """Request the next data of the response; empty at the end."""
        return (await self.life.ask("more", self.number))[2]

    def abort(self) -> None:
        """Drop the response in the process."""
        self.life.tell("close", self.number)
