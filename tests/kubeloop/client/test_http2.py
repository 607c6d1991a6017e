"""Over one HTTP/2 connection everybody is served, whatever the server says, and whoever reads slowly waits alone."""

from __future__ import annotations

import asyncio
import gzip
import ssl
import struct
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing, asynccontextmanager, suppress
from itertools import count

import hpack
import orjson
import pytest
import trustme
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.client import http2_frames as http2
from kubeloop.client import http2_headers, http2_liveness
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.http2_connection import FRAMES_AT_ONCE, NOISE, UNREAD
from kubeloop.client.http2_frames import Code, Frames, FrameType, ProtocolError, Setting
from kubeloop.client.http2_stream import STREAM_WINDOW
from kubeloop.client.kube import Event, Kube, connect
from kubeloop.errors import Misbehaving, Unreachable
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP
from localfleet import http2 as served
from localfleet.apiserver import api_server
from tests.kubeloop.client.http2_peer import Peer, answered, talking
from tests.support.waiting import SECONDS

KEY = Key("team", "a")
OBJECT = {
    "apiVersion": "v1",
    "kind": "ConfigMap",
    "metadata": {"namespace": "team", "name": "a", "resourceVersion": "1"},
}
EVENT = orjson.dumps({"type": "ADDED", "object": OBJECT}) + b"\n"
HEADERS = http2.frame(FrameType.HEADERS, answered(), flags=http2.END_HEADERS, stream=1)


# An honest server ----------------------------------------------------------------------------------------------------


@pytest.fixture(params=["h2", "http/1.1"])
async def honest(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Access, str]]:
    """A server of either version; it answers a GET with a large object, and a write with its size."""
    authority = trustme.CA()
    tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    authority.issue_cert("127.0.0.1").configure_cert(tls)

    async def answer(asked: web.BaseRequest) -> web.StreamResponse:
        if "watch" in asked.query:
            stream = web.StreamResponse()
            await stream.prepare(asked)
            for _ in range(3):
                await stream.write(EVENT)
            return stream
        body = await asked.content.read()
        told = {**OBJECT, "data": {"asked": asked.headers["Authorization"], "size": str(len(body)), "x": "x" * 10**6}}
        packed = gzip.compress(orjson.dumps(told))
        return web.Response(body=packed, headers={"Content-Encoding": "gzip"})

    server = web.Server(answer)
    new = served.front(server, tls) if request.param == "h2" else server
    listener = await asyncio.get_running_loop().create_server(new, "127.0.0.1", 0, ssl=tls)
    port = listener.sockets[0].getsockname()[1]
    trusted = authority.cert_pem.bytes().decode()
    yield Access(f"https://127.0.0.1:{port}", authority=trusted, token="hush"), request.param  # noqa: S106
    listener.close()
    await server.shutdown(0.1)


async def test_a_server_is_asked_over_the_version_that_it_speaks(honest: tuple[Access, str]) -> None:
    access, version = honest
    async with connect(access) as kube:
        large = {**OBJECT, "data": {"x": "y" * 1_500_000}}
        read, written = await asyncio.gather(kube.get(CONFIG_MAP, KEY), kube.apply(large))
        async with aclosing(kube.watch(CONFIG_MAP, "1", seconds=60)) as events:
            told = [event.manifest async for event in events]
        spoken = kube._wire._channel._http2
        assert (spoken is not None, len(spoken._connections) if spoken else 0) == (version == "h2", version == "h2")

    assert (read["data"]["asked"], read["data"]["size"]) == ("Bearer hush", "0")
    assert int(written["data"]["size"]) > 1_500_000
    assert told == [OBJECT] * 3


