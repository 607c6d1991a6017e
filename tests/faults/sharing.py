"""Operators that share the clusters, in the place of the stage's one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import suppress

import pytest

from localfleet.kubeclient import ApiError
from modelplane_operator.api import labels
from modelplane_operator.clients.shares import cluster_lease
from tests.faults.stage import LEASE, QUICK, FaultyStage
from tests.integration.harness import NOT_FOUND, WORKERS, Operator, until
from tests.support.manifests import Manifest

SHARED = ("--share-clusters=on", "--lease-duration=6", "--lease-deadline=4", "--lease-retry=0.5")
PODS = ("one", "two", "three")
TAKEOVER_SECONDS = 120.0
LEASES, _, LEADS = LEASE.rpartition("/")


@pytest.fixture
async def pods(stage: FaultyStage) -> AsyncGenerator[dict[str, Operator]]:
    """Three of them."""
    flags = [flag for flag in QUICK if not flag.startswith(("--lease", "--listen"))]
    pods = {
        name: Operator(
            stage.fleet,
            stage.operator.log.with_name(f"operator-{name}.log"),
            (*flags, *SHARED, f"--listen=127.0.0.1:809{number}", f"--identity={name}"),
            kubeconfig=stage.operator.kubeconfig,
            within=None,
        )
        for number, name in enumerate(PODS)
    }
    alone = stage.operator
    await alone.stop()
    beginning = [await begun(one) for one in pods.values()]
    try:
        await until("all clusters to have a pod", lambda: holders(stage), TAKEOVER_SECONDS)
        stage.operator = pods[PODS[0]]
        yield pods
    finally:
        for one in beginning:
            one.cancel()
        for one in pods.values():
            if one.is_up:
                await one.kill()
        await clear(stage)
        stage.operator = alone
        await stage.free_lease()
        await alone.start()


async def begun(pod: Operator) -> asyncio.Task[None]:
    """Start it; that task is over once it leads, if it ever does."""
    before = pod.process

    async def leads() -> None:
        with suppress(AssertionError):  # it may die before
            await pod.start(seconds=1e6)

    starting = asyncio.create_task(leads())
    await until("it to be up", lambda: pod.process is not before and pod.process)
    return starting


async def leases(stage: FaultyStage) -> list[Manifest]:
    found = await stage.hub.client.request("GET", LEASES, params={"labelSelector": f"{labels.SHARING}={LEADS}"})
    return found["items"]


async def holders(stage: FaultyStage) -> dict[str, str]:
    """By cluster, which pod has it; nothing unless each cluster has one."""
    names = {cluster_lease(LEADS, worker): worker for worker in WORKERS}
    found = {
        names[one["metadata"]["name"]]: (one["spec"].get("holderIdentity") or "").partition("_")[0]
        for one in await leases(stage)
        if one["metadata"]["name"] in names
    }
    return found if len(found) == len(WORKERS) and all(found.values()) else {}


async def clear(stage: FaultyStage) -> None:
    """Nobody waits for pods that are known to be dead."""
    for one in await leases(stage):
        try:
            await stage.hub.client.request("DELETE", f"{LEASES}/{one['metadata']['name']}")
        except ApiError as error:
            if error.status != NOT_FOUND:
                raise
