"""The operator on the local fleet with a fault proxy before every API server, the hub's and the workload clusters'.

    async with faulty(fleet, folder, seed) as stage:
        await stage.proxies["worker-1"].add(Rule(Match(verbs=("apply",)), LoseReply()))
        await stage.crash({"hub": {7, 19}}, When.AFTER)      # SIGKILL once the hub's 7th and 19th write had its effect
        await stage.revived()                                # a new process, as soon as the old one is dead

It is the integration tests' stage in all but the way to the API servers: operator and proxies run in the fleet's own
network, and the kubeconfigs that the operator is given lead to the proxies. What the test itself asks goes past them.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import NamedTuple

import aiohttp

from localfleet.faultproxy import client
from localfleet.faultproxy.calls import Record
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Match, Rule, Signal, When
from localfleet.fleet import HUB, Fleet
from localfleet.kubeclient import ApiError, connect
from tests.integration import kinds
from tests.integration.harness import FLAGS, NOT_FOUND, SECONDS, SYSTEM, WORKERS, Cluster, Operator, Stage
from tests.integration.trail import Trail, recorded
from tests.support.manifests import Manifest

CREATED = 201
SEED = int(os.environ.get("FAULTS_SEED") or datetime.now(UTC).toordinal())
"""What chance is drawn from: the day's number, or FAULTS_SEED to see again what failed on another day."""
# A dead leader's lease is deleted instead of waited for, so that it can be long: a busy machine loses none.
QUICK = (
    *(flag for flag in FLAGS if not flag.startswith(("--lease", "--drain-grace"))),
    "--lease-duration=30",
    "--drain-grace=0.5",
)
IMPATIENT = "tests.support.impatient_operator"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{SYSTEM}/leases/modelplane-operator"


Crashes = Mapping[str, AbstractSet[int]]
"""The numbers of mutating calls, by cluster."""


class Target(NamedTuple):
    """What a write was about."""

    cluster: str
    resource: str
    namespace: str
    name: str

    def __str__(self) -> str:
        return f"{self.resource} {self.namespace}/{self.name} on {self.cluster}"


@dataclass(frozen=True, slots=True)
class Writes:
    """What was written, as the proxies saw it."""

    calls: Mapping[str, int]
    """How many numbered mutating calls, by cluster."""
    effects: Counter[Target]
    """How often the API server took a write of each object."""
    creates: Counter[Target]
    """How often it made that object."""


