"""Derive the conditions of a cluster on any cloud from the states of its resources.

`cluster.towards` calls `compute_conditions` with each decision. The conditions say which component is missing and
what a person can do; the records in the status have the details of each resource.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from kubeloop.condition_types import Condition, Ready
from kubeloop.errors import Exhausted, Forbidden, Invalid, Unauthorized
from kubeloop.words import count_of, list_names
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
from modelplane_operator.api.reasons import is_warning, not_ready
from modelplane_operator.clouds.decide import CloudDecision, is_waiting
from modelplane_operator.clouds.preflight import PreflightResult

NOTHING = "nothing is created:"
"""Beginning of the messages of clusters that fail the preflight checks."""
KIND = "EKSCluster"
"""A kind that a cloud makes: all of them have the same conditions."""
WORKS = frozenset({"Ready", "Updating"})
"""States in which a resource can be used."""


@dataclass(frozen=True, slots=True)
class Parts:
    """The kinds of resources that make up each component of a cluster on one cloud."""

    network: frozenset[str]
    """Kinds of the network."""
    control_plane: str
    """Kind of the control plane. Its outputs `endpoint` and `authority` lead to the API server."""
    pools: str
    """Kind of the node pools."""


def compute_conditions(
    decision: CloudDecision,
    parts: Parts,
    now: datetime,
    before: PreflightResult,
    last: Iterable[Condition],
    *,
    terminating: bool,
) -> Iterator[Condition]:
    """Yield every condition of a cluster, Ready last. `before` is the result of the preflight checks."""
    records = decision.records
    # A resource that is being removed does not make its component unavailable.
    desired = [record for record in records if record.key not in decision.leaving]
    network, pools = _select_unavailable(desired, parts.network), _select_unavailable(desired, frozenset({parts.pools}))
    credentials, capacity = _derive_credentials(decision, now), _derive_capacity(decision, before, now)
    stalled = _derive_stalled(decision, before, now)
    quota = [] if terminating else [*_derive_quota(before, last, now, is_complete=not pools)]
    yield from (credentials, *quota, capacity)
    control_plane = next((record for record in records if record.kind == parts.control_plane), None)
    if not terminating:
        yield (NetworkReady.CREATING if network else NetworkReady.AVAILABLE).condition(now, message=_describe(network))
        yield _derive_control_plane(control_plane, now)
        yield (NodePoolsReady.CREATING if pools else NodePoolsReady.AVAILABLE).condition(now, message=_describe(pools))
    yield stalled
    short = [item for item in quota if item.status == "False"]
    problems = [item for item in (credentials, *short, capacity, stalled) if is_warning(KIND, item)]
    yield _derive_deleting(records, now) if terminating else _derive_ready(desired, before, problems, now)


def _select_unavailable(records: Sequence[CloudResource], kinds: frozenset[str]) -> list[CloudResource]:
    """Return the resources of these kinds that cannot be used yet."""
    return [record for record in records if record.kind in kinds and record.state not in WORKS]


def _derive_credentials(decision: CloudDecision, now: datetime) -> Condition:
    """Return the condition of the credentials, by the calls of this decision."""
    rejections = [error for _, error in decision.errors if isinstance(error, Unauthorized | Forbidden)]
    if rejections:
        message = f"a call was refused: {list_names(sorted({str(rejection) for rejection in rejections}))}"
        return CredentialsValid.NOT_ACCEPTED.condition(now, message=message)
    return CredentialsValid.ACCEPTED.condition(now)


def _derive_quota(
    preflight: PreflightResult, last: Iterable[Condition], now: datetime, *, is_complete: bool
) -> Iterator[Condition]:
    """Yield the quota condition.

    The last one is kept while quotas are not queried again, at most until all pools exist.
    """
    previous = next((item for item in last if item.type == QuotaAvailable.__name__), None)
    if preflight.short:
        yield QuotaAvailable.INSUFFICIENT.condition(now, message=list_names(preflight.short))
    elif preflight.unasked:
        message = f"a question was refused: {list_names(preflight.unasked)}"
        yield QuotaAvailable.NOT_ASKED.condition(now, message=message)
    elif preflight.tight:
        yield QuotaAvailable.LIMITED.condition(now, message=list_names(preflight.tight))
    elif preflight.is_complete or (is_complete and (previous is None or previous.status != "True")):
        yield QuotaAvailable.SUFFICIENT.condition(now)
    elif previous is not None:
        yield previous


def _derive_capacity(decision: CloudDecision, preflight: PreflightResult, now: datetime) -> Condition:
    """Return the capacity condition: machines that are not offered, then pools that found no capacity."""
    if preflight.absent:
        return CapacityAvailable.NOT_OFFERED.condition(now, message=list_names(preflight.absent))
    short = [f"{record.key}: {error}" for record, error in decision.errors if isinstance(error, Exhausted)]
    failed = [f"{item.key}: {item.message}" for item in decision.records if item.state == "Failed" and item.message]
    if short or failed:
        return CapacityAvailable.EXHAUSTED.condition(now, message=f"resource {list_names(sorted({*short, *failed}))}")
    return CapacityAvailable.SUFFICIENT.condition(now)


def _derive_control_plane(record: CloudResource | None, now: datetime) -> Condition:
    """Return the condition of the control plane."""
    if record is None or record.state not in WORKS:
        return ControlPlaneReady.CREATING.condition(now, message=_describe([record] if record else []))
    if record.state == "Updating":
        return ControlPlaneReady.UPDATING.condition(now, message=record.message or "")
    return ControlPlaneReady.AVAILABLE.condition(now, message=_describe([record]) if record.message else "")


def _derive_stalled(decision: CloudDecision, preflight: PreflightResult, now: datetime) -> Condition:
    """Return the Stalled condition: failed preflight checks, resources that take too long, and permanent errors."""
    if preflight.against:
        return Stalled.STALLED.condition(now, message=f"{NOTHING} {list_names(preflight.against)}")
    rejected = [
        record for record, error in decision.errors if isinstance(error, Invalid | Forbidden) or not error.retry
    ]
    stalled = {entry.key: entry for entry in (*decision.stalled, *rejected)}
    if not stalled:
        return Stalled.PROGRESSING.condition(now)
    return Stalled.STALLED.condition(now, message=_describe(stalled.values()))


def _derive_ready(
    records: Sequence[CloudResource], preflight: PreflightResult, problems: Sequence[Condition], now: datetime
) -> Condition:
    """Return Ready, with the first problem, or with the resources that are still missing."""
    missing = [record for record in records if record.state not in WORKS]
    nothing = f"{NOTHING} {list_names(preflight.against) or preflight.later}" if preflight.holds else None
    if problems and (nothing or missing):
        return not_ready(KIND, problems[0], nothing)
    if nothing:
        return Ready.CREATING.condition(now, message=nothing)
    if missing:
        progress = f"{len(records) - len(missing)} of {count_of(len(records), 'resource')}"
        message = f"{progress} ready; {_describe(_select_blocking(missing))}"
        return Ready.CREATING.condition(now, message=message)
    return Ready.AVAILABLE.condition(now)


def _derive_deleting(records: Sequence[CloudResource], now: datetime) -> Condition:
    """Return Ready for a cluster that is being deleted, with the resources that remain."""
    if not records:
        return Ready.DELETING.condition(now, message="the last look at the cloud found nothing left")
    remaining = f"{count_of(len(records), 'resource')} {'is' if len(records) == 1 else 'are'} left"
    return Ready.DELETING.condition(now, message=f"{remaining}; {_describe(_select_blocking(records))}")


def _select_blocking(records: Sequence[CloudResource]) -> Sequence[CloudResource]:
    """Return the resources that others wait for."""
    return [record for record in records if not is_waiting(record)] or records


def _describe(records: Iterable[CloudResource]) -> str:
    """Describe each resource by its key, state and message."""
    description = list_names(
        f"{record.key} is {record.state}{f': {record.message}' if record.message else ''}" for record in records
    )
    return f"resource {description}" if description else ""
