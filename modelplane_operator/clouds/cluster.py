"""Plan a cluster on any cloud: its status, and when its finalizer may be removed.

Deletion goes by the resources observed on the cloud and not by the spec, so that an invalid spec never blocks it.

The `plan` of each cloud calls `without_the_cloud` first, then derives the desired resources from the spec, and passes
them to `towards`. The decision about single resources is left to `decide`.
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
from modelplane_operator.clouds.conditions import Parts, compute_conditions
from modelplane_operator.clouds.decide import AT_REST, LAG, REQUEUE_SOON, Situation, decide, may_release
from modelplane_operator.clouds.preflight import PreflightResult
from modelplane_operator.clouds.resources import Account, Call, DesiredResource, Inventory, Kind, Offer, Outcome, Owner

UNTIL_MENDED = 60.0  # seconds until a retry of something that a person has to fix elsewhere

ClusterT = TypeVar("ClusterT", bound=Resource[Any, Any])


@dataclass(frozen=True, slots=True)
class Observed(Generic[ClusterT]):
    """A cluster object, and the resources observed on its cloud.

    Each cloud has a subclass, even without fields of its own: in Python 3.11 `Observed[EKSCluster](...)` raises
    TypeError.
    """

    cluster: ClusterT
    """Object of the cloud's kind, such as an EKSCluster."""
    _: KW_ONLY
    inventory: Inventory | None = None
    """Observed resources; None while the account is unknown or cannot be used."""
    error: ClientError | None = None
    """Reason why nothing could be observed."""
    journal: Mapping[Call, Outcome] = field(default_factory=dict[Call, Outcome])
    """Outcomes of the calls that this process made for the cluster."""
    process: str
    """Random id of this process."""
    now: datetime
    """Time of the observation."""
    offer: Offer | None = None
    """Capacity and quotas that the cloud reported before pools are created; None when they were not queried."""
    missing: bool = False
    """True if the credentials do not exist where the spec names them."""
    used_by: str = ""
    """InferenceCluster that still uses the cluster, so that models may run there; empty if none."""
    lag: timedelta = LAG
    """Time that the cloud may take to list a new resource."""

    @property
    def terminating(self) -> bool:
        return self.cluster.metadata.deletion_timestamp is not None


@dataclass(frozen=True, slots=True)
class Clouds:
    """The properties in which the clusters of one cloud differ from those of others. Each cloud has one such value."""

    status: type[CloudStatus]
    """Type of the status of this cloud's clusters."""
    kinds: Mapping[str, Kind]
    """Properties of the kinds of resources."""
    parts: Parts
    """Kinds of the components of a cluster."""
    let_in_by: str
    """Kind of the resource that must exist before the operator has access to the cluster."""
    files: str
    """Key of the last resource that storage for model caches needs; empty without such storage."""
    storage_class: str
    """Name of the storage class for model caches; empty without such storage."""
    free: frozenset[str] = frozenset()
    """Kinds that cost nothing, and that may have to exist before the preflight checks can run."""


def owner_of(cluster: Resource[Any, Any]) -> Owner:
    """Return the owner that a cluster's resources carry as a tag."""
    return Owner(cluster.metadata.uid or "", cluster.metadata.name)


def without_the_cloud(of: Clouds, observed: Observed[Any]) -> Plan | None:
    """Return the plan that needs no observation of the cloud, or None where the cloud has to be observed."""
    cluster = observed.cluster
    if observed.terminating and labels.FINALIZER not in cluster.metadata.finalizers:
        return Plan()  # nothing was ever created
    if observed.terminating and cluster.metadata.annotations.get(labels.ABANDON) == "true":
        return Plan((LET_GO,))
    if observed.terminating and observed.used_by:
        return _plan_used_cluster(of, observed)
    return _plan_without_access(of, observed, observed.error) if observed.error is not None else None


