"""The engine simulator beside a real API server: what it reads from pods, and what it writes back."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import pytest

import localfleet
from localfleet import binaries
from localfleet.apiserver import ApiServer
from localfleet.engine import STAGES
from localfleet.kubeclient import MERGE, ApiError, KubeClient, connect
from tests.localfleet.engine_support import ADDRESSES, Manifest, engine_pod, eventually, program, running
from tests.support.api import Api

pytestmark = pytest.mark.fleet

PORT = 18100
FLEET_STAGES = Path(localfleet.__file__).parent / "stages.yaml"
PODS = "/api/v1/namespaces/default/pods"


@pytest.fixture(scope="module")
def server(api: Api) -> ApiServer:
    return api.server


@dataclass
class Town:
    """One cluster with its simulator, and the test in the part of scheduler and kwok."""

    client: KubeClient
    session: aiohttp.ClientSession

    async def run_pod(self, name: str, address: str, **changes: Any) -> None:
        manifest = engine_pod(name, **changes)
        del manifest["metadata"]["uid"]
        for port in manifest["spec"]["containers"][0]["ports"]:
            port["containerPort"] = PORT
        for probe in ("readinessProbe", "livenessProbe"):
            if probe in manifest["spec"]["containers"][0]:
                manifest["spec"]["containers"][0][probe]["httpGet"]["port"] = PORT
        await self.client.request("POST", PODS, manifest)
        status = {"status": running(address)}
        await self.client.request("PATCH", f"{PODS}/{name}/status", status, content_type=MERGE)

    async def pod(self, name: str) -> Manifest | None:
        try:
            return await self.client.request("GET", f"{PODS}/{name}")
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    async def annotate(self, path: str, **annotations: str | None) -> None:
        body = {
            "metadata": {"annotations": {f"localfleet.dev/{k.replace('_', '-')}": v for k, v in annotations.items()}}
        }
        await self.client.request("PATCH", path, body, content_type=MERGE)

    async def until(self, name: str, what: str, holds: Any) -> Manifest:
        async def look() -> Manifest | None:
            pod = await self.pod(name)
            return pod if pod is not None and holds(pod) else None

        return await eventually(f"pod {name} to be {what}", look)

    async def add_node(self) -> None:
        """A node that kwok has taken over."""
        node = {"metadata": {"name": "node-1"}, "spec": {"podCIDR": "10.9.0.0/24"}}
        await self.client.request("POST", "/api/v1/nodes", node)

        async def taken_over() -> bool:
            status = (await self.client.request("GET", "/api/v1/nodes/node-1"))["status"]
            return ("Ready", "True") in [(entry["type"], entry["status"]) for entry in status.get("conditions", [])]

        await eventually("kwok to take the node over", taken_over)

    async def until_gone(self, name: str) -> None:
        async def gone() -> bool:
            return await self.pod(name) is None

        await eventually(f"pod {name} to be gone", gone)

    async def get(self, address: str, path: str, seconds: float = 5) -> int:
        async with asyncio.timeout(seconds), self.session.get(f"http://{address}:{PORT}{path}") as response:
            await response.read()
            return response.status

    def stream(self, address: str) -> Any:
        body = {"prompt": "Hi", "stream": True, "max_tokens": 40}
        return self.session.post(f"http://{address}:{PORT}/v1/completions", json=body)


def ready(pod: Manifest) -> bool:
    return condition(pod, "Ready")["status"] == "True"


def unready(pod: Manifest) -> bool:
    return not ready(pod)


def condition(pod: Manifest, kind: str) -> Manifest:
    conditions = pod["status"].get("conditions", [])
    return next((entry for entry in conditions if entry["type"] == kind), {"status": "Unknown"})


def engine(pod: Manifest) -> Manifest:
    return next(entry for entry in pod["status"]["containerStatuses"] if entry["name"] == "engine")


@asynccontextmanager
async def cluster(server: ApiServer) -> AsyncGenerator[Town]:
    async with connect(server.kubeconfig) as client, aiohttp.ClientSession() as session:
        try:
            yield Town(client, session)
        finally:
            await client.request("DELETE", PODS, {"gracePeriodSeconds": 0})
            await client.request("DELETE", "/api/v1/nodes")


def simulator(server: ApiServer) -> AbstractAsyncContextManager[Any]:
    listening = [part for address in ADDRESSES for part in ("--listen", address)]
    command = ["--kubeconfig", str(server.kubeconfig), "--cluster", "west", "--port", str(PORT), *listening]
    return program("localfleet.engine", *command, "--probe-scale", "0.01")


@asynccontextmanager
async def town(server: ApiServer) -> AsyncGenerator[Town]:
    async with cluster(server) as made, simulator(server):
        yield made


async def test_a_pod_is_ready_when_its_engine_is_up_and_says_so_the_way_a_kubelet_does(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], annotations={"localfleet.dev/startup-seconds": "1"})
        before = await west.until("p", "watched", lambda pod: condition(pod, "Ready").get("reason"))
        assert condition(before, "Ready")["message"] == "containers with unready status: [engine]"

        pod = await west.until("p", "Ready", ready)

        status = engine(pod)
        assert (status["ready"], status["started"], status["restartCount"]) == (True, True, 0)
        assert condition(pod, "ContainersReady")["status"] == "True"
        assert condition(pod, "PodScheduled")["status"] == "True", "what others wrote must stay"
        assert await west.get(ADDRESSES[0], "/health") == 200


async def test_it_writes_nothing_while_nothing_changes(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0])
        version = (await west.until("p", "Ready", ready))["metadata"]["resourceVersion"]
        # another pod goes through twenty probe periods meanwhile: time enough for a needless write
        await west.run_pod("q", ADDRESSES[1], annotations={"localfleet.dev/startup-seconds": "2"})
        await west.until("q", "Ready", ready)

        pod = await west.pod("p")

        assert pod is not None
        assert pod["metadata"]["resourceVersion"] == version


async def test_an_engine_that_hangs_is_unready_until_it_recovers(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0])
        await west.until("p", "Ready", ready)

        await west.annotate(f"{PODS}/p", hang="true")
        await west.until("p", "not Ready", unready)
        with pytest.raises(TimeoutError):
            await west.get(ADDRESSES[0], "/health", seconds=0.3)
        await west.annotate(f"{PODS}/p", hang=None)

        await west.until("p", "Ready again", ready)


async def test_an_engine_that_crashes_restarts_and_backs_off(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0])
        await west.until("p", "Ready", ready)

        await west.annotate(f"{PODS}/p", crash="139", crash_after_seconds="0.1")
        pod = await west.until(
            "p",
            "in CrashLoopBackOff after two restarts",
            lambda pod: "waiting" in engine(pod)["state"] and engine(pod)["restartCount"] >= 2,
        )

        assert engine(pod)["state"]["waiting"]["reason"] == "CrashLoopBackOff"
        assert engine(pod)["lastState"]["terminated"]["exitCode"] == 139
        assert unready(pod)
        await west.annotate(f"{PODS}/p", crash=None)
        await west.until("p", "Ready again", ready)


async def test_a_deleted_pod_is_unready_at_once_finishes_its_stream_and_then_goes(server: ApiServer) -> None:
    slow = {"localfleet.dev/tokens-per-second": "4"}  # ten seconds: a busy machine has looked by then
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], annotations=slow)
        await west.until("p", "Ready", ready)
        async with west.stream(ADDRESSES[0]) as stream:
            await stream.content.readline()
            await west.client.request("DELETE", f"{PODS}/p")
            await west.until("p", "not Ready", unready)
            with pytest.raises(aiohttp.ClientConnectionError):
                await west.get(ADDRESSES[0], "/health")
            assert await west.pod("p") is not None, "its stream still runs"

            assert (await stream.content.read()).endswith(b"data: [DONE]\n\n")
        await west.until_gone("p")


async def test_the_grace_period_cuts_what_does_not_end(server: ApiServer) -> None:
    endless = {"localfleet.dev/tokens-per-second": "0.01"}
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], annotations=endless, grace=1)
        await west.until("p", "Ready", ready)
        async with west.stream(ADDRESSES[0]) as stream:
            await stream.content.readline()
            await west.client.request("DELETE", f"{PODS}/p")

            with pytest.raises(aiohttp.ClientError):
                await stream.content.read()
        await west.until_gone("p")


async def test_a_pre_stop_sleep_keeps_the_engine_open_to_newcomers(server: ApiServer) -> None:
    lifecycle = {"lifecycle": {"preStop": {"sleep": {"seconds": 8}}}}  # a busy machine has looked by then
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], engine=lifecycle)
        await west.until("p", "Ready", ready)
        await west.client.request("DELETE", f"{PODS}/p")
        deleted = datetime.now(UTC)
        await west.until("p", "not Ready", unready)

        assert await west.get(ADDRESSES[0], "/health") == 200
        await west.until_gone("p")
        assert (datetime.now(UTC) - deleted).total_seconds() > 0.9, "deletionTimestamp has whole seconds"


async def test_a_second_deletion_cuts_no_pre_stop_hook_short(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], engine={"lifecycle": {"preStop": {"sleep": {"seconds": 600}}}}, grace=900)
        await west.until("p", "Ready", ready)
        await west.client.request("DELETE", f"{PODS}/p")
        await west.until("p", "not Ready", unready)
        await west.client.request("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 1})

        await asyncio.sleep(4)

        assert await west.get(ADDRESSES[0], "/health") == 200


async def test_a_failed_node_falls_silent_and_its_pods_stay_until_it_is_back(server: ApiServer) -> None:
    async with town(server) as west:
        await west.client.request("POST", "/api/v1/nodes", {"metadata": {"name": "node-1"}})
        await west.run_pod("p", ADDRESSES[0])
        await west.until("p", "Ready", ready)

        await west.annotate("/api/v1/nodes/node-1", node_down="true")

        async def silent() -> bool:
            try:
                await west.get(ADDRESSES[0], "/health", seconds=0.3)
            except TimeoutError:
                return True
            return False

        await eventually("the node's pods to fall silent", silent)
        pod = await west.pod("p")
        assert pod is not None
        assert ready(pod), "nobody is left to write its status"
        await west.client.request("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 1})
        await west.run_pod("q", ADDRESSES[1], grace=1, node="node-2")
        await west.until("q", "Ready", ready)
        await west.client.request("DELETE", f"{PODS}/q")
        await west.until_gone("q")
        assert await west.pod("p") is not None, "nobody is left to end it"
        await west.client.request("DELETE", "/api/v1/nodes/node-1")
        await west.until_gone("p")


async def test_a_pod_of_the_same_name_is_another_pod(server: ApiServer) -> None:
    async with town(server) as west:
        await west.run_pod("p", ADDRESSES[0], args=["--model=old"])
        await west.until("p", "Ready", ready)
        await west.client.request("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 0})
        await west.run_pod("p", ADDRESSES[1], args=["--model=new"])
        await west.until("p", "Ready", ready)

        with pytest.raises(aiohttp.ClientConnectionError):
            await west.get(ADDRESSES[0], "/health")
        async with west.session.get(f"http://{ADDRESSES[1]}:{PORT}/v1/models") as response:
            assert [card["id"] for card in (await response.json())["data"]] == ["new"]


async def test_a_simulator_that_starts_again_takes_over_what_runs(server: ApiServer) -> None:
    async with cluster(server) as west:
        await west.run_pod("p", ADDRESSES[0])
        async with simulator(server):
            before = await west.until("p", "Ready", ready)
        with pytest.raises(aiohttp.ClientConnectionError):
            await west.get(ADDRESSES[0], "/health")
        async with simulator(server):
            await west.run_pod("q", ADDRESSES[1])
            await west.until("q", "Ready", ready)

            assert await west.get(ADDRESSES[0], "/health") == 200
            after = await west.pod("p")
        assert after is not None
        assert after["status"] == before["status"]


async def test_kwok_and_the_simulator_take_an_engine_pod_from_pending_to_gone(server: ApiServer) -> None:
    async with cluster(server) as west, kwok(server), simulator(server):
        await west.add_node()
        manifest = engine_pod("p", annotations={"localfleet.dev/startup-seconds": "1"})
        del manifest["metadata"]["uid"]
        await west.client.request("POST", PODS, manifest)

        pod = await west.until("p", "Ready", ready)

        assert pod["status"]["phase"] == "Running"
        assert pod["status"]["podIP"].startswith("10.9.0.")
        assert {"Initialized", "ContainersReady"} < {entry["type"] for entry in pod["status"]["conditions"]}
        await west.client.request("DELETE", f"{PODS}/p")
        await west.until_gone("p")


@pytest.mark.parametrize("container", ["engine", "any"])
async def test_a_pod_that_a_finalizer_holds_has_ended_and_goes_with_the_finalizer(
    server: ApiServer, container: str
) -> None:
    async with cluster(server) as west, kwok(server), simulator(server):
        await west.add_node()
        manifest = engine_pod("p")
        del manifest["metadata"]["uid"]
        manifest["metadata"]["finalizers"] = ["localfleet.dev/held"]
        manifest["spec"]["containers"][0]["name"] = container
        await west.client.request("POST", PODS, manifest)
        await west.until("p", "Ready", ready)

        await west.client.request("DELETE", f"{PODS}/p", {"gracePeriodSeconds": 1})
        await west.until("p", "ended", lambda pod: pod["status"]["phase"] == "Succeeded")
        body = {"metadata": {"finalizers": None}}
        await west.client.request("PATCH", f"{PODS}/p", body, content_type=MERGE)
        await west.until_gone("p")


async def test_a_pod_that_never_ran_goes_when_it_is_deleted(server: ApiServer) -> None:
    async with town(server) as west:
        manifest = engine_pod("p")
        del manifest["metadata"]["uid"]
        await west.client.request("POST", PODS, manifest)

        await west.client.request("DELETE", f"{PODS}/p")

        await west.until_gone("p")


@asynccontextmanager
async def kwok(server: ApiServer) -> AsyncGenerator[None]:
    binary = binaries.ensure("kwok")["kwok"]
    stages = [part for file in (FLEET_STAGES, STAGES) for part in ("--config", str(file))]
    options = ["--kubeconfig", str(server.kubeconfig), "--manage-all-nodes", "--server-address=127.0.0.1:0", *stages]
    process = await asyncio.create_subprocess_exec(binary, *options, stderr=asyncio.subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        await process.wait()
