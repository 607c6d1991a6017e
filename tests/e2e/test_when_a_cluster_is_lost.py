"""The containers of a cluster's nodes are stopped: its replica is placed elsewhere, and the URL goes on answering.

Last of all, as what a cluster is like after it was stopped is no other scenario's affair.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from scripts.kind import clusters
from scripts.kind.commands import run
from tests.e2e.conftest import TEAM, answers
from tests.e2e.kind import Cluster, Manifest, is_true, until


async def test_a_replica_moves_when_its_nodes_are_stopped(
    hub: Cluster, url: str, measured: Callable[[str], None]
) -> None:
    (replica,) = await hub.list("ModelReplica", TEAM)
    lost = next(one for one in clusters.WORKLOAD if one.name == replica["spec"]["clusterName"])
    nodes = run("kind", "get", "nodes", "--name", lost.kind).split()
    began = time.monotonic()
    await asyncio.to_thread(run, "docker", "stop", "--time=2", *nodes)
    try:

        async def moved() -> bool:
            found: list[Manifest] = await hub.list("ModelReplica", TEAM)
            return any(one["spec"]["clusterName"] != lost.name and is_true(one) for one in found)

        await until(moved, "a replica to be ready on the other cluster", seconds=600)
        await until(lambda: answers(url), "the URL to answer again")
        measured(f"from nodes that are stopped to answers of another cluster: {time.monotonic() - began:.0f} s")
    finally:
        await asyncio.to_thread(run, "docker", "start", *nodes)
    await hub.holds("InferenceCluster", lost.name)
