"""The operator comes and goes; models do not notice."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime

import pytest

from kubeloop.objects import annotations_of
from tests.integration.conftest import restarted
from tests.integration.harness import OURS, Stage, until
from tests.integration.kinds import deployment, endpoint, engine, service

pytestmark = pytest.mark.fleet

REST_SECONDS = 60.0
CALM_SECONDS = 3.0
ROLL, ROLLING = "modelplane.ai/roll", "modelplane.ai/rolling"
ELSEWHERE = "http://203.0.113.7:8000"  # of the range that is for documentation: nobody answers


async def everything(stage: Stage, space: str) -> None:
    """One of each that a namespace can have, settled."""
    await stage.hub.apply(
        deployment(space, replicas=3),
        deployment(space, "stuck", engines=[engine('device.driver == "nobody.has.this"')]),
        service(space),
        service(space, "both", (3, {"model": "model"}), (1, {"model": "provider"})),
        endpoint(space, "provider", ELSEWHERE),
    )
    await stage.serving(space, 3)
    await stage.hub.says("ReplicasScheduled=False", "ModelDeployment", "stuck", space)
    await stage.hub.ready("ModelService", "both", space)
    await calm(stage)


async def calm(stage: Stage) -> None:
    """Wait until the operator has not written for some seconds."""

    async def still() -> bool:
        before = await stage.operator.writes()
        await asyncio.sleep(CALM_SECONDS)
        return before == await stage.operator.writes()

    await until("the operator to have written all it wants to", still)


async def versions(stage: Stage, space: str) -> dict[str, str]:
    """Every object of ours, and the version in which the API server has it."""
    found = [
        *[one for kind in OURS for one in await stage.hub.list(kind)],
        *[one for kind in ("HTTPRoute", "Service", "EndpointSlice") for one in await stage.hub.list(kind, space)],
    ]
    return {one["metadata"]["uid"]: f"{one['metadata']['name']} {one['metadata']['resourceVersion']}" for one in found}


async def test_at_rest_nothing_is_written(stage: Stage, space: str) -> None:
    await everything(stage, space)
    written, seen = await stage.operator.writes(), await versions(stage, space)
    assert sum(written.values()) > 0, "writes are not counted"
    await asyncio.sleep(REST_SECONDS)
    assert await stage.operator.writes() == written
    assert await versions(stage, space) == seen  # the API server's word for it


async def test_an_operator_that_was_killed_continues_without_a_write(stage: Stage, space: str) -> None:
    await everything(stage, space)
    seen, pods = await versions(stage, space), set(await stage.pods(space))
    await stage.operator.kill()
    assert (await stage.chat(space)).status == 200  # nothing of a request passes through the operator
    await stage.operator.start()
    await calm(stage)
    assert sum((await stage.operator.writes()).values()) == 0
    assert await versions(stage, space) == seen
    assert set(await stage.pods(space)) == pods


async def test_what_was_begun_before_a_kill_is_finished_after_it(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await until("a first replica", lambda: stage.replicas(space))
    await stage.operator.kill()
    await stage.hub.patch("ModelDeployment", "model", space, spec={"replicas": 3})
    await stage.operator.start()
    await stage.serving(space, 3)


async def test_what_is_deleted_while_no_operator_runs_goes_when_one_does(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    await stage.operator.stop()
    await stage.hub.delete("ModelDeployment", "model", space)
    await stage.hub.delete("ModelService", "model", space)
    await stage.operator.start()

    async def gone() -> bool:
        return not await stage.pods(space) and not await stage.replicas(space)

    await until("its replicas and pods to go", gone)
    for kind in ("ModelEndpoint", "HTTPRoute", "Service"):

        async def none(kind: str = kind) -> bool:
            return not await stage.hub.list(kind, space)

        await until(f"no {kind} to be left", none)


async def test_an_operator_that_slept_through_its_lease_does_no_harm(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    pods = set(await stage.pods(space))
    stage.operator.pause()
    await stage.hub.patch("ModelDeployment", "model", space, spec={"replicas": 3})
    await asyncio.sleep(10)  # longer than its lease
    stage.operator.resume()
    await stage.serving(space, 3)
    assert pods < set(await stage.pods(space))


@pytest.mark.usefixtures("unhurried")
async def test_outdated_models_roll_in_their_window_and_at_once_if_their_owner_says_so(
    stage: Stage, space: str
) -> None:
    closed = {"schedule": f"0 {(datetime.now(UTC).hour + 12) % 24} * * *", "duration": "1h"}
    made = deployment(space, replicas=2)
    await stage.hub.apply({**made, "spec": {**made["spec"], "maintenance": [closed]}}, service(space))
    await stage.serving(space, 2)
    pods, flags = set(await stage.pods(space)), stage.operator.flags
    await restarted(stage, [*flags, "--engine-startup=1800"])
    try:
        await stage.hub.says("UpToDate=False/Outdated", "ModelDeployment", "model", space)
        await stage.hub.patch("ModelDeployment", "model", space, metadata={"annotations": {ROLL: "always"}})
        waiting = await stage.hub.says("UpToDate=False/WaitingForWindow", "ModelDeployment", "model", space)
        assert "UTC. To change them in turn before that" in waiting["message"]
        await calm(stage)
        assert set(await stage.pods(space)) == pods
        async with stage.load(space) as load:
            await stage.hub.patch("ModelDeployment", "model", space, metadata={"annotations": {ROLL: "always,now"}})
            await stage.hub.says("UpToDate=True", "ModelDeployment", "model", space, seconds=240)
            await stage.serving(space, 2)
        assert load.failures == []
        assert not set(await stage.pods(space)) & pods
        assert not any(ROLLING in annotations_of(one) for one in (await stage.replicas(space)).values())
    finally:
        await restarted(stage, flags)
