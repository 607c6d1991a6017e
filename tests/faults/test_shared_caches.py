"""Where operators share the clusters, the leader stages caches on all of them, whoever has those."""

from __future__ import annotations

import pytest

from tests.faults.cache_life import ACTS, perform
from tests.faults.life import Life
from tests.faults.stage import FaultyStage
from tests.integration.harness import Operator

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800)]


@pytest.mark.fleet
@pytest.mark.slow
@pytest.mark.usefixtures("without_cache")
async def test_the_leader_stages_a_cache_on_clusters_that_other_pods_hold(
    stage: FaultyStage,
    faultless_cache: Life,
    pods: dict[str, Operator],
) -> None:
    for act in ACTS:
        await perform(stage, act, faultless_cache[act].state)
    assert all(one.is_up for one in pods.values())
