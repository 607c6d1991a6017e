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

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Unreachable
from kubeloop.reading import Cluster

A_MOMENT: Final = timedelta(seconds=3)  # less than anybody waits until the next look
LEAST: Final = 64  # answers that are kept before any is forgotten
DEADLINE: Final = 30.0  # seconds for one question, however many pages its answer has

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Answer:
    until: datetime
    value: Any


@dataclass(slots=True)
class _Asking:
    """A question under way, and what it has failed by."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    error: ClientError | None = None


@dataclass(slots=True)
class Reads:
    """What clusters have answered lately."""

    deadline: float = DEADLINE
    _known: dict[Hashable, _Answer] = field(default_factory=dict[Hashable, _Answer], init=False)
    _most: int = field(default=LEAST, init=False)
    """With how many of them those are forgotten that hold no longer."""
    _asking: dict[Hashable, _Asking] = field(default_factory=dict[Hashable, _Asking], init=False)

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
        """The answer to a question of a cluster; raises what the client does, to all that wait for it.

        `question`: by what it is known, and what the answer depends on. `nothing_lasts`: how long an empty answer
        holds, where that is another time.
        """
        place = (cluster.name, cluster.server, *question)
        asking = self._asking.setdefault(place, _Asking())
        waits = asking.lock.locked()
        try:
            async with asking.lock:  # many who ask at once are one question
                if waits and asking.error:  # or the last of them would wait for as many deadlines as there are others
                    raise asking.error.kept()
                known = self._known.get(place)
                if known is None or now >= known.until:
                    value = await self._first(asking, cluster, ask)
                    holds = lasts if value or nothing_lasts is None else nothing_lasts
                    if len(self._known) > self._most:  # not each time: of a thousand clusters there are thousands
                        self._known = {one: kept for one, kept in self._known.items() if now < kept.until}
                        self._most = 2 * len(self._known) + LEAST
                    known = self._known[place] = _Answer(now + holds, value)
                return known.value
        finally:
            if not asking.lock.locked():
                self._asking.pop(place, None)

    async def _first(self, asking: _Asking, cluster: Cluster, ask: Callable[[Kube], Awaitable[T]]) -> T:
        asking.error = None
        try:
            return await self._ask(cluster, ask)
        except ClientError as error:
            asking.error = error
            raise

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
