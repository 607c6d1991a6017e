"""A cache's life: it is staged, changed and deleted, and what is there after each act.

It is staged on two clusters, with a token; changed to another revision, which is staged beside the first; and deleted.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping

import pytest

from tests.faults.life import Act, Life, State, difference, is_ready, plain, vacant
from tests.faults.stage import FaultyStage
from tests.integration.harness import WORKERS, remote, until
from tests.integration.kinds import cache, cluster, namespace, secret
from tests.integration.watcher import Watcher
from tests.support.manifests import Manifest

SPACE, CLASS = "caches", "cached"
TOKEN = "hf_canary-93be"  # noqa: S105 - of a stand-in
CONVERGED_SECONDS = 600.0  # a deadline, not an expectation: a crash costs a start of the operator
KINDS = ("PersistentVolumeClaim", "Job", "Secret", "NetworkPolicy")
STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": CLASS},
    "provisioner": "localfleet.dev/volumes",
}
FIRST, SECOND = "1" * 40, "2" * 40  # commits: of a branch, only the hydrator's own word is taken


def gated(revision: str) -> Manifest:
    found = cache(SPACE)
    found["spec"]["huggingFace"] |= {"authSecret": {"name": "token"}, "revision": revision}
    return found


async def stage_it(stage: FaultyStage) -> None:
    await stage.hub.apply(secret(SPACE, "token", HF_TOKEN=TOKEN), gated(FIRST))


async def change_it(stage: FaultyStage) -> None:
    await stage.hub.apply(gated(SECOND))


async def delete_it(stage: FaultyStage) -> None:
    await stage.hub.delete("ModelCache", "model", SPACE)


ACTS: Mapping[str, Callable[[FaultyStage], Awaitable[None]]] = {
    each.__name__: each for each in (stage_it, change_it, delete_it)
}


@pytest.fixture(scope="module")
async def storage(stage: FaultyStage) -> AsyncGenerator[None]:
    """Every cluster has storage for caches."""
    await stage.reset()
    await stage.revived()
    await until("what others have left to be gone", lambda: vacant(stage))
    await stage.hub.apply(namespace(SPACE))
    for name in WORKERS:
        await stage.workers[name].apply(STORAGE)
        offering = cluster(name)
        offering["spec"]["cluster"]["existing"]["cache"] = {"storageClassName": CLASS}
        await stage.hub.apply(offering)
    await until("the clusters to offer storage", lambda: offers(stage))
    yield
    for name in WORKERS:
        await stage.hub.apply(cluster(name))
        await stage.workers[name].delete("StorageClass", CLASS)


@pytest.fixture(scope="module")
async def faultless_cache(stage: FaultyStage, watcher: Watcher, storage: None) -> Life:
    """What such a life is like when nothing breaks."""
    del storage
    watcher.hide(TOKEN)
    life = dict[str, Act]()
    for act in ACTS:
        await stage.reset()
        life[act] = Act(await perform(stage, act), await stage.writes())
    assert await watcher.check() == []
    return life


@pytest.fixture
async def without_cache(stage: FaultyStage, faultless_cache: Life) -> AsyncGenerator[None]:
    """Whatever a life that failed has left is gone."""
    del faultless_cache
    yield
    await stage.reset()
    await stage.revived()
    await perform(stage, "delete_it")


async def perform(stage: FaultyStage, act: str, wanted: State | None = None) -> State:
    """Make the change, and wait until it has led to `wanted`, or if that is not known, to its end."""
    await ACTS[act](stage)
    found: State = {}

    async def over() -> bool:
        nonlocal found
        await stage.revived()
        if wanted is None and not await ended(stage, act):
            return False
        found = await state(stage)
        return wanted is None or found == wanted

    try:
        while True:
            await until(f"{act} to lead to its end", over, CONVERGED_SECONDS)
            await stage.quiet(f"after {act}")
            if not await stage.revived() and (now := await state(stage)) == (wanted or now):
                return now
    except AssertionError as error:
        raise AssertionError(f"{error}\n{difference(wanted or {}, found)}") from None


async def ended(stage: FaultyStage, act: str) -> bool:
    """Whether an act has led where it should, as a user would judge."""
    found = await stage.hub.get("ModelCache", "model", SPACE)
    if act == "delete_it":
        spaces = [await worker.get("Namespace", remote(SPACE)) for worker in stage.workers.values()]
        return found is None and not any(spaces)
    claims = [len(await worker.list(KINDS[0], remote(SPACE))) for worker in stage.workers.values()]
    revision = FIRST if act == "stage_it" else SECOND
    told = [one.get("revision") for one in (found or {}).get("status", {}).get("clusters", ())]
    return is_ready(found or {}) and claims == [1] * len(WORKERS) and told == [revision] * len(WORKERS)


async def state(stage: FaultyStage) -> State:
    """All that there is of the cache."""
    found = {f"hub {one['metadata']['name']}": plain("", one) for one in await stage.hub.list("ModelCache", SPACE)}
    for name, worker in stage.workers.items():
        for kind in KINDS:
            for one in await worker.list(kind, remote(SPACE)):
                found[f"{name} {kind} {one['metadata']['name']}"] = plain(kind, one)
        if await worker.get("Namespace", remote(SPACE)):
            found[f"{name} Namespace"] = "there"
    return found


async def offers(stage: FaultyStage) -> bool:
    clusters = [await stage.hub.get("InferenceCluster", name) or {} for name in WORKERS]
    return all("cache" in one.get("status", {}) for one in clusters)
