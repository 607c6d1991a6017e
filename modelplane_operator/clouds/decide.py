"""The next calls to a cloud, decided from what is wanted, what was seen there, and what became of earlier calls.

    created   when all that a resource needs is there as it is wanted; independent ones side by side
    updated   when it is there and a parameter that is kept differs
    deleted   when nobody wants it and nothing that goes before it is left: by what was seen, not by what the spec says

Nothing is decided about a kind that could not be listed. What carries another owner's tag, or none, is never touched.
A resource is never made twice: the cloud tells repeated calls by a token or a unique name; where it knows neither, the
call is announced in the status first, and no process repeats an announced call before its effect must have been seen.
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
    NotSettled,
    TooMany,
    Unauthorized,
)
from modelplane_operator.api.clusters.provisioning import MESSAGE, CloudResource, ResourceState
from modelplane_operator.clouds.resources import (
    Account,
    Call,
    Found,
    Inventory,
    Kind,
    Outcome,
    Owner,
    Verb,
    Wanted,
    token,
)
from modelplane_operator.clouds.steps import CloudStep, CreateResource, DeleteResource, UpdateResource

LAG = timedelta(seconds=120)
"""How long the cloud may take to show what was made: twice what anybody has seen."""
HOLDS = timedelta(seconds=30)
"""How long after an announcement the call may be made."""
FRESH = timedelta(seconds=30)
"""How old a list may be by which something is changed: what else was changed since would be undone."""
FAILED_STAYS = timedelta(seconds=120)
"""How long what was made in vain stays to be looked at, before another is made in its place."""
STALLED = 3  # times what it usually takes
REQUEUE_SOON, STEADY, AT_REST = 5.0, 15.0, 300.0  # seconds until we look again
YOUNG = timedelta(minutes=1)

HELD = "waits for what Ready says"
_WAITING = ("waits ", "goes with ")
"""How the messages begin of what cannot go on before something else has."""

PAUSES: Mapping[type[ClientError], Backoff] = {
    TooMany: Backoff(5, 60),
    Conflict: Backoff(10, 60),
    AlreadyExists: Backoff(10, 120),
    NotSettled: Backoff(5, 20),
    InUse: Backoff(10, 60),
    Exhausted: Backoff(60, 600),
    Unauthorized: Backoff(15, 300),
    Forbidden: Backoff(15, 300),
    Invalid: Backoff(60, 600),
}
UNSURE = Backoff(5, 120)
"""After a call without an answer."""


@dataclass(frozen=True, slots=True)
class Situation:
    """One cluster on its cloud, and what is known of it."""

    account: Account
    owner: Owner
    wanted: tuple[Wanted, ...]
    kinds: Mapping[str, Kind]
    seen: Inventory
    records: tuple[CloudResource, ...]
    """What the status says."""
    journal: Mapping[Call, Outcome]
    """What became of this process's calls."""
    process: str
    """A word that no other process has."""
    now: datetime
    terminating: bool = field(default=False)
    """Whether the cluster is being deleted; then nothing is wanted."""
    lag: timedelta = LAG
    held: frozenset[str] = frozenset()
    """The kinds of which none is made yet, since something speaks against the cluster."""
    hold: float | None = None
    """The seconds until that may have changed; None when only a look tells."""


@dataclass(frozen=True, slots=True)
class CloudDecision:
    """What to call now, and what to say."""

    steps: tuple[CloudStep, ...]
    records: tuple[CloudResource, ...]
    requeue_after: float
    """The seconds until something may have changed."""
    gone: bool
    """Whether nothing of the cluster was seen in a list of everything."""
    troubles: tuple[tuple[CloudResource, ClientError], ...]
    """What calls were refused, and with which words."""
    stalled: tuple[CloudResource, ...]
    """What takes far too long."""
    leaving: frozenset[str]
    """The keys of what is there and nobody wants any more."""


@dataclass(frozen=True, slots=True)
class _Turn:
    """What is to be done about one resource."""

    record: CloudResource
    step: CloudStep | None = None
    trouble: ClientError | None = None
    wait: float | None = None
    """The seconds until it may go on; None when only a look tells."""


def decide(of: Situation) -> CloudDecision:
    return _Deciding(of).decision()


