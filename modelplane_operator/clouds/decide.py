"""Decide the next calls to a cloud from the desired resources, the observed ones, and the outcomes of earlier calls.

A resource is created when everything that it needs is ready; independent resources are created in parallel. It is
updated when one of its managed parameters (`DesiredResource.updatable`) differs. It is deleted when it is no longer
desired and everything that must be deleted before it is gone. Deletion goes by the resources that were observed, not by
the spec.

Nothing is decided about a kind that could not be listed. A resource with another owner's tag, or with no tag, is never
touched. No resource is created twice: the cloud recognizes a repeated call by a token or by a unique name. Where it
knows neither, the call is announced in the status first, and no process repeats an announced call until its effect must
have become visible.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from itertools import chain
from typing import Any, cast

from kubeloop.backoff import Backoff
from kubeloop.errors import (
    AlreadyExists,
    ApiError,
    ClientError,
    Conflict,
    Exhausted,
    Forbidden,
    InUse,
    Invalid,
    NotPropagated,
    TooMany,
    Unauthorized,
)
from modelplane_operator.api.clusters.provisioning import MESSAGE, CloudResource, ResourceState
from modelplane_operator.clouds.resources import (
    Account,
    Call,
    DesiredResource,
    ExistingResource,
    Inventory,
    Kind,
    Outcome,
    Owner,
    Verb,
    idempotency_token,
)
from modelplane_operator.clouds.steps import CloudStep, CreateResource, DeleteResource, UpdateResource

LAG = timedelta(seconds=120)
"""Time that a cloud may take to list a new resource: twice the longest delay that was ever measured."""
HOLDS = timedelta(seconds=30)
"""Time after an announcement within which the call may be made."""
FRESH = timedelta(seconds=30)
"""Maximum age of the list that an update is based on. An update based on an older list could undo a recent change."""
KEEP_FAILED_FOR = timedelta(seconds=120)
"""Time that a failed resource is kept for inspection before it is deleted and created again."""
STALLED = 3  # a resource is stalled after this multiple of its usual time
REQUEUE_SOON, STEADY, AT_REST = 5.0, 15.0, 300.0  # seconds until the next look at the cloud
YOUNG = timedelta(minutes=1)
"""Age up to which a resource is polled often."""

BLOCKED = "waits until the problem in the condition Ready is solved"
"""Message of a resource that the preflight checks hold back."""
_WAITING_PREFIXES = ("waits ", "goes with ")
"""Prefixes of the messages of resources that wait for another resource."""

PAUSES: Mapping[type[ClientError], Backoff] = {
    TooMany: Backoff(5, 60),
    Conflict: Backoff(10, 60),
    AlreadyExists: Backoff(10, 120),
    NotPropagated: Backoff(5, 20),
    InUse: Backoff(10, 60),
    Exhausted: Backoff(60, 600),
    Unauthorized: Backoff(15, 300),
    Forbidden: Backoff(15, 300),
    Invalid: Backoff(60, 600),
}
"""Backoff by error. Capacity and permissions change slowly, propagation takes seconds."""
UNSURE = Backoff(5, 120)
"""Backoff after a call whose result is unknown."""


@dataclass(frozen=True, slots=True)
class Situation:
    """A cluster on its cloud: the desired resources, the observed ones, and the recorded state."""

    account: Account
    owner: Owner
    desired: tuple[DesiredResource, ...]
    """Desired resources, each after the ones that it needs."""
    kinds: Mapping[str, Kind]
    """Properties of the kinds of resources."""
    inventory: Inventory
    """Resources observed on the cloud."""
    records: tuple[CloudResource, ...]
    """Resources as the status recorded them last."""
    journal: Mapping[Call, Outcome]
    """Outcomes of the calls that this process made."""
    process: str
    """Random id of this process."""
    now: datetime
    terminating: bool = field(default=False)
    """True if the cluster is being deleted; then no resource is desired."""
    lag: timedelta = LAG
    """Time that the cloud may take to list a new resource."""
    blocked_kinds: frozenset[str] = frozenset()
    """Kinds that must not be created yet, because the preflight checks failed."""
    hold: float | None = None
    """Seconds until the reason for the hold may have changed; None when only polling can tell."""


@dataclass(frozen=True, slots=True)
class CloudDecision:
    """The calls to make now, and the values for the status."""

    steps: tuple[CloudStep, ...]
    """Calls to make now."""
    records: tuple[CloudResource, ...]
    """Records of all resources for the status."""
    requeue_after: float
    """Seconds until something may have changed."""
    is_deleted: bool
    """True if a complete list showed no resource of the cluster."""
    errors: tuple[tuple[CloudResource, ClientError], ...]
    """Resources whose calls failed, each with its error."""
    stalled: tuple[CloudResource, ...]
    """Resources that take far longer than usual."""
    leaving: frozenset[str]
    """Keys of the resources that exist and are no longer desired."""


@dataclass(frozen=True, slots=True)
class _Action:
    """The decision about one resource."""

    record: CloudResource
    """New record of the resource."""
    step: CloudStep | None = None
    """Call to make; None if there is nothing to do now."""
    error: ClientError | None = None
    """Error to report in the conditions."""
    wait: float | None = None
    """Seconds until the resource can proceed; None when only polling can tell."""


def decide(of: Situation) -> CloudDecision:
    """Return the calls to make now and the new records for the status."""
    return _Decider(of).decision()


class _Decider:
    """A decision in progress. Lookups that several steps need are made once, in the constructor."""

    def __init__(self, of: Situation) -> None:
        self._of = of
        self._records = {record.key: record for record in of.records}
        self._resources = {item.key: existing for item in of.desired if (existing := self._select_resource(item))}
        self._outputs = {key: {"id": existing.id, **existing.outputs} for key, existing in self._resources.items()}
        self._ready_keys = {
            item.key
            for item in of.desired
            if (existing := self._resources.get(item.key)) is not None
            and existing.state == "Ready"
            and not self._compare_parameters(item, existing, item.updatable)
        }
        own = {(existing.kind, existing.id) for existing in self._resources.values()}
        self._leftover = [
            item
            for item in of.inventory.existing
            if (item.kind, item.id) not in own and (item.owner == of.owner.uid or (item.swept and of.terminating))
        ]

    def decision(self) -> CloudDecision:
        """Return the decision: first the desired resources in their order, then the leftover ones, then the unlisted
        kinds.
        """
        of = self._of
        leaving = [*self._remove_leftovers()]
        actions = [*chain((self._ensure(item) for item in of.desired), leaving, self._report_unlisted())]
        records = tuple(self._restart_clock(action.record) for action in actions)
        delays = [
            action.wait if action.wait is not None else self._seconds_until_poll(action.record) for action in actions
        ]
        unlisted = [UNSURE.first * 2] * bool(of.inventory.unseen)
        return CloudDecision(
            tuple(action.step for action in actions if action.step),
            records,
            min((*delays, *unlisted), default=AT_REST),
            is_deleted=not of.inventory.unseen and not self._leftover and not self._resources,
            errors=tuple((action.record, action.error) for action in actions if action.error),
            stalled=tuple(record for record in records if self._is_stalled(record)),
            leaving=frozenset(action.record.key for action in leaving),
        )

    # Observed resources --------------------------------------------------------------------------------------------

    def _select_resource(self, desired: DesiredResource) -> ExistingResource | None:
        """Return the observed resource for a desired one, or None.

        Two resources have the same key when a call had its effect after it was given up. One that is not being deleted
        comes first, then the one in the status.
        """
        record, own = self._records.get(desired.key), (desired.kind, desired.key, self._of.owner.uid)
        candidates = [item for item in self._of.inventory.existing if (item.kind, item.key, item.owner) == own]

        def rank(item: ExistingResource) -> tuple[bool, bool, str]:
            return item.state == "Deleting", record is None or item.id != record.id, item.id

        return min(candidates, key=rank, default=None)

    def _compare_parameters(
        self, desired: DesiredResource, existing: ExistingResource, names: frozenset[str]
    ) -> frozenset[str]:
        """Return the names of the parameters that differ; none while a reference is unresolved."""
        resolved = desired.resolve(self._outputs)
        if resolved is None:
            return frozenset()
        parameters = resolved.parameters
        return frozenset(
            name for name in names if name in existing.live and not _is_equal(existing.live[name], parameters.get(name))
        )

    # Create and update -----------------------------------------------------------------------------------------------

    def _ensure(self, desired: DesiredResource) -> _Action:
        """Return what to do so that a desired resource exists with its desired parameters."""
        previous = self._records.get(desired.key)
        if error := self._of.inventory.unseen.get(desired.kind):
            record = previous or self._record(desired, "Pending")
            return _Action(record.model_copy(update={"message": _truncate(f"cannot be listed: {error}")}), error=error)
        existing = self._resources.get(desired.key)
        if existing is None:
            return self._create(desired, previous)
        if existing.state == "Ready" and (changed := self._compare_parameters(desired, existing, desired.updatable)):
            return self._update(desired, existing, changed)
        if existing.state == "Failed":
            return self._replace_failed(desired, existing)
        if immutable := sorted(self._compare_parameters(desired, existing, desired.fixed)):
            message = f"{', '.join(immutable)} cannot be changed: add another one, then remove this one"
            return _Action(self._record(desired, existing.state, existing.id, message), error=Invalid(message))
        return _Action(self._record(desired, existing.state, existing.id, existing.message))

    def _update(self, desired: DesiredResource, existing: ExistingResource, changed: frozenset[str]) -> _Action:
        """Update the changed parameters, once all requirements are ready and the list is recent enough."""
        resolved = desired.resolve(self._outputs)
        assert resolved is not None  # noqa: S101 - else nothing would differ
        step = UpdateResource(self._of.account, self._of.owner, resolved, existing, changed)
        message = f"to be changed: {', '.join(sorted(changed))}"
        missing = sorted(desired.requirements() - self._ready_keys)
        message = f"waits {message}, once these are ready: {', '.join(missing)}" if missing else message
        record = self._record(desired, "Updating", existing.id, message)
        if missing:  # a node pool follows its cluster in one step, however many upgrades the cluster needs
            return _Action(record)
        if self._of.now - self._of.inventory.as_of(existing.kind) > FRESH:
            return _Action(record, wait=0.0)  # state Updating makes its kind be listed again
        return self._call("update", desired.key, step, record)

    def _replace_failed(self, desired: DesiredResource, existing: ExistingResource) -> _Action:
        """Report a failed resource for `KEEP_FAILED_FOR`, then delete it so that it is created again.

        A resource that has worked before is never deleted for this reason.
        """
        record = self._record(desired, "Failed", existing.id, existing.message)
        if record.worked:
            return _Action(record, error=Invalid(f"it has failed: {existing.message}"))
        remaining = KEEP_FAILED_FOR - (self._of.now - record.since)
        if remaining > timedelta():
            return _Action(record, wait=remaining.total_seconds())
        return self._delete(existing, record)

    def _create(self, desired: DesiredResource, previous: CloudResource | None) -> _Action:
        """Create a resource that was not listed, unless it may still appear, must wait, or its name is taken."""
        last = (previous.id if previous else None) or ""
        if last and previous and previous.state in ("Ready", "Creating", "Updating", "Missing"):
            record = self._record(desired, "Missing", last, "the cloud no longer lists it")
            if (remaining := self._of.lag - (self._of.inventory.as_of(desired.kind) - record.since)) > timedelta():
                return _Action(record, wait=min(remaining.total_seconds(), STEADY))
        record = self._record(desired, "Pending", last or None)
        if desired.kind in self._of.blocked_kinds:
            return _Action(record.model_copy(update={"message": BLOCKED}), wait=self._of.hold)
        if missing := sorted(desired.requirements() - self._ready_keys):
            return _Action(record.model_copy(update={"message": _truncate(f"waits for {', '.join(missing)}")}))
        if conflict := self._find_conflict(desired):
            return _Action(record.model_copy(update={"message": conflict}), error=Conflict(conflict))
        resolved = desired.resolve(self._outputs)
        if resolved is None:
            return _Action(record.model_copy(update={"message": "waits for details of the resources that it needs"}))
        create_token = idempotency_token(self._of.owner, resolved, last)
        step = CreateResource(self._of.account, self._of.owner, resolved, create_token)
        if self._of.kinds[desired.kind].announced:
            return self._create_announced(step, record, previous)
        return self._call("create", desired.key, step, record)

    def _create_announced(self, step: CreateResource, record: CloudResource, previous: CloudResource | None) -> _Action:
        """Make a call that the cloud cannot deduplicate, exactly once per announcement in the status.

        The first run announces an attempt in the status. The next run of the same process makes the call within
        `HOLDS`. After that, the attempt is repeated only when its effect would have become visible.
        """
        now, process = self._of.now, self._of.process
        new_attempt = record.model_copy(update={"attempt": f"{process}/{now:%Y%m%dT%H%M%S}", "since": now})
        attempt = previous.attempt if previous and previous.state == record.state else None
        if attempt is None:
            return _Action(new_attempt, wait=0.0)
        record = record.model_copy(update={"attempt": attempt})
        outcome = self._of.journal.get(("create", record.key))
        outcome_of_attempt = outcome if outcome and outcome.subject == attempt else None
        if outcome_of_attempt is not None and outcome_of_attempt.had_no_effect:
            action = self._call("create", record.key, replace(step, attempt=attempt), record)
            record_with_error = new_attempt.model_copy(update={"message": action.record.message})
            return action if action.step is None else _Action(record_with_error, error=action.error, wait=0.0)
        if outcome_of_attempt is None and attempt.startswith(f"{process}/"):
            is_recent = now - record.since <= HOLDS
            return _Action(record, replace(step, attempt=attempt)) if is_recent else _Action(new_attempt, wait=0.0)
        remaining = self._of.lag - (
            self._of.inventory.as_of(record.kind)
            - (outcome_of_attempt.at if outcome_of_attempt else record.since + HOLDS)
        )
        if remaining > timedelta():
            message = "waiting for the effect of the last call"
            return _Action(
                record.model_copy(update={"message": message}), wait=min(remaining.total_seconds(), REQUEUE_SOON)
            )
        return _Action(new_attempt, wait=0.0)

    def _find_conflict(self, desired: DesiredResource) -> str:
        """Return a message if another owner has a resource of the same kind and key; otherwise an empty string."""
        for item in self._of.inventory.existing:
            if (item.kind, item.key) == (desired.kind, desired.key) and item.owner != self._of.owner.uid:
                owner = f"belongs to {item.owner}" if item.owner else "has no tag of the operator"
                return _truncate(
                    f"{item.kind} {item.id} has the same name and {owner}, so the operator leaves it alone: rename or"
                    " delete it"
                )
        return ""

    # Delete ----------------------------------------------------------------------------------------------------------

    def _remove_leftovers(self) -> Iterator[_Action]:
        """Yield the decisions about resources that exist and are no longer desired."""
        kinds = {leftover.kind for leftover in self._leftover}
        keys = {leftover.key for leftover in self._of.desired}
        # A resource that is about to be updated may still use the ones that it used before.
        kinds_in_use = kinds | {leftover.kind for leftover in self._of.desired if leftover.key not in self._ready_keys}
        for leftover in sorted(self._leftover, key=lambda leftover: (leftover.kind, leftover.key, leftover.id)):
            entry = DesiredResource(
                f"{leftover.key}/{leftover.id}" if leftover.key in keys else leftover.key, leftover.kind, {}
            )
            keys.add(entry.key)  # two resources have the same key when a call had its effect after it was given up
            record = self._record(entry, "Deleting", leftover.id, leftover.message)
            kind = self._of.kinds[leftover.kind]
            blockers = sorted(kind.deleted_before & (kinds_in_use | self._of.inventory.unseen.keys()))
            if kind.goes_with in kinds:
                yield _Action(record.model_copy(update={"message": f"goes with {kind.goes_with}"}))
            elif blockers:
                yield _Action(
                    record.model_copy(update={"message": _truncate(f"waits until gone: {', '.join(blockers)}")})
                )
            elif leftover.state == "Deleting":
                yield _Action(record)
            else:
                yield self._delete(leftover, record)

    def _delete(self, existing: ExistingResource, record: CloudResource) -> _Action:
        """Return the deletion of a resource, by its id."""
        return self._call("delete", existing.id, DeleteResource(self._of.account, self._of.owner, existing), record)

    def _report_unlisted(self) -> Iterator[_Action]:
        """Keep the records of leftovers whose kind could not be listed. During a deletion, report the kind, too."""
        desired_keys = {item.key for item in self._of.desired}
        desired_kinds = {item.kind for item in self._of.desired}
        for kind, error in sorted(self._of.inventory.unseen.items()):
            stale = [item for item in self._of.records if item.kind == kind and item.key not in {*desired_keys, kind}]
            yield from (_Action(record, error=error) for record in stale)
            if self._of.terminating and kind not in desired_kinds and not stale:
                message = _truncate(f"cannot be listed: {error}")
                yield _Action(self._record(DesiredResource(kind, kind, {}), "Pending", message=message), error=error)

    # Calls -------------------------------------------------------------------------------------------------------

    def _call(self, verb: Verb, subject: str, step: CloudStep, record: CloudResource) -> _Action:
        """Return the step, or wait when the same call was made recently and its effect or backoff is pending."""
        outcome = self._of.journal.get((verb, subject))
        if outcome is None or outcome.subject != step.subject:
            return _Action(record, step)
        if outcome.error is None:
            state: ResourceState = "Creating" if verb == "create" else record.state
            record_now = self._record(record, state, outcome.id or record.id)
            return _Action(
                record_now, step if outcome.at + self._of.lag <= self._of.inventory.as_of(record.kind) else None
            )
        remaining = _retry_delay(outcome) - (self._of.now - outcome.at).total_seconds()
        record_now = record.model_copy(update={"message": _truncate(str(outcome.error))})
        error = None if isinstance(outcome.error, TooMany | NotPropagated) else outcome.error
        return _Action(record_now, error=error, wait=remaining) if remaining > 0 else _Action(record_now, step, error)

    def _record(
        self,
        resource: DesiredResource | CloudResource,
        state: ResourceState,
        name: str | None = None,
        message: str = "",
    ) -> CloudResource:
        """Build the record of a resource. `since` changes only with the state."""
        previous = self._records.get(resource.key)
        since = previous.since if previous and previous.state == state else self._of.now
        same = previous is not None and previous.id == name
        worked = state == "Ready" or (same and bool(previous and previous.worked))
        return CloudResource(
            key=resource.key,
            kind=resource.kind,
            id=name,
            state=state,
            since=since,
            message=_truncate(message) if message else None,
            worked=worked or None,
        )

    # Timing ----------------------------------------------------------------------------------------------------------

    def _seconds_until_poll(self, record: CloudResource) -> float:
        """Return the seconds until the next look at a resource: often while it is new, rarely when it is Ready."""
        if record.state == "Ready":
            return AT_REST
        return REQUEUE_SOON if self._of.now - record.since < YOUNG else STEADY

    def _restart_clock(self, record: CloudResource) -> CloudResource:
        """Restart the clock of a resource that stops waiting for others, so that the waiting does not count as its own
        time.
        """
        previous = self._records.get(record.key)
        begins = previous is not None and is_waiting(previous) and not is_waiting(record)
        return record.model_copy(update={"since": self._of.now}) if begins else record

    def _is_stalled(self, record: CloudResource) -> bool:
        """True if a resource has taken far longer than usual. Time spent waiting for others does not count."""
        kind = self._of.kinds.get(record.kind)
        usual = timedelta(seconds=STALLED * max(kind.usual if kind else 0.0, 60.0))
        takes_long = self._of.now - record.since > usual
        return takes_long and record.state not in ("Ready", "Missing") and not is_waiting(record)


def _retry_delay(outcome: Outcome) -> float:
    """Return the seconds to wait after a failed call."""
    error = outcome.error
    backoff = PAUSES.get(type(error), UNSURE) if isinstance(error, ApiError) else UNSURE
    return backoff.delay(outcome.failures, 0.5, at_least=error.retry_after if error else None)


def _is_equal(first: Any, second: Any) -> bool:
    """True if two parameter values are equal. Clouds return lists of names in any order."""
    if isinstance(first, list) and isinstance(second, list):
        return sorted(map(repr, cast(list[Any], first))) == sorted(map(repr, cast(list[Any], second)))
    return first == second


def is_waiting(record: CloudResource) -> bool:
    """True if a resource waits for another one."""
    return (record.message or "").startswith(_WAITING_PREFIXES)


def _truncate(message: str) -> str:
    """Return a message that fits a record in the status."""
    return message[:MESSAGE]


def may_release(deleted_at: datetime | None, inventory: Inventory, lag: timedelta = LAG) -> bool:
    """True if a complete list was empty `lag` ago and is still empty, so that no call can have an effect any later."""
    return deleted_at is not None and inventory.at - deleted_at >= lag


def find_unsettled_kinds(records: Iterable[CloudResource]) -> frozenset[str]:
    """Return the kinds with resources in transition, whose lists are soon out of date."""
    return frozenset(record.kind for record in records if record.state != "Ready")
