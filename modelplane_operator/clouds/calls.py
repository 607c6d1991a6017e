"""How each step is done that is a call to a cloud, and what is remembered of it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, assert_never, get_args

from kubeloop.errors import ApiError, NotFound
from kubeloop.strands import Executors, Turn
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.resources import Account, Call, Outcome
from modelplane_operator.clouds.steps import CloudStep, CreateResource, DeleteResource, UpdateResource

FORGOTTEN: Final = 4096  # outcomes of one owner: some hundred resources, each with its latest calls


@dataclass(slots=True)
class Journal:
    """What became of this process's calls, by owner: what they did is to be seen, and what refused them is here."""

    _outcomes: dict[str, dict[Call, Outcome]] = field(default_factory=dict[str, dict[Call, Outcome]])

    def of(self, uid: str) -> Mapping[Call, Outcome]:
        return self._outcomes.get(uid, {})

    def note(self, step: CloudStep, now: datetime, *, made: str = "", error: ApiError | None = None) -> None:
        of_owner = self._outcomes.setdefault(step.owner.uid, {})
        call = call_of(step)
        before = of_owner.get(call)
        again = before is not None and before.error is not None and _alike(before.subject, step.subject)
        failures = (before.failures if before and again else 0) + 1 if error else 0
        if len(of_owner) >= FORGOTTEN:
            of_owner.clear()
        of_owner[call] = Outcome(step.subject, now, error, failures, made)

    def forget(self, uid: str) -> None:
        self._outcomes.pop(uid, None)


def call_of(step: CloudStep) -> Call:
    match step:
        case CreateResource():
            return "create", step.wanted.key
        case UpdateResource():
            return "update", step.wanted.key
        case DeleteResource():
            return "delete", step.found.id
        case _:
            assert_never(step)


def _alike(one: str, other: str) -> bool:
    """Whether they ask for the same: announcements differ each time, and are of one thing."""
    return one == other or ("/" in one and "/" in other)


async def carry_out(cloud: Cloud, step: CloudStep) -> str:
    """Do it; answers the id of what was made. What is to be deleted and is gone is done. Raises ApiError."""
    match step:
        case CreateResource(owner=owner, wanted=wanted, token=token):
            return await cloud.create(owner, wanted, token)
        case UpdateResource(owner=owner, wanted=wanted, found=found, changed=changed):
            await cloud.update(owner, wanted, found, changed)
        case DeleteResource(found=found):
            try:
                await cloud.delete(found)
            except NotFound:
                return ""
        case _:
            assert_never(step)
    return ""


@dataclass(frozen=True, slots=True)
class CloudExecutor:
    """Makes a call and remembers what became of it. A refusal is no failure of the reconcile: the next plan tells it.

    Else a pool for which there is no capacity would hold up all that goes well beside it.
    """

    cloud: Callable[[Account], Cloud]
    """Raises ClientError when there is no way to it."""
    journal: Journal
    now: Callable[[], datetime]

    async def begin(self, step: CloudStep, turn: Turn) -> None:
        cloud = self.cloud(step.account)
        turn.may_write()
        try:
            self.journal.note(step, self.now(), made=await carry_out(cloud, step))
        except ApiError as error:
            self.journal.note(step, self.now(), error=error)


def by(cloud: Callable[[Account], Cloud], journal: Journal, now: Callable[[], datetime]) -> Executors:
    return dict.fromkeys(get_args(CloudStep), CloudExecutor(cloud, journal, now))
