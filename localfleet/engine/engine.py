"""One simulated engine: who is connected, what runs, what it has counted."""

import asyncio
import socket
import struct
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager

from localfleet.engine.answers import Answer, Ask, answer
from localfleet.engine.dialects import RequestError
from localfleet.engine.lifecycle import Health, Lives, engine_health, port_health
from localfleet.engine.metrics import Metrics, start_metrics
from localfleet.engine.pods import ENGINE, Pod
from localfleet.engine.settings import Hang

# Of all requests together: what a mid-size GPU holds. Only its share is shown, so the exact size matters little.
CACHE_TOKENS = 200_000
_RESET = struct.pack("ii", 1, 0)


class Engine:
    """The engine of one pod, for as long as the pod lives. `pod`, `lives` and `node_down` are kept by its kubelet."""

    def __init__(self, pod: Pod, lives: Lives, cluster: str) -> None:
        self.pod = pod
        self.lives = lives
        self.cluster = cluster
        self.draining = False
        self.metrics: Metrics = start_metrics(pod.models[0])
        self.busy: set[object] = set()
        self._transports: dict[object, asyncio.Transport] = {}
        self._flowing = asyncio.Event()
        self._generating = asyncio.Event()
        self._free = asyncio.Condition()
        self._running = 0
        self._tokens_held = 0
        self._number = 0

    @property
    def name(self) -> str:
        """The pod's namespace and name."""
        return f"{self.pod.namespace}/{self.pod.name}"

    @property
    def listens(self) -> bool:
        """Whether the engine itself (not its sidecar) accepts connections."""
        return engine_health(self.pod, self.lives[ENGINE], time.time()) is not Health.REFUSED

    def health(self, port: int) -> Health:
        """What a new connection to one of the pod's ports meets."""
        return Health.REFUSED if self.draining else port_health(self.pod, self.lives, port, time.time())

    def update(self, pod: Pod, lives: Lives, *, node_down: bool) -> None:
        """Take in what is now true of the pod; requests that hang go on, those of a run that ended are cut."""
        ended = lives[ENGINE].last_exit != self.lives[ENGINE].last_exit
        self.pod, self.lives = pod, lives
        if ended:
            self.cut()
            self.metrics = start_metrics(pod.models[0])
        _set(self._flowing, on=pod.settings.hang is not Hang.EVERYTHING and not node_down)
        _set(self._generating, on=pod.settings.hang is Hang.NOTHING and not node_down)

    def connect(self, connection: object, transport: asyncio.Transport) -> None:
        """A client came."""
        self._transports[connection] = transport

    def disconnect(self, connection: object) -> None:
        """A client went."""
        self._transports.pop(connection, None)
        self.busy.discard(connection)

    def drain(self) -> None:
        """SIGTERM: no new connections, idle ones end, requests in flight go on."""
        self.draining = True
        for connection, transport in list(self._transports.items()):
            if connection not in self.busy:
                transport.close()

    def cut(self) -> None:
        """The process is gone: every connection breaks off."""
        for transport in list(self._transports.values()):
            reset(transport)

    async def flow(self) -> None:
        """Wait while the engine (or its node) hangs."""
        await self._flowing.wait()

    def accept(self, ask: Ask) -> Answer:
        """The answer that a request is going to get; raises RequestError."""
        settings = self.pod.settings
        if ask.model is not None and ask.model not in self.pod.models:
            raise RequestError(404, "NotFoundError", f"The model `{ask.model}` does not exist.", "model")
        if ask.tool_choice and not self.pod.calls_tools:
            message = f'tool_choice "{ask.tool_choice}" needs --enable-auto-tool-choice and --tool-call-parser'
            raise RequestError(400, "BadRequestError", message, "tool_choice")
        self._number += 1
        if int(self._number * settings.error_rate) > int((self._number - 1) * settings.error_rate):
            raise RequestError(settings.error_status, "InternalServerError", "The engine was told to fail this one.")
        return answer(self.pod, self.cluster, ask, number=self._number, now=time.time())

    async def tokens(self, reply: Answer) -> AsyncGenerator[str]:
        """The tokens of an answer, each when the engine would have it."""
        began = time.monotonic()
        settings = self.pod.settings
        async with self._slot(reply):
            await asyncio.sleep(settings.first_token_seconds)
            await self._generating.wait()
            first = time.monotonic()
            self.metrics.prompt_tokens.inc(reply.prompt_tokens)
            self.metrics.first_token.observe(first - began)
            for index, token in enumerate(reply.tokens):
                if index and settings.tokens_per_second:
                    await asyncio.sleep(first + index / settings.tokens_per_second - time.monotonic())
                await self._generating.wait()
                yield token
            self._count(reply, began, first)

    def _count(self, reply: Answer, began: float, first: float) -> None:
        now = time.monotonic()
        self.metrics.generation_tokens.inc(len(reply.tokens))
        if len(reply.tokens) > 1:
            for histogram in self.metrics.per_token:
                histogram.observe((now - first) / (len(reply.tokens) - 1))
        self.metrics.whole.observe(now - began)
        self.metrics.success[reply.finish].inc()

    @asynccontextmanager
    async def _slot(self, reply: Answer) -> AsyncGenerator[None]:
        metrics = self.metrics
        metrics.waiting.inc()
        try:
            async with self._free:
                await self._free.wait_for(lambda: self._running < self.pod.settings.max_running)
                self._running += 1
        finally:
            metrics.waiting.dec()
        held = reply.prompt_tokens + len(reply.tokens)
        metrics.running.inc()
        self._hold(held)
        try:
            yield
        finally:
            self._running -= 1
            metrics.running.dec()
            self._hold(-held)
            async with self._free:
                self._free.notify()

    def _hold(self, tokens: int) -> None:
        self._tokens_held += tokens
        for gauge in self.metrics.cache_usage:
            gauge.set(min(1.0, self._tokens_held / CACHE_TOKENS))


def reset(transport: asyncio.Transport) -> None:
    """Break a connection off with a reset, as the kernel does for a process that died."""
    sock = transport.get_extra_info("socket")
    if sock is not None and sock.fileno() >= 0:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    transport.abort()


def _set(event: asyncio.Event, *, on: bool) -> None:
    if on:
        event.set()
    else:
        event.clear()
