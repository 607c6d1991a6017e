"""Pods that share clusters: the real ones, in virtual time, beside a hub that is as much as Leases need."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter, deque
from collections.abc import Callable, Collection, Iterable, Iterator
from copy import deepcopy
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from random import Random
from typing import Any, cast

from modelplane_operator.api import labels
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.lease import Times
from modelplane_operator.clients.shares import cluster_lease, is_given_back
from modelplane_operator.clients.sharing import Around, Sharing
from modelplane_operator.kube.errors import AlreadyExists, Conflict, NotFound, Unreachable
from modelplane_operator.kube.objects import Key, Manifest, annotations_of, labels_of

LEASE = Key("modelplane-system", "modelplane-operator")
TIMES = Times()
CLUSTERS = tuple(f"cluster-{number}" for number in range(6))


BACKED_UP = 5.0  # seconds ago, at least
Past = tuple[int, dict[str, Manifest], float]
"""A version, what there was then, and when that was."""


def _now() -> float:
    return asyncio.get_running_loop().time()


@dataclass
class Hub:
    """Leases, as an API server keeps them; each request takes a while before and after its effect, or is lost."""

    chance: Random
    slow: float = 0.5
    lossy: float = 0.0
    objects: dict[str, Manifest] = field(default_factory=dict[str, Manifest])
    clusters: set[str] = field(default_factory=set[str])
    needs: set[str] = field(default_factory=set[str])
    version: int = 0
    eras: list[deque[Past]] = field(default_factory=lambda: [deque([(0, dict[str, Manifest](), 0.0)], maxlen=200)])
    """What there was at each version: a watch may be as far behind as it likes. A restore begins another era."""

    def put(self, manifest: Manifest) -> Manifest:
        self.version += 1
        uid = manifest["metadata"].get("uid") or str(self.version)
        metadata = {**manifest["metadata"], "resourceVersion": str(self.version), "uid": uid}
        self.objects[metadata["name"]] = stored = {**deepcopy(manifest), "metadata": metadata}
        self.eras[-1].append((self.version, dict(self.objects), _now()))
        return deepcopy(stored)

    def drop(self, name: str) -> None:
        self.version += 1
        del self.objects[name]
        self.eras[-1].append((self.version, dict(self.objects), _now()))

    def restore(self) -> None:
        """Be again as it was, from a backup that is some seconds old."""
        past = [one for one in self.eras[-1] if one[2] <= _now() - BACKED_UP] or [self.eras[-1][0]]
        self.version, found, _ = self.chance.choice(past)
        self.objects = dict(found)
        self.eras.append(deque([(self.version, found, _now())], maxlen=200))

    def of(self, cluster: str) -> Manifest | None:
        return self.objects.get(cluster_lease(LEASE.name, cluster))


@dataclass
class Wire:
    """What one pod has of the hub."""

    hub: Hub
    pod: Pod
    of: int = 0
    seen: int = 0
    """How far its watch has come, and in which of the hub's eras."""
    era: int = 0
    """As the pod counts them."""
    listing: bool = False

    def begin_again(self) -> int:
        self.listing, self.era = True, self.era + 1
        return self.era

    async def travel(self) -> None:
        await asyncio.sleep(self.hub.chance.random() * self.hub.slow)
        while self.pod.stopped:  # noqa: ASYNC110 - time alone goes by
            await asyncio.sleep(0.1)
        if self.pod.cut or self.hub.chance.random() < self.hub.lossy:
            await asyncio.sleep(self.hub.chance.random() * 4)
            raise Unreachable("lost")

    async def leases(self, version: int, era: int) -> tuple[int, int, Iterable[Manifest]]:
        """As they were at some moment since that version, and none before what this pod has seen already.

        A watch that has seen more than a hub has that was restored is silent until it is listed anew, which hardly
        happens by itself.
        """
        await self.travel()
        while True:
            last = len(self.hub.eras) - 1
            while self.of < last and self.seen <= self.hub.eras[self.of + 1][0][0]:
                self.of += 1  # it had not come further than the backup, and goes on
            if self.listing or (self.of < last and self.hub.chance.random() < 0.05):
                self.era += not self.listing and self.hub.version < self.seen
                self.of, self.seen, self.listing = last, 0, False
            since = max(version if self.era == era else 0, self.seen)
            if found := [one for one in self.hub.eras[self.of] if one[0] >= since and self.era >= era]:
                break
            await self.travel()
        self.seen, objects, _ = self.hub.chance.choice(found)
        await self.travel()
        return self.era, self.seen, [deepcopy(one) for one in objects.values() if labels.SHARING in labels_of(one)]

    async def find(self, _: Any, key: Key) -> Manifest | None:
        await self.travel()
        found = deepcopy(self.hub.objects.get(key.name))
        await self.travel()
        return found

    async def create(self, manifest: Manifest) -> Manifest:
        await self.travel()
        if manifest["metadata"]["name"] in self.hub.objects:
            raise AlreadyExists("it is there")
        stored = self.hub.put(manifest)
        await self.travel()
        return stored

    async def replace(self, manifest: Manifest) -> Manifest:
        await self.travel()
        live = self.hub.objects.get(manifest["metadata"]["name"])
        if live is None:
            raise NotFound("it is gone")
        if live["metadata"]["resourceVersion"] != manifest["metadata"]["resourceVersion"]:
            raise Conflict("it is another one")
        stored = self.hub.put(manifest)
        await self.travel()
        return stored

    async def delete(self, _: Any, key: Key, *, uid: str, version: str | None = None) -> None:
        await self.travel()
        live = self.hub.objects.get(key.name)
        if live is None:
            raise NotFound("it is gone")
        if live["metadata"]["uid"] != uid or version not in {None, live["metadata"]["resourceVersion"]}:
            raise Conflict("it is another one")
        self.hub.drop(key.name)
        await self.travel()


