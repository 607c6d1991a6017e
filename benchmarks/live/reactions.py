"""B6: how soon a deployment that is applied has its workload object."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator, Iterator, Sequence

from benchmarks.live import scene as scenes
from benchmarks.live.floor import floor
from benchmarks.live.scene import Scene
from benchmarks.report import Figure, percentile
from localfleet.kubeclient import Key, Manifest

DEPLOYMENTS = "/apis/apps/v1/deployments"
DIRECT = "c0000"


def spread(id_: str, size: int, what: str, seconds: Sequence[float]) -> Iterator[Figure]:
    """The median, the 99th percentile and the worst, in milliseconds."""
    for name, value in (("p50", percentile(seconds, 50)), ("p99", percentile(seconds, 99)), ("worst", max(seconds))):
        yield Figure(id_, size, f"{what}: {name}", round(value * 1000, 1), "ms")


class FirstSeen:
    """When the first object of a deployment was seen: the names of all that it leads to begin with its own."""

    def __init__(self, seen: scenes.Seen) -> None:
        self.at: dict[str, float] = {}
        self._seen = seen
        seen.listen(self._note)

    def _note(self, key: Key, manifest: Manifest | None) -> None:
        if manifest is not None:
            self.at.setdefault(key[1][: len("model-00000")], time.monotonic())

    async def all_of(self, names: Sequence[str]) -> None:
        await self._seen.until(f"all of {len(names)} deployments", lambda _: all(name in self.at for name in names))


async def _direct(scene: Scene) -> None:
    """One large cluster, whose API server the operator reaches without anybody in between."""
    await scene.apply([scene.secret(DIRECT, scene.world_server.kubeconfig.read_text()), scenes.cluster(DIRECT, 1000)])


BATCHES = 3  # at least


async def applied(size: int, deployments: int) -> AsyncIterator[Figure]:
    """So many deployments applied at once, again and again, on an idle operator and one cluster."""
    batches = max(deployments // size, BATCHES)
    async with scenes.scene(clusters=0) as scene:
        await _direct(scene)
        with scene.operator() as one:
            await scene.brought_up(one, 1)
            replicas, workloads = (
                FirstSeen(scene.ours("modelreplicas")),
                FirstSeen(scene.seen(DEPLOYMENTS, remote=True)),
            )
            began: dict[str, float] = {}
            before = one.usage()
            for batch in range(batches):
                wanted = [scenes.deployment(batch * size + number, replicas=1) for number in range(size)]
                for manifest in wanted:
                    began[manifest["metadata"]["name"]] = time.monotonic()
                await scene.apply(wanted)
                await workloads.all_of([*began])
                await scene.until_ready("modeldeployments", len(began))
            await scene.quiet(one)
            after = one.usage()
        for what, found in (("to the ModelReplica", replicas), ("to the workload object", workloads)):
            for figure in spread("B6", size, f"from apply {what}", [found.at[name] - began[name] for name in began]):
                yield figure
        count = len(began)
        asked = (after.reads - before.reads).total() / count
        yield Figure("B6", size, "applied in all", count, "deployments")
        yield Figure("B6", size, "CPU for each", round(after.cpu_since(before) / count * 1000, 2), "ms")
        yield Figure("B6", size, "writes for each", round((after.writes - before.writes).total() / count, 2), "writes")
        yield Figure("B6", size, "reads for each, pings and all", round(asked, 2), "requests")
        for figure in await floor("B6", size, scene.hub):
            yield figure