@pytest.mark.fleet
async def test_a_real_server_that_ends_its_connections_fails_no_request_and_breaks_no_watch() -> None:
    with api_server("--goaway-chance=0.02") as server:
        access = read_kubeconfig(server.kubeconfig.read_text())
        async with connect(access) as kube, asyncio.TaskGroup() as group:
            made = {**OBJECT, "metadata": {"namespace": "default", "name": "a"}}
            version = (await kube.list(CONFIG_MAP, namespace="default")).version
            watch = kube.watch(CONFIG_MAP, version, seconds=300, namespace="default", selector="of=ours")
            labelled = {**made["metadata"], "labels": {"of": "ours"}}
            used = set[int]()

            async def told() -> list[str]:
                seen = list[str]()
                async with aclosing(watch) as events:
                    async for event in events:
                        seen += [event.manifest["data"]["n"]] if event.type != "BOOKMARK" else []
                        if seen[-1:] == ["299"]:
                            break
                return seen

            telling = group.create_task(told())
            for number in range(300):
                await kube.apply({**made, "metadata": labelled, "data": {"n": str(number)}})
                used |= {id(one) for one in spoken(kube)}
            async with asyncio.timeout(SECONDS):
                assert await telling == [str(number) for number in range(300)]
    assert len(used) > 1, "the server has ended one"


# One that is none ----------------------------------------------------------------------------------------------------


def flood(frame: bytes) -> bytes:
    return frame * (int(NOISE[1]) + 100)


def data(content: bytes, *, flags: int = 0, stream: int = 1) -> bytes:
    return http2.frame(FrameType.DATA, content, flags=flags, stream=stream)


CONTINUATION = http2.frame(FrameType.CONTINUATION, stream=1)
HOSTILE = {
    "a frame that is too long": b"\x00\x40\x01" + bytes(6),
    "a body that begins before the headers": data(b"x"),
    "more padding than there is": HEADERS + data(b"\xff" + b"x" * 10, flags=http2.PADDED),
    "padding without a length": HEADERS + data(b"", flags=http2.PADDED),
    "empty frames without end": HEADERS + flood(data(b"")),
    "headers without end": http2.frame(FrameType.HEADERS, stream=1) + CONTINUATION * 20,
    "headers that are too long": b"".join(
        http2.headers(answered(x="x" * 20_000), stream=1, ends=False, largest=16_000)
    ),
    "headers that are more than they seem": http2.frame(
        FrameType.HEADERS, answered() + b"\x90" * 10_000, flags=http2.END_HEADERS, stream=1
    ),
    "headers of a table": http2.frame(FrameType.HEADERS, b"\x88\xbe", flags=http2.END_HEADERS, stream=1),
    "a table of headers": http2.frame(FrameType.HEADERS, b"\x3f\xe1\x1f\x88", flags=http2.END_HEADERS, stream=1),
    "headers that are none": http2.frame(FrameType.HEADERS, b"\xff" * 100, flags=http2.END_HEADERS, stream=1),
    "headers without a status": http2.frame(FrameType.HEADERS, b"", flags=http2.END_HEADERS, stream=1),
    "headers twice": HEADERS * 2,
    "another frame among headers": http2.frame(FrameType.HEADERS, answered(), stream=1) + data(b""),
    "a header block that goes on elsewhere": http2.frame(FrameType.HEADERS, answered(), stream=1)
    + http2.frame(FrameType.CONTINUATION, stream=3),
    "a header block that only goes on": CONTINUATION,
    "an answer that ends before it begins": http2.frame(
        FrameType.HEADERS, answered(100), flags=http2.END_HEADERS | http2.END_STREAM, stream=1
    ),
    "beginnings without end": flood(http2.frame(FrameType.HEADERS, answered(100), flags=http2.END_HEADERS, stream=1)),
    "settings without end": flood(http2.settings({})),
    "settings that are none": http2.frame(FrameType.SETTINGS, b"12345"),
    "more settings than there are": http2.frame(FrameType.SETTINGS, struct.pack(">HI", Setting.ENABLE_PUSH, 0) * 33),
    "bodies of a byte without end": HEADERS + flood(data(b"x")),
    "settings of a stream": http2.frame(FrameType.SETTINGS, stream=1),
    "a window beyond any, by settings": http2.settings({Setting.INITIAL_WINDOW_SIZE: 2**31}),
    "a window beyond any, of the connection": http2.number(FrameType.WINDOW_UPDATE, 2**31 - 1),
    "a window beyond any, of a stream": http2.number(FrameType.WINDOW_UPDATE, 2**31 - 1, stream=1),
    "no more window": http2.number(FrameType.WINDOW_UPDATE, 0),
    "windows without end": flood(http2.number(FrameType.WINDOW_UPDATE, 1)),
    "frames of no size": http2.settings({Setting.MAX_FRAME_SIZE: 1}),
    "pings without end": flood(http2.frame(FrameType.PING, bytes(8))),
    "a ping that is none": http2.frame(FrameType.PING),
    "priorities without end": flood(http2.frame(FrameType.PRIORITY, bytes(5), stream=1)),
    "frames that nobody knows without end": flood(b"\x00\x00\x00\x77" + bytes(5)),
    "a farewell that is none": http2.frame(FrameType.GOAWAY),
    "an answer that nobody asked for": http2.frame(FrameType.PUSH_PROMISE, bytes(4), stream=1),
    "a stream that nobody has opened": data(b"x", stream=99),
    "a stream of its own": data(b"x", stream=2),
    "a reset that is none": http2.frame(FrameType.RST_STREAM, stream=1),
    "resets without end": data(b"") + flood(http2.number(FrameType.RST_STREAM, Code.CANCEL, stream=1)),
    "an answer that goes on after its end": HEADERS + data(b"{}", flags=http2.END_STREAM) + data(b"x"),
}