@dataclass(eq=False)
class Pod:
    """One pod, whose clock is its own; what it reconciles takes a while."""

    hub: Hub
    name: str
    offset: float
    leads: bool = False
    stopped: bool = False
    cut: bool = False
    connected: set[str] = field(default_factory=set[str])
    gained: list[str] = field(default_factory=list[str])
    busy: set[str] = field(default_factory=set[str])
    sharing: Sharing = field(init=False)
    wire: Wire = field(init=False)
    task: asyncio.Task[None] | None = None

    def __post_init__(self) -> None:
        def connects(cluster: str) -> None:
            self.connected.symmetric_difference_update({cluster})

        self.wire = wire = Wire(self.hub, self)
        chance = self.hub.chance.random
        around = Around(
            wire.leases,
            wire.begin_again,
            lambda: set(self.hub.clusters),
            lambda: self.leads,
            lambda: self.hub.needs,
            lambda cluster: cluster in self.busy,
            connects,
            lambda found: self.gained.extend(sorted(found)),
        )
        self.sharing = Sharing(
            lambda: cast("Kube", wire), LEASE, self.name, self.clock, chance, TIMES, around, 3.0, self.wall
        )

    def clock(self) -> float:
        return asyncio.get_running_loop().time() + self.offset

    def wall(self) -> datetime:
        return datetime(2026, 1, 1, tzinfo=UTC) + timedelta(seconds=self.clock())

    def start(self) -> None:
        self.task = asyncio.create_task(self.sharing.run())

    async def end(self, *, clean: bool) -> None:
        assert self.task is not None
        if not clean:
            self.cut = True
            self.sharing.member.lose()
        self.task.cancel()
        await asyncio.wait({self.task})

    def holds(self) -> set[str]:
        return {one for one in CLUSTERS if self.sharing.holds(one)}


