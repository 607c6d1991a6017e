"""How long the worst objects hold the operator's event loop: the goal is 200 ms at most, on an idle machine.

    python -m benchmarks.event_loop                       every kind
    python -m benchmarks.event_loop ModelDeployment       one of them, and what is written by hand

An API server judges which objects can be stored (`worst_objects.py`). The operator (`timed_operator.py`) gets a few at
a time, reconciles them, and sees them deleted. Printed is the longest turn of the loop by kind, with its object and the
frames that it was in: in milliseconds of CPU, to which others on the machine do not add.
"""

from __future__ import annotations

import asyncio
import json
import sys
import tempfile
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from benchmarks.live.operator import Operator, operator, wait_until_leading
from benchmarks.live.testbed import SYSTEM, UNTHROTTLED, namespace
from benchmarks.report import ROOT
from benchmarks.worst_objects import WorstObject, prerequisites, worst_objects
from localfleet import binaries, seed
from localfleet.apiserver import ApiServer, api_server
from localfleet.kubeclient import ApiError, KubeClient, Manifest, connect
from modelplane_operator.api import KINDS

SPACE = "worst"
AT_ONCE = 16
SECONDS = 120.0
PATHS = {kind.definition.kind: kind.definition for kind in KINDS}


@dataclass(frozen=True, slots=True)
class LoopTurn:
    """The longest turn of the loop that a task took. `name`: of the task, with the object if it is a reconcile."""

    name: str
    milliseconds: float
    calls: int
    where: str


async def measure_loop_turns(
    server: ApiServer, hub: KubeClient, folder: Path, *, only: Collection[str] = (), counting: bool = False
) -> tuple[list[WorstObject], list[LoopTurn]]:
    """Return the worst objects that the API server takes, and the turns of the loop, the most expensive first."""
    for name in (SPACE, SYSTEM):
        await hub.request("POST", "/api/v1/namespaces", namespace(name))
    for one in prerequisites(SPACE):
        await _store(hub, one)

    async def accepts(manifest: Manifest) -> bool:
        try:
            await hub.request("POST", _path(manifest), manifest, params={"dryRun": "All"})
        except ApiError:
            return False
        return True

    found = await worst_objects(accepts, SPACE, only)
    said = folder / "loop-times.json"
    environment = {"LOOP_TIMES_FILE": str(said), **({"LOOP_COUNTS_CALLS": "yes"} if counting else {})}
    with operator(server.kubeconfig, folder, module="benchmarks.timed_operator", environment=environment) as one:
        await asyncio.to_thread(wait_until_leading, one)
        for some in (found[start : start + AT_ONCE] for start in range(0, len(found), AT_ONCE)):
            await asyncio.gather(*(_store(hub, each.manifest) for each in some))
            await _idle(one)
            for each in some:
                with suppress(ApiError):  # it may be immutable, or kept in use
                    await hub.request("DELETE", f"{_path(each.manifest)}/{each.manifest['metadata']['name']}")
            await _idle(one)
    turns = [LoopTurn(name, *turn) for name, turn in json.loads(said.read_text()).items()]
    return found, sorted(turns, key=lambda turn: (turn.calls, turn.milliseconds), reverse=True)


def _path(manifest: Manifest) -> str:
    of, where = PATHS[manifest["kind"]], manifest["metadata"].get("namespace")
    return f"/apis/{manifest['apiVersion']}/{f'namespaces/{where}/' if where else ''}{of.plural}"


async def _store(hub: KubeClient, manifest: Manifest) -> None:
    stored = await hub.request("POST", _path(manifest), manifest)
    if "status" in manifest:
        path = f"{_path(manifest)}/{manifest['metadata']['name']}/status"
        await hub.request("PUT", path, {**stored, "status": manifest["status"]})


async def _idle(one: Operator) -> None:
    """Wait until nothing is due and nothing runs, twice in a row."""
    quiet = 0
    async with asyncio.timeout(SECONDS):
        while quiet < 2:
            await asyncio.sleep(0.25)
            said = await asyncio.to_thread(one.metrics)
            busy = sum(
                value for name in ("modelplane_queue_depth", "modelplane_reconciles_running") for _, value in said[name]
            )
            quiet = 0 if busy else quiet + 1


def longest_turn_by_kind(
    found: Sequence[WorstObject], turns: Sequence[LoopTurn]
) -> Iterator[tuple[str, int, str, LoopTurn]]:
    """Return for each kind how many objects there were, and the longest turn of one of them with its large part."""
    known = {turn.name: turn for turn in turns}
    for kind, group in groupby(found, key=lambda one: one.kind):
        some = list(group)
        named = [
            (
                known.get(f"reconcile {SPACE}/{one.manifest['metadata']['name']}")
                or known.get(f"reconcile {one.manifest['metadata']['name']}"),
                one.what,
            )
            for one in some
        ]
        ran = [(turn, what) for turn, what in named if turn]
        if ran:
            turn, what = max(ran, key=lambda each: (each[0].calls, each[0].milliseconds))
            yield kind, len(some), what, turn


async def _main(only: Collection[str]) -> None:
    with tempfile.TemporaryDirectory(prefix="modelplane-event-loop-") as folder, api_server(*UNTHROTTLED) as server:
        definitions = seed.definitions(ROOT / "crds", binaries.ensure("gateway-api-crds")["gateway-api-crds"])
        await seed.create(server.kubeconfig, definitions)
        async with connect(server.kubeconfig) as hub:
            found, turns = await measure_loop_turns(server, hub, Path(folder), only=only)
    for kind, count, what, turn in longest_turn_by_kind(found, turns):
        print(f"{kind:18} {count:4} objects, at most {turn.milliseconds:6.0f} ms: {what}")
    print("longest of all:")
    for turn in turns[:10]:
        print(f"{turn.milliseconds:6.0f} ms  {turn.name}  {turn.where}")


if __name__ == "__main__":
    asyncio.run(_main(sys.argv[1:]))
