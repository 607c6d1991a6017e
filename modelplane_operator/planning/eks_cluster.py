"""One cluster on EKS: what is known of its account is kept first, then it is made, then held to its spec.

It goes by what is seen on AWS and not by what the spec says, so that nothing that is wrong with a spec keeps it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Final

from modelplane_operator.api import labels
from modelplane_operator.api.clusters.eks import EKSCluster, EKSClusterStatus, EKSFacts, Machine
from modelplane_operator.api.clusters.provisioning import (
    MOST_RESOURCES,
    CloudEndpoint,
    CloudResource,
    CredentialsValid,
    Stalled,
)
from modelplane_operator.api.conditions import ConditionType, Ready
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.shared import CacheStatus
from modelplane_operator.kube.cloud import Account, Call, Outcome, Owner, Seen
from modelplane_operator.kube.errors import ClientError, Forbidden, KubeconfigError, Unauthorized
from modelplane_operator.planning.clouds.conditions import Parts, judged
from modelplane_operator.planning.clouds.decide import SOON, Situation, decide, may_let_go
from modelplane_operator.planning.plan import LET_GO, Plan
from modelplane_operator.rendering.clusters.eks import kinds, resources
from modelplane_operator.rendering.clusters.eks.plan import Facts, zones_for
from modelplane_operator.rendering.clusters.eks.storage import FILE_SYSTEM, NAME
from modelplane_operator.rendering.clusters.problem import CannotMake

PARTS: Final = Parts(kinds.NETWORK, kinds.CLUSTER, kinds.NODEGROUP)
UNTIL_MENDED = 60.0  # seconds until it is tried again what somebody has to mend elsewhere


@dataclass(frozen=True, slots=True)
class Told:
    """What AWS says of the account and the region."""

    zones: tuple[str, ...]
    principal: str
    cards: Mapping[str, int]
    """How many network cards each instance type has that take EFA; only those that there are."""
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """The zones that have it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster, and what was seen of it on AWS."""

    cluster: EKSCluster
    told: Told | None
    """What AWS says of account and region; asked for while something of it is not known yet."""
    seen: Seen | None
    """None while the account is not known, and when there is no way to it."""
    error: ClientError | None
    """Why there is none."""
    journal: Mapping[Call, Outcome]
    process: str
    now: datetime
    missing: bool = field(default=False)
    """Whether there are no credentials where they are looked for."""
    principal: str = ""
    """Who we are on AWS now; empty while that is not known."""
    held: str = ""
    """The InferenceCluster that has it and is not being deleted: models may run there."""


def plan(seen: Observed) -> Plan:
    going = seen.cluster.metadata.deletion_timestamp is not None
    if going and labels.FINALIZER not in seen.cluster.metadata.finalizers:
        return Plan()  # nothing was ever made
    if going and seen.cluster.metadata.annotations.get(labels.ABANDON) == "true":
        return Plan((LET_GO,))
    if going and seen.held:
        return _held(seen)
    if seen.error is not None:
        return _no_way(seen, seen.error)
    last = seen.cluster.status
    if words := _another_account(seen):
        return _refused(seen, CredentialsValid.ANOTHER_ACCOUNT, words)
    if going:
        return _towards(seen, last.facts if last else None, going=True)
    try:
        facts = _facts(seen, last.facts if last else None)
        if facts is None:
            return Plan(requeue_after=SOON)
        if last is None or facts != last.facts:
            return Plan(status=_status(seen, facts, last), requeue_after=0.0)  # kept before anything follows from it
        return _towards(seen, facts, going=False)
    except CannotMake as error:
        return _refused(seen, Stalled.STALLED, str(error))


def account_of(cluster: EKSCluster) -> Account:
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else "default"
    return Account("EKS", cluster.spec.region, credentials)


def owner_of(cluster: EKSCluster) -> Owner:
    return Owner(cluster.metadata.uid or "", cluster.metadata.name)


def _another_account(seen: Observed) -> str:
    """That the credentials are those of another account, where nothing of the cluster is to be seen; empty if not.

    All of it would be made there once more, or be taken for gone.
    """
    facts = seen.cluster.status.facts if seen.cluster.status else None
    ours, now = _account_id(facts.principal if facts else ""), _account_id(seen.principal)
    if not ours or not now or ours == now:
        return ""
    return (
        f"the credentials are those of AWS account {now}, and the cluster is in account {ours}: put credentials of "
        "that one back; nothing is changed until then"
    )


def _account_id(arn: str) -> str:
    """The fifth part of an ARN; empty where it has none."""
    return "".join(arn.split(":")[4:5])


def unknown_machines(cluster: EKSCluster) -> tuple[str, ...]:
    """The instance types of pools of which it is not known yet what they are like and where they are."""
    facts = cluster.status.facts if cluster.status else None
    known = {one.instance_type for one in facts.machines} if facts else set[str]()
    return tuple(sorted({pool.instance_type for pool in cluster.spec.node_pools} - known))


def _facts(seen: Observed, known: EKSFacts | None) -> EKSFacts | None:
    """What is known, and what AWS has told since; None while it has not.

    Of machines that no pool has any more nothing is kept.
    """
    lacking = unknown_machines(seen.cluster)
    if known is not None and not lacking:
        # Other credentials may be another's, who is let in to the cluster by an entry of his own.
        return known.model_copy(update={"principal": seen.principal}) if seen.principal else known
    if seen.told is None:
        return None
    if strange := [one for one in lacking if one not in seen.told.cards]:
        raise CannotMake(
            f"region {seen.cluster.spec.region} has no instance type {', '.join(strange)}: correct the pool's class"
        )
    told = seen.told
    new = (Machine(instance_type=one, efa=told.cards[one], zones=told.offered.get(one, ())) for one in lacking)
    used = {pool.instance_type for pool in seen.cluster.spec.node_pools}
    machines = [*(one for one in (known.machines if known else ()) if one.instance_type in used), *new]
    return EKSFacts(
        zones=known.zones if known else zones_for(seen.cluster, told.zones),
        principal=told.principal,
        machines=tuple(sorted(machines, key=lambda one: one.instance_type)),
    )


def _towards(seen: Observed, facts: EKSFacts | None, *, going: bool) -> Plan:
    if seen.seen is None:
        return Plan(requeue_after=SOON)
    wanted = ()
    if facts is not None and not going:
        cards = {one.instance_type: one.efa for one in facts.machines}
        known = Facts(facts.zones, facts.principal, cards, {one.instance_type: one.zones for one in facts.machines})
        wanted = resources(seen.cluster, known)
    last = seen.cluster.status
    decision = decide(
        Situation(
            account_of(seen.cluster),
            owner_of(seen.cluster),
            wanted,
            kinds.KINDS,
            seen.seen,
            last.resources if last else (),
            seen.journal,
            seen.process,
            seen.now,
            going,
        )
    )
    since = last.gone_since if last else None
    if going and decision.gone and may_let_go(since, seen.seen):
        return Plan((LET_GO,))
    gone_since = (since or seen.now) if going and decision.gone else None
    status = EKSClusterStatus(
        facts=facts,
        endpoint=_endpoint(seen.seen, decision.records, last),
        cache=CacheStatus(storage_class_name=NAME) if _has_files(decision.records) else None,
        resources=decision.records[:MOST_RESOURCES],  # of what the cluster left behind there may be hundreds
        gone_since=gone_since,
        conditions=tuple(judged(decision, PARTS, seen.now, going=going)),
    )
    return Plan(decision.steps, status, requeue_after=decision.again)


def _endpoint(seen: Seen, records: Sequence[CloudResource], last: EKSClusterStatus | None) -> CloudEndpoint | None:
    """Where its API server is, once we are let in; what was known stays while it is not told, and goes with it."""
    known = last.endpoint if last else None
    if known is None and not any(one.kind == kinds.ACCESS_POLICY and one.state == "Ready" for one in records):
        return None
    for one in seen.found:
        if one.kind == kinds.CLUSTER and {"endpoint", "authority"} <= one.outputs.keys():
            return CloudEndpoint(server=one.outputs["endpoint"], authority=one.outputs["authority"], cluster=one.id)
    plane = next((one for one in records if one.kind == kinds.CLUSTER), None)
    is_another = plane is not None and plane.state in ("Pending", "Creating")
    return None if is_another else known


def _has_files(records: Sequence[CloudResource]) -> bool:
    return any(one.key == FILE_SYSTEM and one.state == "Ready" for one in records)


def _status(seen: Observed, facts: EKSFacts, last: EKSClusterStatus | None) -> EKSClusterStatus:
    """What was known, with the facts."""
    known = last or EKSClusterStatus(conditions=(Ready.CREATING.condition(seen.now, message="nothing is made yet"),))
    return known.model_copy(update={"facts": facts})


def _held(seen: Observed) -> Plan:
    """Nobody deletes a cluster from under its models; what is there stays as it is until its owner goes."""
    words = f"it stays until {seen.held} lets it go: delete that instead, which moves its models away first"
    known = seen.cluster.status or EKSClusterStatus()
    told = Ready.DELETING.condition(seen.now, message=words)
    return Plan(status=known.model_copy(update={"conditions": (told,)}))


def _no_way(seen: Observed, error: ClientError) -> Plan:
    if isinstance(error, KubeconfigError):
        return _refused(seen, CredentialsValid.NO_SDK, str(error))
    if seen.missing:
        return _refused(seen, CredentialsValid.NOT_FOUND, str(error))
    if isinstance(error, Unauthorized | Forbidden):
        return _refused(seen, CredentialsValid.NOT_ACCEPTED, str(error))
    return Plan(failure=error)


def _refused(seen: Observed, reason: ConditionType, words: str) -> Plan:
    """Nothing is changed until somebody mends it; what was known stays."""
    told = reason.condition(seen.now, message=words)
    ready = not_ready(EKSCluster.definition.kind, told)
    if seen.cluster.metadata.deletion_timestamp is not None:
        ready = Ready.DELETING.condition(seen.now, message=words)
    known = seen.cluster.status or EKSClusterStatus()
    status = known.model_copy(update={"conditions": (told, ready)})
    return Plan(status=status, requeue_after=UNTIL_MENDED)
