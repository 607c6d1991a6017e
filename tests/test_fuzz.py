"""What bytes of others may cost: no megabyte takes more of the event loop at once than 200 ms, or fills memory.

FUZZ_SECONDS has each parser searched for longer, FUZZ_SEED repeats a search.
"""

from __future__ import annotations

import asyncio
import base64
import gzip
import json
import os
import re
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random, SystemRandom
from typing import Any, cast

import httpx
import orjson
import pytest
import yaml
from structlog.testing import capture_logs

from kubeloop.cache.informer import Informer
from kubeloop.client import http2_frames as http2
from kubeloop.client.access import MOST_NODES, Access, read_kubeconfig
from kubeloop.client.channel import Channel
from kubeloop.client.http1 import Http1
from kubeloop.client.http2_connection import Http2Connection
from kubeloop.client.http2_frames import FrameType, Setting
from kubeloop.client.http2_headers import write_block
from kubeloop.client.kube import Kube
from kubeloop.client.limits import OF_HUB, ServerLimits
from kubeloop.client.resolver import OwnThreads
from kubeloop.client.sockets import Sockets
from kubeloop.client.transport import NotHttp, Outgoing, Response
from kubeloop.client.wire import Request, Wire, ignore_count
from kubeloop.errors import ClientError, KubeconfigError
from kubeloop.helm.records import content, mark_failed, revisions
from kubeloop.types import POD
from modelplane_operator.hydrate.google_cloud_storage import GoogleCloudStorage
from modelplane_operator.hydrate.hugging_face import HuggingFace
from modelplane_operator.hydrate.manifest import Manifest
from modelplane_operator.hydrate.oci import oci
from modelplane_operator.hydrate.source import HydrationError, Source
from modelplane_operator.hydrate.staging import check_listing
from modelplane_operator.hydrate.web import Web
from tests.support.fuzz import (
    MIB,
    PACE,
    TURN,
    CostError,
    HostileWire,
    Parser,
    Parts,
    check,
    cost,
    json_of,
    pace,
    search,
)

SECONDS = float(os.environ.get("FUZZ_SECONDS", "0"))
SEED = int(os.environ.get("FUZZ_SEED", "0")) or SystemRandom().randrange(1, 2**31)
AT_ONCE = 256 * 1024  # bytes that asyncio reads from a socket in one turn
STREAMS = 30


# HTTP -----------------------------------------------------------------------------------------------------------------


async def _over_http2(data: bytes) -> None:
    """Read frames as a connection does that has some streams under way, half of which nobody reads."""
    connection, wire = Http2Connection(None, lambda: None, lambda _: None), HostileWire()
    connection.connection_made(wire)
    connection.data_received(http2.settings({Setting.MAX_CONCURRENT_STREAMS: 100}))

    async def ask(*, read: bool) -> None:
        with suppress(OSError, NotHttp):
            stream = await connection.send(write_block([(":path", "/")]), None)
            while read and await stream.chunk():
                pass

    asking = [asyncio.create_task(ask(read=number % 2 == 0)) for number in range(STREAMS)]
    await asyncio.sleep(0)
    for at in range(0, len(data), AT_ONCE):
        while wire.paused and not wire.closed:  # noqa: ASYNC110 - until it is read
            await asyncio.sleep(0)
        if not wire.closed:
            connection.data_received(data[at : at + AT_ONCE])
    if not connection.closed.done():
        connection.connection_lost(None)
    for one in asking:
        one.cancel()
    await asyncio.wait(asking)


def _frames(parts: Parts) -> bytes:
    """Frames, of which each part has type, flags, stream and payload: the length is made to be right."""
    return b"".join(
        (size := min(max(len(one) - 6, 0), http2.LARGEST_FRAME)).to_bytes(3)
        + one[:6].ljust(6, b"\0")
        + one[6 : 6 + size]
        for one in parts
    )


def _frame(kind: FrameType, payload: bytes = b"", flags: int = 0, stream: int = 0) -> bytes:
    return bytes((kind, flags)) + stream.to_bytes(4) + payload


