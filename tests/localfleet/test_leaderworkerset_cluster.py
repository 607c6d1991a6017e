"""The gang controller beside a real API server: the CRD, the pods, the status, the silence at rest."""

from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Any

import pytest

from localfleet.apiserver import ApiServer
from localfleet.kubeclient import MERGE, ApiError, KubeClient, connect
from tests.localfleet.engine_support import Manifest, eventually, program
from tests.support.api import Api

pytestmark = pytest.mark.fleet

SETS = "/apis/leaderworkerset.x-k8s.io/v1/namespaces/default/leaderworkersets"
CORE = "/api/v1/namespaces/default"


@pytest.fixture(scope="module")
def server(api: Api) -> ApiServer:
    return api.server


@dataclass
class Cluster:
    """One cluster with the controller, and the test in the part of the kubelet."""

    client: KubeClient

    async def make(self, name: str, **spec: Any) -> Manifest:
        template = {"spec": {"containers": [{"name": "engine", "image": "engine:1"}]}}
        rest = {"leaderWorkerTemplate": {"size": 2, "workerTemplate": template}, **spec}
        body = {"apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}
        return await self.client.request("POST", SETS, {**body, "metadata": {"name": name}, "spec": rest})

    async def patch(self, path: str, body: Manifest) -> Manifest:
        return await self.client.request("PATCH", path, body, content_type=MERGE)

    async def pods(self) -> dict[str, Manifest]:
        listed = (await self.client.request("GET", f"{CORE}/pods"))["items"]
        return {pod["metadata"]["name"]: pod for pod in listed}

    async def until_pods(self, *names: str) -> dict[str, Manifest]:
        async def there() -> dict[str, Manifest] | None:
            pods = await self.pods()
            return pods if set(pods) == set(names) else None

        return await eventually(f"exactly the pods {names}", there)

    async def run(self, *names: str, restarts: int = 0) -> None:
        ready = {"type": "Ready", "status": "True"}
        container = {"name": "engine", "ready": True, "restartCount": restarts, "image": "engine:1", "imageID": "x"}
        status = {"phase": "Running", "conditions": [ready], "containerStatuses": [container]}
        for name in names:
            await self.patch(f"{CORE}/pods/{name}/status", {"status": status})

    async def until(self, name: str, condition: str, status: str) -> Manifest:
        async def holds() -> Manifest | None:
            found = await self.client.request("GET", f"{SETS}/{name}")
            conditions = found.get("status", {}).get("conditions", [])
            return found if (condition, status) in [(entry["type"], entry["status"]) for entry in conditions] else None

        return await eventually(f"{name} to be {condition}={status}", holds)


@pytest.fixture
async def west(server: ApiServer) -> AsyncGenerator[Cluster]:
    options = ["--kubeconfig", str(server.kubeconfig)]
    async with connect(server.kubeconfig) as client, program("localfleet.leaderworkerset", *options):
        yield Cluster(client)
        # no garbage collector runs beside a lone API server
        await client.request("DELETE", SETS)
        for kind in ("pods", "services"):
            for item in (await client.request("GET", f"{CORE}/{kind}"))["items"]:
                name = item["metadata"]["name"]
                if name != "kubernetes":
                    await client.request("DELETE", f"{CORE}/{kind}/{name}", {"gracePeriodSeconds": 0})


async def test_a_set_becomes_available_when_all_its_pods_are_ready(west: Cluster) -> None:
    made = await west.make("gang", replicas=2)
    assert made["spec"]["leaderWorkerTemplate"]["restartPolicy"] == "RecreateGroupOnPodRestart"
    pods = await west.until_pods("gang-0", "gang-0-1", "gang-1", "gang-1-1")
    await west.run("gang-0", "gang-0-1", "gang-1")
    await west.until("gang", "Available", "False")
    await west.run("gang-1-1")

    found = await west.until("gang", "Available", "True")

    status = found["status"]
    assert (status["replicas"], status["readyReplicas"], status["updatedReplicas"]) == (2, 2, 2)
    assert status["observedGeneration"] == found["metadata"]["generation"]
    service = await west.client.request("GET", f"{CORE}/services/gang")
    assert (service["spec"]["clusterIP"], service["spec"]["publishNotReadyAddresses"]) == ("None", True)
    owner = pods["gang-1-1"]["metadata"]["ownerReferences"][0]
    assert (owner["name"], owner["uid"]) == ("gang-1", pods["gang-1"]["metadata"]["uid"])


async def test_it_writes_nothing_at_rest(west: Cluster) -> None:
    await west.make("quiet")
    await west.until_pods("quiet-0", "quiet-0-1")
    await west.run("quiet-0", "quiet-0-1")
    before = await west.until("quiet", "Available", "True")
    # another set goes from nothing to ready meanwhile: events enough for a needless write
    await west.make("other")
    await west.until_pods("quiet-0", "quiet-0-1", "other-0", "other-0-1")
    await west.run("other-0", "other-0-1")
    await west.until("other", "Available", "True")

    assert await west.client.request("GET", f"{SETS}/quiet") == before


async def test_a_pod_that_restarts_or_goes_takes_its_group_with_it(west: Cluster) -> None:
    await west.make("gang")
    names = ("gang-0", "gang-0-1")

    async def recreated(before: dict[str, Manifest]) -> dict[str, Manifest]:
        async def new() -> dict[str, Manifest] | None:
            pods = await west.pods()
            fresh = {n for n in names if n in pods and pods[n]["metadata"]["uid"] != before[n]["metadata"]["uid"]}
            return pods if fresh == set(names) else None

        return await eventually("a new group", new)

    pods = await west.until_pods(*names)
    await west.run("gang-0")
    await west.run("gang-0-1", restarts=1)
    pods = await recreated(pods)
    await west.client.request("DELETE", f"{CORE}/pods/gang-0-1", {"gracePeriodSeconds": 0})
    pods = await recreated(pods)
    await west.client.request("DELETE", f"{CORE}/pods/gang-0", {"gracePeriodSeconds": 0})
    await recreated(pods)


async def test_the_scale_subresource_and_a_new_template_reach_the_pods(west: Cluster) -> None:
    await west.make("gang", replicas=1)
    await west.until_pods("gang-0", "gang-0-1")
    await west.patch(f"{SETS}/gang/scale", {"spec": {"replicas": 2}})
    await west.until_pods("gang-0", "gang-0-1", "gang-1", "gang-1-1")
    await west.run("gang-0", "gang-0-1", "gang-1", "gang-1-1")
    await west.until("gang", "Available", "True")
    scale = await west.client.request("GET", f"{SETS}/gang/scale")
    assert scale["status"]["replicas"] == 2
    assert scale["status"]["selector"].startswith("leaderworkerset.sigs.k8s.io/name=gang,")

    new = {"spec": {"containers": [{"name": "engine", "image": "engine:2"}]}}
    await west.patch(f"{SETS}/gang", {"spec": {"leaderWorkerTemplate": {"workerTemplate": new}}})

    async def updated(*groups: str) -> bool:
        pods = await west.pods()
        wanted = {name for group in groups for name in (group, f"{group}-1")}
        return wanted == {name for name, pod in pods.items() if pod["spec"]["containers"][0]["image"] == "engine:2"}

    await eventually("the highest group to be updated", lambda: updated("gang-1"))
    await west.run("gang-1", "gang-1-1")
    await eventually("the other group to be updated", lambda: updated("gang-0", "gang-1"))
    await west.run("gang-0", "gang-0-1")
    await west.until("gang", "UpdateInProgress", "False")
    await west.until("gang", "Available", "True")


async def test_the_schema_keeps_pod_templates_whole_and_refuses_nonsense(west: Cluster) -> None:
    template = {"spec": {"containers": [{"name": "engine", "image": "x"}], "resourceClaims": [{"name": "devices"}]}}
    made = await west.make("gang", replicas=0, leaderWorkerTemplate={"size": 1, "workerTemplate": template})

    assert made["spec"]["leaderWorkerTemplate"]["workerTemplate"] == template
    for nonsense in ({"replicas": -1}, {"startupPolicy": "Never"}, {"leaderWorkerTemplate": {}}):
        with pytest.raises(ApiError, match="422 Invalid"):
            await west.make("nonsense", **nonsense)
