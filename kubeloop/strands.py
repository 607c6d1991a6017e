"""Act: carry out the steps of a plan in the order that `plan.py` tells; those to siblings at once.

A strand that fails, or whose cluster hangs, ends alone. How a step is done is for the executor of its type to know.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Any, Protocol

from kubeloop.errors import ClientError, Conflict, Defect, Unreachable
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.plan import Apply, Create, Failure, Step, strands
from kubeloop.queue import Failed
from kubeloop.reading import Cluster, find
from kubeloop.types import HUB, ResourceType, type_of

AT_ONCE = 8  # writes for one object on one cluster
OF_A_CLUSTER = 120.0  # seconds for one reconcile of what is on a workload cluster, however many requests that takes
A_LOOK = 20.0  # seconds for what a reconcile asks one of its clusters, while it asks the others
SLOW = f"The cluster answers so slowly that {OF_A_CLUSTER:g} s were not enough for a reconcile; what is done stays done"


@dataclass(frozen=True, slots=True)
class Turn:
    """For which object steps are carried out, and by what. `may_write` raises NotLeading when the lease is lost."""

    subject: ResourceType
    key: Key
    cluster: Callable[[str], Cluster]
    may_write: Callable[[], None]


class Executor(Protocol):
    """Carries out the steps of some types."""

    async def begin(self, step: Any, turn: Turn) -> None:
        """Do it; raises ClientError.

        What takes longer than requests do is only begun, in a task of the executor's own: no reconcile waits for it,
        and none that is ended ends it. How it went, the next look observes.
        """
        ...


Executors = Mapping[type[Any], Executor]
"""Who carries out the steps of each type."""


def told(failures: Iterable[Failure], *, to_tenants: bool = False) -> str:
    """What is said of all of them: first what somebody has to mend, last what is likely to pass by itself."""
    by_telling = sorted(failures, key=lambda one: (one.error.retry, isinstance(one.error, Unreachable | Conflict)))
    return "; ".join(one.in_our_words() if to_tenants else str(one) for one in by_telling)


def outcome(failures: Sequence[Failure]) -> Failed:
    """When to try again: as late as the most patient of servers asks, and soon if that may help any of them."""
    pauses = [one.error.retry_after for one in failures if one.error.retry_after is not None]
    return Failed(at_least=max(pauses, default=None), terminal=not any(one.error.retry for one in failures))


@asynccontextmanager
async def ended_by(end: float | None, why: str = SLOW) -> AsyncGenerator[None]:
    """Raises Unreachable when something is not over at that moment of the loop's clock."""
    deadline = asyncio.timeout_at(end)
    try:
        async with deadline:
            yield
    except TimeoutError as error:
        if deadline.expired():
            slow = Unreachable(why)
            slow.ours = True
            raise slow from error
        raise


@asynccontextmanager
async def a_look() -> AsyncGenerator[None]:
    """Raises Unreachable when one cluster of several has not answered so soon that the others can wait for it."""
    end = asyncio.get_running_loop().time() + A_LOOK
    async with ended_by(end, f"The cluster did not answer within {A_LOOK:g} s"):
        yield


@dataclass(frozen=True, slots=True)
class Actor:
    """Carries out steps for one object."""

    turn: Turn
    executors: Executors
    end: float | None = None
    """When every strand is to be over, by the loop's clock."""

    async def act(self, steps: Iterable[Step]) -> tuple[Failure, ...]:
        """Carry out the steps of a plan; answers what failed."""
        for row in strands(steps):
            failed = [one for strand in await asyncio.gather(*map(self._carry_out, row)) for one in strand]
            if failed:
                return tuple(failed)
        return ()

    async def _carry_out(self, strand: Sequence[Step]) -> Sequence[Failure]:
        """Raises nothing: no strand is to end another."""
        failed: list[Failure] = []
        confirmed = False
        for siblings in _siblings(strand):
            try:
                async with ended_by(self.end):
                    if not confirmed and any(map(self._makes_again, siblings)):
                        await self._confirm()
                        confirmed = True
                    failure = await self._take_all(siblings)
            except Exception as error:  # noqa: BLE001 - a defect in one strand is that strand's failure
                failure = Failure(siblings[0], _as_ours(error))
            if failure:
                failed.append(failure)
                if not siblings[0].only_begins:
                    break
        return failed

    async def _take_all(self, steps: Sequence[Step]) -> Failure | None:
        """Carry them out at once, and all whatever becomes of the others; answers the first that failed."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def take(step: Step) -> None:
            async with slots:
                await self._begin(step)

        for step, error in zip(steps, await asyncio.gather(*map(take, steps), return_exceptions=True), strict=True):
            if isinstance(error, Exception):
                return Failure(step, _as_ours(error))
            if error is not None:
                raise error
        return None

    def _makes_again(self, step: Step) -> bool:
        """Whether it makes what was there a short while ago, or another of what we have told of before."""
        match step:
            case Apply(manifest, cluster):
                seen = self.turn.cluster(cluster).find(type_of(manifest))
                return seen is not None and seen.lost(key_of(manifest))
            case Create():
                return bool((self._known() or {}).get("status"))
            case _:
                return False

    async def _confirm(self) -> None:
        """See for ourselves that the object is still there; raises Conflict when it is terminating and nobody told us.

        What was made for it goes with it, and while our watch lags we would make that again as often as it is deleted.
        """
        hub, known = self.turn.cluster(HUB), self._known()
        subjects, live = hub.find(self.turn.subject), await hub.kube.find(self.turn.subject, self.turn.key)
        if subjects and live:
            subjects.written(live)
        elif subjects and known:
            subjects.gone(self.turn.key, known["metadata"]["uid"])
        if _life(live) != _life(known):
            raise Conflict(f"{self.turn.subject.kind} {self.turn.key} is gone, or terminating")

    def _known(self) -> Manifest | None:
        return find(self.turn.cluster(HUB), self.turn.subject, self.turn.key)

    async def _begin(self, step: Step) -> None:
        executor = self.executors.get(type(step))
        if executor is None:
            raise ClientError("this operator runs nothing that does such a thing")
        await executor.begin(step, self.turn)


def _as_ours(error: Exception) -> ClientError:
    """A defect is told without the words of its cause, which is for the log."""
    if isinstance(error, ClientError):
        return error
    defect = Defect.by(error)
    defect.__cause__ = error
    return defect


def _siblings(steps: Iterable[Step]) -> Iterator[Sequence[Step]]:
    """Steps that follow each other and do the same to objects of one type: none of them waits for another."""
    for _, siblings in groupby(steps, lambda step: step.siblings):
        yield tuple(siblings)


def _life(manifest: Manifest | None) -> object:
    """Which object it is, and whether it is terminating; None when there is none."""
    return manifest and (manifest["metadata"]["uid"], "deletionTimestamp" in manifest["metadata"])
