"""Clusters on EKS and GKE from apply to delete, by the operator's own process as the chart's account, on a real hub.

AWS is moto and an EKS of ours, Google Cloud a GKE of ours over gRPC and the rest over HTTP. The one cluster of each is
a workload cluster of a local fleet, which takes the operator's tokens and no other credentials: its API server asks the
cloud whose they are.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

import aiohttp
import pytest

from localfleet.errors import FleetError
from localfleet.fleet import HUB, Fleet, Options
from localfleet.kubeclient import ApiError, connect
from localfleet.processes import tail
from modelplane_operator.clouds.eks.render.charts import CHARTS
from scripts import demo
from tests.integration.harness import SYSTEM, Cluster, condition, until
from tests.integration.kinds import namespace
from tests.support.aws import fleet as amazon
from tests.support.aws.server import AwsServer
from tests.support.google import fleet as google
from tests.support.google.server import TOKEN, GoogleServer
from tests.support.manifests import ROOT, Manifest, load

pytestmark = [pytest.mark.fleet, pytest.mark.slow]

PLATFORM, MODEL = (ROOT / "examples" / "demo" / f"{name}.yaml" for name in ("cloud", "cloud-model"))
SPACE, SERVICE = "ml-team", "qwen3-8b"
CLUSTERS = {"oregon": "EKSCluster", "iowa": "GKECluster"}
WORKERS = {"oregon": "worker-1", "iowa": "worker-2"}
SECRETS = {"oregon": "aws", "iowa": "google"}
STORAGE = {"oregon": "modelplane-rwx-efs", "iowa": "modelplane-rwx"}
ENVIRONMENT = {**amazon.ENVIRONMENT, **google.ENVIRONMENT}

MINUTES = 60.0
QUESTION: Manifest = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "Question",
    "metadata": {"generateName": "ask-", "namespace": SPACE},
    "spec": {"ask": "Hardware"},
}


@dataclass(slots=True)
class Ground:
    """A hub with the chart on it, and the clusters that clouds give out."""

    fleet: Fleet
    hub: Cluster
    aws: AwsServer
    google: GoogleServer
    processes: Sequence[subprocess.Popen[bytes]] = ()

    async def start(self) -> None:
        self.processes = await asyncio.to_thread(demo.start, self.fleet, ENVIRONMENT)

    def kill(self) -> None:
        """End the operator with no chance to say a word."""
        for process in self.processes:
            process.kill()
            process.wait()

    @property
    def left(self) -> list[str]:
        """All that there is on the clouds."""
        return [*self.aws.left, *self.google.state.left]

    @property
    def changes(self) -> int:
        return self.aws.changes + self.google.changes

    async def reaches(self, **ready: int) -> None:
        """Wait until so many of each cluster's resources are there."""

        async def there(name: str, most: int) -> bool:
            found = await self.hub.get(CLUSTERS[name], name, SYSTEM)
            resources = found.get("status", {}).get("resources", []) if found else []
            return sum(one["state"] == "Ready" for one in resources) >= most

        for name, most in ready.items():
            await until(f"{most} resources of {name} to be there", partial(there, name, most), 5 * MINUTES)


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    fleet = Fleet(tmp_path_factory.mktemp("clouds") / "fleet")
    try:
        options = Options(
            workers=len(WORKERS), profile=demo.PROFILE, data_plane=False, token_webhook=amazon.TOKEN_WEBHOOK
        )
        fleet.up(options)
        yield fleet
    finally:
        fleet.down()


@pytest.fixture
async def ground(fleet: Fleet) -> AsyncIterator[Ground]:
    demo.fill(fleet, CHARTS)
    with amazon.aws_of(fleet, WORKERS["oregon"]) as aws, google.google_of(fleet, WORKERS["iowa"]) as gcp:
        aws.whose_else = gcp.whose
        async with connect(fleet.kubeconfig(HUB)) as client:
            hub = Cluster(HUB, client)
            await demo.Hub(client, demo.operator_of(fleet)).install(demo.definitions())
            ground = Ground(fleet, hub, aws, gcp)
            try:
                yield ground
            finally:
                ground.kill()
                sys.stdout.write(
                    tail(demo.operator_of(fleet).log, lines=40)
                )  # which pytest shows of a test that failed


