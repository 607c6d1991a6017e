"""A whole life in bad weather: replies get lost, API servers refuse, watches lag and break; it ends as in fair weather.

F2 F3 F5 F6 F7 of the list of faults, each for as long as the life lasts. Nothing may be made twice, nobody may be
asked more often than RATE allows, and once the weather is fair again, nobody writes any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from localfleet.faultproxy.rules import (
    WATCH_ACTIONS,
    Action,
    Answer,
    CloseWatch,
    Hang,
    HoldEvents,
    InjectGone,
    LoseReply,
    Match,
    Reset,
    Rule,
    Slow,
    Truncate,
    When,
)
from localfleet.fleet import HUB
from tests.faults.life import ACTS, Life, perform, twice
from tests.faults.stage import FaultyStage
from tests.integration.harness import WORKERS

pytestmark = [pytest.mark.faults, pytest.mark.timeout(1800), pytest.mark.usefixtures("empty")]

ALL = (HUB, *WORKERS)
RATE = 200  # requests in a second, of all kinds and to all API servers: what is retried at once would be far more
PATIENCE = 240.0  # without a working watch each of several looks at a route may be half a minute late
READS = ("get", "list")

Weather = Sequence[tuple[Sequence[str], Match, Action]]
"""At which API servers, to which calls, what happens."""


def writes(every: int, action: Action, where: Sequence[str] = ALL) -> Weather:
    return [(where, Match(mutating=True, every=every), action)]


def watches(action: Action) -> Weather:
    return [(ALL, Match(), action)]


WEATHERS: Mapping[str, Weather] = {
    "every second reply to a write is lost": writes(2, LoseReply()),
    "every third write is reset after its effect": writes(3, Reset(When.AFTER)),
    "every third write conflicts": writes(3, Answer(409)),
    "every third write conflicts although it had its effect": writes(3, Answer(409, when=When.AFTER)),
    "every third call is throttled": [(ALL, Match(every=3), Answer(429, retry_after=1))],
    "every third write fails with 500": writes(3, Answer(500)),
    "every third write fails with 504 although it had its effect": writes(3, Answer(504, when=When.AFTER)),
    "one cluster serves every other call only": [(("worker-1",), Match(every=2), Answer(503))],
    "one cluster hangs now and then": [(("worker-2",), Match(every=7), Hang(20.0))],
    "answers to reads break off, and come slowly": [
        (ALL, Match(verbs=READS, every=5), Truncate(100)),
        (ALL, Match(verbs=READS, every=3), Slow(20_000)),
    ],
    "watches lag by two seconds": watches(HoldEvents(2.0)),
    "watches end after a second": watches(CloseWatch(1.0)),
    "watches are always too old": [(ALL, Match(), InjectGone())],
    "watches of the hub lag by five seconds, and replies to it are lost": [
        ((HUB,), Match(), HoldEvents(5.0)),
        *writes(4, LoseReply(), (HUB,)),
    ],
}


@pytest.mark.parametrize("weather", WEATHERS)
async def test_a_life_in_bad_weather_leads_to_the_same_end(stage: FaultyStage, faultless: Life, weather: str) -> None:
    struck = 0
    lagging = any(isinstance(action, WATCH_ACTIONS) for _, __, action in WEATHERS[weather])
    for act in ACTS:
        await stage.reset()
        for where, match, action in WEATHERS[weather]:
            for name in where:
                await stage.proxies[name].add(Rule(match, action))
        await perform(stage, act, faultless[act].state, seconds=PATIENCE)
        struck += await stage.struck()
        assert list(twice(faultless[act].writes, await stage.writes(), lagging=lagging)) == []
        assert await stage.rate() <= RATE
        assert stage.crashes == 0, "the operator ended by itself"
    assert struck, "the weather was fair"
    await stage.reset()
    await stage.quiet("in fair weather", seconds=5.0)
