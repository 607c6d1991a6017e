"""Carry out the steps that are calls to a cloud, and record their outcomes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final, assert_never, get_args

from kubeloop.errors import ApiError, NotFound
from kubeloop.strands import Executors, StepContext
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.resources import Account, Call, Outcome
from modelplane_operator.clouds.steps import CloudStep, CreateResource, DeleteResource, UpdateResource

FORGOTTEN: Final = 4096  # outcomes of one owner: some hundred resources, each with its latest calls


@dataclass(slots=True)
class Journal:
    """Outcomes of this process's calls, by owner.

    Effects are observed on the cloud; only errors need to be remembered.
    """

    _outcomes: dict[str, dict[Call, Outcome]] = field(default_factory=dict[str, dict[Call, Outcome]])
    """Outcomes by the owner's uid, then by call."""

    def of(self, uid: str) -> Mapping[Call, Outcome]:
        """Return the latest outcomes of an owner's calls."""
        return self._outcomes.get(uid, {})

    def note(self, step: CloudStep, now: datetime, *, made: str = "", error: ApiError | None = None) -> None:
        """Record the outcome of a step. Consecutive failures of the same request are counted for the backoff."""
        outcomes = self._outcomes.setdefault(step.owner.uid, {})
        call, subject = call_of(step), step.subject
        previous = outcomes.get(call)
        is_repeated = (
            previous is not None
            and previous.error is not None
            # An announced attempt has a new id each time, but is the same request.
            and (previous.subject == subject or ("/" in previous.subject and "/" in subject))
        )
        failures = (previous.failures if previous and is_repeated else 0) + 1 if error else 0
        if len(outcomes) >= FORGOTTEN:
            outcomes.clear()
        outcomes[call] = Outcome(subject, now, error, failures, made)

    def forget(self, uid: str) -> None:
        self._outcomes.pop(uid, None)


def call_of(step: CloudStep) -> Call:
    """Return the journal's key of a step."""
    match step:
        case CreateResource():
            return "create", step.desired.key
        case UpdateResource():
            return "update", step.desired.key
        case DeleteResource():
            return "delete", step.existing.id
        case _:
            assert_never(step)


async def carry_out(cloud: Cloud, step: CloudStep) -> str:
    """Make the call and return the id of a created resource, or an empty string. Raise ApiError.

    A resource that is already gone counts as deleted.
    """
    match step:
        case CreateResource(owner=owner, desired=desired, token=token):
            return await cloud.create(owner, desired, token)
        case UpdateResource(owner=owner, desired=desired, existing=existing, changed=changed):
            await cloud.update(owner, desired, existing, changed)
        case DeleteResource(existing=existing):
            try:
                await cloud.delete(existing)
            except NotFound:
                return ""
        case _:
            assert_never(step)
    return ""


@dataclass(frozen=True, slots=True)
class CloudExecutor:
    """Executor of calls to clouds. It records an error in the journal instead of failing the reconcile.

    The next plan reports the error. Otherwise a pool for which there is no capacity would stop all other calls.
    """

    cloud: Callable[[Account], Cloud]
    """Client of an account. Raises ClientError when there is none."""
    journal: Journal
    now: Callable[[], datetime]
    """Clock for the times of the outcomes."""

    async def begin(self, step: CloudStep, context: StepContext) -> None:
        """Make the call of a step and record its outcome. Raise ClientError if there is no access to the cloud."""
        cloud = self.cloud(step.account)
        # Raises if this process no longer leads; as late as possible before the call.
        context.may_write()
        try:
            self.journal.note(step, self.now(), made=await carry_out(cloud, step))
        except ApiError as error:
            self.journal.note(step, self.now(), error=error)


def by(cloud: Callable[[Account], Cloud], journal: Journal, now: Callable[[], datetime]) -> Executors:
    """Return an executor for each type of cloud step."""
    return dict.fromkeys(get_args(CloudStep), CloudExecutor(cloud, journal, now))