async def test_clusters_are_made_serve_models_and_go_without_leaving_anything(
    ground: Ground, measured: Callable[[str], None]
) -> None:
    hub, since = ground.hub, time.monotonic()

    def took(what: str) -> None:
        nonlocal since
        measured(f"clouds on a fleet: {what}: {time.monotonic() - since:.0f} s")
        since = time.monotonic()

    await ground.start()
    secrets = (amazon.credentials(), google.credentials(ground.google))
    await hub.apply(*secrets, namespace(SPACE), *load(PLATFORM), *load(MODEL))
    await ground.reaches(oregon=20, iowa=4)
    took("begun")
    ground.kill()
    await ground.start()

    for name, kind in CLUSTERS.items():
        await is_made(hub, name, kind)
    took("made by another process")
    with pytest.raises(
        FleetError, match=r"(kinds? of devices may be requested|No cluster publishes devices)"
    ):  # the operator's answer is a refusal
        ground.fleet.kubectl(HUB, "create", "-f-", documents=json.dumps(QUESTION))
    given = (ground.aws.given_out, ground.google.given_out)
    assert [Counter(one.to.values()) for one in given] == [{worker: 1} for worker in WORKERS.values()]
    assert await answering(ground) == {*WORKERS.values()}
    await keeps_its_secrets(ground)
    took("answered")
    await is_found_by_its_name_on_its_cloud(hub)
    took("found by their names")

    for name in CLUSTERS:
        with pytest.raises(ApiError, match="ModelReplicas are placed on it"):
            await hub.delete("InferenceCluster", name)
    changes = ground.changes
    for name, kind in CLUSTERS.items():
        with pytest.raises(ApiError, match=f"InferenceCluster {name} has it"):
            await hub.delete(kind, name, SYSTEM)
        await hub.patch(kind, name, SYSTEM, metadata={"annotations": {"modelplane.ai/force-delete": "true"}})
        await hub.delete(kind, name, SYSTEM)  # from under its models
        await hub.wait(kind, name, SYSTEM, holds=partial(is_held, name), what="to stay while the InferenceCluster does")
    assert await answering(ground) == {*WORKERS.values()}
    assert ground.changes == changes

    log = demo.operator_of(ground.fleet).log
    before = len(log.read_text())
    for manifest in load(MODEL):
        await hub.delete(manifest["kind"], manifest["metadata"]["name"], SPACE)
    for name in CLUSTERS:
        await until(f"no replicas to be on {name}", partial(no_replicas, hub, name))
        await hub.delete("InferenceCluster", name)
    took("left by their models")
    for name in CLUSTERS:
        await until(f"{name} to be left to its cloud", partial(is_left_to_its_cloud, hub, name), 10 * MINUTES)
    took("left by their software")
    for name, kind in CLUSTERS.items():
        await hub.gone("InferenceCluster", name, seconds=10 * MINUTES)
        assert await hub.get(kind, name, SYSTEM) is None
    took("gone")
    assert ground.left == []
    since_then = log.read_text()[before:].splitlines()
    failed = [one for one in since_then if "ReconcileError" in one and '"kind":"InferenceCluster"' in one]
    assert failed == [], "what a cloud takes down is asked for nothing any more"


