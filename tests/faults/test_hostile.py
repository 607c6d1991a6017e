"""No object that an API server stores holds up anybody else: each of `hostile.py` is its own trouble, and tells it."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncGenerator, Iterable

import pytest

from localfleet.kubeclient import ApiError
from tests.faults.hostile import HOSTILE, SPACE, Hostile
from tests.faults.stage import LEASE, FaultyStage
from tests.integration.harness import OURS, condition, path_of, said, until
from tests.integration.kinds import deployment, namespace, service
from tests.integration.watcher import Watcher
from tests.support.manifests import Manifest

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]

ORDINARY = "ordinary"
REFUSALS = range(400, 500)
RECONCILED = (*OURS, "LLMInference")


@pytest.fixture(scope="module")
async def ordinary(stage: FaultyStage) -> AsyncGenerator[FaultyStage]:
    """A model of somebody else's, which answers."""
    await stage.reset()
    await stage.hub.apply(namespace(SPACE), namespace(ORDINARY), deployment(ORDINARY), service(ORDINARY))
    await stage.serving(ORDINARY, 1)
    yield stage
    for kind in ("ModelService", "ModelDeployment"):
        await stage.hub.delete(kind, "model", ORDINARY)
        await stage.hub.gone(kind, "model", ORDINARY)

    async def none() -> bool:  # the next module learns where a replica goes: nothing may be left
        return not await stage.hub.list("ModelReplica", "")

    await until("the replicas to be gone", none)


@pytest.mark.parametrize("hostile", HOSTILE, ids=lambda hostile: hostile.title)
async def test_a_hostile_object_is_its_own_trouble(ordinary: FaultyStage, watcher: Watcher, hostile: Hostile) -> None:
    await endured(ordinary, watcher, [hostile])


@pytest.mark.fleet
async def test_all_hostile_objects_together_hold_up_nobody(ordinary: FaultyStage, watcher: Watcher) -> None:
    await endured(ordinary, watcher, HOSTILE)


async def endured(stage: FaultyStage, watcher: Watcher, attacks: Iterable[Hostile]) -> None:
    """Apply them, change the ordinary model meanwhile, see what they tell, and take them away."""
    before = await leading(stage)
    log = stage.operator.log.stat().st_size
    stored = list[tuple[Hostile, list[Manifest]]]()
    try:
        for attack in attacks:
            stored.append((attack, []))
            await put(stage, attack, stored[-1][1])
        for replicas in (2, 1):
            await stage.hub.patch("ModelDeployment", "model", ORDINARY, spec={"replicas": replicas})
            await stage.serving(ORDINARY, replicas)
        for attack, manifests in stored:
            for manifest in manifests:
                await looked_at(stage, attack, manifest, last=manifest is attack.manifests[-1])
    finally:
        await away(stage, [one for _, manifests in stored for one in manifests])
    assert stage.operator.is_up
    assert await leading(stage) == before, "another one leads, or the same one again"
    defects = [line for line in stage.operator.log.read_bytes()[log:].splitlines() if b"internal error" in line]
    assert not defects, defects[0]
    assert await watcher.check() == []


async def leading(stage: FaultyStage) -> tuple[str, int]:
    """Who leads, and how often that has changed."""
    spec = (await stage.hub.client.request("GET", LEASE))["spec"]
    return spec["holderIdentity"], spec.get("leaseTransitions", 0)


async def put(stage: FaultyStage, attack: Hostile, stored: list[Manifest]) -> None:
    """Have them stored, and note those that were: an API server may refuse any of them."""
    for manifest in attack.manifests:
        where = path_of(manifest["kind"], "", manifest["metadata"].get("namespace", ""))
        try:
            await stage.hub.client.request("POST", where, manifest)
        except ApiError as error:
            assert error.status in REFUSALS, f"{attack.title}: {error}"
        else:
            stored.append(manifest)


async def looked_at(stage: FaultyStage, attack: Hostile, manifest: Manifest, *, last: bool) -> None:
    """Wait until an object of ours says that it was looked at, and the last one what is wrong with it."""
    if manifest["kind"] not in RECONCILED:
        return
    what = "to say that it was looked at" + (f", and {attack.tells}" if last and attack.tells else "")

    def holds(live: Manifest) -> bool:
        current = condition(live, "Synced").get("observedGeneration") == live["metadata"]["generation"]
        return current and (not last or bool(re.search(attack.tells, said(live), re.DOTALL)))

    metadata = manifest["metadata"]
    await stage.hub.wait(manifest["kind"], metadata["name"], metadata.get("namespace", ""), holds=holds, what=what)


async def away(stage: FaultyStage, manifests: Iterable[Manifest]) -> None:
    """Delete them, the last first, and wait until those of ours are gone."""
    places = [(one["kind"], one["metadata"]["name"], one["metadata"].get("namespace", "")) for one in manifests]
    for place in reversed(places):
        await stage.hub.delete(*place)
    async with asyncio.TaskGroup() as group:
        for place in places:
            if place[0] in RECONCILED:
                group.create_task(stage.hub.gone(*place))
