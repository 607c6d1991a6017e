"""What helps a cluster's Envoy to drain hangs: kubelets restart it, and the Envoy that it had drain, in a minute."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from scripts.kind import clusters
from scripts.kind.commands import run
from tests.e2e.conftest import TEAM, answers
from tests.e2e.kind import Cluster, until

STOP = 'kill -STOP $(pgrep -f "^envoy-gateway envoy shutdown-manager")'


async def test_a_gateway_answers_again_when_its_helper_hangs(
    hub: Cluster, url: str, measured: Callable[[str], None]
) -> None:
    (replica,) = await hub.list("ModelReplica", TEAM)
    home = next(one for one in clusters.WORKLOAD if one.name == replica["spec"]["clusterName"])
    began = time.monotonic()
    for node in run("kind", "get", "nodes", "--name", home.kind).split():
        await asyncio.to_thread(run, "docker", "exec", node, "sh", "-c", f"{STOP} || true")

    async def refuses() -> bool:
        return not await answers(url)

    await until(refuses, "the gateway to refuse requests, as its helper drains it")
    refused = time.monotonic()
    await until(lambda: answers(url), "the gateway to answer again", seconds=180)
    measured(
        f"a gateway whose helper hangs: told after {refused - began:.0f} s, for {time.monotonic() - refused:.0f} s"
    )
