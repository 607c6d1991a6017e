"""The hydrator's process beside `cp`: a model on the machine's disk, from a hub on loopback to a volume there."""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from benchmarks.report import Figure

REPO, COMMIT = "bench/model", "b" * 40
PIECE = 1 << 20
GB = 10**9
SMALL, LARGE = 500, 4  # files: half a tenth of the bytes is in the small ones
COPY_AND_HASH = 'cp -r "$1" "$2" && find "$2" -type f -print0 | xargs -0 -n1 -P4 sha256sum'
SOURCES = ("Hugging Face", "a manifest")


async def hydration(gigabytes: int) -> AsyncIterator[Figure]:
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR"), prefix="modelplane-bench-") as place:
        model, volume = Path(place) / "model", Path(place) / "volume"
        digests = await asyncio.to_thread(_written, model, gigabytes * GB)
        fills, resident = dict[str, float](), 0.0
        server = await _serving(model, digests)
        assert server.stdout is not None
        url = (await server.stdout.readline()).decode().strip()
        try:
            copied = await asyncio.to_thread(_timed, ["cp", "-r", str(model), str(volume)], volume)
            hashed = await asyncio.to_thread(_timed, ["sh", "-c", COPY_AND_HASH, "sh", str(model), str(volume)], volume)
            for source in SOURCES:
                fills[source], peak = await asyncio.to_thread(_timed, _hydrator(source, url, volume), volume)
                resident = max(resident, peak)
        finally:
            server.kill()
            await server.wait()

    def figure(metric: str, value: float, unit: str) -> Figure:
        return Figure("B18", gigabytes, metric, value, unit, layer="live")

    yield figure("cp -r, and sync", copied[0], "s")
    yield figure("cp -r, sha256sum of four copies at once, and sync", hashed[0], "s")
    for source, seconds in fills.items():
        yield figure(f"filled from {source}, every file verified, and sync", seconds, "s")
        yield figure(f"filled from {source}: by the time of cp", seconds / copied[0], "times")
        yield figure(f"filled from {source}: by the time of cp and sha256sum", seconds / hashed[0], "times")
    yield figure("resident at most", resident, "MB")


def _hydrator(source: str, url: str, volume: Path) -> list[str]:
    where = [f"--repo={REPO}", f"--endpoint={url}"]
    if source != SOURCES[0]:
        where = ["--source=HTTP", f"--manifest={url}/manifest.json", "--any-address"]
    volume.mkdir()
    told = [f"--volume={volume}", "--content=bench", f"--termination-message={volume}.word"]
    return [sys.executable, "-m", "modelplane_operator.hydrate", *told, *where]


def _timed(command: list[str], volume: Path) -> tuple[float, float]:
    """Seconds until what a command writes is on the disk, and the MB that it had at most; the volume goes then."""
    os.sync()
    began = time.perf_counter()
    pid = os.posix_spawnp(command[0], command, os.environ, file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, 1, 0)])
    _, status, used = os.wait4(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{command[0]} has failed: {Path(f'{volume}.word').read_text()}")
    os.sync()
    seconds = time.perf_counter() - began
    shutil.rmtree(volume)
    return seconds, used.ru_maxrss / 1000


def _written(model: Path, size: int) -> Mapping[str, tuple[int, str]]:
    """A made-up model: its files' sizes and hashes."""
    chance, digests = random.Random(1), dict[str, tuple[int, str]]()  # noqa: S311 - no secret
    piece = chance.randbytes(PIECE)
    model.mkdir()
    small = size // 20 // SMALL
    for name, length in [
        *((f"part-{number}.json", small) for number in range(SMALL)),
        *((f"model-{number}.safetensors", (size - small * SMALL) // LARGE) for number in range(LARGE)),
    ]:
        digest, left = hashlib.sha256(), length
        with (model / name).open("wb") as file:
            while left:
                chunk = (left.to_bytes(8) + piece)[: min(left, PIECE)]
                file.write(chunk)
                digest.update(chunk)
                left -= len(chunk)
        digests[name] = length, digest.hexdigest()
    return digests


# The hub, in a process of its own -------------------------------------------------------------------------------------


async def _serving(model: Path, digests: Mapping[str, tuple[int, str]]) -> asyncio.subprocess.Process:
    facts = model.with_name("facts.json")
    facts.write_text(json.dumps(digests))
    command = (sys.executable, "-m", "benchmarks.live.hydration", str(model), str(facts))
    return await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    model = Path()
    digests: Mapping[str, tuple[int, str]] = {}

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        path = self.path.partition("?")[0]
        name = path.rpartition("/")[2]
        if path.startswith("/api/"):
            self._json({"id": REPO, "sha": COMMIT, "siblings": [*map(self._sibling, self.digests)]})
        elif name == "manifest.json":
            every = [{"path": one, "size": size, "sha256": digest} for one, (size, digest) in self.digests.items()]
            self._json({"files": every})
        else:
            size, digest = self.digests[name]
            self._headers(size, digest)
            if body:
                self.wfile.flush()
                with (self.model / name).open("rb") as file:
                    sent = 0
                    while sent < size:
                        sent += os.sendfile(self.connection.fileno(), file.fileno(), sent, size - sent)

    def _sibling(self, name: str) -> dict[str, Any]:
        size, digest = self.digests[name]
        return {
            "rfilename": name,
            "size": size,
            "blobId": "",
            "lfs": {"size": size, "sha256": digest, "pointerSize": 1},
        }

    def _json(self, content: Any) -> None:
        told = json.dumps(content).encode()
        self._headers(len(told), COMMIT)
        self.wfile.write(told)

    def _headers(self, length: int, tag: str) -> None:
        self.send_response(200)
        for name, value in {"Content-Length": str(length), "ETag": f'"{tag}"', "X-Repo-Commit": COMMIT}.items():
            self.send_header(name, value)
        self.end_headers()

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002
        """Nobody reads it."""


def _serve(model: str, facts: str) -> None:
    _Handler.model, _Handler.digests = Path(model), json.loads(Path(facts).read_text())
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


if __name__ == "__main__":
    _serve(*sys.argv[1:])
