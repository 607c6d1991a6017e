"""Requests and streams to one API server: credentials, deadlines, limits, and the mapping of failures to errors."""

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
from kubeloop.client.errors import pause, refusal, translate_errors
from kubeloop.client.limits import KIB, ServerLimits, Share, format_size, too_many_values
from kubeloop.client.transport import Carrier, NotHttp, Outgoing, Response
from kubeloop.errors import ApiError, ClientError, KubeconfigError, Misbehaving, Unreachable
from kubeloop.tracing import Span, by_http, call

JSON = "application/json"

DEADLINE = 15.0  # seconds for one request
TOKEN_SECONDS = 60.0  # until a token file is read again; a kubelet renews it minutes before it expires
OF_A_REFUSAL = 256 * KIB  # of an error response that are read
A_CHUNK = 1 / 64  # the cost of reading a chunk, in events


@dataclass(frozen=True, slots=True)
class Call:
    """A finished request, for metrics. `outcome` is `OK` or the name of an error."""

    verb: str
    resource: str
    outcome: str
    seconds: float


OnCall = Callable[[Call], None]


def ignore_count(_: Call) -> None:
    """Ignore a finished request."""


@dataclass(frozen=True, slots=True)
class Request:
    """A request, with the verb and type that metrics count it under."""

    verb: str
    resource: str
    method: str
    path: str
    """The path with every name in it quoted; it is sent unchanged."""
    payload: bytes | None = None
    content_type: str = JSON
    params: Mapping[str, str] | None = None
    accept: str = JSON
    secret: bool = False
    """True if the payload is secret. A refusal may quote it, and must not be shown then."""