@pytest.mark.parametrize("said", HOSTILE.values(), ids=HOSTILE.keys())
async def test_what_is_no_http2_ends_the_connection_and_is_told(said: bytes) -> None:
    async def talk(peer: Peer) -> None:
        await peer.asked()
        peer.send(said)

    async with talking(talk) as access, connect(access) as kube:
        asking = asyncio.ensure_future(kube.ping())
        async with asyncio.timeout(10):
            with pytest.raises(Misbehaving):
                await kube.misbehaves()
        await asyncio.wait([asking])
        assert isinstance(asking.exception(), Misbehaving | Unreachable | None)
        spoken = kube._wire._channel._http2
        assert spoken is not None
        assert all(one.draining and not one.streams for one in spoken._connections)


@pytest.mark.parametrize("pings", [UNREAD, UNREAD + 1], ids=["slow", "without end"])
async def test_a_server_that_reads_nothing_is_acknowledged_only_so_much(pings: int) -> None:
    """Its acknowledgements wait in our memory."""
    acknowledged = 0

    async def talk(peer: Peer) -> None:
        nonlocal acknowledged
        large, _ = await peer.asked()
        peer.send(*(http2.number(FrameType.WINDOW_UPDATE, 2**28, stream=stream) for stream in (0, large)))
        await asyncio.sleep(0.5)  # until all that is between us is full
        peer.send(http2.frame(FrameType.PING, bytes(8)) * pings)
        await asyncio.sleep(0.5)
        while not (await peer.next(FrameType.DATA)).flags & http2.END_STREAM:
            pass
        acknowledged = sum(frame.kind == FrameType.PING and bool(frame.flags & http2.ACK) for frame in peer.seen)
        peer.answer(large, orjson.dumps(OBJECT))

    async with talking(talk) as access, connect(access) as kube:
        writing = asyncio.ensure_future(kube.apply({**OBJECT, "data": {"x": "x" * 30_000_000}}))
        if pings <= UNREAD:
            assert await writing == OBJECT
            assert acknowledged == pings
        else:
            with pytest.raises(Misbehaving, match="asks for answers and reads none"):
                await writing


async def test_a_server_that_begins_without_its_settings_is_none() -> None:
    async def talk(_: Peer) -> None:
        pass

    async with talking(talk, opening=http2.frame(FrameType.PING, bytes(8))) as access, connect(access) as kube:
        with pytest.raises(Misbehaving, match="first frame is not SETTINGS"):
            await kube.ping()