_ANSWERED = write_block([(":status", "200"), ("content-type", "application/json")])
_ZIPPED = write_block([(":status", "200"), ("content-encoding", "gzip")])
_FRAMES = (
    *(_frame(FrameType.HEADERS, one, http2.END_HEADERS, stream) for stream in (1, 3) for one in (_ANSWERED, _ZIPPED)),
    *(_frame(FrameType.DATA, b"{}" * size, 0, stream) for size in (0, 1, 32, 8_000) for stream in (1, 3, 5)),
    _frame(FrameType.DATA, gzip.compress(b" " * MIB)[:16_000], 0, 3),
    _frame(FrameType.DATA, b"\x08" + b"\0" * 9, 0x8, 1),
    _frame(FrameType.SETTINGS, b"".join((4).to_bytes(2) + size.to_bytes(4) for size in (0, 70_000, 1) * 10)),
    _frame(FrameType.SETTINGS),
    _frame(FrameType.PING, b"\0" * 8),
    _frame(FrameType.WINDOW_UPDATE, (1).to_bytes(4), 0, 1),
    _frame(FrameType.WINDOW_UPDATE, (1).to_bytes(4)),
    _frame(FrameType.RST_STREAM, (8).to_bytes(4), 0, 7),
    _frame(FrameType.GOAWAY, (9).to_bytes(4) + b"\0" * 4),
    _frame(FrameType.CONTINUATION, _ANSWERED, 0, 1),
    _frame(FrameType.HEADERS, b"\x82" * 500, http2.END_HEADERS, 9),
    _frame(FrameType.HEADERS, b"\x00\x9f" + b"\xff" * 31 + b"\x9f" + b"\xff" * 31, 0, 9),
    bytes((99, 0)) + b"\0" * 4,
)


async def _over_http1(data: bytes) -> None:
    """Read an answer as the HTTP/1.1 of a server without TLS, which says these bytes whatever it is asked."""

    async def say(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, asyncio.IncompleteReadError):
            await reader.readuntil(b"\r\n\r\n")
            writer.write(data)
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(say, "127.0.0.1", 0)
    port, sockets = server.sockets[0].getsockname()[1], Sockets()
    access = Access(f"http://127.0.0.1:{port}")
    http1 = Http1(access, OwnThreads(), sockets.new)
    try:
        with suppress(ClientError):
            wire = _wire(access, http1.send, ServerLimits())
            await wire.ask_within(4 * MIB, Request("list", "pods", "GET", "/api/v1/pods"), operation="list pods")
    finally:
        await http1.close()
        await sockets.end()
        server.close()


_HTTP1 = (
    *(b"HTTP/1.1 200 OK\r\n", b"Content-Type: application/json\r\n", b"Transfer-Encoding: chunked\r\n", b"\r\n"),
    *(b"2\r\n{}\r\n", b"1\r\n \r\n", b"0\r\n\r\n"),
)

# Kubernetes -----------------------------------------------------------------------------------------------------------


class _Answer:
    """An answer whose body comes as asyncio reads it."""

    def __init__(self, status: int, data: bytes) -> None:
        self.status, self._left = status, data

    def header(self, name: str) -> str | None:
        del name
        return None

    async def chunk(self) -> bytes:
        said, self._left = self._left[:AT_ONCE], self._left[AT_ONCE:]
        return said

    def abort(self) -> None: ...


class _Sending:
    """A channel to one server."""

    def __init__(self, send: Callable[[Outgoing], Awaitable[Response]]) -> None:
        self.send = send
        self.on_broken: Callable[[str], object] = len


def _wire(access: Access, send: Callable[[Outgoing], Awaitable[Response]], limits: ServerLimits) -> Wire:
    return Wire(access, cast(Channel, _Sending(send)), ignore_count, limits, None)


def _asked(how: str, limits: ServerLimits) -> Callable[[bytes], Awaitable[None]]:
    """Return what reads an answer of an API server as a list, as a watch, as a refusal or as an object."""

    async def read(data: bytes) -> None:
        async def send(_: Outgoing) -> Response:
            return _Answer(422 if how == "refusal" else 200, data)

        informer = Informer(POD, now=lambda: 0.0)
        kube = Kube(_wire(Access("http://127.0.0.1"), send, limits))
        with suppress(ClientError):
            if how == "watch":
                async for event in kube.watch(POD, "1", seconds=60):
                    informer.on_event(event)
            else:
                informer.on_list(await kube.read_list(POD, informer.reader()))

    return read


def _tokens(value: object) -> Parts:
    """Return JSON in the parts that its grammar has."""
    return tuple(re.findall(rb'"(?:[^"\\]|\\.)*"|[^"{}\[\],:]+|[{}\[\],:]', orjson.dumps(value)))


def _pod(number: int) -> dict[str, Any]:
    fields = {"f:metadata": {"f:labels": {".": {}, "f:a": {}}}, "f:spec": {'k:{"containerPort":1}': {".": {}}}}
    managed = [{"manager": "modelplane-operator", "operation": "Apply", "fieldsType": "FieldsV1", "fieldsV1": fields}]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": f"pod-{number}",
            "namespace": "team",
            "uid": f"u{number}",
            "resourceVersion": str(number + 2),
            "labels": {"a": "b"},
            "managedFields": managed,
        },
        "spec": {"containers": [{"name": "engine", "args": ["--model", "x"]}]},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }


