"""What servers of strangers send is read in a process of its own, and comes to the same as if it were read here."""

from __future__ import annotations

import asyncio
import os
import resource
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
from aiohttp import web
from yarl import URL

from kubeloop.client import channel_process
from kubeloop.client.access import Access
from kubeloop.client.channel import OpenChannel, open_channel
from kubeloop.client.channel_child import OF_A_PROCESSOR, Paced
from kubeloop.client.channel_messages import CHUNK, Garbled, Message, write_message
from kubeloop.client.channel_process import MEMORY, NICENESS, NOISE, ChannelProcess, Life, RemoteChannel
from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import MIB, Bucket, Share
from kubeloop.client.transport import Outgoing
from kubeloop.errors import ClientError, KubeconfigError, Misbehaving, Unreachable
from tests.kubeloop.client.http2_peer import Peer, talking
from tests.support.hostile_server import KINDS, hostile
from tests.support.waiting import until

pytestmark = pytest.mark.processes
BOTH = pytest.mark.parametrize("protocol", ["h2", "http/1.1"], indirect=True)


def anywhere(_: str, __: Sequence[str]) -> str:
    return ""


@asynccontextmanager
async def processing(judge: channel_process.Judge = anywhere) -> AsyncIterator[ChannelProcess]:
    process = ChannelProcess("the process", judge, lambda: 0.5)
    running = asyncio.create_task(process.run())
    try:
        yield process
    finally:
        running.cancel()
        await asyncio.wait([running])


@pytest.fixture
async def process() -> AsyncIterator[ChannelProcess]:
    async with processing() as process:
        yield process


def child(of: int = 0) -> int:
    """Return the id of the process that reads for another, or for this one; 0 while there is none.

    That of the test before may still be on its way out: the last one counts.
    """
    found = [0]
    for folder in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            parent, ended = about(int(folder.name), "PPid"), about(int(folder.name), "State").startswith("Z")
            if parent == str(of or os.getpid()) and not ended and is_child(int(folder.name)):
                found.append(int(folder.name))
    return max(found)


def is_child(pid: int) -> bool:
    with suppress(OSError):
        return b"client.channel_child" in (Path("/proc") / str(pid) / "cmdline").read_bytes()
    return False


def about(pid: int, what: str) -> str:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(line for line in lines if line.startswith(what)).partition(":")[2].strip()


def bounds_of(pid: int) -> dict[str, str]:
    lines = Path(f"/proc/{pid}/limits").read_text().splitlines()
    return {line[:26].strip(): line[26:].split()[0] for line in lines}


def told_of(pid: int) -> tuple[str, list[str]]:
    """Return its place in the kernel's list of whom to end, and its environment."""
    score, environment = (Path(f"/proc/{pid}/{one}").read_text() for one in ("oom_score_adj", "environ"))
    return score.strip(), environment.split("\0")


async def answering(peer: Peer) -> None:
    while True:
        stream, _ = await peer.asked()
        peer.answer(stream, b'{"gitVersion": "v1.33.0"}')


def share() -> Share:
    return Share(time.monotonic, Bucket(20, 20))


async def said(access: Access, opens: OpenChannel) -> str:
    """What becomes of a question there."""
    try:
        async with connect(access, opens=opens, share=share()) as kube:
            await kube.ping(deadline=10.0)
            return "it answers"
    except ClientError as error:
        return f"{type(error).__name__}: {error}"


# As it is without -----------------------------------------------------------------------------------------------------


async def talk_of_nothing(peer: Peer) -> None:
    await peer.asked()
    peer.send(b"\0\0\0\4\1\0\0\0\0" * 2000)


async def gone_at_once(peer: Peer) -> None:
    await peer.asked()
    peer.writer.transport.abort()


@pytest.mark.parametrize("talk", [answering, talk_of_nothing, gone_at_once])
async def test_an_answer_and_its_lack_are_told_in_the_same_words(
    process: ChannelProcess, talk: Callable[[Peer], AsyncIterator[None]]
) -> None:
    async with talking(talk) as access:  # pyright: ignore[reportArgumentType]
        assert await said(access, process.open) == await said(access, open_channel)