async def test_what_comes_late_on_a_stream_that_was_taken_back_is_no_offence_up_to_its_window() -> None:
    beyond = asyncio.Event()

    async def talk(peer: Peer) -> None:
        stream, _ = await peer.asked()
        peer.begin(stream)
        await peer.next(FrameType.RST_STREAM)
        peer.body(stream, b"x" * STREAM_WINDOW, ends=False)
        peer.answer((await peer.asked())[0])
        await beyond.wait()
        peer.body(stream, b"x", ends=False)

    async with talking(talk) as access, connect(access) as kube:
        with pytest.raises(Unreachable):
            await kube.ping(deadline=0.2)
        await kube.ping()
        beyond.set()
        with pytest.raises(Misbehaving, match="goes on with streams that were taken back"):
            await kube.misbehaves()


# Many at once --------------------------------------------------------------------------------------------------------


async def test_frames_that_come_together_are_taken_in_turns_and_in_their_order() -> None:
    """More than are handled at once, none of them whole in what is left of the time."""
    content = orjson.dumps({**OBJECT, "data": {"x": "".join(map(str, range(40_000)))}})

    async def talk(peer: Peer) -> None:
        asked, _ = await peer.asked()
        parts = [content[at : at + 100] for at in range(0, len(content), 100)]
        ends = [http2.END_STREAM if part is parts[-1] else 0 for part in parts]
        peer.begin(asked)
        peer.send(*(data(part, flags=end, stream=asked) for part, end in zip(parts, ends, strict=True)))

    async with talking(talk) as access, connect(access) as kube:
        assert len(content) > 100 * 2 * FRAMES_AT_ONCE
        assert await kube.get(CONFIG_MAP, KEY) == orjson.loads(content)


async def test_an_answer_is_whole_that_the_server_closes_behind() -> None:
    """It has come, and most of it waits for its turn, when the connection ends."""
    content = orjson.dumps({**OBJECT, "data": {"x": "y" * 100 * 3 * FRAMES_AT_ONCE}})

    async def talk(peer: Peer) -> None:
        asked, _ = await peer.asked()
        parts = [content[at : at + 100] for at in range(0, len(content), 100)]
        ends = [http2.END_STREAM if part is parts[-1] else 0 for part in parts]
        peer.begin(asked)
        peer.send(*(data(part, flags=end, stream=asked) for part, end in zip(parts, ends, strict=True)))
        peer.writer.close()

    async with talking(talk) as access, connect(access) as kube:
        assert await kube.get(CONFIG_MAP, KEY) == orjson.loads(content)


