"""Plain `kubectl delete` is safe for every kind, in any order, and leaves nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
from collections.abc import Sequence

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from tests.integration.harness import SYSTEM, Stage, remote, until
from tests.integration.kinds import cache, cluster, deployment, inference_class, namespace, service

pytestmark = pytest.mark.fleet

NUMBERS = itertools.count(os.getpid() * 1000)
LEAVING = {
    "service": ("ModelService", "model", True),
    "deployment": ("ModelDeployment", "model", True),
    "cluster": ("InferenceCluster", "worker-2", False),
    "class": ("InferenceClass", "leaving", False),
    "kubeconfig": ("Secret", "worker-2-kubeconfig", False),
    "cache": ("ModelCache", "model", True),
    "namespace": ("Namespace", "", False),
}


async def restore(stage: Stage) -> None:
    """The platform as all scenarios expect it."""
    await stage.hub.apply(stage.kubeconfig("worker-2"), cluster("worker-2"))
    await stage.settle()


async def nothing_left(stage: Stage, space: str) -> None:
    """Wait until no cluster has anything of a namespace."""
    async with asyncio.TaskGroup() as group:
        for worker in stage.workers.values():
            group.create_task(worker.gone("Namespace", remote(space)))
    for worker in stage.workers.values():
        for kind in ("ResourceClaim", "Pod", "HTTPRoute"):
            assert not await worker.list(kind, remote(space))


# Few, and not made smaller when one fails: each takes a good part of a minute. `--hypothesis-seed=N` repeats a run.
@settings(
    max_examples=int(os.environ.get("ORDERS", "2")),
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(order=st.permutations(list(LEAVING)))
async def test_all_of_it_goes_in_any_order(stage: Stage, space: str, order: Sequence[str]) -> None:
    home = f"{space}-{next(NUMBERS)}"
    await stage.hub.apply(inference_class("leaving", like="h100"), cluster("worker-2", {"h100": "leaving"}))
    await stage.hub.ready("InferenceCluster", "worker-2")
    await stage.hub.apply(namespace(home), cache(home), deployment(home, replicas=3), service(home))
    await stage.serving(home, 3)
    try:
        for each in order:
            kind, name, tenants = LEAVING[each]
            await stage.hub.delete(kind, name or home, home if tenants else SYSTEM if kind == "Secret" else "")
        for each in order:
            kind, name, tenants = LEAVING[each]
            await stage.hub.gone(kind, name or home, home if tenants else SYSTEM if kind == "Secret" else "")
        await nothing_left(stage, home)
    finally:
        await restore(stage)


@pytest.mark.usefixtures("unhurried")
async def test_a_cluster_that_is_deleted_gives_its_replicas_away_and_may_come_back(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    try:
        async with stage.load(space, plain=2, streams=2) as load:
            await stage.hub.delete("InferenceCluster", "worker-2")
            await stage.hub.gone("InferenceCluster", "worker-2")
            assert await stage.placed(space) == {"worker-1": 2}
            await stage.serving(space, 2)
        assert load.failures == []
        await stage.workers["worker-2"].gone("Namespace", remote(space))
    finally:
        await restore(stage)
    await stage.hub.patch("ModelDeployment", "model", space, spec={"replicas": 3})

    async def back() -> bool:
        return await stage.placed(space) == {"worker-1": 2, "worker-2": 1}

    await until("a replica on the cluster that came back", back)
    await stage.serving(space, 3)