@pytest.mark.parametrize(
    "changed",
    [
        {"server": "https://127.0.0.1:1"},
        {"server": "https://no-such-name.invalid"},
        {"authority": ""},
        {"authority": "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n"},
        {"certificate": "a", "key": "b"},
        {"server_name": "other.example.com"},
        {"verify": False},
    ],
    ids=" ".join,
)
async def test_what_is_wrong_with_a_way_is_told_in_the_same_words(
    process: ChannelProcess, changed: dict[str, str]
) -> None:
    async with talking(answering) as right:
        access = replace(right, **changed)  # pyright: ignore[reportArgumentType]
        assert await said(access, process.open) == await said(access, open_channel)


async def test_what_is_no_http_is_told_to_whoever_listens(process: ChannelProcess) -> None:
    async with talking(talk_of_nothing) as access, connect(access, opens=process.open, share=share()) as kube:
        with pytest.raises(Misbehaving):
            await kube.ping()
        with pytest.raises(Misbehaving, match="many frames that carry nothing"):
            async with asyncio.timeout(30):
                await kube.misbehaves()


async def test_a_header_that_is_no_text_is_none(process: ChannelProcess) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 429 No\r\nRetry-After: \xff\xfe\r\nContent-Length: 0\r\n\r\n")
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        async with process.open(Access(url), None) as channel:
            response = await channel.send(Outgoing("GET", URL(f"{url}/readyz"), {}))
            assert (response.status, response.header("retry-after")) == (429, None)


@BOTH
async def test_long_answers_come_whole_and_in_parts(process: ChannelProcess) -> None:
    content = os.urandom(MIB) + b"a" * MIB + b"the end"

    async def answer(request: web.Request) -> web.Response:
        body = await request.read()
        made = web.Response(body=content + body, headers={"retry-after": "7"})
        made.enable_compression()
        return made

    app = web.Application(client_max_size=8 * MIB)
    app.router.add_route("*", "/{tail:.*}", answer)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    address = f"http://127.0.0.1:{runner.addresses[0][1]}"
    sent = os.urandom(3 * MIB)
    async with process.open(Access(address), share()) as channel:
        response = await channel.send(Outgoing("POST", URL(f"{address}/a%2Fb?c=d"), {"accept": "*/*"}, sent))
        parts = list[bytes]()
        while part := await response.chunk():
            parts.append(part)
    await runner.cleanup()

    assert (response.status, response.header("retry-after"), response.header("date")) == (200, "7", None)
    assert b"".join(parts) == content + sent
    assert {len(part) for part in parts[:-1]} == {CHUNK}


# Which addresses are dialled ------------------------------------------------------------------------------------------


async def test_the_addresses_that_are_dialled_are_judged_as_it_is_known_then() -> None:
    asked, refused = list[tuple[str, Sequence[str]]](), ["it leads inside"]

    def judge(name: str, addresses: Sequence[str]) -> str:
        asked.append((name, addresses))
        return refused[0]

    async with talking(answering) as right, processing(judge) as process:
        access = replace(right, server=right.server.replace("127.0.0.1", "localhost"), server_name="127.0.0.1")
        async with connect(access, opens=process.open, share=share()) as kube:
            with pytest.raises(Unreachable, match="it leads inside"):
                await kube.ping()
            refused[0] = ""
            await kube.ping()
    assert asked[0][0] == "localhost"
    assert "127.0.0.1" in asked[0][1]


# Bounds ---------------------------------------------------------------------------------------------------------------


async def asked_for(access: Access, opens: OpenChannel) -> float:
    """Return how many seconds of a processor it costs this process to ask a server some times."""
    async with connect(access, opens=opens, share=share()) as kube:
        began = time.process_time()
        for _ in range(5):
            with suppress(ClientError):
                await kube.ping(deadline=1.0)
        return time.process_time() - began


@pytest.mark.parametrize("kind", KINDS)
async def test_what_costs_most_costs_this_process_next_to_nothing(process: ChannelProcess, kind: str) -> None:
    with hostile(kind) as access:
        apart, here = await asked_for(access, process.open), await asked_for(access, open_channel)
    assert apart < here / 4


async def test_the_process_has_bounds(process: ChannelProcess) -> None:
    async with talking(answering) as access, connect(access, opens=process.open, share=share()) as kube:
        await kube.ping()
        bounds, (first, environment) = bounds_of(child()), told_of(child())
        niceness = os.getpriority(os.PRIO_PROCESS, child())

    assert bounds["Max data size"] == str(MEMORY)
    assert (bounds["Max core file size"], bounds["Max open files"]) == ("0", "4096")
    assert (niceness, first) == (NICENESS, "1000")
    assert {one.partition("=")[0] for one in environment if one} <= set(channel_process.PASSED)


