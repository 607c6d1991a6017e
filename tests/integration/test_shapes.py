"""Engines of more than one pod."""

from __future__ import annotations

import pytest

from tests.integration.harness import Stage, remote
from tests.integration.kinds import HOPPER, deployment, engine, gpus, pod, service

pytestmark = pytest.mark.fleet


async def test_a_gang_answers_through_its_leader(stage: Stage, space: str) -> None:
    members = [
        {"role": "Leader", "nodeSelector": gpus(HOPPER, 8), "template": pod()},
        {"role": "Worker", "worker": {"nodes": 1}, "nodeSelector": gpus(HOPPER, 8), "template": pod()},
    ]
    await stage.hub.apply(deployment(space, engines=[{"name": "vllm", "members": members}]), service(space))
    await stage.serving(space, 1)
    (replica,) = (await stage.replicas(space)).values()
    worker = stage.workers[replica["spec"]["clusterName"]]
    (gang,) = await worker.list("LeaderWorkerSet", remote(space))
    assert gang["spec"]["leaderWorkerTemplate"]["size"] == 2
    pods = await stage.pods(space)
    assert len({one["spec"]["nodeName"] for one in pods.values()}) == 2
    reply = await stage.chat(space)
    (leader,) = [one for one in pods.values() if "modelplane.ai/serving" in one["metadata"]["labels"]]
    assert reply.pod.endswith(f"/{leader['metadata']['name']}")


async def test_an_engine_of_several_copies_is_ready_with_all_of_them(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, engines=[engine(copies=2)]), service(space))
    await stage.serving(space, 1)
    assert len(await stage.pods(space)) == 2
