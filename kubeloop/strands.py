"""Carry out the steps of a plan in the order that `plan.py` defines, with siblings at the same time.

A strand that fails, or whose cluster hangs, stops no other strand. The executor of a type of steps knows how they are
done.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import groupby
from typing import Any, Protocol

from kubeloop.errors import ClientError, Conflict, Defect, Unreachable
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.plan import Apply, Create, Failure, Step, strands
from kubeloop.queue import Failed
from kubeloop.reading import Cluster, find
from kubeloop.step_log import StepLog
from kubeloop.types import HUB, ResourceType, type_of

AT_ONCE = 8  # concurrent writes for one object on one cluster
OF_A_CLUSTER = 120.0  # seconds for one reconcile that depends on a workload cluster, for all of its requests together
READ_DEADLINE = 20.0  # seconds for the reads from one cluster in a reconcile that reads from several
SLOW = f"The cluster answers so slowly that {OF_A_CLUSTER:g} s were not enough for a reconcile; what is done stays done"


@dataclass(frozen=True, slots=True)
class StepContext:
    """The object for which steps are carried out, and the clusters.

    `may_write` raises NotLeading when the lease is lost.
    """

    subject: ResourceType
    key: Key
    cluster: Callable[[str], Cluster]
    may_write: Callable[[], None]


class Executor(Protocol):
    """Carries out the steps of some types."""

    async def begin(self, step: Any, context: StepContext) -> None:
        """Carry the step out; raises ClientError.

        Work that takes longer than API requests is only started, in a task of the executor's own. It outlives the
        reconcile, and the next observation shows its result.
        """
        ...


Executors = Mapping[type[Any], Executor]
"""The executor of each type of steps."""


def summarize(failures: Iterable[Failure], *, to_tenants: bool = False) -> str:
    """Return one message for all failures, ordered from those that a person has to fix to those that pass by
    themselves."""
    by_telling = sorted(
        failures, key=lambda failure: (failure.error.retry, isinstance(failure.error, Unreachable | Conflict))
    )
    return "; ".join(failure.message_for_tenants() if to_tenants else str(failure) for failure in by_telling)


def outcome(failures: Sequence[Failure]) -> Failed:
    """Return when to retry: not before the longest Retry-After, and soon unless every failure is permanent."""
    pauses = [failure.error.retry_after for failure in failures if failure.error.retry_after is not None]
    return Failed(at_least=max(pauses, default=None), terminal=not any(failure.error.retry for failure in failures))


@asynccontextmanager
async def deadline_at(end: float | None, reason: str = SLOW) -> AsyncGenerator[None]:
    """Raise Unreachable if the block has not ended at this time of the event loop's clock. None sets no deadline."""
    deadline = asyncio.timeout_at(end)
    try:
        async with deadline:
            yield
    except TimeoutError as error:
        if deadline.expired():
            timeout = Unreachable(reason)
            timeout.is_own_message = True
            raise timeout from error
        raise


@asynccontextmanager
async def read_deadline() -> AsyncGenerator[None]:
    """Raise Unreachable if one of several clusters does not answer within `READ_DEADLINE`, so that the others need not
    wait for it."""
    deadline = asyncio.get_running_loop().time() + READ_DEADLINE
    async with deadline_at(deadline, f"The cluster did not answer within {READ_DEADLINE:g} s"):
        yield


@dataclass(frozen=True, slots=True)
class Actor:
    """Carries out steps for one object."""

    context: StepContext
    executors: Executors
    end: float | None = None
    """The deadline of all strands, by the event loop's clock."""
    log: StepLog = field(default_factory=StepLog)

    async def act(self, steps: Iterable[Step]) -> tuple[Failure, ...]:
        """Carry out the steps of a plan and return the failures. A row with a failure is the last that runs."""
        for row in strands(steps):
            failures = [failure for strand in await asyncio.gather(*map(self._carry_out, row)) for failure in strand]
            if failures:
                return tuple(failures)
        return ()

    async def _carry_out(self, strand: Sequence[Step]) -> Sequence[Failure]:
        """Carry out the steps of one strand and return its failures.

        Raises nothing, so that no strand stops another.
        """
        failures: list[Failure] = []
        confirmed = False
        for _, group in groupby(strand, lambda step: step.siblings):  # steps that may run concurrently
            siblings = tuple(group)
            try:
                async with deadline_at(self.end):
                    if not confirmed and any(map(self._is_recreation, siblings)):
                        await self._confirm_subject()
                        confirmed = True
                    failure = await self._take_siblings(siblings)
            except Exception as error:  # noqa: BLE001 - a defect in one strand is that strand's failure
                failure = Failure(siblings[0], _as_client_error(error))
            if failure:
                failures.append(failure)
                if not siblings[0].only_begins:
                    break
        return failures

    async def _take_siblings(self, steps: Sequence[Step]) -> Failure | None:
        """Carry out sibling steps concurrently, each to its end, and return the first failure."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def take(step: Step) -> None:
            async with slots:
                await self._begin(step)

        for step, error in zip(steps, await asyncio.gather(*map(take, steps), return_exceptions=True), strict=True):
            if isinstance(error, Exception):
                return Failure(step, _as_client_error(error))
            if error is not None:
                raise error
        return None

    def _is_recreation(self, step: Step) -> bool:
        """True if the step creates an object that was deleted recently, or one for a subject that already has a
        status."""
        match step:
            case Apply(manifest, cluster):
                informer = self.context.cluster(cluster).find(type_of(manifest))
                return informer is not None and informer.find_lost(key_of(manifest))
            case Create():
                return bool((self._find_cached_subject() or {}).get("status"))
            case _:
                return False

    async def _confirm_subject(self) -> None:
        """Read the object itself from the API server.

        Raises Conflict if it was deleted or is terminating, unlike in the cache.

        Its children are deleted with it. While the watch lags, we would otherwise recreate them as often as they are
        deleted.
        """
        hub, cached = self.context.cluster(HUB), self._find_cached_subject()
        subjects, live = hub.find(self.context.subject), await hub.kube.find(self.context.subject, self.context.key)
        if subjects and live:
            subjects.on_write(live)
        elif subjects and cached:
            subjects.on_delete(self.context.key, cached["metadata"]["uid"])
        if _identity(live) != _identity(cached):
            raise Conflict(f"{self.context.subject.kind} {self.context.key} is gone, or terminating")

    def _find_cached_subject(self) -> Manifest | None:
        """Return the object that the steps are for, from the cache."""
        return find(self.context.cluster(HUB), self.context.subject, self.context.key)

    async def _begin(self, step: Step) -> None:
        """Hand the step to the executor of its type; raises ClientError if there is none."""
        executor = self.executors.get(type(step))
        if executor is None:
            raise ClientError("this operator runs nothing that does such a thing")
        wrote = False

        def may_write() -> None:
            """Check the lease, and note that the step writes: most steps find that nothing has to change."""
            nonlocal wrote
            self.context.may_write()
            wrote = True

        await executor.begin(step, replace(self.context, may_write=may_write))
        if wrote:
            self.log.record(step, self.context.subject, self.context.key)


def _as_client_error(error: Exception) -> ClientError:
    """Return the error as a ClientError.

    The text of an internal error is left out of the message and kept for the log.
    """
    if isinstance(error, ClientError):
        return error
    defect = Defect.by(error)
    defect.__cause__ = error
    return defect


def _identity(manifest: Manifest | None) -> object:
    """Return the uid and whether the object is terminating; None if there is no object."""
    return manifest and (manifest["metadata"]["uid"], "deletionTimestamp" in manifest["metadata"])