def test_its_loop_waits_when_it_has_had_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    slept, used, now = list[float](), [0.0], [0.0]
    monkeypatch.setattr(time, "sleep", slept.append)
    monkeypatch.setattr(time, "process_time", lambda: used[0])
    monkeypatch.setattr(time, "monotonic", lambda: now[0])
    monkeypatch.setattr(signal, "setitimer", lambda *_: None)
    with Paced() as selector:
        for _ in range(100):
            selector.select(0)
            used[0] += 0.1
            now[0] += 0.1 + sum(slept)
            slept.clear()
    assert used[0] / now[0] < 1.5 * OF_A_PROCESSOR


SPINNING = """
import asyncio
from kubeloop.client import channel_child

def spin():
    while True:
        pass

channel_child.LONGEST_TURN = 0.2
loop = asyncio.SelectorEventLoop(channel_child.Paced())
loop.call_later(0.1, spin)
loop.run_forever()
"""


async def test_the_kernel_ends_it_where_its_loop_does_not_turn() -> None:
    spinning = await asyncio.create_subprocess_exec(sys.executable, "-c", SPINNING)
    assert await spinning.wait() == -signal.SIGPROF


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGPROF, "what some server sends took too long to read"), (signal.SIGABRT, "it ended with -6")],
)
async def test_what_ended_it_is_told(process: ChannelProcess, number: int, words: str) -> None:
    async with talking(answering) as access, connect(access, opens=process.open, share=share()) as kube:
        await kube.ping()
        os.kill(child(), number)
        with pytest.raises(Unreachable, match=words):
            await kube.ping()


async def test_memory_without_end_ends_that_process_alone_and_the_answer_says_so(process: ChannelProcess) -> None:
    async def flood(peer: Peer) -> None:
        stream, _ = await peer.asked()
        peer.answer(stream)
        while True:
            stream, _ = await peer.asked()
            peer.begin(stream)
            peer.body(stream, b"a" * 250_000, ends=False)

    async with talking(flood) as access, process.open(access, share()) as channel:
        asking = Outgoing("GET", URL(access.server + "/api"), {})
        (await channel.send(asking)).abort()
        # Nothing that is known fills what it may have, so that it may have less.
        pid = child()
        bound = int(about(pid, "VmData").split()[0]) * 1024 + MIB
        resource.prlimit(pid, resource.RLIMIT_DATA, (bound, bound))
        with pytest.raises(OSError, match=r"the process has ended: it took more than the 256 MiB of memory"):
            async with asyncio.timeout(60):
                while True:
                    await channel.send(asking)
        assert await said(access, process.open) == "it answers"


# Ends -----------------------------------------------------------------------------------------------------------------


async def test_a_killed_process_is_followed_by_another_and_what_was_under_way_breaks_off(
    process: ChannelProcess,
) -> None:
    async def never(peer: Peer) -> None:
        stream, path = await peer.asked()
        if path != "/readyz":
            await asyncio.Event().wait()
        peer.answer(stream)

    async with talking(never) as access, connect(access, opens=process.open, share=share()) as kube:
        await kube.ping()
        under_way = asyncio.create_task(kube.version())
        await asyncio.sleep(0.1)
        os.kill(before := child(), signal.SIGKILL)
        with pytest.raises(Unreachable, match="the process has ended: it was killed"):
            await under_way
        await kube.ping()
        assert child() not in {0, before}


async def test_one_that_ends_again_at_once_is_waited_for(process: ChannelProcess) -> None:
    async with talking(answering) as access, connect(access, opens=process.open, share=share()) as kube:
        for _ in range(2):
            await answers(kube)
            os.kill(child(), signal.SIGKILL)
            with pytest.raises(Unreachable, match="the process has ended"):
                await kube.ping()
        with pytest.raises(Unreachable, match="the process has ended"):
            await kube.ping()
        assert not child()
        await answers(kube)


async def answers(kube: Kube) -> None:
    """Return when the server answers."""
    async with asyncio.timeout(60):
        while True:
            with suppress(Unreachable):
                await kube.ping()
                return
            await asyncio.sleep(0.05)


async def test_it_ends_with_its_owner(process: ChannelProcess) -> None:
    async with processing() as other, talking(answering) as access:
        assert await said(access, other.open) == "it answers"
        pid = child()
    assert pid
    assert not is_child(pid)