async def test_whoever_reads_slowly_waits_alone() -> None:
    sent = 0

    async def talk(peer: Peer) -> None:
        nonlocal sent
        watch, _ = await peer.asked()
        peer.begin(watch)
        line = EVENT * 100
        while sent + len(line) <= STREAM_WINDOW:
            peer.body(watch, line, ends=False)
            sent += len(line)
        while True:
            peer.answer((await peer.asked())[0])

    async with talking(talk) as access, watching(access) as (kube, events):
        for _ in range(3):
            await kube.ping()
        assert len(spoken(kube)) == 1
        for _ in range(sent // len(EVENT) - 1):
            await anext(events)


async def test_whoever_sends_more_than_is_read_misbehaves() -> None:
    async def talk(peer: Peer) -> None:
        watch, _ = await peer.asked()
        peer.begin(watch)
        peer.body(watch, EVENT * (3 * STREAM_WINDOW // len(EVENT)), ends=False)

    async with talking(talk) as access, watching(access) as (kube, _):
        with pytest.raises(Misbehaving, match="more than its window"):
            await kube.misbehaves()


async def test_the_window_of_a_stream_is_opened_as_it_is_read() -> None:
    whole = b'{"x":"' + b"x" * (3 * STREAM_WINDOW) + b'"}'

    async def talk(peer: Peer) -> None:
        stream, _ = await peer.asked()
        peer.begin(stream)
        room, left = STREAM_WINDOW, whole
        while left:
            part, left = left[:room], left[room:]
            peer.body(stream, part, ends=not left)
            if left:
                room = (await peer.next(FrameType.WINDOW_UPDATE)).number()
                while not room or peer.seen[-1].stream != stream:
                    room = (await peer.next(FrameType.WINDOW_UPDATE)).number()

    async with talking(talk) as access, connect(access) as kube:
        await kube.ping()


async def test_a_large_body_is_sent_as_the_server_has_room_and_a_small_one_passes_it() -> None:
    order, begun = list[str](), asyncio.Event()

    async def talk(peer: Peer) -> None:
        large, _ = await peer.asked()
        begun.set()
        small, path = await peer.asked()
        order.append(path)
        peer.answer(small)
        got, content = 0, orjson.dumps(OBJECT)
        for frame in peer.seen:
            got += len(frame.payload) if frame.kind == FrameType.DATA else 0
        assert got == http2.FIRST_WINDOW
        peer.send(
            http2.number(FrameType.WINDOW_UPDATE, 2**20), http2.number(FrameType.WINDOW_UPDATE, 2**20, stream=large)
        )
        while not (await peer.next(FrameType.DATA)).flags & http2.END_STREAM:
            pass
        order.append("all of it")
        peer.answer(large, content)

    async with talking(talk) as access, connect(access) as kube:
        writing = asyncio.create_task(kube.apply({**OBJECT, "data": {"x": "x" * 500_000}}))
        await begun.wait()
        await kube.ping()
        assert await writing == OBJECT
    assert order == ["/readyz", "all of it"]


@pytest.mark.parametrize(("most", "connections"), [(1, 7), (4, 2), (100, 1)])
async def test_a_server_has_no_more_streams_on_a_connection_than_it_takes(most: int, connections: int) -> None:
    under_way = dict[int, int]()

    async def talk(peer: Peer) -> None:
        while True:
            stream, path = await peer.asked()
            if "watch" in path:
                under_way[peer.number] = under_way.get(peer.number, 0) + 1
                assert under_way[peer.number] <= most
                peer.begin(stream)
                peer.body(stream, EVENT, ends=False)
            else:
                peer.answer(stream)

    server = talking(talk, {Setting.MAX_CONCURRENT_STREAMS: most})
    async with server as access, watching(access, 6) as (kube, _):
        await asyncio.gather(*(kube.ping() for _ in range(3)))
        assert connections <= len(spoken(kube)) <= (connections + 2 if most < 10 else 1)


@asynccontextmanager
async def watching(access: Access, number: int = 1) -> AsyncIterator[tuple[Kube, AsyncGenerator[Event]]]:
    """A client with so many watches that have begun, and one of these."""
    async with connect(access) as kube:
        watches = [kube.watch(CONFIG_MAP, "1", seconds=60) for _ in range(number)]
        try:
            await asyncio.gather(*(anext(one) for one in watches))
            yield kube, watches[0]
        finally:
            for one in watches:
                await one.aclose()


async def test_a_server_that_takes_no_streams_is_waited_for_and_not_dialled_again() -> None:
    peers = list[Peer]()

    async def talk(peer: Peer) -> None:
        peers.append(peer)
        await asyncio.sleep(0.2)
        peer.send(http2.settings({Setting.MAX_CONCURRENT_STREAMS: 1}))
        peer.answer((await peer.asked())[0])

    async with talking(talk, {Setting.MAX_CONCURRENT_STREAMS: 0}) as access, connect(access) as kube:
        await kube.ping()
    assert len(peers) == 1


# The end of a connection ---------------------------------------------------------------------------------------------


def goaway(last: int) -> bytes:
    return http2.frame(FrameType.GOAWAY, last.to_bytes(4) + bytes(4))


async def test_a_connection_that_the_server_ends_goes_on_with_what_it_has() -> None:
    asked = dict[int, list[str]]()

    async def talk(peer: Peer) -> None:
        while True:
            stream, path = await peer.asked()
            asked.setdefault(peer.number, []).append(path.partition("?")[0])
            if "watch" in path:
                watch = stream
                peer.begin(watch)
                peer.body(watch, EVENT, ends=False)
            elif peer.number == 1:
                peer.send(goaway(watch))
                peer.body(watch, EVENT)
            else:
                peer.answer(stream)

    async with talking(talk) as access, watching(access) as (kube, events):
        await kube.ping()
        assert [event.manifest async for event in events] == [OBJECT]
        await kube.ping()
        assert len(spoken(kube)) == 1
    assert asked == {1: ["/api/v1/configmaps", "/readyz"], 2: ["/readyz"] * 2}


@pytest.mark.parametrize("refusal", [goaway(0), http2.number(FrameType.RST_STREAM, Code.REFUSED_STREAM, stream=1)])
async def test_a_request_that_is_never_looked_at_is_given_up(refusal: bytes) -> None:
    peers = list[Peer]()

    async def talk(peer: Peer) -> None:
        peers.append(peer)
        while True:
            stream, _ = await peer.asked()
            peer.send(refusal[:5] + stream.to_bytes(4) + refusal[9:] if refusal[3] == FrameType.RST_STREAM else refusal)

    async with talking(talk) as access, connect(access) as kube:
        with pytest.raises(Unreachable, match="before it reads requests"):
            await kube.ping()
    assert len(peers) <= 3


async def test_a_peer_that_answers_no_ping_is_dead_and_others_need_not_wait_for_that(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(http2_liveness, "ANSWER_SECONDS", 0.2)
    monkeypatch.setattr(http2_liveness, "SUSPICIOUS", 0.05)

    async def talk(peer: Peer) -> None:
        watch, _ = await peer.asked()
        if peer.number > 1:
            peer.answer(watch)
            return
        peer.begin(watch)
        peer.body(watch, EVENT, ends=False)

    async with talking(talk) as access, watching(access) as (kube, events):
        with pytest.raises(Unreachable, match="no answer in time"):
            await kube.ping(deadline=0.1)
        await kube.ping()
        with pytest.raises(Unreachable, match="answers no PING"):
            await anext(events)


async def test_a_peer_that_answers_pings_may_take_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http2_liveness, "ANSWER_SECONDS", 0.05)

    async def talk(peer: Peer) -> None:
        stream, _ = await peer.asked()
        asked = await peer.next(FrameType.PING)
        peer.send(http2.frame(FrameType.PING, asked.payload, flags=http2.ACK))
        await asyncio.sleep(0.2)
        peer.answer(stream)

    async with talking(talk) as access, connect(access) as kube:
        await kube.ping()


# Bytes ---------------------------------------------------------------------------------------------------------------


@given(st.lists(st.binary(max_size=300), max_size=8), st.lists(st.integers(1, 50), min_size=1))
def test_frames_are_read_however_they_are_cut(payloads: list[bytes], sizes: list[int]) -> None:
    wire = b"".join(http2.frame(FrameType.DATA, payload, stream=1) for payload in payloads)
    reader, got, at = Frames(), list[bytes](), 0
    for index in count():
        if at >= len(wire):
            break
        size = sizes[index % len(sizes)]
        got += [frame.payload for frame in reader.read(wire[at : at + size])]
        at += size
    assert got == payloads


NAMES = st.from_regex(r"[a-z][a-z-]{0,20}", fullmatch=True)
VALUES = st.text(st.characters(min_codepoint=32, max_codepoint=126), max_size=400)


@given(st.dictionaries(NAMES, VALUES, max_size=8))
def test_headers_are_read_as_they_are_written(fields: dict[str, str]) -> None:
    assert http2_headers.read_block(http2_headers.write_block(fields.items()), fields) == fields


KNOWN = st.sampled_from([":status", "retry-after", "content-type"])


@pytest.mark.parametrize("huffman", [True, False])
@given(fields=st.dictionaries(NAMES | KNOWN, VALUES, max_size=8))
def test_headers_are_read_as_another_encoder_writes_them(fields: dict[str, str], *, huffman: bool) -> None:
    encoder = hpack.Encoder()
    encoder.header_table_size = 0
    block = encoder.encode(list(fields.items()), huffman=huffman)
    assert http2_headers.read_block(block, fields) == fields
    assert http2_headers.read_block(block).keys() == fields.keys() & http2_headers.READ


@given(st.binary(max_size=200))
def test_any_bytes_are_headers_or_are_none(block: bytes) -> None:
    with suppress(ProtocolError):
        http2_headers.read_block(block)


def spoken(kube: Kube) -> list[object]:
    """The connections that are open."""
    found = kube._wire._channel._http2
    assert found is not None
    return [*found._connections]