_PODS: Sequence[Parts] = tuple(
    _tokens({"kind": "PodList", "apiVersion": "v1", "metadata": {"resourceVersion": "9"}, "items": items})
    for items in ([], [_pod(1)], [_pod(number) for number in range(8)])
)
_EVENTS: Sequence[Parts] = tuple(
    sum(((*_tokens({"type": kind, "object": _pod(number)}), b"\n") for number in range(3)), ())
    for kind in ("ADDED", "MODIFIED", "DELETED", "BOOKMARK", "ERROR")
)
_JSON: Parts = (
    *(b"{", b"[", b"{", b"[", b"}", b"]", b"\n", b"null", b"1e999", b"-0", b"9" * 40, b"0." + b"1" * 400, b'""'),
    *(b'"\\ud800"', b'"' + "ü".encode() * 200 + b'"', b'"' + b"\\u0001" * 50 + b'"', b" " * 64, b'"a"'),
    *(
        b'"labels"',
        b'"managedFields"',
        b'"fieldsV1"',
        b'"f:a"',
        b'"k:{\\"a\\":1}"',
        b'"v:[1]"',
        b'"items"',
        b'"metadata"',
    ),
    *(b'"name"', b'"uid"', b'"resourceVersion"', b'"continue"', b'"modelplane-operator"', b'"Apply"', b'"message"'),
)
_REFUSED = (_tokens({"kind": "Status", "message": "no " * 50, "reason": "Invalid", "details": {"causes": [{}]}}),)

# Others ---------------------------------------------------------------------------------------------------------------


def _record(data: bytes) -> None:
    """Read a Secret of Helm's whose payload inflates to this; it is read in a thread."""
    packed = base64.b64encode(base64.b64encode(gzip.compress(data, 1))).decode()
    of_helm = {"owner": "helm", "name": "a", "version": "1", "status": "deployed", "modifiedAt": "1"}
    metadata = {"name": "sh.helm.release.v1.a.v1", "namespace": "b", "uid": "u", "resourceVersion": "1"}
    secret = {
        "metadata": {**metadata, "labels": of_helm, "creationTimestamp": "2026-01-01T00:00:00Z"},
        "data": {"release": packed},
    }
    revisions([secret])
    for reading in (content, mark_failed):
        with suppress(ClientError):
            reading(secret)


_RELEASE = _tokens({"chart": {"metadata": {"name": "a", "version": "1"}}, "info": {"description": "b"}, "config": {}})


def _kubeconfig(most: int) -> Callable[[bytes], None]:
    def read(data: bytes) -> None:
        with suppress(KubeconfigError):
            read_kubeconfig(data, most=most).tls()

    return read


_KUBECONFIG = tuple(
    re.findall(
        rb"\s*[^\s]+",
        yaml.safe_dump(
            {
                "apiVersion": "v1",
                "current-context": "a",
                "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
                "clusters": [{"name": "a", "cluster": {"server": "https://a", "certificate-authority-data": "YQ=="}}],
                "users": [{"name": "a", "user": {"token": "a"}}],
            }
        ).encode(),
    )
)
_YAML: Parts = (
    *(
        b"\n- ",
        b"\n  ",
        b"{",
        b"}",
        b"[",
        b"]",
        b",",
        b": ",
        b"? ",
        b"&a ",
        b"*a",
        b"!!binary ",
        b"!!set ",
        b"!!omap ",
        b"<<: ",
    ),
    *(
        b"1:59:59",
        b"'",
        b'"',
        b"|\n ",
        b">\n ",
        b"%YAML 1.1\n",
        b"---\n",
        b"\t",
        b"#",
        b"YQ==",
        "ü".encode(),
        b"2001-01-01",
    ),
)

# The hydrator's, in a process of its own ------------------------------------------------------------------------------

ARTIFACT = b'{"layers": []}'


def _listed(source: Callable[[httpx.Client], Source], *, header: bool = False) -> Callable[[bytes], None]:
    """Return what reads a list of files, as a server says it first: as the body of an answer, or in its challenge."""

    def read(data: bytes) -> None:
        answers = [httpx.Response(401, headers={"WWW-Authenticate": data[:LONGEST_HEADER]})] if header else []
        answers += [] if header else [_streamed(data)]
        client = httpx.Client(
            transport=httpx.MockTransport(lambda _: answers.pop(0) if answers else _streamed(ARTIFACT))
        )
        with suppress(HydrationError):
            check_listing(source(client).list_files())

    return read


