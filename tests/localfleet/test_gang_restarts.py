"""A gang as the operator renders it, beside a real API server with the stand-ins of its controller and its kubelet."""

import time
from collections.abc import AsyncGenerator, Mapping
from pathlib import Path

import pytest
import yaml

import tests.rendering
from localfleet.kubeclient import MERGE, KubeClient, connect
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render import LEADER_WORKER_SETS, Context, render_model_replica
from tests.localfleet.engine_support import ADDRESSES, Manifest, eventually, program, running
from tests.support.api import Api

pytestmark = pytest.mark.fleet

GANG = Path(tests.rendering.__file__).parent / "golden/model_replica/gang-over-two-nodes.in.yaml"
RESTARTED_WITHIN = 30.0


@pytest.fixture
async def client(api: Api) -> AsyncGenerator[KubeClient]:
    listening = [part for address in ADDRESSES for part in ("--listen", address)]
    access = ["--kubeconfig", str(api.server.kubeconfig)]
    async with (
        connect(api.server.kubeconfig) as client,
        program("localfleet.leaderworkerset", *access),
        program("localfleet.engine", *access, "--cluster", "west", "--port", "8000", *listening),
    ):
        yield client


def rendered() -> Manifest:
    """The LeaderWorkerSet of the golden gang, by this operator."""
    replica, *_ = yaml.safe_load_all(GANG.read_text())
    del replica["spec"]["podRevision"]
    latest = ModelReplica.parse({**replica, "spec": {**replica["spec"], "podRevision": 3}})
    found = render_model_replica(latest, Context("uid", frozenset({LEADER_WORKER_SETS})))
    assert isinstance(found, tuple)
    return next(manifest for manifest in found if manifest["kind"] == "LeaderWorkerSet")


async def test_a_gang_whose_leader_crashed_starts_again_within_half_a_minute(client: KubeClient) -> None:
    gang = rendered()
    namespace = gang["metadata"]["namespace"]
    await client.request("POST", "/api/v1/namespaces", {"metadata": {"name": namespace}})
    await client.request("POST", f"/apis/leaderworkerset.x-k8s.io/v1/namespaces/{namespace}/leaderworkersets", gang)
    pods = f"/api/v1/namespaces/{namespace}/pods"
    leader = f"{gang['metadata']['name']}-0"

    async def there() -> Mapping[str, Manifest] | None:
        found = {pod["metadata"]["name"]: pod for pod in (await client.request("GET", pods))["items"]}
        return found if {leader, f"{leader}-1"} <= set(found) else None

    async def answers() -> bool:
        conditions = (await client.request("GET", f"{pods}/{leader}"))["status"]["conditions"]
        return ("Ready", "True") in [(one["type"], one["status"]) for one in conditions]

    before = await eventually("the pods of the gang", there)
    for name, address in zip(sorted(before), ADDRESSES, strict=True):
        binding = {"metadata": {"name": name}, "target": {"kind": "Node", "name": "node-1"}}
        await client.request("POST", f"{pods}/{name}/binding", binding)
        status = {"status": running(address)}
        await client.request("PATCH", f"{pods}/{name}/status", status, content_type=MERGE)
    await eventually("the leader to answer", answers)
    crashed = time.monotonic()
    await _annotate(client, f"{pods}/{leader}", {"crash": "1", "crash-times": "1"})

    async def ends() -> bool:
        return "deletionTimestamp" in (await client.request("GET", f"{pods}/{leader}"))["metadata"]

    async def restarted() -> Mapping[str, Manifest] | None:
        found = await there() or {}
        uids = {pod["metadata"]["uid"] for pod in found.values()}
        return found if found and uids.isdisjoint(pod["metadata"]["uid"] for pod in before.values()) else None

    await eventually("the gang to be recreated", ends)
    # What the kubelet has started again in the meantime would load for minutes.
    await _annotate(client, f"{pods}/{leader}", {"startup-seconds": "600", "crash": None})
    await eventually("the first pods of the new gang", restarted, RESTARTED_WITHIN)

    assert time.monotonic() - crashed < RESTARTED_WITHIN


async def _annotate(client: KubeClient, path: str, settings: Mapping[str, str | None]) -> None:
    annotations = {f"localfleet.dev/{name}": value for name, value in settings.items()}
    await client.request("PATCH", path, {"metadata": {"annotations": annotations}}, content_type=MERGE)
