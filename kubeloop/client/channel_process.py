"""Channels to servers of strangers in a process of their own: whatever such a server sends is read there.

There is one such process (`channel_child.py`) for all of these servers, from when the first is connected to until its
owner ends. What it says is little, and bounded: an answer comes in parts that are asked for one by one. One that says
anything else is ended. When it ends, what is under way breaks off, and another takes its place.
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
from kubeloop.client.limits import KIB, MIB, Bucket, Share, shown
from kubeloop.client.process_limits import confine
from kubeloop.client.transport import Outgoing, Worded

MODULE: Final = "kubeloop.client.channel_child"
MEMORY: Final = 256 * MIB  # 25 before the first connection, and 0.07 for each; 0.9 with the authorities of the machine
NICENESS: Final = 19  # where a processor is fought for, it has a seventieth of what the operator has
BOUNDS: Final = {RLIMIT_NOFILE: 4096, RLIMIT_FSIZE: 64 * KIB}  # the latter of a client's key in memory, too
PASSED: Final = ("LANG", "LD_LIBRARY_PATH", "PYTHONPATH", "SSL_CERT_DIR", "SSL_CERT_FILE")
NOISE: Final = (1000.0, 10_000.0)  # messages a second that nobody has asked for, and at once
LONGEST_WORDS: Final = 1000
START_SECONDS: Final = 15.0
PAUSE: Final = Backoff(first=1.0, longest=30.0)
SOUND: Final = 60.0  # seconds: one that has lived for so long is followed by another at once, as the first is

log = structlog.get_logger()

Answer = tuple[int, Mapping[str, str], bytes]
Judge = Callable[[str, Sequence[str]], str]
"""Why a name may not be dialled, given its addresses; empty when it may."""


class ChannelProcess:
    """That process; somebody has to `run` it. `name` says for what it is."""

    def __init__(self, name: str, judge: Judge, chance: Callable[[], float], memory: int = MEMORY) -> None:
        self.judge, self._name, self._chance, self._memory = judge, name, chance, memory
        self._wanted, self._runs = asyncio.Event(), asyncio.Event()
        self._life: Life | None = None
        self._pause = ""
        """Why there is none for a moment."""

    async def run(self) -> None:
        """Keep the process running from when it is first needed until cancelled."""
        now, failures = asyncio.get_running_loop().time, 0
        while True:
            await self._wanted.wait()
            began = now()
            words = await self._lived()
            failures = 0 if now() - began > SOUND else failures
            pause = PAUSE.delay(failures, self._chance())
            failures += 1
            log.warning("process has ended", process=self._name, error=words, pause=round(pause))
            self._pause = words if pause else ""
            await asyncio.sleep(pause)
            self._pause = ""

    @asynccontextmanager
    async def open(self, access: Access, share: Share | None) -> AsyncGenerator[RemoteChannel]:
        """The way to one API server; raises KubeconfigError when its certificates are unusable."""
        channel = RemoteChannel(self, access, share)
        with suppress(OSError):  # each request tries it again, and says why there is no answer
            async with asyncio.timeout(START_SECONDS):
                await channel.opened()
        try:
            yield channel
        finally:
            channel.close()

    async def life(self) -> Life:
        """The process as it runs; raises an OSError."""
        self._wanted.set()
        if self._pause:
            raise Worded(self._pause)
        while self._life is None:
            await self._runs.wait()
        return self._life

    async def _lived(self) -> str:
        """One process, from its start to its end; returns why it has ended."""
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                process = await asyncio.create_subprocess_exec(
                    *(sys.executable, "-B", "-m", MODULE),
                    stdin=theirs.fileno(),
                    stdout=asyncio.subprocess.DEVNULL,
                    env={name: os.environ[name] for name in PASSED if name in os.environ},
                    start_new_session=True,
                )
            except OSError as error:
                ours.close()
                return f"{self._name} cannot be started: {os.strerror(error.errno or 0)}"
        confine(process.pid, NICENESS, {**BOUNDS, RLIMIT_DATA: self._memory})
        reader, writer = await asyncio.open_connection(sock=ours)
        life, words = Life(writer, self.judge), ""
        self._life = life
        self._runs.set()
        try:
            await life.listen(reader)
        except Garbled as error:
            words = f"{self._name} was ended, as it said what it may not: {error}"
        except (ConnectionError, asyncio.IncompleteReadError):
            try:
                async with asyncio.timeout(1.0):
                    await process.wait()
            except TimeoutError:
                words = f"{self._name} was ended, as it listens no more"
        finally:
            self._life = None
            self._runs.clear()
            writer.transport.abort()
            with suppress(ProcessLookupError):
                process.kill()
            code = await process.wait()
            life.end(words := words or f"{self._name} has ended: {self._why(code)}")
        return words

    def _why(self, code: int) -> str:
        match code:
            case _ if code == OUT_OF_MEMORY:
                return f"it took more than the {shown(self._memory)} of memory that it may, for what some server sends"
            case _ if code == -signal.SIGKILL:
                return "it was killed, as the kernel does where the pod's memory is short"
            case _ if code == -signal.SIGPROF:
                return "what some server sends took too long to read"
            case _:
                return f"it ended with {code}"


class Life:
    """One process, from its start to its end."""

    def __init__(self, writer: asyncio.StreamWriter, judge: Judge) -> None:
        self.ended = ""
        self.channels: dict[int, RemoteChannel] = {}
        self.numbers = count(1)
        self._writer, self._judge = writer, judge
        self._asked: dict[int, asyncio.Future[Answer]] = {}
        self._noise = Bucket(*NOISE)

    async def ask(self, verb: str, number: int, *rest: object, body: bytes = b"") -> Answer:
        """The answer; raises one of FAILURES."""
        if self.ended:
            raise Worded(self.ended)
        answer = self._asked[number] = asyncio.get_running_loop().create_future()
        try:
            self.tell(verb, number, *rest, body=body)
            with suppress(ConnectionError):  # it has ended, which `listen` finds out
                await self._writer.drain()
            return await answer
        finally:
            self._asked.pop(number, None)

    def tell(self, *head: object, body: bytes = b"") -> None:
        if not self.ended:
            self._writer.write(write_message(*head, body=body))

    def end(self, words: str) -> None:
        """Have all that is under way break off."""
        self.ended = words
        for answer in self._asked.values():
            if not answer.done():
                answer.set_exception(Worded(words))

    async def listen(self, reader: asyncio.StreamReader) -> None:
        """Take what it says, until it ends or says what it may not."""
        while True:
            self._take(await read_message(reader, CHUNK))
            await asyncio.sleep(0)  # what has come already is read without one: others have a turn after each

    def _take(self, message: Message) -> None:
        match message:
            case (["answer", int(number), int(status), headers], body):
                self._answered(number, (status, dict(zip(HEADERS, _texts(headers), strict=False)), body))
            case (["failed", int(number), str(kind), str(words)], b"") if kind in FAILURES:
                self._answered(number, FAILURES[kind](words[:LONGEST_WORDS]))
            case (["judge", int(number), int(channel), str(name), addresses], b""):
                self._count_noise()
                found = _texts(addresses)
                if channel in self.channels:
                    self.tell("judged", number, self._judge(name, found))
            case (["broken", int(channel), str(words)], b""):
                self._count_noise()
                if known := self.channels.get(channel):
                    known.on_broken(words[:LONGEST_WORDS])
            case _:
                raise Garbled("it is none of its messages")

    def _answered(self, number: int, what: Answer | Exception) -> None:
        answer = self._asked.pop(number, None)
        if answer is None or answer.done():
            self._count_noise()  # the answer to what was let go of meanwhile
        elif isinstance(what, Exception):
            answer.set_exception(what)
        else:
            answer.set_result(what)

    def _count_noise(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._noise.take(now) > now:
            raise Garbled("nobody has asked for most of it")


def _texts(said: object) -> Sequence[str]:
    if not isinstance(said, list) or not all(isinstance(one, str) for one in cast(list[object], said)):
        raise Garbled("it is no list of texts")
    return cast(list[str], said)


class RemoteChannel:
    """The transport to one server, which is opened in each process that there is, one after the other."""

    def __init__(self, process: ChannelProcess, access: Access, share: Share | None) -> None:
        self.on_broken: Callable[[str], object] = lambda _: None
        self._process, self._access = process, access
        self._events = share.bucket.rate if share is not None else sys.maxsize
        self._life: Life | None = None
        self._number = 0
        self._opening = asyncio.Lock()

    async def opened(self) -> Life:
        """The process that runs now, with the channel open there; raises one of FAILURES."""
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
        """The answer; raises one of FAILURES."""
        life = await self.opened()
        number, body = next(life.numbers), asking.payload
        request = (asking.method, str(asking.url), dict(asking.headers), asking.stays, body is not None)
        try:
            status, headers, _ = await life.ask("send", number, self._number, *request, body=body or b"")
        except BaseException:
            life.tell("close", number)
            raise
        return RemoteResponse(life, number, status, headers)

    def close(self) -> None:
        if (life := self._life) is not None and life.channels.pop(self._number, None):
            life.tell("close", self._number)


SENT: Final = ("server", "authority", "certificate", "key", "server_name", "proxy", "verify")
"""Of an Access; the token is in what is sent."""


@dataclass(slots=True)
class RemoteResponse:
    """An answer in that process."""

    life: Life
    number: int
    status: int
    headers: Mapping[str, str]

    def header(self, name: str) -> str | None:
        return self.headers.get(name) or None

    async def chunk(self) -> bytes:
        return (await self.life.ask("more", self.number))[2]

    def cut(self) -> None:
        self.life.tell("close", self.number)