class _Deciding:
    """One decision; what is looked up again and again is looked up once."""

    def __init__(self, of: Situation) -> None:
        self._of = of
        self._known = {record.key: record for record in of.records}
        self._chosen = {one.key: found for one in of.wanted if (found := self._choose(one))}
        self._outputs = {key: {"id": found.id, **found.outputs} for key, found in self._chosen.items()}
        self._settled = {one.key for one in of.wanted if self._is_settled(one)}
        mine = {(found.kind, found.id) for found in self._chosen.values()}
        self._leftover = [
            one
            for one in of.seen.found
            if (one.kind, one.id) not in mine and (one.owner == of.owner.uid or (one.swept and of.terminating))
        ]

    def decision(self) -> CloudDecision:
        of = self._of
        leaving = [*self._away()]
        turns = [*chain((self._towards(one) for one in of.wanted), leaving, self._unseen())]
        records = tuple(self._from_when_it_could_go_on(turn.record) for turn in turns)
        waits = [turn.wait if turn.wait is not None else self._until_look(turn.record) for turn in turns]
        unseen = [UNSURE.first * 2] * bool(of.seen.unseen)
        return CloudDecision(
            tuple(turn.step for turn in turns if turn.step),
            records,
            min((*waits, *unseen), default=AT_REST),
            gone=not of.seen.unseen and not self._leftover and not self._chosen,
            troubles=tuple((turn.record, turn.trouble) for turn in turns if turn.trouble),
            stalled=tuple(record for record in records if self._is_stalled(record)),
            leaving=frozenset(turn.record.key for turn in leaving),
        )

    # What was seen -----------------------------------------------------------------------------------------------

    def _choose(self, wanted: Wanted) -> Found | None:
        """The resource itself. Two of one key are there when a call had its effect after it was given up."""
        known, mine = self._known.get(wanted.key), (wanted.kind, wanted.key, self._of.owner.uid)
        ours = [one for one in self._of.seen.found if (one.kind, one.key, one.owner) == mine]

        def rank(one: Found) -> tuple[bool, bool, str]:
            return one.state == "Deleting", known is None or one.id != known.id, one.id

        return min(ours, key=rank, default=None)

    def _is_settled(self, wanted: Wanted) -> bool:
        found = self._chosen.get(wanted.key)
        return found is not None and found.state == "Ready" and not self._differs(wanted, found, wanted.kept)

    def _differs(self, wanted: Wanted, found: Found, names: frozenset[str]) -> frozenset[str]:
        resolved = wanted.resolved(self._outputs)
        if resolved is None:
            return frozenset()
        said = resolved.parameters
        return frozenset(one for one in names if one in found.live and not _alike(found.live[one], said.get(one)))

    # Towards what is wanted --------------------------------------------------------------------------------------

    def _towards(self, wanted: Wanted) -> _Turn:
        known = self._known.get(wanted.key)
        if error := self._of.seen.unseen.get(wanted.kind):
            record = known or self._record(wanted, "Pending")
            return _Turn(record.model_copy(update={"message": _words(f"cannot be listed: {error}")}), trouble=error)
        found = self._chosen.get(wanted.key)
        if found is None:
            return self._make(wanted, known)
        if found.state == "Ready" and (changed := self._differs(wanted, found, wanted.kept)):
            return self._change(wanted, found, changed)
        if found.state == "Failed":
            return self._replace(wanted, found)
        if fixed := sorted(self._differs(wanted, found, wanted.fixed)):
            words = f"{', '.join(fixed)} cannot be changed: ask for another one beside it, then remove this one"
            return _Turn(self._record(wanted, found.state, found.id, words), trouble=Invalid(words))
        return _Turn(self._record(wanted, found.state, found.id, found.message))

    def _change(self, wanted: Wanted, found: Found, changed: frozenset[str]) -> _Turn:
        resolved = wanted.resolved(self._outputs)
        assert resolved is not None  # noqa: S101 - else nothing would differ
        step = UpdateResource(self._of.account, self._of.owner, resolved, found, changed)
        said = f"to be changed: {', '.join(sorted(changed))}"
        lacking = sorted(wanted.requirements() - self._settled)
        said = f"waits {said}, once these are as they should be: {', '.join(lacking)}" if lacking else said
        record = self._record(wanted, "Updating", found.id, said)
        if lacking:  # nodes follow their cluster: in one step, however many it takes
            return _Turn(record)
        if self._of.now - self._of.seen.as_of(found.kind) > FRESH:
            return _Turn(record, wait=0.0)  # that something is under way has its kind listed anew
        return self._call("update", wanted.key, step, record)

    def _replace(self, wanted: Wanted, found: Found) -> _Turn:
        """What was made in vain is told for a while, and taken away for another to be made. Not so what has worked."""
        record = self._record(wanted, "Failed", found.id, found.message)
        if record.worked:
            return _Turn(record, trouble=Invalid(f"it has failed: {found.message}"))
        left = FAILED_STAYS - (self._of.now - record.since)
        if left > timedelta():
            return _Turn(record, wait=left.total_seconds())
        return self._delete(found, record)

    def _make(self, wanted: Wanted, known: CloudResource | None) -> _Turn:
        last = (known.id if known else None) or ""
        if last and known and known.state in ("Ready", "Creating", "Updating", "Missing"):
            record = self._record(wanted, "Missing", last, "it was there, and is not seen any more")
            if (left := self._of.lag - (self._of.seen.as_of(wanted.kind) - record.since)) > timedelta():
                return _Turn(record, wait=min(left.total_seconds(), STEADY))
        record = self._record(wanted, "Pending", last or None)
        if wanted.kind in self._of.held:
            return _Turn(record.model_copy(update={"message": HELD}), wait=self._of.hold)
        if lacking := sorted(wanted.requirements() - self._settled):
            return _Turn(record.model_copy(update={"message": _words(f"waits for {', '.join(lacking)}")}))
        if taken := self._strangers(wanted):
            return _Turn(record.model_copy(update={"message": taken}), trouble=Conflict(taken))
        resolved = wanted.resolved(self._outputs)
        if resolved is None:
            return _Turn(record.model_copy(update={"message": "waits for what the cloud says of what it needs"}))
        mark = token(self._of.owner, resolved, last)
        step = CreateResource(self._of.account, self._of.owner, resolved, mark)
        if self._of.kinds[wanted.kind].announced:
            return self._announced(step, record, known)
        return self._call("create", wanted.key, step, record)

    def _announced(self, step: CreateResource, record: CloudResource, known: CloudResource | None) -> _Turn:
        """Call once for what the status says was announced by us a moment ago."""
        now, process = self._of.now, self._of.process
        fresh = record.model_copy(update={"attempt": f"{process}/{now:%Y%m%dT%H%M%S}", "since": now})
        attempt = known.attempt if known and known.state == record.state else None
        if attempt is None:
            return _Turn(fresh, wait=0.0)
        record = record.model_copy(update={"attempt": attempt})
        outcome = self._of.journal.get(("create", record.key))
        made = outcome if outcome and outcome.subject == attempt else None
        if made is not None and made.known:
            turn = self._call("create", record.key, replace(step, attempt=attempt), record)
            said = fresh.model_copy(update={"message": turn.record.message})
            return turn if turn.step is None else _Turn(said, trouble=turn.trouble, wait=0.0)
        if made is None and attempt.startswith(f"{process}/"):
            held = now - record.since <= HOLDS
            return _Turn(record, replace(step, attempt=attempt)) if held else _Turn(fresh, wait=0.0)
        left = self._of.lag - (self._of.seen.as_of(record.kind) - (made.at if made else record.since + HOLDS))
        if left > timedelta():
            words = "a call was made, or may have been, whose effect is not seen yet"
            return _Turn(record.model_copy(update={"message": words}), wait=min(left.total_seconds(), REQUEUE_SOON))
        return _Turn(fresh, wait=0.0)

    def _strangers(self, wanted: Wanted) -> str:
        for one in self._of.seen.found:
            if (one.kind, one.key) == (wanted.kind, wanted.key) and one.owner != self._of.owner.uid:
                whose = f"belongs to {one.owner}" if one.owner else "carries no tag of ours"
                return _words(f"{one.kind} {one.id} has its name and {whose}: it is left alone; rename or delete it")
        return ""

    # Away from what is not ---------------------------------------------------------------------------------------

    def _away(self) -> Iterator[_Turn]:
        kinds = {one.kind for one in self._leftover}
        keys = {one.key for one in self._of.wanted}
        # What is about to be changed may still have what it had before.
        users = kinds | {one.kind for one in self._of.wanted if one.key not in self._settled}
        for one in sorted(self._leftover, key=lambda one: (one.kind, one.key, one.id)):
            about = Wanted(f"{one.key}/{one.id}" if one.key in keys else one.key, one.kind, {})
            keys.add(about.key)  # two of one key are there when a call had its effect after it was given up
            record = self._record(about, "Deleting", one.id, one.message)
            kind = self._of.kinds[one.kind]
            waits = sorted(kind.gone_before & (users | self._of.seen.unseen.keys()))
            if kind.goes_with in kinds:
                yield _Turn(record.model_copy(update={"message": f"goes with {kind.goes_with}"}))
            elif waits:
                yield _Turn(record.model_copy(update={"message": _words(f"waits until gone: {', '.join(waits)}")}))
            elif one.state == "Deleting":
                yield _Turn(record)
            else:
                yield self._delete(one, record)

    def _delete(self, found: Found, record: CloudResource) -> _Turn:
        return self._call("delete", found.id, DeleteResource(self._of.account, self._of.owner, found), record)

    def _unseen(self) -> Iterator[_Turn]:
        """What is said of what nobody wants and nobody could look for stays; and that nobody could is told."""
        wanted = {one.key for one in self._of.wanted}
        told = {one.kind for one in self._of.wanted}
        for kind, error in sorted(self._of.seen.unseen.items()):
            left = [one for one in self._of.records if one.kind == kind and one.key not in {*wanted, kind}]
            yield from (_Turn(record, trouble=error) for record in left)
            if self._of.terminating and kind not in told and not left:
                words = _words(f"cannot be listed: {error}")
                yield _Turn(self._record(Wanted(kind, kind, {}), "Pending", message=words), trouble=error)

    # Calls -------------------------------------------------------------------------------------------------------

    def _call(self, verb: Verb, subject: str, step: CloudStep, record: CloudResource) -> _Turn:
        """The step, unless a call like it was made a while ago and is to be waited for."""
        outcome = self._of.journal.get((verb, subject))
        if outcome is None or outcome.subject != step.subject:
            return _Turn(record, step)
        if outcome.error is None:
            state: ResourceState = "Creating" if verb == "create" else record.state
            said = self._record(record, state, outcome.id or record.id)
            return _Turn(said, step if outcome.at + self._of.lag <= self._of.seen.as_of(record.kind) else None)
        left = _pause(outcome) - (self._of.now - outcome.at).total_seconds()
        said = record.model_copy(update={"message": _words(str(outcome.error))})
        trouble = None if isinstance(outcome.error, TooMany | NotSettled) else outcome.error
        return _Turn(said, trouble=trouble, wait=left) if left > 0 else _Turn(said, step, trouble)

    def _record(
        self,
        of: Wanted | CloudResource,
        state: ResourceState,
        name: str | None = None,
        message: str = "",
    ) -> CloudResource:
        known = self._known.get(of.key)
        since = known.since if known and known.state == state else self._of.now
        same = known is not None and known.id == name
        worked = state == "Ready" or (same and bool(known and known.worked))
        return CloudResource(
            key=of.key,
            kind=of.kind,
            id=name,
            state=state,
            since=since,
            message=_words(message) if message else None,
            worked=worked or None,
        )

    # When ----------------------------------------------------------------------------------------------------------

    def _until_look(self, record: CloudResource) -> float:
        if record.state == "Ready":
            return AT_REST
        return REQUEUE_SOON if self._of.now - record.since < YOUNG else STEADY

    def _from_when_it_could_go_on(self, record: CloudResource) -> CloudResource:
        """As long as it waits for others, it takes no time itself."""
        known = self._known.get(record.key)
        begins = known is not None and is_waiting(known) and not is_waiting(record)
        return record.model_copy(update={"since": self._of.now}) if begins else record

    def _is_stalled(self, record: CloudResource) -> bool:
        kind = self._of.kinds.get(record.kind)
        usual = timedelta(seconds=STALLED * max(kind.usual if kind else 0.0, 60.0))
        takes_long = self._of.now - record.since > usual
        return takes_long and record.state not in ("Ready", "Missing") and not is_waiting(record)


def _pause(outcome: Outcome) -> float:
    error = outcome.error
    backoff = PAUSES.get(type(error), UNSURE) if isinstance(error, ApiError) else UNSURE
    return backoff.delay(outcome.failures, 0.5, at_least=error.retry_after if error else None)


def _alike(one: Any, other: Any) -> bool:
    """Whether two parameters say the same; clouds give lists of names in any order."""
    if isinstance(one, list) and isinstance(other, list):
        return sorted(map(repr, cast(list[Any], one))) == sorted(map(repr, cast(list[Any], other)))
    return one == other


def is_waiting(record: CloudResource) -> bool:
    """Whether it cannot go on before something else has."""
    return (record.message or "").startswith(_WAITING)


def _words(said: str) -> str:
    return said[:MESSAGE]


def may_let_go(gone_since: datetime | None, seen: Inventory, lag: timedelta = LAG) -> bool:
    """Whether nothing can be left: nothing was seen then, nor is now, and whatever was called for would have shown."""
    return gone_since is not None and seen.at - gone_since >= lag


def unsettled(records: Iterable[CloudResource]) -> frozenset[str]:
    """The kinds of which something is under way, so that a list of them is soon out of date."""
    return frozenset(record.kind for record in records if record.state != "Ready")
