"""The worst objects of every kind that an API server takes: no turn of the operator's event loop does much for one.

What is bounded is work, in calls of functions, and not time, which depends on the machine. A million calls take some
200 ms; `python -m benchmarks.event_loop` prints the time.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from benchmarks.event_loop import longest_turn_by_kind, measure_loop_turns
from localfleet import binaries
from modelplane_operator.api import KINDS
from tests.support.api import Api

pytestmark = pytest.mark.fleet

MOST_CALLS = 1_000_000


EVERY_KIND = tuple(kind.definition.kind for kind in KINDS)


@pytest.mark.parametrize(
    "kinds",
    [pytest.param(("ModelService",), marks=pytest.mark.slow), pytest.param(EVERY_KIND, marks=pytest.mark.long)],
    ids=["written by hand", "every kind"],
)
async def test_no_object_holds_the_event_loop(
    clean_api: Api, tmp_path: Path, measured: Callable[[str], None], kinds: tuple[str, ...]
) -> None:
    await clean_api.define(binaries.ensure("gateway-api-crds")["gateway-api-crds"])
    found, turns = await measure_loop_turns(clean_api.server, clean_api.client, tmp_path, only=kinds, counting=True)

    assert {one.kind for one in found} >= {"ModelDeployment", *kinds}
    for kind, count, what, turn in longest_turn_by_kind(found, turns):
        measured(f"{kind}: {count} objects, at most {turn.calls} calls in one turn of the loop: {what}")
    assert [turn for turn in turns if turn.calls > MOST_CALLS] == []
