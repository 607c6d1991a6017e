"""The fault proxy from a test's side: start it, tell it what to break, ask what it saw."""

import asyncio
import sys
import time
from collections.abc import AsyncGenerator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import orjson

from localfleet.faultproxy.calls import Call, Record
from localfleet.faultproxy.rules import Rule

START_SECONDS = 30.0
REQUEST_SECONDS = 90.0


class FaultProxyError(Exception):
    """The proxy did not start, or refused what it was asked."""


class FaultProxy:
    """A running fault proxy. `kubeconfig` is for the client whose calls it breaks."""

    def __init__(self, kubeconfig: Path, session: aiohttp.ClientSession) -> None:
        self.kubeconfig = kubeconfig
        self._session = session

    async def add(self, rule: Rule) -> int:
        """Put a rule in force; answers its id."""
        return (await self._ask("POST", "/rules", rule.to_json()))["id"]

    async def remove(self, rule: int) -> int:
        """Take a rule back, releasing what it holds; answers how often it fired."""
        return (await self._ask("DELETE", f"/rules/{rule}"))["fired"]

    async def clear(self) -> None:
        """Take all rules back."""
        await self._ask("DELETE", "/rules")

    async def rules(self) -> list[dict[str, Any]]:
        """The rules in force, with how often each was asked and fired."""
        return await self._ask("GET", "/rules")

    async def fired(self, rule: int) -> int:
        """How often a rule has fired."""
        return next((entry["fired"] for entry in await self.rules() if entry["id"] == rule), 0)

    async def calls(self, *, mutating: bool = False, since: int = 0) -> list[Record]:
        """The finished calls from a position on; `mutating`: the numbered ones only."""
        answer = await self._ask("GET", f"/calls?since={since}&mutating={int(mutating)}")
        return [_read_record(record) for record in answer["calls"]]

    async def wait_for(
        self, what: str, holds: Callable[[Record], bool], *, since: int = 0, seconds: float = 30
    ) -> Record:
        """The first finished call from a position on of which `holds` is true; fails saying what it waited for."""
        deadline = time.monotonic() + seconds
        while (left := deadline - time.monotonic()) > 0:
            answer = await self._ask("GET", f"/calls?since={since}&wait={left:.3f}")
            for record in map(_read_record, answer["calls"]):
                if holds(record):
                    return record
            since = answer["next"]
        raise FaultProxyError(f"waited {seconds:g} s for {what}")

    async def position(self) -> int:
        """How many calls are recorded: where `since` begins for what comes next."""
        return (await self.status())["calls"]

    async def status(self) -> dict[str, Any]:
        """Counts: calls, in_flight, mutating_calls, open_watches; and the seed."""
        return await self._ask("GET", "/status")

    async def reset(self, *, seed: int | None = None) -> None:
        """Forget calls, numbers and rules; begin again with this seed."""
        await self._ask("POST", "/reset", {} if seed is None else {"seed": seed})

    async def _ask(self, method: str, path: str, body: dict[str, Any] | None = None) -> Any:
        data = None if body is None else orjson.dumps(body)
        async with (
            asyncio.timeout(REQUEST_SECONDS),
            self._session.request(method, f"http://control{path}", data=data) as response,
        ):
            answer = await response.read()
            if response.status != 200:
                raise FaultProxyError(f"{method} {path}: {response.status} {answer.decode()}")
            return orjson.loads(answer)


@asynccontextmanager
async def attach(kubeconfig: Path, control_socket: Path) -> AsyncGenerator[FaultProxy]:
    """A client of a proxy that somebody else started with a unix control socket."""
    async with aiohttp.ClientSession(connector=aiohttp.UnixConnector(str(control_socket))) as session:
        yield FaultProxy(kubeconfig, session)


@asynccontextmanager
async def start(
    upstream: Path,
    folder: Path,
    *,
    seed: int = 0,
    record_bodies: bool = False,
    inside: Callable[[list[str]], list[str]] = list,
) -> AsyncGenerator[FaultProxy]:
    """A proxy before the API server of a kubeconfig; it keeps its files in `folder`, and is ended at the end.

    `inside` turns its command into one that runs elsewhere: `Fleet.inside` for a fleet's network.
    """
    kubeconfig, control_socket = folder / "faultproxy.kubeconfig", folder / "faultproxy.sock"
    options = ["--upstream-kubeconfig", upstream, "--write-kubeconfig", kubeconfig, "--control-socket", control_socket]
    command = [
        sys.executable,
        "-m",
        "localfleet.faultproxy",
        *map(str, options),
        f"--seed={seed}",
        f"--record={folder / 'faultproxy.jsonl'}",
        *(["--record-bodies"] if record_bodies else []),
    ]
    process = await asyncio.create_subprocess_exec(*inside(command), stdout=asyncio.subprocess.PIPE)
    assert process.stdout is not None  # noqa: S101 - asked for above
    try:
        async with asyncio.timeout(START_SECONDS):
            said = await process.stdout.readline()
        if not said.startswith(b"ready"):
            raise FaultProxyError(f"the fault proxy did not start; it said {said!r}")
        async with attach(kubeconfig, control_socket) as proxy:
            yield proxy
    finally:
        if process.returncode is None:
            process.terminate()
        await process.wait()


def _read_record(body: dict[str, Any]) -> Record:
    call, rules = Call(**body.pop("call")), tuple(body.pop("rules"))
    return Record(call=call, rules=rules, **body)
