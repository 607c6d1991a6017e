"""The stage that all scenarios share, a namespace for each, and the invariants after every one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Sequence

import pytest

from localfleet.fleet import HUB, Fleet
from localfleet.processes import tail
from tests.integration.harness import Stage, remote, staged, until
from tests.integration.kinds import namespace
from tests.integration.watcher import Watcher, watching


@pytest.fixture(scope="package")
async def stage(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[Stage]:
    """The fleet with an operator on it."""
    async with staged(fleet, tmp_path_factory.mktemp("operator")) as stage:
        yield stage


@pytest.fixture(scope="package")
async def watcher(stage: Stage) -> AsyncGenerator[Watcher]:
    """What has gone wrong, whatever the test was about."""
    async with watching(stage) as watcher:
        yield watcher


@pytest.fixture
async def space(stage: Stage, watcher: Watcher, hub_namespace: str) -> AsyncGenerator[str]:
    """A namespace of the test's own; afterwards the invariants are checked, and all of it must go."""
    yield hub_namespace
    if not stage.operator.is_up:
        await stage.operator.start()
    stage.operator.resume()
    problems = await watcher.check()
    await emptied(stage, hub_namespace)
    assert not problems, "\n".join(problems)


@pytest.fixture
async def unhurried(stage: Stage, space: str) -> AsyncGenerator[None]:
    """An operator that leaves the gateways of a busy machine the time to follow, as those in production do.

    The hub's follows a route that was withdrawn. A cluster's follows the pod that a change of the template ends, while
    the new one, which starts in a moment here, has brought the endpoint back.

    It comes after the namespace, so that it goes before that is emptied, which may be hurried again.
    """
    del space
    hurried = stage.operator.flags
    await restarted(stage, (*hurried, "--drain-grace=20", "--engine-drain=10", "--engine-grace=30"))
    yield
    await restarted(stage, hurried)


async def restarted(stage: Stage, flags: Sequence[str]) -> None:
    await stage.operator.stop()
    stage.operator.flags = flags
    await stage.operator.start()
    await stage.settle()


@pytest.fixture
async def neighbour(stage: Stage, space: str) -> AsyncGenerator[str]:
    """A second namespace on the hub, whose name begins with the first one's."""
    name = f"{space}-b"
    await stage.hub.apply(namespace(name))
    yield name
    await emptied(stage, name)
    await stage.hub.delete("Namespace", name)


async def emptied(stage: Stage, space: str) -> None:
    """Delete all that is ours in a namespace, and wait until nothing of it is left anywhere."""
    for kind in ("LLMInference", "ModelService", "ModelDeployment", "ModelEndpoint", "ModelCache"):
        for one in await stage.hub.list(kind, space):
            await stage.hub.delete(kind, one["metadata"]["name"], space)

    async def gone() -> bool:
        return not await stage.hub.list("ModelReplica", space)

    await until(f"the replicas of {space} to be gone", gone)
    async with asyncio.TaskGroup() as group:
        for worker in stage.workers.values():
            group.create_task(worker.gone("Namespace", remote(space)))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Show what the operator said, when a scenario fails."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.failed and isinstance(stage, Stage):
        report.sections.append((f"the operator ({stage.operator.log}, on {HUB})", tail(stage.operator.log, lines=30)))
    return report