async def is_found_by_its_name_on_its_cloud(hub: Cluster) -> None:
    """Brought once more, without a kubeconfig: the operator gets there by what the cloud says, and finds them known."""
    where = {"oregon": ("eks", {"region": "us-west-2"}), "iowa": ("gke", {"location": "us-central1"})}
    for name, (cloud, place) in where.items():
        made = await hub.get(CLUSTERS[name], name, SYSTEM)
        assert made is not None
        known = {**place, "cluster": made["status"]["endpoint"]["cluster"], "credentials": {"name": SECRETS[name]}}
        cluster = {"source": "Existing", "existing": {"cloud": {cloud: known}}}
        pools = [{"name": "pool", "className": "h100-8", "nodeCount": 1}]
        brought: Manifest = {
            "apiVersion": "modelplane.ai/v1alpha1",
            "kind": "InferenceCluster",
            "metadata": {"name": f"also-{name}"},
            "spec": {"cluster": cluster, "nodePools": pools},
        }
        await hub.apply(brought)
    for name in where:
        said = f"is the same cluster as InferenceCluster {name}"
        await hub.wait("InferenceCluster", f"also-{name}", holds=partial(is_told, said), what="to be known already")
        await hub.delete("InferenceCluster", f"also-{name}")
    for name in where:
        await hub.gone("InferenceCluster", f"also-{name}")


def is_told(said: str, manifest: Manifest) -> bool:
    return said in condition(manifest, "ClusterReady").get("message", "")


async def is_made(hub: Cluster, name: str, kind: str) -> None:
    await hub.ready("InferenceCluster", name, seconds=10 * MINUTES)
    await hub.ready(kind, name, SYSTEM, seconds=5 * MINUTES)
    made, cluster = await hub.get(kind, name, SYSTEM), await hub.get("InferenceCluster", name)
    assert made is not None
    assert cluster is not None
    assert {one["state"] for one in made["status"]["resources"]} == {"Ready"}
    assert {one["type"]: one["status"] for one in made["status"]["conditions"]}["Stalled"] == "False"
    assert cluster["status"]["cache"] == {"storageClassName": STORAGE[name]}


async def is_left_to_its_cloud(hub: Cluster, name: str) -> bool:
    found = await hub.get("InferenceCluster", name)
    return found is None or found["status"].get("deletion", {}).get("phase") == "DeleteCluster"


def is_held(name: str, manifest: Manifest) -> bool:
    message = condition(manifest, "Ready").get("message", "")
    return f"Waiting for InferenceCluster {name}, which uses this cluster" in message


async def no_replicas(hub: Cluster, name: str) -> bool:
    found = await hub.get("InferenceCluster", name)
    return found is not None and not found["status"].get("replicas") and not await hub.list("ModelReplica", SPACE)


async def answering(ground: Ground) -> set[str]:
    """The clusters that answer questions, by the hub's gateway."""
    port = ground.fleet.cluster(HUB)["ports"]["gateway"]
    asked = {"model": SERVICE, "messages": [{"role": "user", "content": "Who are you?"}]}
    url = f"http://127.0.0.1:{port}/{SPACE}/{SERVICE}/v1/chat/completions"
    heard = set[str]()

    async def look() -> bool:
        try:
            async with aiohttp.ClientSession() as session, session.post(url, json=asked) as answer:
                if answer.status == 200:
                    heard.add(answer.headers.get("x-localfleet-cluster", ""))
        except aiohttp.ClientError:
            return False
        return len(heard) >= len(CLUSTERS)

    await until("answers from every cluster", look, seconds=5 * MINUTES)
    return heard


async def keeps_its_secrets(ground: Ground) -> None:
    """A token is nowhere but in the operator's memory, and neither is a key of an account but in its Secret."""
    kinds = (*CLUSTERS.values(), "InferenceCluster", "ServingStack", "Event", "Secret", "ConfigMap")
    lists = await asyncio.gather(*(ground.hub.list(kind) for kind in kinds))
    written = [str(one) for found in lists for one in found if one["metadata"]["name"] not in ("aws", "google")]
    written.append(demo.operator_of(ground.fleet).log.read_text())
    for said in ("k8s-aws-v1.", "AKIAEXAMPLE", TOKEN, "PRIVATE KEY"):
        assert not [one for one in written if said in one]
