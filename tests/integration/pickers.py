"""Models behind endpoint pickers, for scenarios."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Sequence
from typing import Any

from tests.integration.harness import Cluster, Stage, condition, remote, until
from tests.integration.kinds import ADA, HOPPER, deployment, engine, pod, service


def copies(**settings: Any) -> list[dict[str, Any]]:
    """Return engines that have four pods together."""
    template = pod(**settings)
    return [engine(cel, name=name, copies=2, template=template) for name, cel in (("h", HOPPER), ("a", ADA))]


@contextlib.asynccontextmanager
async def behind_a_picker(
    stage: Stage, space: str, pools: Cluster, engines: Sequence[Any], **spec: Any
) -> AsyncGenerator[str]:
    """Serve a model by these engines on the cluster with pools, and yield its URL once a picker answers."""
    there = {"matchLabels": {"site": pools.name}}
    await stage.hub.apply(deployment(space, engines=engines, clusterSelector=there, **spec), service(space))
    await stage.hub.ready("ModelService", "model", space)
    await until("a picker to answer", lambda: picks(stage, pools, space))
    yield f"{stage.gateway}/{space}/model"
    await stage.hub.delete("ModelDeployment", "model", space)

    async def gone() -> bool:
        return not await pools.list("InferencePool", remote(space))

    await until("the pool to be gone", gone)


async def picks(stage: Stage, pools: Cluster, space: str) -> bool:
    """Return whether the replica says that a picker answers, and its route leads to the pool."""
    replicas = await stage.hub.list("ModelReplica", space)
    routes = await pools.list("HTTPRoute", remote(space))
    rules = [rule for route in routes for rule in route["spec"]["rules"] if "headers" not in rule["matches"][0]]
    kinds = {ref["kind"] for rule in rules for ref in rule["backendRefs"]}
    return "InferencePool" in kinds and all(condition(each, "PickerReady")["reason"] == "Picking" for each in replicas)
