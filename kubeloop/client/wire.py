"""Requests and streams to one API server: credentials, deadlines, and every answer that is none as an error."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import orjson
from yarl import URL

from kubeloop.client.access import Access
from kubeloop.client.channel import OpenChannel, open_channel
from kubeloop.client.errors import pause, refusal, translated
from kubeloop.client.limits import KIB, ServerLimits, Share, shown, too_many_values
from kubeloop.client.transport import Carrier, NotHttp, Outgoing, Response
from kubeloop.errors import ApiError, ClientError, KubeconfigError, Misbehaving, Unreachable
from kubeloop.tracing import Attributes, Span, by_http, call

JSON = "application/json"

DEADLINE = 15.0  # of one request: long for an API server, short for whoever waits behind it
TOKEN_SECONDS = 60.0  # how long the content of a token file is trusted; a kubelet renews it minutes before it ends
OF_A_REFUSAL = 256 * KIB  # what a server says beyond that, of why it refuses, nobody would read
A_CHUNK = 1 / 64  # of an event, in what it costs


@dataclass(frozen=True, slots=True)
class Call:
    """What one request was and what became of it, for metrics: `outcome` is `OK` or the name of an error."""

    verb: str
    resource: str
    outcome: str
    seconds: float


OnCall = Callable[[Call], None]


def uncounted(_: Call) -> None:
    """For whoever does not count calls."""


@dataclass(frozen=True, slots=True)
class Request:
    """One request, and the verb and type that it counts under."""

    verb: str
    resource: str
    method: str
    path: str
    """With every name in it quoted: it is sent as it is."""
    payload: bytes | None = None
    content_type: str = JSON
    params: Mapping[str, str] | None = None
    accept: str = JSON
    secret: bool = False
    """Whether nobody may read what is sent, which a refusal may quote."""


class Wire:
    """One API server as bytes; made by `open_wire`, which closes it."""

    def __init__(
        self,
        access: Access,
        channel: Carrier,
        on_call: OnCall,
        limits: ServerLimits,
        share: Share | None,
        *,
        cluster: str = "",
    ) -> None:
        self.access = access
        self.cluster = cluster
        self.limits = limits
        self.offence: asyncio.Future[Misbehaving] = asyncio.get_running_loop().create_future()
        """Resolved as soon as the server has said what no API server says."""
        self.closed = False
        self._channel = channel
        channel.on_broken = lambda words: self._broken("HTTP/2", words)
        self._on_call = on_call
        self._share = share
        self._token = ""
        self._token_read: float | None = None

    async def ask(
        self, request: Request, *, asked: str, deadline: float = DEADLINE, at_most: int | None = None
    ) -> bytes:
        """The answer to a request, of `at_most` so many bytes; raises an ApiError."""
        limit = at_most or self.limits.answer
        if (answer := await self.ask_within(limit, request, asked=asked, deadline=deadline)) is None:
            raise self.misbehaves(asked, f"the answer has more than the {shown(limit)} that are allowed")
        return answer

    async def ask_within(self, limit: int, request: Request, *, asked: str, deadline: float = DEADLINE) -> bytes | None:
        """The same; None when the answer is longer than that."""
        with self._counted(request) as span, translated(asked):
            async with asyncio.timeout(deadline):
                response = await self._send(request, asked)
                span.tell("http.response.status_code", response.status)
                try:
                    if response.status >= 300:
                        raise await self._refused(response, request, asked)
                    answer = await self._read(response, limit)
                    return answer if len(answer) <= limit else None
                finally:
                    response.cut()

    async def lines(self, request: Request, *, asked: str, silence: float) -> AsyncGenerator[bytes | bytearray]:
        """The lines of an answer that goes on for long; `silence` is how long none may come."""
        with self._counted(request) as span, translated(asked):  # how long the stream then goes on says nothing
            async with asyncio.timeout(DEADLINE):
                response = await self._send(request, asked, stays=True)
                span.tell("http.response.status_code", response.status)
                if response.status >= 300:
                    try:
                        raise await self._refused(response, request, asked)
                    finally:
                        response.cut()
        clock, limit, rest = asyncio.get_running_loop().time, self.limits.answer, bytearray()
        try:
            with translated(asked):
                until = clock() + silence
                while chunk := await _chunk(response, until, silence):
                    await self._take(0, events=A_CHUNK)
                    rest += chunk
                    if b"\n" in chunk:  # to look through all that came before for each chunk would cost its square
                        *whole, rest = rest.split(b"\n")
                        for line in whole:
                            await self._take(len(line))
                            yield self._of_size(line, limit, asked)
                        until = clock() + silence
                    self._of_size(rest, limit, asked)
        finally:
            response.cut()

    def parsed(self, answer: bytes | bytearray, *, asked: str, at_most: int | None = None) -> Any:
        """The JSON of an answer; raises ServerFault when it is none, and Misbehaving when it is made to fill memory."""
        if crowd := too_many_values(answer, at_most or self.limits.answer):
            raise self.misbehaves(asked, f"the answer has {crowd}")
        with translated(asked):
            try:
                return orjson.loads(answer)
            except orjson.JSONDecodeError as error:
                if "limit exceeded" in error.msg:  # of depth; orjson's is 1024
                    raise self.misbehaves(asked, "the answer is nested deeper than the 1024 that are allowed") from None
                raise

    async def objects(self, answer: bytes | bytearray, *, asked: str, at_most: int | None = None) -> Any:
        """The JSON of an answer with objects, of which one may be nested deeper than any parser of ours takes.

        API servers store what is nested 10,000 levels deep. On the hub any tenant may write such an object, and it must
        not hide the others of its list: what is below DEEPEST is cut off, and whoever reads the object refuses it.
        """
        if self.limits.cut:
            try:
                return orjson.loads(answer)
            except orjson.JSONDecodeError:
                answer = await asyncio.to_thread(shallow, bytes(answer))  # a page of a list may have megabytes
        return self.parsed(answer, asked=asked, at_most=at_most)

    def misbehaves(self, asked: str, words: str) -> Misbehaving:
        """The error to raise for an answer that no API server gives; whoever made the connection hears of it."""
        return self._broken(asked, words)

    def _broken(self, asked: str, words: str) -> Misbehaving:
        error = Misbehaving(f"{asked}: {words}")
        if not self.offence.done():
            self.offence.set_result(error)
        return error

    def _of_size(self, line: bytes | bytearray, limit: int, asked: str) -> bytes | bytearray:
        if len(line) > limit:
            raise self.misbehaves(asked, f"an event has more than the {shown(limit)} that are allowed")
        return line

    async def _read(self, response: Response, limit: int) -> bytes:
        """An answer's body up to a limit; what comes beyond shows that there is more, and is not waited for."""
        parts, size = list[bytes](), 0
        while size <= limit and (chunk := await response.chunk()):
            parts.append(chunk)
            size += len(chunk)
            await self._take(len(chunk), events=A_CHUNK)
        return b"".join(parts)

    async def _refused(self, response: Response, request: Request, asked: str) -> ApiError:
        said = (await self._read(response, OF_A_REFUSAL))[:OF_A_REFUSAL]
        retry_after = pause(response.header("retry-after"), now=datetime.now(UTC))
        return refusal(response.status, said, asked=asked, retry_after=retry_after, secret=request.secret)

    async def _take(self, size: int, *, events: float = 1.0) -> None:
        if self._share is not None:
            await self._share.take(size, events=events)

    async def _send(self, request: Request, asked: str, *, stays: bool = False) -> Response:
        token = self._identity()
        response = await self._send_as(token, request, asked, stays=stays)
        if response.status == 401 and self.access.token_file:
            self._token_read = None
            if (renewed := self._identity()) != token:
                response.cut()
                return await self._send_as(renewed, request, asked, stays=stays)
        return response

    async def _send_as(self, token: str, request: Request, asked: str, *, stays: bool) -> Response:
        if self.closed:  # whoever asks still held on to a client that is being replaced
            raise Unreachable(f"{request.verb} {request.resource}: the connection was closed")
        headers = {
            "accept": request.accept,
            "user-agent": "modelplane-operator",
            **({"authorization": f"Bearer {token}"} if token else {}),
            **({"content-type": request.content_type} if request.payload is not None else {}),
        }
        try:
            return await self._channel.send(
                Outgoing(request.method, self._url(request), headers, request.payload, stays=stays)
            )
        except NotHttp as error:
            raise self._broken(asked, str(error)) from error

    def _url(self, request: Request) -> URL:
        """Where a request goes: the path byte by byte as it is, for yarl would follow its dots and read its escapes."""
        try:
            server = URL(self.access.server)
            return server.with_path(server.raw_path.rstrip("/") + request.path, encoded=True).with_query(request.params)
        except ValueError as error:
            raise KubeconfigError("the kubeconfig's server is not a URL") from error

    def _identity(self) -> str:
        file = self.access.token_file
        if self.access.token or file is None:
            return self.access.token
        now = time.monotonic()
        if self._token_read is None or now - self._token_read > TOKEN_SECONDS:
            try:
                self._token, self._token_read = file.read_text().strip(), now
            except OSError as error:
                raise KubeconfigError(f"the token cannot be read: {error.strerror}") from error
        return self._token

    @contextmanager
    def _counted(self, request: Request) -> Generator[Span]:
        began, outcome = time.monotonic(), "Cancelled"
        try:
            with call(f"{request.method} {request.resource}", lambda: self._told(request)) as span:
                yield span
            outcome = "OK"
        except ClientError as error:
            outcome = error.reason
            raise
        finally:
            self._on_call(Call(request.verb, request.resource, outcome, time.monotonic() - began))

    def _told(self, request: Request) -> Attributes:
        """What a span says of a request."""
        return {"modelplane.cluster": self.cluster, **by_http(request.method, self._url(request))}


