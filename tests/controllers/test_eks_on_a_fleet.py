"""A cluster on EKS from apply to delete, by the operator's own process as the chart's account, on a real hub.

AWS is moto and an EKS of ours, whose one cluster is a workload cluster of a local fleet. It takes the operator's tokens
and no other credentials: its API server asks that EKS whose they are.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections import Counter
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass

import aiohttp
import pytest

from localfleet.fleet import HUB, Fleet, Options
from localfleet.kubeclient import ApiError, connect
from localfleet.processes import tail
from modelplane_operator.rendering.clusters.eks.charts import CHARTS
from scripts import demo
from tests.integration.harness import SYSTEM, Cluster, condition, until
from tests.integration.kinds import deployment, namespace, service
from tests.support.aws.fleet import ENVIRONMENT, TOKEN_WEBHOOK, aws_of, credentials
from tests.support.aws.server import AwsServer
from tests.support.manifests import ROOT, Manifest, load

pytestmark = pytest.mark.fleet

PLATFORM = ROOT / "examples" / "demo" / "cloud.yaml"
SPACE, NAME, WORKER = "ml-team", "oregon", "worker-1"
MINUTES = 60.0


@dataclass(slots=True)
class Ground:
    """A hub with the chart on it, and the cluster that AWS gives out."""

    fleet: Fleet
    hub: Cluster
    aws: AwsServer
    processes: Sequence[subprocess.Popen[bytes]] = ()

    async def start(self) -> None:
        self.processes = await asyncio.to_thread(demo.start, self.fleet, ENVIRONMENT)

    def kill(self) -> None:
        """End the operator with no chance to say a word."""
        for process in self.processes:
            process.kill()
            process.wait()

    async def reaches(self, ready: int) -> None:
        """Wait until so many of the cluster's resources are there."""

        async def there() -> bool:
            found = await self.hub.get("EKSCluster", NAME, SYSTEM)
            resources = found.get("status", {}).get("resources", []) if found else []
            return sum(one["state"] == "Ready" for one in resources) >= ready

        await until(f"{ready} resources to be there", there)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("eks") / "fleet")
    try:
        fleet.up(Options(workers=1, profile=demo.PROFILE, data_plane=False, token_webhook=TOKEN_WEBHOOK))
        yield fleet
    finally:
        fleet.down()


@pytest.fixture
async def ground(fleet: Fleet) -> AsyncIterator[Ground]:
    demo.fill(demo.mirror_of(fleet), CHARTS)
    with aws_of(fleet, WORKER) as aws:
        async with connect(fleet.kubeconfig(HUB)) as client:
            hub = Cluster(HUB, client)
            await demo.Hub(client, demo.operator_of(fleet)).install(demo.definitions())
            ground = Ground(fleet, hub, aws)
            try:
                yield ground
            finally:
                ground.kill()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    report = yield
    ground = getattr(item, "funcargs", {}).get("ground")
    if report.failed and isinstance(ground, Ground):
        report.sections.append(("the operator", tail(demo.operator_of(ground.fleet).log, lines=40)))
    return report


async def test_a_cluster_is_made_serves_a_model_and_goes_without_leaving_anything(ground: Ground) -> None:
    hub, aws = ground.hub, ground.aws
    await ground.start()
    await hub.apply(credentials(), namespace(SPACE), *load(PLATFORM))
    await ground.reaches(ready=20)
    ground.kill()
    await ground.start()

    await hub.apply(deployment(SPACE), service(SPACE))
    await hub.ready("InferenceCluster", NAME, seconds=10 * MINUTES)
    await hub.ready("EKSCluster", NAME, SYSTEM, seconds=5 * MINUTES)
    made = await hub.get("EKSCluster", NAME, SYSTEM)
    assert made is not None
    assert {one["state"] for one in made["status"]["resources"]} == {"Ready"}
    assert {one["type"]: one["status"] for one in made["status"]["conditions"]}["Stalled"] == "False"
    assert Counter(aws.backed.values()) == {WORKER: 1}
    cluster = await hub.get("InferenceCluster", NAME)
    assert cluster is not None
    assert cluster["status"]["cache"] == {"storageClassName": "modelplane-rwx-efs"}
    assert await answered(ground) == WORKER
    await keeps_its_secrets(ground)

    with pytest.raises(ApiError, match="ModelReplicas are placed on it"):
        await hub.delete("InferenceCluster", NAME)
    changes = aws.changes
    await hub.delete("EKSCluster", NAME, SYSTEM)  # from under its models
    await hub.wait("EKSCluster", NAME, SYSTEM, holds=is_held, what="to stay while the InferenceCluster does")
    assert await answered(ground) == WORKER
    assert aws.changes == changes

    await hub.delete("ModelDeployment", "model", SPACE)
    await hub.delete("ModelService", "model", SPACE)
    await until("the replicas to be gone", lambda: no_replicas(hub))
    await hub.delete("InferenceCluster", NAME)
    await hub.gone("InferenceCluster", NAME, seconds=10 * MINUTES)

    assert await hub.get("EKSCluster", NAME, SYSTEM) is None
    assert aws.left == []


def is_held(manifest: Manifest) -> bool:
    return f"It stays until InferenceCluster {NAME} lets it go" in condition(manifest, "Ready").get("message", "")


async def no_replicas(hub: Cluster) -> bool:
    found = await hub.get("InferenceCluster", NAME)
    return found is not None and not found["status"].get("replicas") and not await hub.list("ModelReplica", SPACE)


async def answered(ground: Ground) -> str:
    """The cluster that answers a question, by the hub's gateway."""
    port = ground.fleet.cluster(HUB)["ports"]["gateway"]
    asked = {"model": "org/model", "messages": [{"role": "user", "content": "Who are you?"}]}
    url = f"http://127.0.0.1:{port}/{SPACE}/model/v1/chat/completions"

    async def look() -> str:
        try:
            async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
                return answer.headers.get("x-localfleet-cluster", "") if answer.status == 200 else ""
        except aiohttp.ClientError:
            return ""

    return await until("an answer", look, seconds=5 * MINUTES)


async def keeps_its_secrets(ground: Ground) -> None:
    """A token is nowhere but in the operator's memory, and neither is a key of the account but in its Secret."""
    kinds = ("EKSCluster", "InferenceCluster", "ServingStack", "Event", "Secret", "ConfigMap")
    lists = await asyncio.gather(*(ground.hub.list(kind) for kind in kinds))
    written = [str(one) for found in lists for one in found if one["metadata"]["name"] != "default"]
    written.append(demo.operator_of(ground.fleet).log.read_text())
    for said in ("k8s-aws-v1.", "AKIAEXAMPLE"):
        assert not [one for one in written if said in one]
