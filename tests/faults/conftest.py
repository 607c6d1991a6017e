"""The stage that all faults share, what a life is without any, and shards: `SHARD=2/4` runs every fourth test."""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator

import pytest

from localfleet.fleet import Fleet
from localfleet.processes import tail
from tests.faults.cache_life import faultless_cache, storage, without_cache  # noqa: F401 - fixtures
from tests.faults.life import KEY, Life, begin, lived
from tests.faults.stage import SEED, FaultyStage, faulty
from tests.integration.watcher import Watcher, watching


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Keep this shard's part of the whole; by name, so that every shard sees the same order."""
    shard = os.environ.get("SHARD", "1/1")
    number, _, count = shard.partition("/")
    here = sorted((item for item in items if item.get_closest_marker("faults")), key=lambda item: item.nodeid)
    others = {item.nodeid for place, item in enumerate(here) if place % int(count) != int(number) - 1}
    if others:
        config.hook.pytest_deselected(items=[item for item in items if item.nodeid in others])
        items[:] = [item for item in items if item.nodeid not in others]


@pytest.fixture(scope="package")
async def stage(fleet: Fleet, tmp_path_factory: pytest.TempPathFactory) -> AsyncGenerator[FaultyStage]:
    """The fleet with an operator on it, and a fault proxy before every API server."""
    async with faulty(fleet, tmp_path_factory.mktemp("faults"), SEED) as stage:
        yield stage


@pytest.fixture(scope="package")
async def watcher(stage: FaultyStage) -> AsyncGenerator[Watcher]:
    """What has gone wrong, whatever the test was about."""
    async with watching(stage) as watcher:
        watcher.hide(KEY)
        yield watcher


@pytest.fixture(scope="package")
async def faultless(stage: FaultyStage, watcher: Watcher) -> Life:
    """What a life is like when nothing breaks: the learning run."""
    await begin(stage)
    life = await lived(stage)
    assert await watcher.check() == []
    return life


@pytest.fixture
async def empty(stage: FaultyStage, watcher: Watcher, faultless: Life) -> AsyncGenerator[None]:
    """A stage without a model, before and after; then the invariants are checked."""
    del faultless  # it comes first, so that what it leaves is gone
    await begin(stage)
    yield
    await stage.reset()
    await stage.revived()
    problems = await watcher.check()
    await begin(stage)
    assert not problems, "\n".join(problems)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> object:
    """Show what the operator said, when a test fails."""
    report = yield
    stage = getattr(item, "funcargs", {}).get("stage")
    if report.failed and isinstance(stage, FaultyStage):
        report.sections.append(
            (f"FAULTS_SEED={SEED}, the operator ({stage.operator.log})", tail(stage.operator.log, lines=60))
        )
    return report