LONGEST_HEADER = 100 * 1024  # what httpcore takes


def _on_hugging_face(data: bytes) -> None:
    """What its library cannot read, the hydrator's last resort takes: any error."""
    client = httpx.Client(transport=httpx.MockTransport(lambda _: _streamed(data)))
    with suppress(Exception):
        check_listing(HuggingFace("https://hub.example.com", "org/model", client=client).list_files())


def _streamed(data: bytes) -> httpx.Response:
    """An answer whose body nobody has read yet, as those of servers are."""
    return httpx.Response(200, stream=httpx.ByteStream(data))


def _web(client: httpx.Client) -> Web:
    return Web("it", client=client)


_SHA256 = "0" * 64
_LAYER = {
    "mediaType": "application/vnd.oci.image.layer.v1.tar",
    "digest": f"sha256:{_SHA256}",
    "size": 3,
    "annotations": {"org.opencontainers.image.title": "a/b"},
}
_FILES = [{"path": f"a/{number}", "size": 3, "sha256": _SHA256, "url": "../x"} for number in range(3)]
_SIBLINGS = [
    {"rfilename": f"a/{number}", "size": 3, "blobId": "0" * 40, "lfs": {"sha256": _SHA256, "size": 3, "pointerSize": 1}}
    for number in range(3)
]
_OBJECTS = [{"name": f"a/{number}", "size": "3", "crc32c": "AAAAAA==", "generation": "1"} for number in range(3)]
_DEEP: Parts = (
    *(
        b'"path"',
        b'"' + b"a/" * 2_000 + b'"',
        b'"' + b"model." * 500 + b'"',
        b'"' + "ü".encode() * 2_000 + b'"',
        b"1e999",
    ),
    *(b'"layers"', b'"title"', b'"mediaType"', b'"digest"', b'"files"', b'"siblings"', b'"nextPageToken"', b'"//[x"'),
    b"9" * 400,
)
_LISTS = (
    Parser(
        "a manifest of OCI",
        _listed(lambda client: oci("r.example.com/a:b", _web(client), insecure=False, credentials="")),
        [_tokens({"layers": [_LAYER] * count}) for count in (1, 4)]
        + [_tokens({"manifests": [{"digest": "sha256:1"}]})],
        (*_JSON, *_DEEP),
        join=json_of,
    ),
    Parser(
        "a challenge of a registry",
        _listed(lambda client: oci("r.example.com/a:b", _web(client), insecure=False, credentials=""), header=True),
        [(b"Bearer ", b'realm="https://a"', b",", b'service="a"'), (b"Bearer ", b"a" * 3000)],
        (b"a", b'a="', b'"', b"=", b",", b" ", b"Basic ", b'scope="' + b"b" * 500 + b'"'),
    ),
    Parser(
        "a manifest of the web",
        _listed(lambda client: Manifest("https://a.example.com/m.json", _web(client))),
        [_tokens({"files": _FILES}), _tokens({"files": [{**_FILES[0], "path": "a/" * 2_000, "url": None}]})],
        (*_JSON, *_DEEP),
        join=json_of,
    ),
    Parser(
        "a list of Google Cloud Storage",
        _listed(lambda client: GoogleCloudStorage("b", _web(client))),
        [_tokens({"items": _OBJECTS}), _tokens({"items": _OBJECTS, "nextPageToken": "n" * 100})],
        (*_JSON, *_DEEP),
        join=json_of,
    ),
    Parser(
        "a list of Hugging Face",
        _on_hugging_face,
        [_tokens({"id": "org/model", "sha": "0" * 40, "siblings": _SIBLINGS})],
        (*_JSON, *_DEEP),
        join=json_of,
    ),
)

_OCI, _CHALLENGE, _WEB, _GOOGLE, _ = _LISTS
_FOUND = {
    "folders": (_WEB, orjson.dumps({"files": [{**_FILES[0], "path": "a/" * 500_000 + "b", "url": "u"}]})),
    "letters": (_WEB, orjson.dumps({"files": [{**_FILES[0], "path": "\u00fc" * 500_000, "url": None}]})),
    "small folders": (
        _WEB,
        orjson.dumps({"files": [{**_FILES[0], "path": f"{number}/" + "a/" * 14 + "b"} for number in range(6_000)]}),
    ),
    "an archive": (_OCI, orjson.dumps({"layers": [{**_LAYER, "mediaType": "model." * 170_000}]})),
    "a challenge": (_CHALLENGE, b"Bearer " + b"a" * 99_000),
    "a page": (_GOOGLE, orjson.dumps({"items": [], "nextPageToken": "\u00fc" * 500_000})),
}
"""What has cost seconds."""

