"""From applying to answered, and what a running model is put through without losing a request."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

import pytest

from tests.integration.harness import Stage, condition, remote, until
from tests.integration.kinds import IMAGE, deployment, engine, pod, service

pytestmark = pytest.mark.fleet

Measured = Callable[[str], None]

MAINTENANCE = {"key": "maintenance", "effect": "NoExecute"}
WITHDRAWN_SECONDS = 2.0  # the target on an idle machine


async def test_a_model_answers_through_one_url_from_two_clusters(stage: Stage, space: str, measured: Measured) -> None:
    began = time.monotonic()
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.answered(space)
    measured(f"from applying to answered: {time.monotonic() - began:.1f} s")
    await stage.serving(space, 2)
    assert await stage.placed(space) == {"worker-1": 1, "worker-2": 1}

    async def both() -> bool:
        return {(await stage.chat(space)).cluster, (await stage.chat(space)).cluster} == {"worker-1", "worker-2"}

    await until("both clusters to answer in turn", both)
    streamed = await stage.chat(space, stream=True)
    assert "data: [DONE]" in streamed.text
    found = await stage.hub.get("ModelService", "model", space)
    assert found and found["status"]["address"].endswith(f"/{space}/model")


async def test_a_service_that_has_become_ready_answers_the_first_request(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space))
    await stage.hub.ready("ModelDeployment", "model", space)
    fresh = [f"fresh-{number}" for number in range(10)]
    await stage.hub.apply(*(service(space, name, (1, {"model": "model"})) for name in fresh))

    async def first(name: str) -> int:
        await stage.hub.ready("ModelService", name, space)
        return (await stage.chat(space, name)).status

    assert await asyncio.gather(*map(first, fresh)) == [200] * len(fresh)


async def test_replicas_follow_the_scale_subresource_down_to_none_and_back(stage: Stage, space: str) -> None:
    await stage.hub.apply(deployment(space, replicas=1), service(space))
    await stage.serving(space, 1)
    for wanted in (4, 2, 0, 1):
        stage.fleet.kubectl("hub", "scale", "modeldeployment", "model", f"-n={space}", f"--replicas={wanted}")
        await stage.hub.ready("ModelDeployment", "model", space)

        async def there(wanted: int = wanted) -> bool:
            return len(await stage.replicas(space)) == wanted and len(await stage.pods(space)) == wanted

        await until(f"{wanted} replicas and as many pods", there)
        if wanted == 0:
            await stage.hub.says("EndpointsResolved=False/NoEndpoints", "ModelService", "model", space)
            await until("the URL to say that nobody is there", lambda: refuses(stage, space))
    await stage.answered(space)


async def refuses(stage: Stage, space: str) -> bool:
    return (await stage.chat(space)).status == 503


async def drain(stage: Stage, space: str) -> None:
    await stage.hub.patch("InferenceCluster", "worker-1", spec={"taints": [MAINTENANCE]})

    async def empty() -> bool:
        return "worker-1" not in await stage.placed(space)

    await until("worker-1 to be drained", empty)


async def scale_down(stage: Stage, space: str) -> None:
    await stage.hub.patch("ModelDeployment", "model", space, spec={"replicas": 1})

    async def one() -> bool:
        return len(await stage.replicas(space)) == 1 and len(await stage.pods(space)) == 1

    await until("one replica to be left", one)


async def new_template(stage: Stage, space: str) -> None:
    template = pod()
    template["spec"]["containers"][0]["image"] = f"{IMAGE}-next"
    await stage.hub.apply(deployment(space, replicas=2, engines=[engine(template=template)]))

    async def everywhere() -> bool:
        images = {one["spec"]["containers"][0]["image"] for one in (await stage.pods(space)).values()}
        return images == {f"{IMAGE}-next"}

    await until("every pod to run the new image", everywhere)
    await stage.hub.says("Progressing=False/Settled", "ModelDeployment", "model", space)


@pytest.mark.usefixtures("unhurried")
async def test_no_request_and_no_stream_is_lost(stage: Stage, space: str, measured: Measured) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    try:
        async with stage.load(space) as load:
            await until("answers of both", lambda: len(load.clusters) == 2)
            for change in (new_template, drain, scale_down):
                await change(stage, space)
                answered = len(load.replies)
                await until(f"answers after {change.__name__}", lambda seen=answered: len(load.replies) > seen + 20)
                measured(f"{len(load.replies)} answers until after {change.__name__}: {dict(load.clusters)}")
                assert load.failures == [], change.__name__
    finally:
        await stage.hub.patch("InferenceCluster", "worker-1", spec={"taints": []})


async def test_a_dead_backend_leaves_rotation(stage: Stage, space: str, measured: Measured) -> None:
    await stage.hub.apply(deployment(space, replicas=2), service(space))
    await stage.serving(space, 2)
    victim = next(iter(await stage.pods(space, "worker-1")))
    name = victim.partition("/")[2]
    await hang(stage, space, name, "true")

    ready_at = time.monotonic()

    async def unready() -> bool:
        nonlocal ready_at
        looked_at = time.monotonic()
        found = await stage.workers["worker-1"].get("Pod", name, remote(space))
        assert found
        if condition(found, "Ready")["status"] == "True":
            ready_at = looked_at
            return False
        return True

    async def one_backend() -> bool:
        routes = await stage.hub.list("HTTPRoute", space)
        rules = (rule for route in routes for rule in route["spec"]["rules"])
        # That for requests that have been here before leads nowhere.
        leading = (rule for rule in rules if not any("headers" in match for match in rule["matches"]))
        return len([each for rule in leading for each in rule.get("backendRefs", [])]) == 1

    await until("the engine to fail its probe", unready)
    await until("a route without it", one_backend)  # a look at all that there is comes much later
    seconds = time.monotonic() - ready_at  # from the last time that it was seen ready: an upper bound
    measured(f"from not ready to out of the route: {seconds:.2f} s (target {WITHDRAWN_SECONDS:g} s)")
    await until("the gateway to follow", lambda: _all_from(stage, space, "worker-2"))
    await hang(stage, space, name, "false")  # an engine that hangs has to be killed, which takes all of its grace


async def hang(stage: Stage, space: str, pod: str, how: str) -> None:
    annotations = {"localfleet.dev/hang": how}
    await stage.workers["worker-1"].patch("Pod", pod, remote(space), metadata={"annotations": annotations})


async def _all_from(stage: Stage, space: str, cluster: str) -> bool:
    try:
        replies = await asyncio.gather(*(stage.chat(space, seconds=3) for _ in range(10)))
    except TimeoutError:
        return False
    return {reply.cluster for reply in replies} == {cluster}
