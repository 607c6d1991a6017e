"""One cluster on a cloud, whichever that is: what is said of it, and when its object may go.

It goes by what is seen on the cloud and not by what the spec says, so that nothing that is wrong with a spec keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, Generic, TypeVar

from kubeloop.condition_types import ConditionType, Ready
from kubeloop.errors import ClientError, Forbidden, KubeconfigError, Unauthorized
from kubeloop.plan import LET_GO, Plan
from kubeloop.resource import Resource
from modelplane_operator.api import labels
from modelplane_operator.api.clusters.provisioning import (
    MOST_RESOURCES,
    CloudEndpoint,
    CloudResource,
    CloudStatus,
    CredentialsValid,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.shared import CacheStatus
from modelplane_operator.clouds.conditions import Parts, judged
from modelplane_operator.clouds.decide import AT_REST, LAG, REQUEUE_SOON, Situation, decide, may_let_go
from modelplane_operator.clouds.preflight import PreflightResult
from modelplane_operator.clouds.resources import Account, Call, Inventory, Kind, Offer, Outcome, Owner, Wanted

UNTIL_MENDED = 60.0  # seconds until it is tried again what somebody has to mend elsewhere

ClusterT = TypeVar("ClusterT", bound=Resource[Any, Any])


@dataclass(frozen=True, slots=True)
class Observed(Generic[ClusterT]):
    """A cluster, and what was seen of it on its cloud."""

    cluster: ClusterT
    _: KW_ONLY
    seen: Inventory | None = None
    """None while the account is not known, and when there is no way to it."""
    error: ClientError | None = None
    """Why there is none."""
    journal: Mapping[Call, Outcome] = field(default_factory=dict[Call, Outcome])
    process: str
    now: datetime
    offer: Offer | None = None
    """What the cloud says before a pool is made; None when nobody asked."""
    missing: bool = False
    """Whether there are no credentials where they are looked for."""
    held: str = ""
    """The InferenceCluster that has it and is not being deleted: models may run there."""
    lag: timedelta = LAG
    """How long the cloud may take to show what was made."""

    @property
    def terminating(self) -> bool:
        return self.cluster.metadata.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class Clouds:
    """What is different about the clusters of one cloud."""

    status: type[CloudStatus]
    kinds: Mapping[str, Kind]
    parts: Parts
    let_in_by: str
    """The kind of what has to be there before the operator is let in to the cluster."""
    files: str
    """The key of what storage for model caches needs."""
    storage_class: str
    free: frozenset[str] = frozenset()
    """The kinds that nobody pays for, and that may have to be there before anything can be asked."""


def owner_of(cluster: Resource[Any, Any]) -> Owner:
    return Owner(cluster.metadata.uid or "", cluster.metadata.name)


def without_the_cloud(of: Clouds, seen: Observed[Any]) -> Plan | None:
    """What is decided whatever there is on the cloud; None where that has to be seen."""
    cluster = seen.cluster
    if seen.terminating and labels.FINALIZER not in cluster.metadata.finalizers:
        return Plan()  # nothing was ever made
    if seen.terminating and cluster.metadata.annotations.get(labels.ABANDON) == "true":
        return Plan((LET_GO,))
    if seen.terminating and seen.held:
        return _held(of, seen)
    return _no_way(of, seen, seen.error) if seen.error is not None else None


def towards(
    of: Clouds,
    seen: Observed[Any],
    account: Account,
    wanted: Sequence[Wanted],
    before: PreflightResult | None = None,
    **facts: Any,
) -> Plan:
    """The next calls. `before`: what the cloud says of what is not made yet. `facts`: what the status of this cloud's
    clusters says beside what all say."""
    if seen.seen is None:
        return Plan(requeue_after=REQUEUE_SOON)
    last: CloudStatus | None = seen.cluster.status
    before = replace(before or PreflightResult(), begun=_has_begun(of, seen, seen.seen))
    decision = decide(
        Situation(
            account,
            owner_of(seen.cluster),
            tuple(wanted),
            of.kinds,
            seen.seen,
            last.resources if last else (),
            seen.journal,
            seen.process,
            seen.now,
            seen.terminating,
            seen.lag,
            held=frozenset(of.kinds) - of.free if before.holds else frozenset(),
            hold=AT_REST if before.against else None,
        )
    )
    is_gone = seen.terminating and decision.gone
    since = (last.gone_since if last else None) or seen.now
    if is_gone and may_let_go(last.gone_since if last else None, seen.seen, seen.lag):
        return Plan((LET_GO,))
    status = of.status(
        endpoint=_endpoint(of, seen.seen, decision.records, last),
        cache=CacheStatus(storage_class_name=of.storage_class) if _has_files(of, decision.records) else None,
        resources=decision.records[:MOST_RESOURCES],  # of what the cluster left behind there may be hundreds
        gone_since=since if is_gone else None,
        conditions=tuple(
            judged(decision, of.parts, seen.now, before, seen.cluster.conditions, terminating=seen.terminating)
        ),
        **facts,
    )
    left = (since + seen.lag - seen.now).total_seconds()
    return Plan(decision.steps, status, requeue_after=max(left, REQUEUE_SOON) if is_gone else decision.requeue_after)


def _has_begun(of: Clouds, seen: Observed[Any], found: Inventory) -> bool:
    """Whether something that is paid for was made, or may have been."""
    records: Sequence[CloudResource] = seen.cluster.status.resources if seen.cluster.status else ()
    mine = [one.kind for one in found.found if one.owner == seen.cluster.metadata.uid]
    tried = [one.kind for one in records if one.id or one.attempt]
    return bool({*mine, *tried, *found.unseen} - of.free)


def keep(of: Clouds, seen: Observed[Any], **facts: Any) -> Plan:
    """What was found out is written down before anything follows from it."""
    known = seen.cluster.status or of.status(
        conditions=(Ready.CREATING.condition(seen.now, message="nothing is made yet"),)
    )
    return Plan(status=known.model_copy(update=facts), requeue_after=0.0)


def refused(of: Clouds, seen: Observed[Any], reason: ConditionType, words: str) -> Plan:
    """Nothing is changed until somebody mends it; what was known stays."""
    told = reason.condition(seen.now, message=words)
    ready = not_ready(seen.cluster.definition.kind, told)
    if seen.terminating:
        ready = Ready.DELETING.condition(seen.now, message=words)
    known = seen.cluster.status or of.status()
    return Plan(status=known.model_copy(update={"conditions": (told, ready)}), requeue_after=UNTIL_MENDED)


def _endpoint(
    of: Clouds, seen: Inventory, records: Sequence[CloudResource], last: CloudStatus | None
) -> CloudEndpoint | None:
    """Where its API server is, once we are let in; what was known stays while it is not told, and goes with it."""
    known = last.endpoint if last else None
    if known is None and not any(one.kind == of.let_in_by and one.state == "Ready" for one in records):
        return None
    plane = of.parts.control_plane
    for one in seen.found:
        if one.kind == plane and {"endpoint", "authority"} <= one.outputs.keys():
            return CloudEndpoint(server=one.outputs["endpoint"], authority=one.outputs["authority"], cluster=one.id)
    record = next((one for one in records if one.kind == plane), None)
    is_gone = record is None or record.state in ("Pending", "Creating")
    return None if is_gone else known


def _has_files(of: Clouds, records: Sequence[CloudResource]) -> bool:
    return any(one.key == of.files and one.state == "Ready" for one in records)


def _held(of: Clouds, seen: Observed[Any]) -> Plan:
    """Nobody deletes a cluster from under its models; what is there stays as it is until its owner goes."""
    words = f"it stays until {seen.held} lets it go: delete that instead, which moves its models away first"
    known = seen.cluster.status or of.status()
    told = Ready.DELETING.condition(seen.now, message=words)
    return Plan(status=known.model_copy(update={"conditions": (told,)}))


def _no_way(of: Clouds, seen: Observed[Any], error: ClientError) -> Plan:
    if isinstance(error, KubeconfigError):
        return refused(of, seen, CredentialsValid.NO_SDK, str(error))
    if seen.missing:
        return refused(of, seen, CredentialsValid.NOT_FOUND, str(error))
    if isinstance(error, Unauthorized | Forbidden):
        return refused(of, seen, CredentialsValid.NOT_ACCEPTED, str(error))
    return Plan(failure=error)
