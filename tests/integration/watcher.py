"""Invariants that hold whatever a scenario does: watched while it runs, and checked when it is over.

    I2   nothing twice      an object on a workload cluster is of a replica that is placed on that very cluster, and
                            what a replica has there is made once: never anew while the replica lives
    I4   no overcommit      at no moment do replicas ask a pool of a cluster for more nodes than it has
    I7   quiet              when a scenario has come to its end, the operator ceases to write
    I9   status is true     `observedGeneration` of a condition never goes back, and is never ahead of its object
    I10  bounded            nothing is asked for more often than RATE allows, whatever goes wrong
    I11  secrets stay out   no Secret's text in the operator's logs, in events, or in anything of ours but Secrets
    I12  walls              what a Secret or ConfigMap of one namespace says is in no other namespace, on any cluster
    I13  Ready is true      a ModelService is Ready when the scenario's requests succeed, and not while they fail

What they read is the API servers' word, not the operator's: their objects, and their audit logs (trail.py). Add one: a
method that calls `_note`, called while the test runs from where a Mirror tells of changes, or from `check` when it is
over; and a test in test_watcher.py that breaks it.
"""

from __future__ import annotations

import asyncio
import base64
import time
import uuid
from collections import Counter, defaultdict
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager, closing
from dataclasses import dataclass, field
from fractions import Fraction
from functools import partial
from typing import Protocol

import orjson

from localfleet.kubeclient import ApiError, Key, Mirror, entries
from tests.integration import kinds
from tests.integration.harness import NOT_FOUND, OURS, PLURALS, SYSTEM, Cluster, Stage, path_of, remote, until
from tests.integration.readiness import Readiness
from tests.integration.trail import ALL, Asked, Trail, busiest
from tests.support.manifests import Manifest

OWNER, OWNER_KIND = "modelplane.ai/owner-uid", "modelplane.ai/owner-kind"
CANARY = "canary"
"""A namespace of somebody else's, and what is in it: what a hostile object may try to reach."""
MADE = ("Deployment", "LeaderWorkerSet", "HTTPRoute", "ResourceClaimTemplate", "ConfigMap", "Secret", "Service")
WALLED = tuple(kind for kind in PLURALS if kind not in {"CustomResourceDefinition", "Node"})
SECRET_LENGTH = 8  # what is shorter would be found by chance
QUIET_SECONDS = 3.0
REST_SECONDS = 90.0  # until it is quiet: what the test has left is carried to its end before
RATE_SECONDS = 10.0
# What a busy scenario needs is well below these, and what is tried again without a pause far above.
RATE, RATE_OF_ALL = 60, 2000


class Objects(Protocol):
    """Objects of a collection as they were last seen."""

    objects: dict[Key, Manifest]