class Wire:
    """Requests to one API server as bytes; created by `open_wire`, which closes it."""

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
        """Set the wire up on an open channel."""
        self.access = access
        self.cluster = cluster
        self.limits = limits
        self.offence: asyncio.Future[Misbehaving] = asyncio.get_running_loop().create_future()
        """Resolved as soon as the server sends something that no API server sends."""
        self.closed = False
        self._channel = channel
        channel.on_broken = lambda words: self._report_offence("HTTP/2", words)
        self._on_call = on_call
        self._share = share
        self._token = ""
        self._token_read: float | None = None

    async def ask(
        self, request: Request, *, operation: str, deadline: float = DEADLINE, at_most: int | None = None
    ) -> bytes:
        """Return the body of the response, of at most `at_most` bytes; raises an ApiError."""
        limit = at_most or self.limits.answer
        if (body := await self.ask_within(limit, request, operation=operation, deadline=deadline)) is None:
            raise self.misbehaves(operation, f"the answer has more than the {format_size(limit)} that are allowed")
        return body

    async def ask_within(
        self, limit: int, request: Request, *, operation: str, deadline: float = DEADLINE
    ) -> bytes | None:
        """Return the body of the response, or None if it is longer than the limit; raises an ApiError."""
        with self._measure(request) as span, translate_errors(operation):
            async with asyncio.timeout(deadline):
                response = await self._send(request, operation)
                span.tell("http.response.status_code", response.status)
                try:
                    if response.status >= 300:
                        raise await self._read_refusal(response, request, operation)
                    body = await self._read(response, limit)
                    return body if len(body) <= limit else None
                finally:
                    response.abort()

    async def lines(self, request: Request, *, operation: str, silence: float) -> AsyncGenerator[bytes | bytearray]:
        """Yield the lines of a long response; raises Unreachable if none arrives for `silence` seconds."""
        with (
            self._measure(request) as span,
            translate_errors(operation),
        ):  # up to the headers; the stream may last for minutes
            async with asyncio.timeout(DEADLINE):
                response = await self._send(request, operation, keep_open=True)
                span.tell("http.response.status_code", response.status)
                if response.status >= 300:
                    try:
                        raise await self._read_refusal(response, request, operation)
                    finally:
                        response.abort()
        now, limit, remainder = asyncio.get_running_loop().time, self.limits.answer, bytearray()
        try:
            with translate_errors(operation):
                until = now() + silence
                while chunk := await _chunk(response, until, silence):
                    await self._wait_for_share(0, events=A_CHUNK)
                    remainder += chunk
                    if b"\n" in chunk:  # only then, as searching the remainder for each chunk would be quadratic
                        *complete, remainder = remainder.split(b"\n")
                        for line in complete:
                            await self._wait_for_share(len(line))
                            yield self._check_line_size(line, limit, operation)
                        until = now() + silence
                    self._check_line_size(remainder, limit, operation)
        finally:
            response.abort()

    def parse(self, answer: bytes | bytearray, *, operation: str, at_most: int | None = None) -> Any:
        """Parse JSON; raises ServerFault if it is invalid, and Misbehaving if it has too many values or levels."""
        if excess := too_many_values(answer, at_most or self.limits.answer):
            raise self.misbehaves(operation, f"the answer has {excess}")
        with translate_errors(operation):
            try:
                return orjson.loads(answer)
            except orjson.JSONDecodeError as error:
                if "limit exceeded" in error.msg:  # of nesting, which is 1024 in orjson
                    raise self.misbehaves(
                        operation, "the answer is nested deeper than the 1024 that are allowed"
                    ) from None
                raise

    async def objects(self, answer: bytes | bytearray, *, operation: str, at_most: int | None = None) -> Any:
        """Parse JSON with objects, any of which may be nested deeper than the parser allows.

        API servers store objects that are nested 10,000 levels deep. On the hub any tenant may write one, and it must
        not hide the others of a list. So levels below DEEPEST are cut off, and such an object is rejected when it is
        cached.
        """
        if self.limits.cut:
            try:
                return orjson.loads(answer)
            except orjson.JSONDecodeError:
                answer = await asyncio.to_thread(shallow, bytes(answer))  # a page of a list may have megabytes
        return self.parse(answer, operation=operation, at_most=at_most)

    def misbehaves(self, operation: str, message: str) -> Misbehaving:
        """Return the error to raise for an impossible response, and report it to the owner of the connection."""
        return self._report_offence(operation, message)

    def _report_offence(self, operation: str, message: str) -> Misbehaving:
        """Create the error, and resolve `offence` with it."""
        error = Misbehaving(f"{operation}: {message}")
        if not self.offence.done():
            self.offence.set_result(error)
        return error

    def _check_line_size(self, line: bytes | bytearray, limit: int, operation: str) -> bytes | bytearray:
        """Return the line; raises Misbehaving if it is too long."""
        if len(line) > limit:
            raise self.misbehaves(operation, f"an event has more than the {format_size(limit)} that are allowed")
        return line

    async def _read(self, response: Response, limit: int) -> bytes:
        """Read a body, at most one chunk beyond the limit, which shows that there is more."""
        chunks, size = list[bytes](), 0
        while size <= limit and (chunk := await response.chunk()):
            chunks.append(chunk)
            size += len(chunk)
            await self._wait_for_share(len(chunk), events=A_CHUNK)
        return b"".join(chunks)

    async def _read_refusal(self, response: Response, request: Request, operation: str) -> ApiError:
        """Return the error for a response with an error status."""
        body = (await self._read(response, OF_A_REFUSAL))[:OF_A_REFUSAL]
        retry_after = pause(response.header("retry-after"), now=datetime.now(UTC))
        return refusal(response.status, body, operation=operation, retry_after=retry_after, secret=request.secret)

    async def _wait_for_share(self, size: int, *, events: float = 1.0) -> None:
        """Wait until the server's share of the event loop allows this work."""
        if self._share is not None:
            await self._share.take(size, events=events)

    async def _send(self, request: Request, operation: str, *, keep_open: bool = False) -> Response:
        """Send a request. After a 401 a changed token file is tried once."""
        token = self._current_token()
        response = await self._send_as(token, request, operation, keep_open=keep_open)
        if response.status == 401 and self.access.token_file:
            self._token_read = None
            if (new_token := self._current_token()) != token:
                response.abort()
                return await self._send_as(new_token, request, operation, keep_open=keep_open)
        return response

    async def _send_as(self, token: str, request: Request, operation: str, *, keep_open: bool) -> Response:
        """Send a request with this token; raises Unreachable if the wire is closed."""
        if self.closed:  # the caller has kept a client that is being replaced
            raise Unreachable(f"{request.verb} {request.resource}: the connection was closed")
        headers = {
            "accept": request.accept,
            "user-agent": "modelplane-operator",
            **({"authorization": f"Bearer {token}"} if token else {}),
            **({"content-type": request.content_type} if request.payload is not None else {}),
        }
        try:
            return await self._channel.send(
                Outgoing(request.method, self._url(request), headers, request.payload, keep_open=keep_open)
            )
        except NotHttp as error:
            raise self._report_offence(operation, str(error)) from error

    def _url(self, request: Request) -> URL:
        """Return the URL of a request with its path unchanged. By default yarl resolves dots and decodes escapes."""
        try:
            server = URL(self.access.server)
            return server.with_path(server.raw_path.rstrip("/") + request.path, encoded=True).with_query(request.params)
        except ValueError as error:
            raise KubeconfigError("the kubeconfig's server is not a URL") from error

    def _current_token(self) -> str:
        """Return the current token; a token file is read again after a while."""
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
    def _measure(self, request: Request) -> Generator[Span]:
        """Trace and measure a request, and report it to `on_call`."""
        started_at, outcome = time.monotonic(), "Cancelled"
        try:
            with call(
                f"{request.method} {request.resource}",
                lambda: {"modelplane.cluster": self.cluster, **by_http(request.method, self._url(request))},
            ) as span:
                yield span
            outcome = "OK"
        except ClientError as error:
            outcome = error.reason
            raise
        finally:
            self._on_call(Call(request.verb, request.resource, outcome, time.monotonic() - started_at))


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
    """Open connections to an API server while the block runs; raises KubeconfigError if certificates are unusable."""
    async with opens(access, share) as channel:
        wire = Wire(access, channel, on_call, limits, share, cluster=cluster)
        try:
            yield wire
        finally:
            wire.closed = True


DEEPEST = 300  # levels of JSON; more than orjson can serialize, so that the rest is not taken for the full object
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[{[]|[]}]', re.DOTALL)


def shallow(text: bytes) -> bytes:
    """Return the JSON with null for everything that is nested deeper than DEEPEST."""
    pieces: list[bytes] = []
    depth = begin = cut_at = 0
    for token in _TOKEN.finditer(text):
        match token[0]:
            case b"{" | b"[":
                depth += 1
                if depth == DEEPEST:
                    cut_at = token.start()
            case b"}" | b"]":
                if depth == DEEPEST:
                    pieces += (text[begin:cut_at], b"null")
                    begin = token.end()
                depth -= 1
            case _:
                pass
    return b"".join((*pieces, text[begin:]))


async def _chunk(response: Response, deadline: float, silence: float) -> bytes:
    """Return the next chunk; raises TimeoutError at `deadline`, which is set by the last full line.

    Other bytes do not count.
    """
    try:
        async with asyncio.timeout_at(deadline):
            return await response.chunk()
    except TimeoutError:
        raise TimeoutError(f"silent for {silence:g} s") from None
