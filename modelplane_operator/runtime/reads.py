"""What is read of clusters because no watch tells it: one reader, with a deadline and an age.

A reconcile that has written something observes once more, and news come in bursts: what was asked for a moment ago is
not asked for again. So whoever asks says what the answer depends on, as far as that is seen: when that is another, so
is the question.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Hashable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, Final, TypeVar

from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.errors import Unreachable
from modelplane_operator.runtime.reading import Cluster

A_MOMENT: Final = timedelta(seconds=3)  # less than anybody waits until the next look
LEAST: Final = 64  # answers that are kept before any is forgotten
DEADLINE: Final = 30.0  # seconds for one question, however many pages its answer has

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answer:
    until: datetime
    value: Any


@dataclass(slots=True)
class Reads:
    """What clusters have answered lately."""

    deadline: float = DEADLINE
    _known: dict[Hashable, _Answer] = field(default_factory=dict[Hashable, _Answer], init=False)
    _most: int = field(default=LEAST, init=False)
    """With how many of them those are forgotten that hold no longer."""
    _asking: dict[Hashable, asyncio.Lock] = field(default_factory=dict[Hashable, asyncio.Lock], init=False)

    async def of(
        self,
        cluster: Cluster,
        question: tuple[Hashable, ...],
        ask: Callable[[Kube], Awaitable[T]],
        now: datetime,
        *,
        lasts: timedelta = A_MOMENT,
        nothing_lasts: timedelta | None = None,
    ) -> T:
        """The answer to a question of a cluster; raises what the client does. What fails is not kept.

        `question`: by what it is known, and what the answer depends on. `nothing_lasts`: how long an empty answer
        holds, where that is another time.
        """
        place = (cluster.name, cluster.server, *question)
        lock = self._asking.setdefault(place, asyncio.Lock())
        try:
            async with lock:  # many who ask at once are one question
                known = self._known.get(place)
                if known is None or now >= known.until:
                    value = await self._ask(cluster, ask)
                    holds = lasts if value or nothing_lasts is None else nothing_lasts
                    if len(self._known) > self._most:  # not each time: of a thousand clusters there are thousands
                        self._known = {one: kept for one, kept in self._known.items() if now < kept.until}
                        self._most = 2 * len(self._known) + LEAST
                    known = self._known[place] = _Answer(now + holds, value)
                return known.value
        finally:
            if not lock.locked():
                self._asking.pop(place, None)

    async def _ask(self, cluster: Cluster, ask: Callable[[Kube], Awaitable[T]]) -> T:
        deadline = asyncio.timeout(self.deadline)
        try:
            async with deadline:
                return await ask(cluster.kube)
        except TimeoutError as error:
            if deadline.expired():
                words = f"Cluster {cluster.name or 'hub'} did not answer a question within {self.deadline:g} s"
                raise Unreachable(words) from error
            raise
