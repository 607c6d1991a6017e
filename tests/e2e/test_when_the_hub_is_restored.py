"""The hub loses its etcd and gets that of a backup: engines that ran go on, and what is newer than it is left alone.

As a node's container is stopped for the backup, and for the restore, everything on the hub starts anew each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

from scripts.kind import clusters
from scripts.kind.commands import run
from tests.e2e.conftest import NAME as OLD
from tests.e2e.conftest import TEAM, answers
from tests.e2e.kind import Cluster, Manifest, condition_of, documents, until
from tests.support.manifests import ROOT

NODE = f"{clusters.HUB.kind}-control-plane"
ETCD = "/var/lib/etcd"
NEW = "newer"
OF_A_REPLICA = {
    "HTTPRoute": "gateway.networking.k8s.io/v1",
    "Service": "v1",
    "Deployment": "apps/v1",
    "ResourceClaimTemplate": "resource.k8s.io/v1",
}


async def test_a_hub_goes_on_from_a_backup_of_etcd(
    hub: Cluster, east: Cluster, west: Cluster, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    deployment, service = documents(ROOT / "examples/demo/model.yaml")
    deployment["spec"]["replicas"] = 1
    newer: Manifest = {**deployment, "metadata": {"name": NEW, "namespace": TEAM}}
    await hub.apply(deployment, service)
    await hub.holds("ModelDeployment", OLD, TEAM)
    url = (await hub.holds("ModelService", OLD, TEAM))["status"]["address"]

    await asyncio.to_thread(run, "docker", "stop", "--time=20", NODE)
    await asyncio.to_thread(run, "docker", "cp", f"{NODE}:{ETCD}", tmp_path)
    await asyncio.to_thread(run, "docker", "start", NODE)
    await hub_answers(hub)
    await hub.holds("ModelDeployment", OLD, TEAM)
    await hub.apply(newer)
    await hub.holds("ModelDeployment", NEW, TEAM)
    before = await engines(east, west)
    assert len(before) == 2

    began = time.monotonic()
    await asyncio.to_thread(run, "docker", "exec", NODE, "rm", "-rf", f"{ETCD}/member")
    await asyncio.to_thread(run, "docker", "stop", "--time=2", NODE)
    await asyncio.to_thread(run, "docker", "cp", f"{tmp_path}/etcd/.", f"{NODE}:{ETCD}")
    await asyncio.to_thread(run, "docker", "start", NODE)
    await hub_answers(hub)
    assert await hub.get("ModelDeployment", NEW, TEAM) is None

    await until(lambda: answers(url), "the model to answer at its URL")
    await hub.holds("ModelDeployment", OLD, TEAM)
    measured(f"from a hub without etcd to a model that is Ready again: {time.monotonic() - began:.0f} s")
    assert await engines(east, west) == before  # the same pods, and no container of them started anew

    await until(lambda: told(hub), f"a cluster to say that {NEW} is nobody's")
    (replica,) = await hub.list("ModelReplica", TEAM)
    for cluster in (east, west):  # as docs/day-2.md has it taken down
        await cluster.delete(*await left_behind(cluster, alone=cluster.name != replica["spec"]["clusterName"]))
    await hub.delete(service, deployment)


async def told(hub: Cluster) -> bool:
    said = [condition_of(one, "ObjectsOwned") for one in await hub.list("InferenceCluster")]
    return any(one["status"] == "False" and f"/{NEW}-" in one["message"] for one in said)


async def left_behind(cluster: Cluster, *, alone: bool) -> list[Manifest]:
    """What was made for the newer one; with the namespace, where nothing else of the team is."""
    namespace = f"modelplane-{TEAM}"
    if alone:
        return [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}]
    return [
        {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": namespace}}
        for kind, version in OF_A_REPLICA.items()
        for one in await cluster.list(kind, namespace, version)
        if (name := one["metadata"]["name"]).startswith(f"{NEW}-")
    ]


async def hub_answers(hub: Cluster) -> None:
    async def look() -> bool:
        try:
            await hub.get("ModelDeployment", OLD, TEAM)
        except Exception:  # noqa: BLE001 - whatever a client says of an API server that is not there yet
            return False
        return True

    await until(look, "the hub's API server")


async def engines(*some: Cluster) -> dict[str, int]:
    """The uid of each engine's pod, and how often it was restarted."""
    pods = [pod for cluster in some for pod in await cluster.list("Pod", f"modelplane-{TEAM}", "v1")]
    return {
        pod["metadata"]["uid"]: sum(one["restartCount"] for one in pod["status"].get("containerStatuses") or ())
        for pod in pods
        if "deletionTimestamp" not in pod["metadata"]
        if any(one["name"] == "engine" for one in pod["spec"]["containers"])
    }
