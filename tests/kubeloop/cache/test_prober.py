"""When a cluster counts as there and when as away, by what it answers to probes; in virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import pytest

from kubeloop.backoff import Backoff
from kubeloop.cache.prober import ConnectionPace, Health, Prober
from kubeloop.errors import ClientError, Misbehaving, Unauthorized, Unreachable
from tests.support import virtual_time

PACE = ConnectionPace(
    probe_interval=40.0, retry=1.0, backoff=Backoff(2.0, 2.0), pause=Backoff(120.0, 600.0), probation=20.0
)
LOST = Unreachable("no answer")


@dataclass
class Answers:
    """A cluster that answers in 0.1 s, or fails as it is told, and in the end refuses us: the prober ends then."""

    script: Sequence[ClientError | None]

    async def ping(self, *, deadline: float) -> float:
        assert deadline == PACE.deadline
        answer, *self.script = self.script or [Unauthorized("401")]
        if answer is not None:
            raise answer
        return 0.1


def probed(*script: ClientError | None, away: ClientError | None = None) -> list[tuple[float, str]]:
    """What is told, and when. `away`: by what an earlier client of the cluster has ended."""
    told: list[tuple[float, str]] = []

    async def run() -> None:
        now = asyncio.get_running_loop().time

        def note(_: str, health: Health) -> None:
            told.append((round(now()), str(health.error or ("renewing" if health.renewing else "answers"))))

        prober = Prober("east", PACE, now, lambda: 1.0, note)
        if away is not None:
            prober.lose(away)
            prober.offences = int(isinstance(away, Misbehaving))
        await prober.run(cast("Any", Answers(script)))

    try:
        virtual_time.run(run())
    except Unauthorized:
        told.append((-1, "refused"))
    return told


@pytest.mark.parametrize(
    ("script", "told"),
    [
        ([None, None, None], [(0, "answers"), (-1, "refused")]),
        ([None, None, None, LOST, None], [(0, "answers"), (-1, "refused")]),
        ([None, None, None, LOST, LOST, None], [(0, "answers"), (51, "no answer"), (53, "renewing")]),
        ([LOST, LOST, LOST, None, None, None], [(1, "no answer"), (5, "renewing")]),
    ],
    ids=["it answers", "one lost answer is no outage", "two are", "it was never there"],
)
def test_an_outage_is_two_lost_answers_in_a_row(
    script: list[ClientError | None], told: list[tuple[float, str]]
) -> None:
    """One that is back ends its prober: whoever runs it makes a new client."""
    assert probed(*script) == told


def test_a_cluster_that_has_misbehaved_has_to_behave_for_a_while_before_it_counts_as_there() -> None:
    flood = Misbehaving("a flood")

    assert probed(None, None, None, away=flood) == [(0, "a flood"), (20, "renewing")]
    assert probed(None, None, None, away=LOST) == [(0, "no answer"), (0, "renewing")]
