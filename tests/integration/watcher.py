"""Invariants that hold whatever a scenario does: watched while it runs, and checked when it is over.

    I2   nothing twice      an object on a workload cluster is of a replica that is placed on that very cluster
    I4   no overcommit      at no moment do replicas ask a pool of a cluster for more nodes than it has
    I9   status is true     `observedGeneration` of a condition never goes back, and is never ahead of its object
    I11  secrets stay out   no Secret's text in the operator's log, in events, or in anything of ours but Secrets

What they read is the API servers' word, not the operator's. Add one: a method that appends to `problems`, called from
`_changed` (while the test runs) or from `check` (when it is over).
"""

from __future__ import annotations

import asyncio
import base64
from collections import Counter
from collections.abc import AsyncGenerator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import orjson

from localfleet.kubeclient import Key, Mirror, entries
from tests.integration.harness import OURS, SYSTEM, Stage, path_of
from tests.support.manifests import Manifest

OWNER = "modelplane.ai/owner-uid"
MADE = ("Deployment", "LeaderWorkerSet", "HTTPRoute", "ResourceClaimTemplate", "ConfigMap", "Secret")
SECRET_LENGTH = 8  # what is shorter would be found by chance


@dataclass(slots=True)
class Watcher:
    """What has gone wrong since the test began."""

    stage: Stage
    replicas: Mirror
    clusters: Mirror
    problems: list[str] = field(default_factory=list[str])
    canaries: set[bytes] = field(default_factory=set[bytes])
    _generations: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])
    _capacity: dict[tuple[str, str], int] = field(default_factory=dict[tuple[str, str], int])

    def hide(self, *texts: str) -> None:
        """From now on no one may read these outside of Secrets."""
        for text in texts:
            if len(text) >= SECRET_LENGTH:
                self.canaries |= {text.encode(), base64.b64encode(text.encode())}

    # While the test runs ---

    def changed(self, key: Key) -> None:
        replica = self.replicas.objects.get(key)
        if replica is not None:
            self._observed(replica)
        self._overcommitted()

    def _overcommitted(self) -> None:
        """A pool that shrinks below what runs on it is not overcommitted by us: its largest size counts."""
        for (_, name), cluster in self.clusters.objects.items():
            for pool in cluster["spec"]["nodePools"]:
                place, size = (name, pool["name"]), pool.get("maxNodeCount") or pool["nodeCount"]
                self._capacity[place] = max(size, self._capacity.get(place, 0))
        used: Counter[tuple[str, str]] = Counter()
        for replica in self.replicas.objects.values():
            used.update(nodes(replica))
        for place, count in used.items():
            if place in self._capacity and count > self._capacity[place]:
                self._note(
                    f"I4: pool {place[1]} of {place[0]} has {self._capacity[place]} nodes, replicas have {count}"
                )

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
        await self._misplaced()
        await self._told()
        found, self.problems = self.problems, []
        return found

    async def _misplaced(self) -> None:
        placed = {
            one["metadata"]["uid"]: one["spec"]["clusterName"] for one in await self.stage.hub.list("ModelReplica")
        }
        for name, worker in self.stage.workers.items():
            for kind in MADE:
                for made in await worker.list(kind, labels=f"{OWNER},modelplane.ai/owner-kind=ModelReplica"):
                    metadata = made["metadata"]
                    place = placed.get(metadata["labels"][OWNER])
                    if place is not None and place != name:
                        self._note(f"I2: {kind} {metadata['name']} is on {name}, its replica is placed on {place}")

    async def _told(self) -> None:
        canaries = self.canaries | {each async for each in self._kubeconfigs()}
        for where, text in [("its log", self.stage.operator.log.read_bytes())] + [
            (f"{kind} {one['metadata']['name']} of {cluster.name}", orjson.dumps(one))
            for cluster in self.stage.clusters
            for kind in ("Event", "ConfigMap", *(OURS if cluster is self.stage.hub else ("Deployment", "HTTPRoute")))
            for one in await cluster.list(kind)
        ]:
            if any(canary in text for canary in canaries):
                self._note(f"I11: a Secret's text is in {where}")

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


def nodes(replica: Manifest) -> Iterator[tuple[str, str]]:
    """The pools that a replica takes nodes of, once for each node: a pod that claims devices has a node to itself."""
    for engine in replica["spec"]["engines"]:
        for member in engine["members"]:
            if member.get("deviceRequests"):
                pods = (member.get("worker") or {}).get("nodes", 1) if member.get("role") == "Worker" else 1
                for _ in range(pods * engine.get("copies", 1)):
                    yield replica["spec"]["clusterName"], member["nodePoolName"]


@asynccontextmanager
async def watching(stage: Stage) -> AsyncGenerator[Watcher]:
    """A watcher that watches for as long as the block runs."""
    watcher: list[Watcher] = []

    def changed(key: Key) -> None:
        watcher[0].changed(key)

    clusters = Mirror(stage.hub.client, path_of("InferenceCluster"), changed=lambda _: None)
    replicas = Mirror(stage.hub.client, path_of("ModelReplica"), changed=changed)
    watcher.append(Watcher(stage, replicas, clusters))
    running = [asyncio.create_task(clusters.run())]
    await clusters.synced.wait()
    running.append(asyncio.create_task(replicas.run()))
    await replicas.synced.wait()
    try:
        yield watcher[0]
    finally:
        for task in running:
            task.cancel()
        await asyncio.wait(running)