@dataclass(slots=True)
class FaultyStage(Stage):
    """A stage whose operator reaches every API server through a fault proxy."""

    proxies: dict[str, FaultProxy] = field(default_factory=dict[str, FaultProxy])
    crashes: int = 0
    """How often it was killed since the last `reset`."""
    _planned: Crashes = field(default_factory=dict[str, AbstractSet[int]])
    _when: When = When.BEFORE

    def kubeconfig(self, worker: str) -> Manifest:
        text = self.proxies[worker].kubeconfig.read_text()
        return kinds.secret(SYSTEM, f"{worker}-kubeconfig", kubeconfig=text)

    def trails(self) -> Sequence[Trail]:
        """By the proxies' books: what they answer themselves, no API server hears of."""
        books = ((name, proxy.kubeconfig.with_name("faultproxy.jsonl")) for name, proxy in self.proxies.items())
        return [Trail(name, book, recorded) for name, book in books]

    async def crash(self, planned: Crashes, when: When) -> None:
        """Kill the operator at those mutating calls of each cluster, counted from the last `reset`."""
        self._planned, self._when = planned, when
        for cluster, numbers in planned.items():
            proxy = self.proxies[cluster]
            passed = (await proxy.status())["mutating_calls"]
            for number in sorted(numbers):
                if number > passed:
                    signal = Signal(self.operator.pid, when=when)
                    await proxy.add(Rule(Match(mutating_call=number), signal, times=1))

    async def revived(self) -> bool:
        """Start the operator again if it has died; answers whether it had."""
        if self.operator.is_up:
            return False
        self.crashes += 1
        for proxy in self.proxies.values():
            for rule in await proxy.rules():
                if rule["action"]["kind"] == Signal.__name__:  # it names the dead process
                    await proxy.remove(rule["id"])
        await self.free_lease()
        await self.operator.start()
        await self.crash(self._planned, self._when)
        return True

    async def free_lease(self) -> None:
        """Nobody waits for a leader that is known to be dead."""
        try:
            await self.hub.client.request("DELETE", LEASE)
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise

    async def reset(self) -> None:
        """Count from one, record anew, and break nothing."""
        self.crashes, self._planned = 0, {}
        for proxy in self.proxies.values():
            await proxy.reset()

    async def writes(self) -> Writes:
        """What was written since the last `reset`."""
        calls, effects, creates = dict[str, int](), Counter[Target](), Counter[Target]()
        for name, proxy in self.proxies.items():
            records = await proxy.calls(mutating=True)
            calls[name] = len(records)
            for record in filter(had_effect, records):
                target = target_of(name, record)
                effects[target] += 1
                creates[target] += record.status == CREATED
        return Writes(calls, effects, +creates)

    async def struck(self) -> int:
        """How often a rule has fired since the last `reset`."""
        return sum([rule["fired"] for proxy in self.proxies.values() for rule in await proxy.rules()])

    async def rate(self) -> int:
        """The most requests in a second since the last `reset`, to all API servers together."""
        times = [int(record.time) for proxy in self.proxies.values() for record in await proxy.calls()]
        return max(Counter(times).values(), default=0)

    async def mutating_calls(self) -> int:
        """How many mutating calls all API servers have had since the last `reset`."""
        return sum([(await proxy.status())["mutating_calls"] for proxy in self.proxies.values()])

    async def quiet(self, what: str, seconds: float = 1.0) -> None:
        """Wait until nobody has written for so long."""
        deadline = time.monotonic() + SECONDS
        before = -1
        while (now := await self.mutating_calls()) != before:
            assert time.monotonic() < deadline, f"the operator writes and writes {what}: {await self.writes()}"
            before = now
            await asyncio.sleep(seconds)


def had_effect(record: Record) -> bool:
    """Whether the API server took it; a reply that was lost on its way back had its effect all the same."""
    return record.status is not None and record.status < 300


def target_of(cluster: str, record: Record) -> Target:
    call = record.call
    resource = f"{call.resource}/{call.subresource}" if call.subresource else call.resource
    return Target(cluster, resource, call.namespace, call.name)


@asynccontextmanager
async def faulty(fleet: Fleet, folder: Path, seed: int) -> AsyncGenerator[FaultyStage]:
    """The stage, prepared, on a fleet that is up; cleared at the end."""
    async with AsyncExitStack() as open_:
        proxies = dict[str, FaultProxy]()
        for name in (HUB, *WORKERS):
            (place := folder / name).mkdir()
            starting = client.start(fleet.inner_kubeconfig(name), place, seed=seed, inside=fleet.inside)
            proxies[name] = await open_.enter_async_context(starting)
        clients = {name: await open_.enter_async_context(connect(fleet.kubeconfig(name))) for name in (HUB, *WORKERS)}
        clusters = {name: Cluster(name, one) for name, one in clients.items()}
        session = await open_.enter_async_context(aiohttp.ClientSession())
        gateway = f"http://127.0.0.1:{fleet.cluster(HUB)['ports']['gateway']}"
        operator = Operator(
            fleet, folder / "operator.log", QUICK, kubeconfig=proxies[HUB].kubeconfig, within=None, module=IMPATIENT
        )
        stage = FaultyStage(fleet, operator, clusters.pop(HUB), clusters, session, gateway, proxies)
        try:
            await stage.free_lease()
            await stage.prepare()
            yield stage
            await stage.reset()
            await stage.revived()
            await stage.clear()
        finally:
            if operator.is_up:
                await operator.kill()
