"""No prefix outweighs a queue: the weights that a picker is given, in a model of how llm-d-router v0.9.0 scores.

prefix-cache-scorer gives the share of a prompt's blocks that an engine has been sent before. queue-scorer gives 1 to
the shortest queue, 0 to the longest, and 1 to all where they are equal, by metrics that are 50 ms old. max-score-picker
takes the best, and draws lots among equals.
"""

from __future__ import annotations

import heapq
import json
import random
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render.endpoint_picker import picker_config
from tests.support.builders import replica

ENGINES, SLOTS, LOAD = 4, 8, 0.62
SCRAPED = 0.05
SECONDS, WARM = 120.0, 20.0


def weights(one: ModelReplica, profile: str = "default") -> tuple[float, float]:
    """Return what the prefix and the queue count in a profile of the replica's picker."""
    profiles: list[dict[str, Any]] = json.loads(picker_config(one))["schedulingProfiles"]
    plugins = next(each["plugins"] for each in profiles if each["name"] == profile)
    found = {plugin["pluginRef"]: plugin.get("weight") for plugin in plugins}
    return found["prefix-cache-scorer"], found["queue-scorer"]


ONE = replica("a", copies=ENGINES)
BEFORE = (2.0, 1.0)  # what the prefix and the queue counted before


@dataclass
class Engines:
    """Engines that answer so many requests at a time, and queue the rest."""

    running: list[int] = field(default_factory=lambda: [0] * ENGINES)
    queues: list[deque[tuple[float, float]]] = field(default_factory=lambda: [deque() for _ in range(ENGINES)])
    ends: list[tuple[float, int, float]] = field(default_factory=list)
    waits: list[float] = field(default_factory=list)

    def take(self, engine: int, now: float, seconds: float) -> None:
        if self.running[engine] < SLOTS:
            self.running[engine] += 1
            heapq.heappush(self.ends, (now + seconds, engine, now))
        else:
            self.queues[engine].append((now, seconds))

    def end_next(self) -> None:
        now, engine, since = heapq.heappop(self.ends)
        self.waits.append(now - since)
        self.running[engine] -= 1
        if self.queues[engine]:
            since, seconds = self.queues[engine].popleft()
            self.running[engine] += 1
            heapq.heappush(self.ends, (now + seconds, engine, since))


def spread(prefix: float, queue: float, share: float, lengths: tuple[float, ...], seed: int) -> tuple[list[int], float]:
    """Return how many requests each engine got once warm, and the time within which 99 % were answered."""
    draw, engines, now, scraped = random.Random(seed), Engines(), 0.0, 0.0  # noqa: S311
    depths, knows, counts = [0] * ENGINES, [0.0] * ENGINES, [0] * ENGINES
    rate = LOAD * ENGINES * SLOTS * len(lengths) / sum(lengths)
    while now < SECONDS:
        now += draw.expovariate(rate)
        while scraped <= now:
            while engines.ends and engines.ends[0][0] <= scraped:
                engines.end_next()
            depths, scraped = [len(each) for each in engines.queues], scraped + SCRAPED
        while engines.ends and engines.ends[0][0] <= now:
            engines.end_next()
        low, high = min(depths), max(depths)
        scores = [
            prefix * known + queue * (1.0 if low == high else (high - depth) / (high - low))
            for known, depth in zip(knows, depths, strict=True)
        ]
        engine = draw.choice([number for number in range(ENGINES) if scores[number] == max(scores)])
        knows[engine] = share
        counts[engine] += now > WARM
        engines.take(engine, now, draw.choice(lengths) * draw.uniform(0.8, 1.2))
    waits = sorted(engines.waits)
    return counts, waits[int(0.99 * len(waits))]


@given(share=st.floats(0, 0.95), seed=st.integers(0, 2**16))
def test_requests_are_spread_evenly_however_much_of_their_prompts_is_the_same(share: float, seed: int) -> None:
    counts, slowest = spread(*weights(ONE), share, (1.0,), seed)
    _, by_queue_alone = spread(0, 1, 0, (1.0,), seed)

    # An engine that has no prompt's beginning gets a request only when others queue: by chance that may be late. With
    # the weights of before it never came, and others waited.
    assert max(counts) <= 3 * min(counts), counts
    assert slowest <= 2 * by_queue_alone


@pytest.mark.parametrize("profile", ["prefill", "decode"])
def test_a_split_replica_judges_in_the_same_way(profile: str) -> None:
    one = ONE.to_manifest()
    [engine] = one["spec"]["engines"]
    engines = [{**engine, "name": phase.lower(), "phase": phase} for phase in ("Prefill", "Decode")]
    split = ModelReplica.parse(
        {**one, "spec": {**one["spec"], "serving": {"mode": "PrefillDecode"}, "engines": engines}}
    )

    assert weights(split, profile) == weights(ONE)


def test_the_weights_of_before_send_everything_to_one_engine() -> None:
    """As the real picker was measured to do with them from a share of 0.6 on: the model is worth something."""
    for share in (0.6, 0.9):
        counts, slowest = spread(*BEFORE, share, (1.0,), seed=1)
        assert sorted(counts)[:3] == [0, 0, 0]
        assert slowest > 20
    counts, _ = spread(*BEFORE, 0.3, (1.0,), seed=1)
    assert max(counts) <= 1.5 * min(counts)
