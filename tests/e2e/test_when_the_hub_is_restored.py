"""The hub loses its etcd and gets that of a backup: engines that ran go on, and what is newer than it is left alone.

As a node's container is stopped for the backup, and for the restore, everything on the hub starts anew each time.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from pathlib import Path

import aiohttp

from scripts.kind import clusters
from scripts.kind.commands import run
from tests.e2e.conftest import TEAM
from tests.e2e.kind import Cluster, Manifest, documents, until
from tests.support.manifests import ROOT

NODE = f"{clusters.HUB.kind}-control-plane"
ETCD = "/var/lib/etcd"
OLD, NEW = "qwen3-8b", "newer"


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
    await asyncio.to_thread(run, "docker", "cp", tmp_path / "etcd" / ".", f"{NODE}:{ETCD}")
    await asyncio.to_thread(run, "docker", "start", NODE)
    await hub_answers(hub)
    assert await hub.get("ModelDeployment", NEW, TEAM) is None

    async with aiohttp.ClientSession() as session:

        async def answers() -> bool:
            body = {"model": OLD, "messages": [{"role": "user", "content": "Are you there?"}]}
            try:
                async with session.post(f"{url}/v1/chat/completions", json=body) as answer:
                    return answer.status == 200
            except aiohttp.ClientError:
                return False

        await until(answers, "the model to answer at its URL")
    await hub.holds("ModelDeployment", OLD, TEAM)
    measured(f"from a hub without etcd to a model that is Ready again: {time.monotonic() - began:.0f} s")
    assert await engines(east, west) == before  # the same pods, and no container of them started anew

    # The newer one's engine is nobody's now: docs/day-2.md says who takes it down.
    await hub.delete(service, deployment)


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
        if any(one["name"] == "engine" for one in pod["spec"]["containers"])
    }