@dataclass(slots=True)
class Watcher:
    """What has gone wrong since the test began."""

    stage: Stage
    replicas: Objects
    clusters: Objects
    services: Objects
    trails: Sequence[Trail] = ()
    made: Mapping[tuple[str, str], Objects] = field(default_factory=dict[tuple[str, str], Objects])
    """What replicas have on workload clusters, by cluster and kind."""
    tasks: Sequence[asyncio.Task[None]] = ()
    """What keeps all of these current."""
    stops: int = 0
    """How often the operator had been stopped when the test began."""
    problems: list[str] = field(default_factory=list[str])
    canaries: set[bytes] = field(default_factory=set[bytes])
    kept: dict[bytes, str] = field(default_factory=dict[bytes, str])
    """Texts that belong to one namespace of the hub."""
    _asked: list[Asked] = field(default_factory=list[Asked])
    _seen: int = 0
    _wrote: float = field(default_factory=time.time)
    _generations: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _capacity: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _devices: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _first: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])
    _twice: dict[tuple[str, str], None] = field(default_factory=dict[tuple[str, str], None])
    """The names, by cluster, that were made twice."""

    def hide(self, *texts: str) -> None:
        """From now on no one may read these outside of Secrets."""
        for text in texts:
            if len(text) >= SECRET_LENGTH:
                self.canaries |= {text.encode(), base64.b64encode(text.encode())}

    def keep(self, namespace: str, *texts: str) -> None:
        """From now on these are of this namespace of the hub, and of what stands for it on workload clusters."""
        for text in texts:
            self.kept |= dict.fromkeys((text.encode(), base64.b64encode(text.encode())), namespace)

    # While the test runs ---

    def changed(self, key: Key) -> None:
        """Look at a replica that appeared, changed or went."""
        replica = self.replicas.objects.get(key)
        if replica is not None:
            self._observed(replica)
        self._overcommitted()

    def spoke(self, key: Key) -> None:
        """Note what a service says that appeared, changed or went."""
        self.stage.readiness.observe(key, self.services.objects.get(key))

    def appeared(self, cluster: str, kind: str, key: Key) -> None:
        """Look at what a replica has on a workload cluster."""
        made = self.made[cluster, kind].objects.get(key)
        if made is None:
            return
        metadata = made["metadata"]
        owner, name = metadata["labels"][OWNER], metadata["name"]
        if self._first.setdefault((cluster, kind, owner, name), metadata["uid"]) != metadata["uid"]:
            self._note(f"I2: {kind} {name} on {cluster} was made twice for the same replica")
            self._twice[cluster, name] = None
        for replica in self.replicas.objects.values():
            place = replica["spec"]["clusterName"]
            if replica["metadata"]["uid"] == owner and place != cluster:
                self._note(f"I2: {kind} {name} is on {cluster}, its replica is placed on {place}")

    def _written(self, cluster: str, name: str) -> str:
        """What the operator wrote of that name, there and, of its replica, on the hub, and when."""
        written = [
            one
            for one in sorted(self._asked, key=lambda one: one.time)
            if one.writes and ((one.cluster == cluster and name in one.what) or one.what.rpartition("/")[2] in name)
        ]
        return "\n".join((f"what was written of {name}:", *(f"  {one.time:.3f} {one}" for one in written)))

    def _overcommitted(self) -> None:
        """A pool that shrinks below what runs on it is not overcommitted by us: its largest size counts."""
        for (_, name), cluster in self.clusters.objects.items():
            for pool in entries(cluster, "spec", "nodePools"):
                place, size = (name, pool["name"]), pool.get("maxNodeCount") or pool["nodeCount"]
                self._capacity[place] = max(size, self._capacity.get(place, 0))
            for pool in entries(cluster, "status", "gpuPools"):
                self._devices[name, pool["name"]] = sum(device.get("count", 1) for device in pool["devices"])
        used: defaultdict[tuple[str, str], Fraction] = defaultdict(Fraction)
        for replica in self.replicas.objects.values():
            if OWNER in replica["metadata"].get("labels", {}):  # else a user has made it, and placed it
                for place, devices in nodes(replica):
                    used[place] += Fraction(devices, self._devices[place]) if devices else 1
        for place, count in used.items():
            if place in self._capacity and count > self._capacity[place]:
                has = float(count) if count % 1 else int(count)
                self._note(f"I4: pool {place[1]} of {place[0]} has {self._capacity[place]} nodes, replicas have {has}")

    def _observed(self, replica: Manifest) -> None:
        uid, generation = replica["metadata"]["uid"], replica["metadata"]["generation"]
        for one in entries(replica, "status", "conditions"):
            seen = one.get("observedGeneration", 0)
            if seen > generation or seen < self._generations.get((uid, one["type"]), 0):
                self._note(f"I9: {one['type']} of {replica['metadata']['name']} is of generation {seen}")
            self._generations[uid, one["type"]] = seen

    # When it is over ---

    async def check(self) -> list[str]:
        """All that is wrong; what was noted is forgotten."""
        await self._quiet()
        if self.stage.operator.stops == self.stops:  # one that is away says what it said last
            self.problems += self.stage.readiness.problems()
        self.stage.readiness, self.stops = Readiness(), self.stage.operator.stops
        for (cluster, kind), made in self.made.items():
            for key in tuple(made.objects):
                self.appeared(cluster, kind, key)
        self.problems += [self._written(cluster, name) for cluster, name in self._twice]
        self._twice.clear()
        self._bounded()
        await self._told()
        await self._walls()
        for task in self.tasks:
            if task.done():
                self._note(f"the watcher itself has ended: {task}")
        if self.trails and not self._seen:
            self._note("nothing of what the operator asks is seen")
        found, self.problems = self.problems, []
        return found

    async def _quiet(self) -> None:
        try:
            await until("the operator to rest", self.rests, REST_SECONDS)
        except AssertionError:
            begins = time.time() - QUIET_SECONDS
            late = Counter(str(one) for one in self._asked if one.writes and one.time >= begins)
            self._note(f"I7: it writes and writes: {dict(late.most_common(5))}")

    def rests(self) -> bool:
        """Whether nothing was written for a while."""
        news = [one for trail in self.trails for one in trail.news()]
        self._asked += news
        self._seen += len(news)
        self._wrote = max((self._wrote, *(one.time for one in news if one.writes)))
        return time.time() - self._wrote >= QUIET_SECONDS

    def _bounded(self) -> None:
        for what, count in busiest(self._asked, RATE_SECONDS):
            if count > (RATE_OF_ALL if what == ALL else RATE):
                self._note(f"I10: {what}: {count} times in {RATE_SECONDS:g} s")
        self._asked.clear()

    async def _told(self) -> None:
        canaries = self.canaries | {each async for each in self._kubeconfigs()}
        logs = self.stage.operator.log.parent.glob("operator*.log")  # of all that have run
        for where, text in [(f"the log {log.name}", log.read_bytes()) for log in logs] + [
            (f"{kind} {one['metadata']['name']} of {cluster.name}", orjson.dumps(one))
            for cluster in self.stage.clusters
            for kind in ("Event", "ConfigMap", *(OURS if cluster is self.stage.hub else ("Deployment", "HTTPRoute")))
            for one in await cluster.list(kind)
        ]:
            if any(canary in text for canary in canaries):
                self._note(f"I11: a Secret's text is in {where}")

    async def _walls(self) -> None:
        for cluster in self.stage.clusters if self.kept else ():
            on_hub = cluster is self.stage.hub
            for kind in WALLED:
                for one in await _listed(cluster, kind):
                    metadata, text = one["metadata"], orjson.dumps(one)
                    namespace = metadata.get("namespace", "")
                    for canary, home in self.kept.items():
                        if canary in text and namespace != (home if on_hub else remote(home)):
                            where = f"{kind} {namespace}/{metadata['name']} of {cluster.name}"
                            self._note(f"I12: what namespace {home} keeps is in {where}")

    async def _kubeconfigs(self) -> AsyncGenerator[bytes]:
        """Keys and tokens of the clusters' kubeconfigs."""
        for secret in await self.stage.hub.list("Secret", SYSTEM):
            for value in (secret.get("data") or {}).values():
                for line in base64.b64decode(value).splitlines():
                    field_, _, text = line.strip().partition(b": ")
                    if field_ in {b"client-key-data", b"token"} and len(text) >= SECRET_LENGTH:
                        yield text

    def _note(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)


