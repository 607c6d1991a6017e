"""Frames of our own beside the `h2` package, which decision 98 chooses between: `python -m benchmarks.http2`.

The clients take turns, each in a process of its own against one real API server, and medians count, as the machine may
have others to work for. `frames` is ours; `h2 (hpack)` the package as it is, with GOAWAY as we need it; `h2 (ours)` the
same with our own way with headers. `--operator B2 20 --kind KIND` runs one of the operator's own benchmarks on one of
them (for `frames` KIND is empty), `--hostile` takes what a bad server may send.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import os
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, cast

from yarl import URL

from benchmarks import over_h2
from benchmarks.report import ROOT, Figure
from localfleet.apiserver import api_server
from modelplane_operator.clients import http2 as pool
from modelplane_operator.clients import http2_frames as frames
from modelplane_operator.clients.access import Access, read_kubeconfig
from modelplane_operator.clients.channel import Channel, open_channel, speak_http2
from modelplane_operator.clients.http2_frames import FrameType
from modelplane_operator.clients.http2_headers import write_block as our_block
from modelplane_operator.clients.transport import Outgoing, Response
from tests.support.fuzz import HostileWire

NAMES = {"": "frames", **{kind: f"h2 ({kind})" for kind in over_h2.KINDS}}
MAPS = "/api/v1/namespaces/default/configmaps"
HEADERS = {"accept": "application/json", "user-agent": "modelplane-operator"}
WATCHES, CONNECTIONS, GETS, APPLIES, REPLAYS = 12, 100, 400, 200, 3
REST = 10.0  # seconds for which the operator rests
LAST = ("open files", "CPU for each idle cluster")
AT_ONCE = 256 * 1024  # what asyncio hands over of a socket
Figures = dict[str, float]


# Honest servers ------------------------------------------------------------------------------------------------------


def _asking(access: Access, path: str, method: str = "GET", payload: bytes | None = None, **more: str) -> Outgoing:
    watches = "watch=" in path
    return Outgoing(method, URL(access.server + path, encoded=True), {**HEADERS, **more}, payload, stays=watches)


async def _whole(response: Response) -> bytes:
    said = b""
    while part := await response.chunk():
        said += part
    if response.status >= 300:
        sys.exit(f"the API server answers {response.status}: {said[:200]!r}")
    return said


async def _watched(channel: Channel, access: Access) -> list[Response]:
    """So many idle watches."""
    path = f"{MAPS}?watch=1&allowWatchBookmarks=true&resourceVersion=0&labelSelector=no%3Done"
    return [await channel.send(_asking(access, path)) for _ in range(WATCHES)]


async def requests(access: Access) -> Figures:
    """CPU of each request, beside idle watches."""
    found = Figures()
    async with open_channel(access, None, lambda *_: "") as channel:
        watches = await _watched(channel, access)
        get = _asking(access, f"{MAPS}/one")

        async def apply(number: int) -> bytes:
            manifest = {
                "apiVersion": "v1",
                "kind": "ConfigMap",
                "metadata": {"name": "one"},
                "data": {"n": f"{number}"},
            }
            path = f"{MAPS}/one?fieldManager=bench&force=true"
            kind = {"content-type": "application/apply-patch+yaml"}
            asking = _asking(access, path, "PATCH", json.dumps(manifest).encode(), **kind)
            return await _whole(await channel.send(asking))

        async def timed(what: str, times: int, work: Callable[[int], Any]) -> None:
            began = time.process_time()
            for number in range(times):
                await work(number)
            found[f"CPU of {what}, µs"] = (time.process_time() - began) / times * 1e6

        async def replay(version: str) -> None:
            """Read what has changed since, one event after the other."""
            events = 0
            watch = await channel.send(_asking(access, f"{MAPS}?watch=1&resourceVersion={version}"))
            while events < APPLIES:
                events += (await watch.chunk()).count(b"\n")
            watch.cut()

        version = json.loads(await apply(os.getpid()))["metadata"]["resourceVersion"]
        for _ in range(20):
            await _whole(await channel.send(get))
        await timed("a GET", GETS, lambda _: _get(channel, get))
        await timed("an apply", APPLIES, lambda number: apply(os.getpid() * 1000 + number))
        began = time.process_time()
        for _ in range(REPLAYS):
            await replay(version)
        found["CPU of a watch event, µs"] = (time.process_time() - began) / REPLAYS / APPLIES * 1e6
        for watch in watches:
            watch.cut()
    return found


async def _get(channel: Channel, asking: Outgoing) -> bytes:
    return await _whole(await channel.send(asking))


async def connections(access: Access) -> Figures:
    """What so many connections with idle watches take."""

    async def connected() -> AsyncIterator[Channel]:
        async with open_channel(access, None, lambda *_: "") as channel:
            watches = await _watched(channel, access)
            await _get(channel, _asking(access, f"{MAPS}/one"))
            yield channel
            del watches

    kept = [connected() for _ in range(CONNECTIONS + 1)]
    await anext(kept[0])
    gc.collect()
    memory, began = _resident(), time.process_time()
    for one in kept[1:]:
        await anext(one)
    cpu = time.process_time() - began
    gc.collect()
    found = {
        "memory of a connection, KiB": (_resident() - memory) / CONNECTIONS / 1024,
        "CPU to connect one, ms": cpu / CONNECTIONS * 1e3,
    }
    for one in kept:
        await one.aclose()  # type: ignore[attr-defined]
    return found


def _resident() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


# Hostile ones --------------------------------------------------------------------------------------------------------


_BEGUN = frames.frame(FrameType.HEADERS, b"\x20" + our_block([(":status", "200")]), flags=frames.END_HEADERS, stream=1)
HOSTILE: Mapping[str, Callable[[int], bytes]] = {
    "SETTINGS of 2,730 entries": lambda number: frames.frame(
        FrameType.SETTINGS,
        b"".join((6 + (number * 2730 + at) % 65_000).to_bytes(2) + b"\0\0\0\1" for at in range(2730)),
    ),
    "DATA of one byte": lambda number: frames.frame(FrameType.DATA, b"x", stream=1) if number else _BEGUN,
    "CONTINUATION of nothing": lambda number: frames.frame(
        FrameType.CONTINUATION if number else FrameType.HEADERS, stream=1
    ),
    "PING": lambda _: frames.frame(FrameType.PING, b"\0" * 8),
    "PRIORITY": lambda _: frames.frame(FrameType.PRIORITY, b"\0" * 5, stream=1),
    "unknown types": lambda _: b"\0\0\0\x63" + b"\0" * 5,
}


async def hostile(_: Access) -> Figures:
    """The longest turn of the loop that a megabyte takes, all of it, and what it leaves."""
    found = Figures()
    for what, made in HOSTILE.items():
        wire, connection = HostileWire(), pool.Http2Connection(None, lambda: None, lambda _: None)
        connection.connection_made(wire)
        connection.data_received(frames.settings({}))
        fields: Any = [(":method", "GET"), (":path", "/")]
        block = our_block(fields) if pool.Http2Connection is not over_h2.OverH2 else fields
        asking = asyncio.ensure_future(connection.send(block, None))
        await asyncio.sleep(0)
        data, turns = bytearray(), [0.0]
        for number in range(2**20):
            if len(data) >= 2**20:
                break
            data += made(number)
        memory, begin = _resident(), time.process_time()
        for at in range(0, len(data), AT_ONCE):
            while wire.paused and not wire.closed:  # noqa: ASYNC110 - until it reads on
                await asyncio.sleep(0)
            if not wire.closed:
                began = time.process_time()
                connection.data_received(bytes(data[at : at + AT_ONCE]))
                turns.append(time.process_time() - began)
        found[f"{what}: a MiB, CPU, ms"] = (time.process_time() - begin) * 1e3
        found[f"{what}: longest turn, ms"] = max(turns) * 1e3
        found[f"{what}: memory, KiB"] = max(_resident() - memory, 0) / 1024
        connection.connection_lost(None)
        await asyncio.gather(asking, return_exceptions=True)
    return found


# Turns ---------------------------------------------------------------------------------------------------------------


TASKS = {"requests": requests, "connections": connections, "hostile": hostile}


def _child(kind: str, task: str, kubeconfig: Path) -> None:
    if kind:
        over_h2.speak(kind)
    speak_http2(True)  # noqa: FBT003 - it is what the name says
    gc.set_threshold(20_000, 20, 100)
    print(json.dumps(asyncio.run(TASKS[task](read_kubeconfig(kubeconfig.read_text())))))


def _in_own_process(kind: str, *task: str) -> Figures:
    argv = [sys.executable, "-m", "benchmarks.http2", f"--kind={kind}", "--child", *task]
    return json.loads(subprocess.run(argv, stdout=subprocess.PIPE, check=True, cwd=ROOT).stdout)


def _operator(kind: str, benchmark: str, size: int) -> None:
    """One benchmark of the operator, which speaks so, as far as it is about memory and CPU."""
    from benchmarks.live import at_rest, operator, outages, scene  # noqa: PLC0415 - an operator's child needs none

    if kind:
        spoken = partial(operator.operator, module="benchmarks.over_h2", environment={"H2_HEADERS": kind})
        scene.operator = spoken  # type: ignore[assignment]
    run = {"B2": at_rest.at_rest, "B8": outages.watches}[benchmark]

    async def say() -> None:
        async with aclosing(cast(AsyncGenerator[Figure], run(size, REST))) as figures:
            async for figure in figures:
                print(f"{figure.metric}: {figure.value:,} {figure.unit}", flush=True)
                if figure.metric.startswith(LAST):
                    return

    asyncio.run(say())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="of each client (default: 5)")
    parser.add_argument("--operator", nargs=2, metavar=("ID", "SIZE"), help="B2 or B8 of the operator, with --kind")
    parser.add_argument("--hostile", action="store_true", help="what a bad server may send, and no more")
    parser.add_argument("--kind", choices=NAMES, help="one client alone")
    parser.add_argument("--child", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.child:
        _child(given.kind, given.child[0], Path(given.child[1]))
        return
    if given.operator and given.kind is not None:
        _operator(given.kind, given.operator[0], int(given.operator[1]))
        return
    print(f"load of {os.cpu_count()} processors: {os.getloadavg()[0]:.1f}", flush=True)
    tasks = ["hostile"] if given.hostile else ["requests", "connections"]
    found = {kind: defaultdict[str, list[float]](list) for kind in NAMES}
    with api_server() as server:
        for number in range(given.rounds):
            for kind in [*NAMES][:: 1 if number % 2 else -1]:
                for task in tasks:
                    for what, value in _in_own_process(kind, task, str(server.kubeconfig)).items():
                        found[kind][what].append(value)
    print(f"{'':38}" + "".join(f"{name:>22}" for name in NAMES.values()))
    for what, values in found[""].items():
        ours = median(values)
        cells = (median(found[kind][what]) for kind in NAMES)
        print(f"{what:38}" + "".join(f"{one:12.1f} ({one / (ours or 1):6.2f})" for one in cells))


if __name__ == "__main__":
    main()