PARSERS = (
    *_LISTS,
    Parser("HTTP/2", _over_http2, [_FRAMES, *((one,) * 3 for one in _FRAMES)], _FRAMES, join=_frames),
    Parser(
        "HTTP/1.1",
        _over_http1,
        [_HTTP1, _HTTP1[:3]],
        (*_HTTP1, b"a: b\r\n", b"\r\n ", b"ffff\r\n", b"Content-Encoding: gzip\r\n"),
    ),
    *(
        Parser(f"a {how} of {whose}", _asked(how, limits), seeds, _JSON, join=json_of)
        for whose, limits in (("a cluster", ServerLimits()), ("the hub", OF_HUB))
        for how, seeds in (("list", _PODS), ("watch", _EVENTS), ("refusal", _REFUSED))
    ),
    Parser("Helm", _record, [_RELEASE], _JSON, join=json_of, turns=False),
    Parser("a kubeconfig of a tenant", _kubeconfig(500), [_KUBECONFIG], _YAML),
    Parser("a kubeconfig", _kubeconfig(MOST_NODES), [_KUBECONFIG], _YAML),
)


@pytest.mark.processes
@pytest.mark.parametrize("parser", PARSERS, ids=lambda one: one.name)
async def test_no_megabyte_takes_more_of_the_loop_than_its_turn(parser: Parser) -> None:
    await _searched(parser, SECONDS or 1.0)


@pytest.mark.processes
@pytest.mark.parametrize("found", _FOUND)
async def test_what_was_found_in_lists_of_files_costs_no_more_than_its_turn(found: str) -> None:
    parser, data = _FOUND[found]
    await check(replace(parser, join=b"".join), (data,), TURN * pace() / PACE)


@pytest.mark.slow
@pytest.mark.parametrize("parser", PARSERS, ids=lambda one: one.name)
async def test_nor_does_one_that_is_looked_for_longer(parser: Parser) -> None:
    await _searched(parser, SECONDS or 15.0)


@pytest.mark.long
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize("parser", PARSERS, ids=lambda one: one.name)
async def test_nor_one_that_is_looked_for_in_an_hour(parser: Parser) -> None:
    await _searched(parser, SECONDS or 3_600.0 / len(PARSERS))


async def _searched(parser: Parser, seconds: float) -> None:
    print(f"FUZZ_SEED={SEED}")  # noqa: T201 - for the next run
    with capture_logs():
        worst = await search(parser, seconds, Random(SEED))  # noqa: S311
    print(f"{parser.name}: {worst.seconds * 1000:.1f} ms for {worst.size} bytes")  # noqa: T201


async def test_what_costs_more_is_found() -> None:
    def count(data: bytes) -> int:
        return sum(data[:at].count(b"a") for at in range(0, len(data), 64)) if data.count(b"aaaa") > 20 else 0

    with pytest.raises(CostError, match="of the loop at once"):
        await search(Parser("squares", count, [(b"ab", b"cd")], (b"aa", b"x")), 60.0, Random(1))  # noqa: S311


async def test_what_fills_memory_is_found() -> None:
    parser = Parser("memory", lambda data: [*data] * 100, [(b"ab" * 100,)], (b"aa",), turns=False)
    with pytest.raises(CostError, match="of memory"):
        await search(parser, 1.0, Random(1))  # noqa: S311
    assert (await cost(parser, (b"a",))).size == 1


def test_tokens_become_json() -> None:
    for tokens in (
        _PODS[2],
        (b"{", b'"a"', b'"b"', b"[", b"1", b"]", b"}"),
        (b"{", b"1", b'"c"'),
        (b"1", b"2"),
        (b"[", b"["),
    ):
        json.loads(json_of(tokens) if len(tokens) % 8 != 7 else json_of((*tokens, b",")))
    assert json_of((b"{", b'"a"', b"\n", b"1", b"\n")) == b'{"a":null}\n1\n'


def test_the_seeds_are_read_as_what_they_are() -> None:
    assert json.loads(b"".join(_PODS[1]))["items"][0]["kind"] == "Pod"
    assert len(b"".join(_EVENTS[0]).splitlines()) == 3
    assert read_kubeconfig(b"".join(_KUBECONFIG)).token == "a"  # noqa: S105
