"""The rules that outrank convenience (design.md, section 5), each as a scenario on a model that runs."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

import pytest

from tests.integration.harness import SYSTEM, Stage, condition, remote, until
from tests.integration.kinds import ANY_GPU, IMAGE, cluster, deployment, engine, inference_class, pod, service
from tests.support.manifests import Manifest

pytestmark = pytest.mark.fleet

LONG_ENOUGH = 4.0  # for whatever would follow to have begun

Break = Callable[[Stage, str], Awaitable[None]]


# 1. Bad or missing input never deletes -------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Spoiled:
    """Input that goes bad under a model that runs, who says so, and how it is mended."""

    spoil: Break
    says: str
    kind: str
    mend: Break
    name: str = "model"


def selecting(cel: str) -> Break:
    async def change(stage: Stage, space: str) -> None:
        await stage.hub.apply(deployment(space, replicas=2, engines=[engine(cel)]))

    return change


async def no_cluster(stage: Stage, space: str) -> None:
    chosen = {"matchLabels": {"site": "nowhere"}}
    await stage.hub.apply(deployment(space, replicas=2, clusterSelector=chosen))


async def no_cache(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2, modelCacheRef={"name": "nowhere"}))


async def original(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2))


async def no_class(stage: Stage, _: str) -> None:
    await stage.hub.delete("InferenceClass", "l4")
    await stage.hub.says("Ready=False/Deleting", "InferenceClass", "l4")  # it is in use, and stays
    await stage.hub.patch("InferenceClass", "l4", metadata={"finalizers": None})  # unless somebody insists


async def with_class(stage: Stage, _: str) -> None:
    await stage.hub.apply(inference_class("l4"))


async def no_kubeconfig(stage: Stage, _: str) -> None:
    await stage.hub.delete("Secret", "worker-1-kubeconfig", SYSTEM)


async def with_kubeconfig(stage: Stage, _: str) -> None:
    await stage.hub.apply(stage.kubeconfig("worker-1"))


async def silent(stage: Stage, _: str) -> None:
    stage.fleet.fault("worker-1", "kube-apiserver", "pause")


async def speaking(stage: Stage, _: str) -> None:
    stage.fleet.fault("worker-1", "kube-apiserver", "resume")


INVALID = "ReplicasScheduled=False/InvalidNodeSelector"
SPOILED = {
    "selector-that-is-none": Spoiled(selecting("device.driver =="), INVALID, "ModelDeployment", selecting(ANY_GPU)),
    "no-cluster-matches": Spoiled(no_cluster, "ReplicasScheduled=True", "ModelDeployment", original),
    "cache-that-is-missing": Spoiled(
        no_cache, "ModelCacheResolved=False/ModelCacheNotFound", "ModelDeployment", original
    ),
    "class-that-is-deleted": Spoiled(
        no_class, "NodePoolsValid=False/WaitingForClasses", "InferenceCluster", with_class, "worker-1"
    ),
    "kubeconfig-that-is-deleted": Spoiled(
        no_kubeconfig, "ClusterReady=True", "InferenceCluster", with_kubeconfig, "worker-1"
    ),
    "cluster-that-is-silent": Spoiled(
        silent, "ClusterReady=False/Unreachable", "InferenceCluster", speaking, "worker-1"
    ),
}


@pytest.mark.parametrize("case", SPOILED.values(), ids=SPOILED)
async def test_bad_input_moves_nothing_and_says_so(stage: Stage, space: str, case: Spoiled) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    before, placed = await shape(stage, space), await placement(stage, space)
    await case.spoil(stage, space)
    try:
        where = space if case.kind.startswith("Model") else ""
        await stage.hub.says(case.says, case.kind, case.name, where)
        await asyncio.sleep(LONG_ENOUGH)
        assert (await stage.chat(space)).status == 200
        assert await placement(stage, space) == placed
    finally:
        await case.mend(stage, space)
    await stage.settle()
    await stage.hub.ready("ModelDeployment", "model", space)
    assert await shape(stage, space) == before


async def placement(stage: Stage, space: str) -> Manifest:
    """The replicas as the deployment has them written, and their endpoints: a cluster that is silent is not asked."""
    found = [*await stage.hub.list("ModelReplica", space), *await stage.hub.list("ModelEndpoint", space)]
    return {one["metadata"]["uid"]: one["spec"] for one in found}


@dataclass(frozen=True, slots=True)
class Shape:
    """Which objects a deployment has; the same afterwards means that nothing was made anew."""

    replicas: list[str]
    endpoints: list[str]
    pods: list[str]


async def shape(stage: Stage, space: str) -> Shape:
    return Shape(
        sorted(await stage.replicas(space)),
        uids(await stage.hub.list("ModelEndpoint", space)),
        uids((await stage.pods(space)).values()),
    )


def uids(manifests: Iterable[Manifest]) -> list[str]:
    return sorted(one["metadata"]["uid"] for one in manifests)


# 2. Delete only what is no longer asked for, by our own uid -----------------------------------------------------------


async def test_what_carries_a_strangers_uid_is_left_alone(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    (replica,) = (await stage.replicas(space)).values()
    worker = stage.workers[replica["spec"]["clusterName"]]
    (ours,) = await worker.list("ResourceClaimTemplate", remote(space))
    stranger: Manifest = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": "stranger",
            "namespace": remote(space),
            "labels": {**ours["metadata"]["labels"], "modelplane.ai/owner-uid": "somebody-else"},
        },
    }
    await worker.apply(stranger)
    template = pod()
    template["spec"]["containers"][0]["image"] = f"{IMAGE}-next"
    await stage.hub.apply(deployment(space, engines=[engine('device.driver != "x"', template=template)]))
    await worker.gone("ResourceClaimTemplate", ours["metadata"]["name"], remote(space))
    assert await worker.get("ConfigMap", "stranger", remote(space))
    await worker.delete("ConfigMap", "stranger", remote(space))  # the namespace would stay for it


# 4. Ready tells the truth; 5. every "no" has a reason ----------------------------------------------------------------


async def test_a_fleet_that_is_full_says_how_many_it_holds_and_what_is_short(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=9), service(space))

    def eight(manifest: Manifest) -> bool:
        return manifest.get("status", {}).get("replicas", {}).get("ready") == 8

    full = await stage.hub.wait("ModelDeployment", "model", space, holds=eight, what="to have 8 replicas ready")
    assert condition(full, "Ready")["status"] == "False"
    assert full["status"]["summary"] == "8 of 9 replicas ready: InsufficientCapacity"
    short = await stage.hub.says("ReplicasScheduled=False/InsufficientCapacity", "ModelDeployment", "model", space)
    assert "8 of 9 replicas placed" in short["message"]
    assert "needs 1 node of pool" in short["message"]
    assert "0 of 2 free" in short["message"]


async def test_hardware_that_nobody_has_is_named_with_the_nearest_miss(stage: Stage, space: str) -> None:
    cel = 'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("141Gi")) >= 0'
    await stage.hub.apply(deployment(space, engines=[engine(cel)]))
    short = await stage.hub.says("ReplicasScheduled=False/NoMatchingDevices", "ModelDeployment", "model", space)
    assert "memory is 80Gi" in short["message"]
    assert "worker-1" in short["message"]


# What pods suffer from is told where people look ---------------------------------------------------------------------


async def test_an_engine_in_a_crash_loop_is_told_with_its_exit_code(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, engines=[engine(template=pod(crash=3, crash_after_seconds=0.5))]))
    await told(stage, space, "crash loop, exit code 3")
    await stage.hub.says("ReplicasReady=False/ReplicasFailing", "ModelDeployment", "model", space)

    async def warned() -> bool:
        found = await stage.hub.list("Event", space)
        about = {(one["involvedObject"]["kind"], one["reason"], one["type"]) for one in found if one["count"]}
        return {("ModelReplica", "CrashLoop", "Warning"), ("ModelDeployment", "CrashLoop", "Warning")} <= about

    await until("an Event about the replica and one about its deployment", warned)


async def test_an_image_that_cannot_be_pulled_is_told(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, engines=[engine(template=pod(startup_seconds=900))]))
    found = await until("its pod to run", lambda: stage.pods(space))
    where, _, name = next(iter(found)).partition("/")
    # No simulated pod pulls an image: say what a kubelet would say. The simulator writes its own again in time.
    waiting = {"reason": "ImagePullBackOff", "message": "Back-off pulling image: 401 Unauthorized"}
    status = {"name": "engine", "image": IMAGE, "imageID": "", "ready": False, "restartCount": 0}
    path = f"/api/v1/namespaces/{remote(space)}/pods/{name}/status"
    async with asyncio.TaskGroup() as group:

        async def keep_saying() -> None:
            while True:
                body = {"status": {"containerStatuses": [{**status, "state": {"waiting": waiting}}]}}
                await stage.workers[where].client.request(
                    "PATCH", path, body, content_type="application/merge-patch+json"
                )
                await asyncio.sleep(0.2)

        saying = group.create_task(keep_saying())
        await told(stage, space, "ImagePullBackOff: the registry refuses it")
        saying.cancel()


async def test_a_pod_that_finds_no_node_is_told_with_the_schedulers_reason(stage: Stage, space: str) -> None:
    worker = stage.workers["worker-1"]
    cordoned = [one["metadata"]["name"] for one in await worker.list("Node", labels="modelplane.ai/pool in (h100, l4)")]
    await stage.hub.apply(deployment(space, clusterSelector={"matchLabels": {"site": "worker-1"}}))
    await stage.hub.ready("ModelDeployment", "model", space)
    try:
        for name in cordoned:  # only now: nothing would be placed on a cluster known to have none
            await worker.patch("Node", name, spec={"unschedulable": True})
        (placed,) = await worker.list("Pod", remote(space))
        await worker.delete("Pod", placed["metadata"]["name"], remote(space))
        await told(stage, space, "has no node: Unschedulable")
    finally:
        for name in cordoned:
            await worker.patch("Node", name, spec={"unschedulable": None})
    await stage.hub.ready("ModelDeployment", "model", space)


async def told(stage: Stage, space: str, words: str) -> None:
    """Wait until the replica and its deployment both say so."""
    for kind, kind_of_condition in (("ModelReplica", "ModelReady"), ("ModelDeployment", "Ready")):

        async def says(kind: str = kind, wanted: str = kind_of_condition) -> bool:
            found = await stage.hub.list(kind, space)
            return bool(found) and all(words in condition(one, wanted).get("message", "") for one in found)

        await until(f"a {kind} to say {words!r}", says)


# Hardware that the operator cannot use -------------------------------------------------------------------------------


async def test_a_pool_that_shrinks_below_what_runs_on_it_moves_nothing(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=8), service(space))
    await stage.serving(space, 8)
    before = await shape(stage, space)
    try:
        await stage.hub.apply(cluster("worker-1", {"h100": "h100"}))
        await stage.hub.ready("InferenceCluster", "worker-1")
        await stage.answered(space)
        assert await shape(stage, space) == before
    finally:
        await stage.hub.apply(cluster("worker-1"))
        await stage.settle()
    await stage.hub.ready("ModelDeployment", "model", space)
    assert await shape(stage, space) == before