async def _listed(cluster: Cluster, kind: str) -> list[Manifest]:
    """All of a kind; none where the cluster does not have it."""
    try:
        return await cluster.list(kind)
    except ApiError as error:
        if error.status == NOT_FOUND:
            return []
        raise


@asynccontextmanager
async def _planted(stage: Stage, watcher: Watcher) -> AsyncGenerator[None]:
    """A Secret and a ConfigMap of somebody else's, and a Secret of our own, with texts that are nobody else's."""
    planted = [
        made(home, CANARY, text=f"canary-{uuid.uuid4().hex}")
        for home, made in ((CANARY, kinds.secret), (CANARY, kinds.config_map), (SYSTEM, kinds.secret))
    ]
    await stage.hub.apply(kinds.namespace(CANARY), *planted)
    for one in planted:
        watcher.keep(one["metadata"]["namespace"], *(one.get("stringData") or one["data"]).values())
    yield
    for one in planted:
        await stage.hub.delete(one["kind"], CANARY, one["metadata"]["namespace"])
    await stage.hub.delete("Namespace", CANARY)


def nodes(replica: Manifest) -> Iterator[tuple[tuple[str, str], int]]:
    """The pools that a replica takes nodes of, once for each pod that claims devices.

    A pod has a node to itself, but in pools that are shared by device: there it takes the number beside the pool.
    """
    for engine in replica["spec"]["engines"]:
        for member in engine["members"]:
            if member.get("deviceRequests"):
                pods = (member.get("worker") or {}).get("nodes", 1) if member.get("role") == "Worker" else 1
                claimed = sum(request.get("count", 1) for request in member["deviceRequests"])
                for _ in range(pods * engine.get("copies", 1)):
                    place = replica["spec"]["clusterName"], member["nodePoolName"]
                    yield place, claimed if member.get("sharing") == "Device" else 0


@asynccontextmanager
async def watching(stage: Stage) -> AsyncGenerator[Watcher]:
    """A watcher that watches for as long as the block runs."""

    def changed(key: Key) -> None:
        watcher.changed(key)

    def spoke(key: Key) -> None:
        watcher.spoke(key)

    def appeared(cluster: str, kind: str, key: Key) -> None:
        watcher.appeared(cluster, kind, key)

    hub = stage.hub.client
    clusters = Mirror(hub, path_of("InferenceCluster"), changed=lambda _: None)
    replicas = Mirror(hub, path_of("ModelReplica"), changed=changed)
    services = Mirror(hub, path_of("ModelService"), changed=spoke)
    made = {
        (name, kind): Mirror(
            worker.client,
            path_of(kind),
            changed=partial(appeared, name, kind),
            params={"labelSelector": f"{OWNER},{OWNER_KIND}=ModelReplica"},
        )
        for name, worker in stage.workers.items()
        for kind in MADE
    }
    with ExitStack() as open_:
        trails = [open_.enter_context(closing(trail)) for trail in stage.trails()]
        tasks = list[asyncio.Task[None]]()
        watcher = Watcher(stage, replicas, clusters, services, trails, made, tasks, stage.operator.stops)
        stage.readiness = Readiness()
        try:
            for mirror in (
                clusters,
                replicas,
                services,
                *made.values(),
            ):  # the first tell what the others are held against
                tasks.append(asyncio.create_task(mirror.run()))
                await mirror.synced.wait()
            async with _planted(stage, watcher):
                yield watcher
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.wait(tasks)