@dataclass
class World:
    """A hub and the pods that share its clusters; the first leads, and another one after it."""

    hub: Hub
    pods: list[Pod] = field(default_factory=list[Pod])
    numbers: Iterator[int] = field(default_factory=itertools.count)

    def add(self) -> Pod:
        number = next(self.numbers)
        pod = Pod(self.hub, f"pod-{number}", self.hub.chance.random() * 1000, leads=not self.pods)
        self.pods.append(pod)
        pod.start()
        return pod

    async def remove(self, pod: Pod, *, clean: bool) -> None:
        self.pods.remove(pod)
        await pod.end(clean=clean)
        if pod.leads and self.pods:
            self.pods[0].leads = True

    def check(self) -> None:
        """No two pods hold one cluster, and all that hold one are connected to it, or about to be."""
        held = Counter(cluster for pod in self.pods for cluster in pod.holds())
        doubly = {one: [pod.name for pod in self.pods if one in pod.holds()] for one in held if held[one] > 1}
        assert not doubly, f"at {asyncio.get_running_loop().time():.2f} s"

    async def pass_by(self, seconds: float) -> None:
        for _ in range(int(seconds / 0.1)):
            await asyncio.sleep(0.1)
            self.check()

    async def end(self) -> None:
        """Have all pods stop."""
        for pod in self.pods:
            await pod.end(clean=True)

    @property
    def is_behind(self) -> bool:
        """Whether a pod's watch is still of a hub as it was before a restore; the last of these goes by chance."""
        return any(pod.wire.of < len(self.hub.eras) - 1 for pod in self.pods)

    def holders(self) -> dict[str, str]:
        return {cluster: pod.name for pod in self.pods for cluster in pod.holds()}


def world_of(clusters: Iterable[str], *, seed: int = 3, slow: float = 0.1) -> World:
    """A hub that loses nothing, with these clusters and no pods yet."""
    world = World(Hub(Random(seed), slow=slow))  # noqa: S311 - to be replayed
    world.hub.clusters.update(clusters)
    return world


def deletes(hub: Hub, chance: Random) -> None:
    if hub.objects:
        hub.drop(chance.choice(sorted(hub.objects)))


def takes_out(hub: Hub, chance: Random) -> None:
    edit(hub, chance, "")


def edit(hub: Hub, chance: Random, holder: str) -> None:
    """As kubectl edit would: one field, of whichever Lease that somebody has."""
    found = sorted(name for name, one in hub.objects.items() if not is_given_back(one))
    if found:
        one = hub.objects[chance.choice(found)]
        hub.put({**one, "spec": {**one["spec"], "holderIdentity": holder}})


def strips(hub: Hub, chance: Random) -> None:
    """Take off what a cluster's Lease is found by."""
    found = sorted(name for name, one in hub.objects.items() if labels.CLUSTER in annotations_of(one))
    if found:
        one = hub.objects[chance.choice(found)]
        gone = chance.choice(("labels", "annotations"))
        hub.put({**one, "metadata": {part: value for part, value in one["metadata"].items() if part != gone}})


HANDS: dict[str, Callable[[Hub, Random], None]] = {
    "deletes": deletes,
    "takes out": takes_out,
    "strips": strips,
    "gives to": lambda hub, chance: edit(hub, chance, f"pod-{chance.randint(0, 3)}"),
    "restores": lambda hub, _: hub.restore(),
    "touches": lambda hub, chance: [hub.put(hub.objects[name]) for name in sorted(hub.objects)[:2]] and None,
}
ACTS = ("kill", "stop", "add", "pause", "cut", "cluster", "wait", *HANDS)


async def life(seed: int, acts: Collection[str], lossy: float) -> World:
    chance = Random(seed)  # noqa: S311 - to be replayed
    world = World(Hub(chance, lossy=lossy))
    world.hub.clusters.update(CLUSTERS[:4])
    world.add()
    world.add()
    await world.pass_by(30.0)
    for act in acts:
        pod = chance.choice(world.pods)
        match act:
            case "kill" | "stop" if len(world.pods) > 1:
                await world.remove(pod, clean=act == "stop")
            case "add" if len(world.pods) < 4:
                world.add()
            case "pause":
                pod.stopped = True
            case "cut":
                pod.cut = True
            case "cluster":
                world.hub.clusters ^= {chance.choice(CLUSTERS)}
            case hand if hand in HANDS:
                HANDS[hand](world.hub, chance)
            case _:
                pass
        await world.pass_by(chance.choice((0.3, 2.0, 9.0, 16.0)))
        if chance.random() < 0.7:
            for one in world.pods:
                one.stopped = one.cut = False
    for one in world.pods:
        one.stopped = one.cut = False
    world.hub.lossy = 0.0
    return world