def towards(
    of: Clouds,
    observed: Observed[Any],
    account: Account,
    desired: Sequence[DesiredResource],
    before: PreflightResult | None = None,
    **facts: Any,
) -> Plan:
    """Return the next calls and the new status.

    `before` is the result of the preflight checks. `facts` are status fields that only this cloud's clusters have.
    """
    # Without a list, a resource that exists would be created a second time.
    if observed.inventory is None:
        return Plan(requeue_after=REQUEUE_SOON)
    last: CloudStatus | None = observed.cluster.status
    before = replace(before or PreflightResult(), has_started=_is_started(of, observed, observed.inventory))
    decision = decide(
        Situation(
            account,
            owner_of(observed.cluster),
            tuple(desired),
            of.kinds,
            observed.inventory,
            last.resources if last else (),
            observed.journal,
            observed.process,
            observed.now,
            observed.terminating,
            observed.lag,
            # Kinds without costs are created nevertheless: on Google, a service answers only after it was enabled.
            blocked_kinds=frozenset(of.kinds) - of.free if before.holds else frozenset(),
            hold=AT_REST if before.against else None,
        )
    )
    is_deleted = observed.terminating and decision.is_deleted
    has_files = any(record.key == of.files and record.state == "Ready" for record in decision.records)
    since = (last.gone_since if last else None) or observed.now
    # A call that was given up may still have its effect, so one empty list is not enough.
    if is_deleted and may_release(last.gone_since if last else None, observed.inventory, observed.lag):
        return Plan((LET_GO,))
    status = of.status(
        endpoint=_endpoint(of, observed.inventory, decision.records, last),
        cache=CacheStatus(storage_class_name=of.storage_class) if has_files else None,
        resources=decision.records[:MOST_RESOURCES],  # workloads may leave hundreds of resources behind
        gone_since=since if is_deleted else None,
        conditions=tuple(
            compute_conditions(
                decision, of.parts, observed.now, before, observed.cluster.conditions, terminating=observed.terminating
            )
        ),
        **facts,
    )
    remaining = (since + observed.lag - observed.now).total_seconds()
    return Plan(
        decision.steps, status, requeue_after=max(remaining, REQUEUE_SOON) if is_deleted else decision.requeue_after
    )


def _is_started(of: Clouds, observed: Observed[Any], inventory: Inventory) -> bool:
    """True if a resource that costs money was created, or may have been."""
    records: Sequence[CloudResource] = observed.cluster.status.resources if observed.cluster.status else ()
    own_kinds = [item.kind for item in inventory.existing if item.owner == observed.cluster.metadata.uid]
    attempted_kinds = [item.kind for item in records if item.id or item.attempt]
    # A kind that cannot be listed may have resources, so it counts as started.
    return bool({*own_kinds, *attempted_kinds, *inventory.unseen} - of.free)


def keep(of: Clouds, observed: Observed[Any], **facts: Any) -> Plan:
    """Store discovered values in the status before any step depends on them."""
    status = observed.cluster.status or of.status(
        conditions=(
            Ready.CREATING.condition(observed.now, message="starting (waiting for: the first call to the cloud)"),
        )
    )
    return Plan(status=status.model_copy(update=facts), requeue_after=0.0)


def report_rejected(of: Clouds, observed: Observed[Any], reason: ConditionType, message: str) -> Plan:
    """Report a problem that a person has to fix. No resource changes, and the rest of the status is kept."""
    condition = reason.condition(observed.now, message=message)
    ready = not_ready(observed.cluster.definition.kind, condition)
    if observed.terminating:
        ready = Ready.DELETING.condition(observed.now, message=message)
    status = observed.cluster.status or of.status()
    return Plan(status=status.model_copy(update={"conditions": (condition, ready)}), requeue_after=UNTIL_MENDED)


def _endpoint(
    of: Clouds, observed: Inventory, records: Sequence[CloudResource], last: CloudStatus | None
) -> CloudEndpoint | None:
    """Return the address of the API server once the operator has access to the cluster.

    The last known address is kept while the cloud does not report it, and dropped with the cluster.
    """
    previous = last.endpoint if last else None
    if previous is None and not any(item.kind == of.let_in_by and item.state == "Ready" for item in records):
        return None
    control_plane = of.parts.control_plane
    for item in observed.existing:
        if item.kind == control_plane and {"endpoint", "authority"} <= item.outputs.keys():
            return CloudEndpoint(server=item.outputs["endpoint"], authority=item.outputs["authority"], cluster=item.id)
    record = next((item for item in records if item.kind == control_plane), None)
    is_deleted = record is None or record.state in ("Pending", "Creating")
    return None if is_deleted else previous


def _plan_used_cluster(of: Clouds, observed: Observed[Any]) -> Plan:
    """Keep a cluster while its InferenceCluster still uses it.

    Deleting it would take the nodes from under running models.
    """
    message = (
        f"waiting for {observed.used_by}, which uses this cluster: delete that instead, which moves its models away"
        " first"
    )
    status = observed.cluster.status or of.status()
    condition = Ready.DELETING.condition(observed.now, message=message)
    return Plan(status=status.model_copy(update={"conditions": (condition,)}))


def _plan_without_access(of: Clouds, observed: Observed[Any], error: ClientError) -> Plan:
    """Return a plan without access to the cloud: a condition for problems with credentials, a retry for others."""
    if isinstance(error, KubeconfigError):
        return report_rejected(of, observed, CredentialsValid.NO_SDK, str(error))
    if observed.missing:
        return report_rejected(of, observed, CredentialsValid.NOT_FOUND, str(error))
    if isinstance(error, Unauthorized | Forbidden):
        return report_rejected(of, observed, CredentialsValid.NOT_ACCEPTED, str(error))
    return Plan(failure=error)
