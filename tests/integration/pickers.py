"""Models behind endpoint pickers, for scenarios."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

from tests.integration.harness import Cluster, Stage, condition, remote, until
from tests.integration.kinds import ADA, HOPPER, deployment, engine, pod, service


def copies(**settings: Any) -> list[dict[str, Any]]:
    """Return engines that have four pods together."""
    template = pod(**settings)
    return [engine(cel, name=name, copies=2, template=template) for name, cel in (("h", HOPPER), ("a", ADA))]


@contextlib.asynccontextmanager
async def behind_a_picker(stage: Stage, space: str, engines: Sequence[Any], **spec: Any) -> AsyncGenerator[str]:
    """Serve a model by these engines on one cluster, and yield its URL once a picker answers."""
    cluster = where(stage)
    there = {"matchLabels": {"site": cluster.name}}
    await stage.hub.apply(deployment(space, engines=engines, clusterSelector=there, **spec), service(space))
    await stage.hub.ready("ModelService", "model", space)
    await until("a picker to answer", lambda: picks(stage, space))
    yield f"{stage.gateway}/{space}/model"
    await stage.hub.delete("ModelDeployment", "model", space)

    async def gone() -> bool:
        return not await cluster.list("EnvoyExtensionPolicy", remote(space))

    await until("the picker's policy to be gone", gone)


def where(stage: Stage) -> Cluster:
    """Return the cluster where `behind_a_picker` serves models."""
    return next(iter(stage.workers.values()))


async def picks(stage: Stage, space: str) -> bool:
    """Return whether the replica says that a picker answers, and its route has it asked."""
    replicas = await stage.hub.list("ModelReplica", space)
    routes = await where(stage).list("HTTPRoute", remote(space))
    rules = [rule for route in routes for rule in route["spec"]["rules"] if "headers" not in rule["matches"][0]]
    asked = any(rule.get("name") == "picked" for rule in rules)
    return asked and all(condition(each, "PickerReady")["reason"] == "Picking" for each in replicas)


def kill(replica: str) -> None:
    """Kill the processes of all pickers of a replica, as a node does that is out of memory."""
    found = [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if f"--endpoint-selector=modelplane.ai/serving={replica}" in _command(process)
    ]
    assert len(found) == 2, found
    for process in found:
        os.kill(process, signal.SIGKILL)


def _command(process: Path) -> list[str]:
    with contextlib.suppress(OSError):
        return (process / "cmdline").read_text().split("\0")
    return []
