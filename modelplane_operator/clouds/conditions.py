"""What is said of a cluster on a cloud: from how each of its resources stands, the same for every cloud."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from kubeloop.condition_types import Condition, Ready
from kubeloop.errors import Exhausted, Forbidden, Invalid, Unauthorized
from kubeloop.words import counted, listed
from modelplane_operator.api.clusters.provisioning import (
    CapacityAvailable,
    CloudResource,
    ControlPlaneReady,
    CredentialsValid,
    NetworkReady,
    NodePoolsReady,
    QuotaAvailable,
    Stalled,
)
from modelplane_operator.clouds.decide import CloudDecision, is_waiting
from modelplane_operator.clouds.preflight import PreflightResult

NOTHING = "nothing is made:"
WORKS = frozenset({"Ready", "Updating"})


@dataclass(frozen=True, slots=True)
class Parts:
    """Which kinds are which part of a cluster, on one cloud."""

    network: frozenset[str]
    control_plane: str
    pools: str


def judged(
    decision: CloudDecision,
    parts: Parts,
    now: datetime,
    before: PreflightResult,
    last: Iterable[Condition],
    *,
    terminating: bool,
) -> Iterator[Condition]:
    """Every condition of a cluster, the last of them Ready. `before`: what its cloud said before it was made."""
    records = decision.records
    wanted = [one for one in records if one.key not in decision.leaving]
    network, pools = _lacking(wanted, parts.network), _lacking(wanted, frozenset({parts.pools}))
    yield _credentials(decision, now)
    if not terminating:
        yield from _quota(before, last, now, all_there=not pools)
    yield _capacity(decision, before, now)
    plane = next((one for one in records if one.kind == parts.control_plane), None)
    if not terminating:
        yield (NetworkReady.CREATING if network else NetworkReady.AVAILABLE).condition(now, message=_named(network))
        yield _control_plane(plane, now)
        yield (NodePoolsReady.CREATING if pools else NodePoolsReady.AVAILABLE).condition(now, message=_named(pools))
    yield _stalled(decision, before, now)
    yield _deleting(records, now) if terminating else _ready(wanted, before, now)


def _lacking(records: Sequence[CloudResource], kinds: frozenset[str]) -> list[CloudResource]:
    return [one for one in records if one.kind in kinds and one.state not in WORKS]


def _credentials(decision: CloudDecision, now: datetime) -> Condition:
    refused = [error for _, error in decision.troubles if isinstance(error, Unauthorized | Forbidden)]
    if refused:
        words = f"a call was refused: {listed(sorted({str(one) for one in refused}))}"
        return CredentialsValid.NOT_ACCEPTED.condition(now, message=words)
    return CredentialsValid.ACCEPTED.condition(now)


def _quota(
    before: PreflightResult, last: Iterable[Condition], now: datetime, *, all_there: bool
) -> Iterator[Condition]:
    """What was told stays while it is not asked for again, and until all is there all the same."""
    known = next((one for one in last if one.type == QuotaAvailable.__name__), None)
    if before.short:
        yield QuotaAvailable.INSUFFICIENT.condition(now, message=listed(before.short))
    elif before.unasked:
        words = f"a question was refused: {listed(before.unasked)}"
        yield QuotaAvailable.NOT_ASKED.condition(now, message=words)
    elif before.tight:
        yield QuotaAvailable.LIMITED.condition(now, message=listed(before.tight))
    elif before.asked or (all_there and (known is None or known.status != "True")):
        yield QuotaAvailable.SUFFICIENT.condition(now)
    elif known is not None:
        yield known


def _capacity(decision: CloudDecision, before: PreflightResult, now: datetime) -> Condition:
    if before.absent:
        return CapacityAvailable.NOT_OFFERED.condition(now, message=listed(before.absent))
    short = [f"{record.key}: {error}" for record, error in decision.troubles if isinstance(error, Exhausted)]
    failed = [f"{one.key}: {one.message}" for one in decision.records if one.state == "Failed" and one.message]
    if short or failed:
        return CapacityAvailable.EXHAUSTED.condition(now, message=f"resource {listed(sorted({*short, *failed}))}")
    return CapacityAvailable.SUFFICIENT.condition(now)


def _control_plane(record: CloudResource | None, now: datetime) -> Condition:
    if record is None or record.state not in WORKS:
        return ControlPlaneReady.CREATING.condition(now, message=_named([record] if record else []))
    if record.state == "Updating":
        return ControlPlaneReady.UPDATING.condition(now, message=record.message or "")
    return ControlPlaneReady.AVAILABLE.condition(now, message=_named([record]) if record.message else "")


def _stalled(decision: CloudDecision, before: PreflightResult, now: datetime) -> Condition:
    """What takes long by itself, what is refused for good, and what would be."""
    if before.against:
        return Stalled.STALLED.condition(now, message=f"{NOTHING} {listed(before.against)}")
    refused = [
        record for record, error in decision.troubles if isinstance(error, Invalid | Forbidden) or not error.retry
    ]
    held = {one.key: one for one in (*decision.stalled, *refused)}
    if not held:
        return Stalled.PROGRESSING.condition(now)
    return Stalled.STALLED.condition(now, message=_named(held.values()))


def _ready(records: Sequence[CloudResource], before: PreflightResult, now: datetime) -> Condition:
    if before.holds:
        return Ready.CREATING.condition(now, message=f"{NOTHING} {listed(before.against) or before.later}")
    lacking = [one for one in records if one.state not in WORKS]
    if lacking:
        there = f"{len(records) - len(lacking)} of {counted(len(records), 'resource')}"
        words = f"{there} {'is' if len(records) == 1 else 'are'} there; {_named(_first(lacking))}"
        return Ready.CREATING.condition(now, message=words)
    return Ready.AVAILABLE.condition(now)


def _deleting(records: Sequence[CloudResource], now: datetime) -> Condition:
    if not records:
        return Ready.DELETING.condition(now, message="nothing is left that is seen")
    left = f"{counted(len(records), 'resource')} {'is' if len(records) == 1 else 'are'} left"
    return Ready.DELETING.condition(now, message=f"{left}; {_named(_first(records))}")


def _first(records: Sequence[CloudResource]) -> Sequence[CloudResource]:
    """Those that others wait for."""
    return [one for one in records if not is_waiting(one)] or records


def _named(records: Iterable[CloudResource]) -> str:
    told = listed(f"{one.key} is {one.state}{f': {one.message}' if one.message else ''}" for one in records)
    return f"resource {told}" if told else ""