OWNER = """
import asyncio, sys
from kubeloop.client.access import Access
from kubeloop.client.channel_process import ChannelProcess

async def main():
    process = ChannelProcess("it", lambda *_: "", lambda: 0.5)
    running = asyncio.create_task(process.run())
    async with process.open(Access("https://127.0.0.1:1"), None):
        print("open", flush=True)
        await running

asyncio.run(main())
"""


async def test_it_ends_when_its_owner_is_killed() -> None:
    owner = await asyncio.create_subprocess_exec(sys.executable, "-c", OWNER, stdout=asyncio.subprocess.PIPE)
    assert owner.stdout is not None
    assert await owner.stdout.readline() == b"open\n"
    pid = child(owner.pid)
    assert pid
    owner.kill()
    await owner.wait()
    await until(lambda: not is_child(pid), "it to be gone")


async def test_nothing_is_started_before_a_channel_is_opened(process: ChannelProcess) -> None:
    await asyncio.sleep(0.1)
    assert not child()


# What it may not say --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "message",
    [
        ([], b""),
        (["answer"], b""),
        (["answer", 1, "200", []], b""),
        (["answer", 1, 200, {}], b""),
        (["answer", 1, 200, [7]], b""),
        (["failed", 1, "SystemExit", "a"], b""),
        (["failed", 1, "network", {}], b""),
        (["failed", 1, "network", "a"], b"a"),
        (["judge", 1, 1, "a", [1]], b""),
        (["judge", 1, 1, [], []], b""),
        (["broken", "1", "a"], b""),
        (["open", 1], b""),
    ],
)
async def test_what_is_none_of_its_messages_is_refused(message: Message) -> None:
    with pytest.raises(Garbled):
        life()._take(message)  # pyright: ignore[reportPrivateUsage]


@pytest.mark.parametrize(
    "message",
    [(["answer", 7, 200, []], b"a"), (["judge", 1, 1, "a", []], b""), (["broken", 1, "a"], b"")],
)
async def test_what_nobody_has_asked_for_is_ignored_and_bounded(message: Message) -> None:
    one = life()
    for _ in range(int(NOISE[1])):
        one._take(message)  # pyright: ignore[reportPrivateUsage]
    with pytest.raises(Garbled, match="nobody has asked"):
        for _ in range(int(NOISE[1])):
            one._take(message)  # pyright: ignore[reportPrivateUsage]


async def test_others_have_a_turn_after_each_judgement_however_many_have_come_at_once() -> None:
    """Each is compared with all that the hub's networks are; a reader of what has come already never waits."""
    one, reader, turns, judged = life(), asyncio.StreamReader(), 0, list[str]()
    one.channels[1] = cast(RemoteChannel, object())
    one._judge = lambda name, _: judged.append(name) or ""  # pyright: ignore[reportPrivateUsage]
    for _ in range(300):
        reader.feed_data(write_message("judge", 1, 1, "a.example.com", ["8.8.8.8"]))
    listening = asyncio.create_task(one.read_messages(reader))
    while len(judged) < 300:
        turns += 1
        await asyncio.sleep(0)
    listening.cancel()

    assert turns >= 300


def life() -> Life:
    writer = cast(asyncio.StreamWriter, SimpleNamespace(write=lambda _: None))
    return Life(writer, anywhere)


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("sizes", "as it said what it may not: a message is larger than any"),
        ("json", "as it said what it may not: a message is not JSON"),
        ("a part too large", "as it said what it may not: a message is larger than any"),
        ("an end", "as it listens no more"),
    ],
)
async def test_one_that_says_what_it_may_not_is_ended(
    process: ChannelProcess, kind: str, words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(channel_process, "MODULE", "tests.support.garbled_child")
    monkeypatch.setattr(channel_process, "PASSED", (*channel_process.PASSED, "GARBLED"))
    monkeypatch.setenv("GARBLED", kind)
    assert f"the process was ended, {words}" in await said(Access("https://127.0.0.1:1"), process.open)


async def test_certificates_that_cannot_be_used_are_told_at_once(process: ChannelProcess) -> None:
    with pytest.raises(KubeconfigError, match="certificates cannot be used"):
        async with process.open(Access("https://127.0.0.1:1", certificate="a", key="b"), share()):
            pass
