"""B5, B6, B7, B15: how soon what happens has its effect, and what it costs when much happens."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence

from benchmarks.live import scene as scenes
from benchmarks.live.floor import floor
from benchmarks.live.scene import Scene
from benchmarks.live.workload_clusters import counts, pod_status
from benchmarks.report import Figure, percentile
from localfleet.kubeclient import MERGE, Key, Manifest

DEPLOYMENTS = "/apis/apps/v1/deployments"
PODS = "/api/v1/pods"
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


# B6: from apply to the workload ---------------------------------------------------------------------------------------


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


# B7: from a pod to the status of its deployment ----------------------------------------------------------------------


MODELS = 20  # at most, whose pods turn ready


async def fan_in(size: int, rate: float) -> AsyncIterator[Figure]:
    """Of as many models as clusters, 25 replicas each, the pods of half turn ready, so many a second."""
    replicas = 25
    async with scenes.scene(clusters=size) as scene:
        pods = scene.seen(PODS, remote=True)
        with scene.operator() as one:
            await scene.brought_up(one, size, deployments=size, replicas=replicas)
            count = min(size // 2 or 1, MODELS)
            turned = [name for name in sorted(pods.mirror.objects) if int(name[1][6:11]) < count]
            statuses = scene.ours("modeldeployments")
            await turn(scene, turned, ready=False, rate=rate * 4)
            await statuses.until(
                "all those to be seen as not ready",
                lambda found: all(_ready(one) == 0 for key, one in found.items() if int(key[1][6:]) < count),
            )
            await scene.quiet(one)
            reached: dict[tuple[str, int], float] = {}

            def note(key: Key, manifest: Manifest | None) -> None:
                for number in range(1, _ready(manifest or {}) + 1):
                    reached.setdefault((key[1], number), time.monotonic())

            statuses.listen(note)
            before = one.usage()
            at = await turn(scene, turned, ready=True, rate=rate)
            await scene.until_ready("modeldeployments", size)
            after = one.usage()
            await scene.until_ready("modelservices", size)
        told, number = list[float](), Counter[str]()
        for name, moment in sorted(at.items(), key=lambda one: one[1]):
            model = name[1][:11]
            number[model] += 1
            told.append(reached[model, number[model]] - moment)
        for figure in spread("B7", size, "from pod to ModelDeployment.status", told):
            yield figure
        seconds = max(at.values()) - min(at.values())
        writes = (after.writes - before.writes)["hub replace_status modeldeployments.modelplane.ai"]
        yield Figure("B7", size, "pods that turned ready", round(len(at) / seconds, 1), "pods/s")
        yield Figure("B7", size, "status writes for each deployment", round(writes / seconds / count, 2), "writes/s")
        for kind, failures in sorted((after.failures - before.failures).items()):
            yield Figure("B7", size, f"reconciles of {kind} that failed", failures, "reconciles")
        yield Figure("B7", size, "CPU for each pod", round(after.cpu_since(before) / len(at) * 1000, 2), "ms")
        yield Figure("B7", size, "CPU meanwhile", round(after.core_since(before), 3), "core")
        for figure in await floor("B7", size, scene.hub):
            yield figure


def _ready(deployment: Manifest) -> int:
    return deployment.get("status", {}).get("replicas", {}).get("ready") or 0


async def turn(scene: Scene, pods: Sequence[Key], *, ready: bool, rate: float) -> dict[Key, float]:
    """Have pods turn ready or not, so many a second, and their Deployments with them; answers when each did."""

    async def one(key: Key) -> None:
        namespace, name = key
        workload = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name.rpartition('-')[0]}/status"
        status = {"status": counts(1, int(ready))}
        await scene.world.request("PATCH", workload, status, content_type=MERGE)
        path = f"/api/v1/namespaces/{namespace}/pods/{name}/status"
        await scene.world.request("PATCH", path, pod_status(ready=ready), content_type=MERGE)
        at[key] = time.monotonic()

    at: dict[Key, float] = {}
    await paced([lambda key=key: one(key) for key in pods], rate)
    return at


async def paced(calls: Sequence[Callable[[], Awaitable[None]]], rate: float) -> None:
    """Begin so many of the calls a second, or as many as the server takes."""
    began, places = time.monotonic(), asyncio.Semaphore(scenes.AT_ONCE)

    async def one(call: Callable[[], Awaitable[None]]) -> None:
        try:
            await call()
        finally:
            places.release()

    async with asyncio.TaskGroup() as group:
        for number, call in enumerate(calls):
            await asyncio.sleep(max(began + number / rate - time.monotonic(), 0))
            await places.acquire()
            group.create_task(one(call))


# B5: a fleet that is never still ------------------------------------------------------------------------------------


async def churn(size: int, seconds: float, clusters: int = 200) -> AsyncIterator[Figure]:
    """So many changes a second in the status of workloads that mean nothing to anybody; nothing follows from them."""
    async with scenes.scene(clusters=clusters) as scene:
        workloads = scene.seen(DEPLOYMENTS, remote=True)
        with scene.operator() as one:
            await scene.brought_up(one, clusters, deployments=max(clusters // 4, 1), replicas=4)
            keys = list(workloads.mirror.objects)

            async def touch(number: int) -> None:
                namespace, name = keys[number % len(keys)]
                path = f"/apis/apps/v1/namespaces/{namespace}/deployments/{name}/status"
                said = {"type": "Progressing", "status": "True", "reason": f"Round{number}"}
                body = {"status": {"conditions": [said]}}
                await scene.world.request("PATCH", path, body, content_type=MERGE)

            before = one.usage()
            await asyncio.sleep(seconds)
            still = one.usage()
            total = int(size * seconds)
            await paced([lambda number=number: touch(number) for number in range(1, total + 1)], size)
            after = one.usage()
        lasted, idle = after.seconds_since(still), still.core_since(before)
        each = max(after.cpu_since(still) - idle * lasted, 0.0) / total
        yield Figure("B5", size, "events, as many as the players could make", round(total / lasted, 1), "events/s")
        yield Figure("B5", size, "CPU for each", round(each * 1e6), "us")
        yield Figure("B5", size, "CPU at the rate that was asked for", round(idle + each * size, 3), "core")
        yield Figure("B5", size, "writes", (after.writes - still.writes).total(), "writes")


# B15: a neighbour who never stops -------------------------------------------------------------------------------------


async def neighbour(size: int, rounds: int) -> AsyncIterator[Figure]:
    """So many deployments of other teams are applied, alone, and then while one team changes its own all the time."""
    async with scenes.scene(clusters=0) as scene:
        await _direct(scene)
        with scene.operator() as one:
            await scene.brought_up(one, 1)
            workloads = FirstSeen(scene.seen(DEPLOYMENTS, remote=True))
            number, worst = 0, list[float]()
            for what in ("alone", "beside a deployment that never rests"):
                began: dict[str, float] = {}
                before = one.usage()
                async with asyncio.TaskGroup() as group:
                    hot = group.create_task(_hot(scene)) if what != "alone" else None
                    for _ in range(rounds):
                        wanted = [
                            scenes.deployment(number + n, replicas=1, team=f"team-{1 + n % 3}") for n in range(size)
                        ]
                        number += size
                        for manifest in wanted:
                            began[manifest["metadata"]["name"]] = time.monotonic()
                        await scene.apply(wanted)
                        await workloads.all_of([*began])
                    if hot:
                        hot.cancel()
                seconds = [workloads.at[name] - began[name] for name in began]
                worst.append(percentile(seconds, 99))
                for figure in spread("B15", size, what, seconds):
                    yield figure
                after = one.usage()
                core = after.core_since(before)
                yield Figure("B15", size, f"{what}: CPU", round(core, 3), "core")
            yield Figure("B15", size, "p99 beside it, by p99 alone", round(worst[1] / worst[0], 2), "times")


async def _hot(scene: Scene) -> None:
    """One team changes its deployment as often as the hub lets it."""
    number = 0
    while True:
        number += 1
        manifest = scenes.deployment(99_999, replicas=1, team="team-0")
        manifest["spec"]["template"]["metadata"]["labels"]["round"] = f"r{number}"
        await scene.apply([manifest])