@asynccontextmanager
async def open_wire(
    access: Access,
    on_call: OnCall,
    limits: ServerLimits,
    share: Share | None = None,
    *,
    opens: OpenChannel = open_channel,
    cluster: str = "",
) -> AsyncGenerator[Wire]:
    """Connections to one API server, closed at the end; raises KubeconfigError when its certificates are unusable."""
    async with opens(access, share) as channel:
        wire = Wire(access, channel, on_call, limits, share, cluster=cluster)
        try:
            yield wire
        finally:
            wire.closed = True


DEEPEST = 300  # of the JSON of an object: more than orjson writes, so that nobody takes the rest for the whole
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{[]|[]}]', re.DOTALL)


def shallow(text: bytes) -> bytes:
    """JSON with null instead of whatever is nested deeper than DEEPEST."""
    kept: list[bytes] = []
    depth = begin = cut = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == DEEPEST:
                    cut = token.start()
            case b"}" | b"]":
                if depth == DEEPEST:
                    kept += (text[begin:cut], b"null")
                    begin = token.end()
                depth -= 1
            case _:
                pass
    return b"".join((*kept, text[begin:]))


async def _chunk(response: Response, until: float, silence: float) -> bytes:
    """What comes next. Bytes that make no line are silence too, however many, so `until` is the last line's."""
    try:
        async with asyncio.timeout_at(until):
            return await response.chunk()
    except TimeoutError:
        raise TimeoutError(f"silent for {silence:g} s") from None
