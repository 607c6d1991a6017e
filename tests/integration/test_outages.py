"""What a service says while something on the way of its requests is away, against what its requests meet with."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from localfleet.kubeclient import Key, Mirror, entries
from tests.integration.harness import Stage, condition, path_of, remote, until
from tests.integration.kinds import deployment, service

pytestmark = pytest.mark.fleet

SERVICE, CLUSTER, REPLICA = "ModelService", "InferenceCluster", "ModelReplica"


def envoys(stage: Stage, worker: str) -> list[int]:
    """The processes of the cluster's gateway: the Envoys among its pods."""
    pods = stage.fleet.folder.resolve() / "clusters" / worker / "pods"

    def running() -> Iterator[int]:
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                name, root = (entry / "comm").read_text().strip(), (entry / "root").readlink()
            except OSError:
                continue
            if name == "envoy" and root.is_relative_to(pods):
                yield int(entry.name)

    return [*running()]


@asynccontextmanager
async def hung(stage: Stage, worker: str) -> AsyncGenerator[None]:
    """The gateway of a cluster takes connections, and says nothing."""
    pids = envoys(stage, worker)
    assert pids
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in set(envoys(stage, worker)) & set(pids):
            os.kill(pid, signal.SIGCONT)


async def test_a_gateway_that_hangs_is_named_and_requests_go_elsewhere(
    stage: Stage, space: str, measured: Callable[[str], None]
) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    await stage.hub.ready(SERVICE, "model", space)
    placed = {one["spec"]["clusterName"]: name for name, one in (await stage.replicas(space)).items()}
    found = await stage.hub.get(CLUSTER, "worker-1")
    assert found
    address = found["status"]["gateway"]["address"]
    async with hung(stage, "worker-1"):
        told = await stage.hub.says("BackendReady=False/GatewaySilent", CLUSTER, "worker-1")
        for words in ("cluster worker-1", address, "look at its pods on that cluster"):
            assert words in told["message"]
        said = await stage.hub.says("Ready=Unknown/Unreachable", "ModelEndpoint", placed["worker-1"], space)
        assert said["message"] == told["message"]
        said = await stage.hub.says("Ready=True/Degraded", REPLICA, placed["worker-1"], space)
        assert told["message"] in said["message"]
        said = await stage.hub.says("Ready=True/Degraded", SERVICE, "model", space)
        assert "cluster worker-1" in said["message"]

        async def elsewhere() -> bool:
            try:
                return {(await stage.chat(space, seconds=3)).cluster for _ in range(8)} == {"worker-2"}
            except TimeoutError:
                return False

        await until("requests to go to the other cluster alone", elsewhere)
    measured(f"named: {told['message']}")
    await stage.hub.says("BackendReady=True", CLUSTER, "worker-1")
    await stage.hub.says("Ready=True/Available", "ModelEndpoint", placed["worker-1"], space)
    await stage.hub.says("Ready=True/Available", SERVICE, "model", space)


async def test_a_service_whose_only_gateway_hangs_says_which(stage: Stage, space: str) -> None:
    on = {"clusterSelector": {"matchLabels": {"site": "worker-1"}}}
    await stage.hub.apply(deployment(space, **on), service(space))
    await stage.serving(space, 1)
    await stage.hub.ready(SERVICE, "model", space)
    async with hung(stage, "worker-1"), stage.load(space, plain=1, streams=0):
        said = await stage.hub.says("Ready=False/NotAnswered", SERVICE, "model", space)
        assert "Requests fail" in said["message"]
        await stage.hub.wait(
            SERVICE,
            "model",
            space,
            holds=lambda one: any("cluster worker-1" in each.get("message", "") for each in conditions(one)),
            what="to name the cluster",
        )
    await stage.hub.ready(SERVICE, "model", space)


@asynccontextmanager
async def mirrored(mirror: Mirror) -> AsyncGenerator[None]:
    watching = asyncio.create_task(mirror.run())
    try:
        await mirror.synced.wait()
        yield
    finally:
        watching.cancel()


def conditions(manifest: dict[str, object]) -> list[dict[str, str]]:
    return [one for one in entries(manifest, "status", "conditions") if one["type"] == "Ready"]


async def test_a_service_stays_ready_while_endpoints_come_and_go_and_requests_succeed(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space), service(space))
    await stage.serving(space, 1)
    await stage.hub.ready(SERVICE, "model", space)
    said = list[str]()

    def note(key: Key) -> None:
        one = services.objects.get(key)
        if key[0] == space and one:
            said.extend(f"{each['status']} {each['reason']}: {each.get('message')}" for each in conditions(one))

    services = Mirror(stage.hub.client, path_of(SERVICE), changed=note)
    async with stage.load(space, plain=2, streams=0) as load, mirrored(services):
        for replicas in (3, 1, 2):
            await stage.hub.patch("ModelDeployment", "model", space, spec={"replicas": replicas})

            async def followed(replicas: int = replicas) -> bool:
                one = await stage.hub.get(SERVICE, "model", space)
                return (one or {}).get("status", {}).get("endpointCount") == replicas

            await until(f"{replicas} endpoints behind the URL", followed)
            await stage.hub.ready("ModelDeployment", "model", space)
    assert said
    assert [one for one in said if not one.startswith("True Available")] == []
    assert load.failures == []


async def test_generation_that_fails_while_all_is_ready_is_said_by_the_gateways_own_counters(
    stage: Stage, space: str, measured: Callable[[str], None]
) -> None:
    on = {"clusterSelector": {"matchLabels": {"site": "worker-1"}}}
    await stage.hub.apply(deployment(space, **on), service(space))
    await stage.serving(space, 1)
    await stage.hub.ready(SERVICE, "model", space)
    for place in await stage.pods(space):
        failing = {"annotations": {"localfleet.dev/error-rate": "1"}}
        await stage.workers["worker-1"].patch("Pod", place.partition("/")[2], remote(space), metadata=failing)

    async def fails() -> bool:
        return (await stage.chat(space)).status == 500

    await until("generation to fail", fails)

    async def degraded() -> str:
        for _ in range(4):
            await stage.chat(space)
        found = await stage.hub.get(SERVICE, "model", space)
        ready = condition(found or {}, "Ready")
        return ready["message"] if (ready["status"], ready["reason"]) == ("True", "Degraded") else ""

    message = await until("the service to say so", degraded)
    measured(message)
    assert "requests in 5 minutes failed with 500: look at the logs of the engines" in message
    # Counters are read twice a minute: until then it says True, longer than a service whose way is broken may.
    stage.readiness.asked.clear()
