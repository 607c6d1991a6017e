"""Plan a cluster on EKS: store the account's properties first, then create the cluster, then keep it up to date.

The controller of EKSClusters calls `plan` with the values that it has read from AWS. The desired resources are
rendered by `render`, and the common parts of the status and of deletions are left to `clouds.cluster`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from typing import Final

from kubeloop.plan import Plan
from modelplane_operator.api.clusters.eks import EKSCluster, EKSClusterStatus, EKSFacts, EKSPool, Machine
from modelplane_operator.api.clusters.provisioning import CredentialsValid, Stalled
from modelplane_operator.clouds import cluster as clusters
from modelplane_operator.clouds import preflight
from modelplane_operator.clouds.cluster import Clouds, keep, report_rejected, towards, without_the_cloud
from modelplane_operator.clouds.conditions import Parts
from modelplane_operator.clouds.decide import REQUEUE_SOON
from modelplane_operator.clouds.eks.render import kinds, quotas, resources
from modelplane_operator.clouds.eks.render.nodes import CNI, first_nodes, group_key, with_system
from modelplane_operator.clouds.eks.render.plan import Facts, zones_for
from modelplane_operator.clouds.eks.render.storage import FILE_SYSTEM, NAME
from modelplane_operator.clouds.preflight import PreflightResult, QuotaRequirement, check
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.recipe import OWN_IDENTITY
from modelplane_operator.clouds.resources import Account, ExistingResource, Offer

EKS: Final = Clouds(
    EKSClusterStatus,
    kinds.KINDS,
    Parts(kinds.NETWORK, kinds.CLUSTER, kinds.NODEGROUP),
    let_in_by=kinds.ACCESS_POLICY,
    files=FILE_SYSTEM,
    storage_class=NAME,
)


@dataclass(frozen=True, slots=True)
class AwsFacts:
    """Properties of the account and the region, as AWS reports them."""

    zones: tuple[str, ...]
    """Zones in which the account can have subnets."""
    principal: str
    """ARN of the operator's role or user."""
    cards: Mapping[str, int]
    """Number of EFA-capable network cards by instance type; types that do not exist are missing."""
    offered: Mapping[str, tuple[str, ...]] = field(default_factory=dict[str, tuple[str, ...]])
    """Zones that offer each instance type."""


@dataclass(frozen=True, slots=True)
class Observed(clusters.Observed[EKSCluster]):
    """A cluster, and the resources observed on AWS."""

    _: KW_ONLY
    facts: AwsFacts | None = None
    """Properties of the account and the region; queried only while some are unknown."""
    principal: str = ""
    """ARN of the operator's identity now; empty while unknown."""


def plan(observed: Observed) -> Plan:
    """Return the next calls to AWS and the status of the cluster."""
    if (early_plan := without_the_cloud(EKS, observed)) is not None:
        return early_plan
    last = observed.cluster.status
    # Before any list is used, since another account's lists are empty.
    if message := _account_mismatch(observed):
        return report_rejected(EKS, observed, CredentialsValid.ANOTHER_ACCOUNT, message)
    account, stored_facts = account_of(observed.cluster), last.facts if last else None
    if observed.terminating:
        return towards(EKS, observed, account, (), facts=stored_facts)
    try:
        facts = _merge_facts(observed, stored_facts)
        if facts is None:
            return Plan(requeue_after=REQUEUE_SOON)
        # Stored before any resource depends on them, so that a later list of zones cannot move the subnets.
        if facts != stored_facts:
            return keep(EKS, observed, facts=facts)
        cards = {entry.instance_type: entry.efa for entry in facts.machines}
        offered = {entry.instance_type: entry.zones for entry in facts.machines}
        resources_found = observed.inventory.existing if observed.inventory else ()
        nodes = {
            entry.key: int(entry.live["desiredSize"]) for entry in resources_found if entry.live.get("desiredSize")
        }
        cni = next(
            (str(entry.live["configurationValues"]) for entry in resources_found if entry.key == CNI and entry.live), ""
        )
        templates = template_keys(resources_found)
        desired = resources(
            observed.cluster, Facts(facts.zones, facts.principal, cards, offered, nodes, templates, cni)
        )
        return towards(EKS, observed, account, desired, _preflight(observed), facts=facts)
    except CannotMake as error:
        return report_rejected(EKS, observed, Stalled.STALLED, str(error))


def template_keys(inventory: Sequence[ExistingResource]) -> Mapping[str, str]:
    """Return the key of each node group's launch template; empty for a group without one.

    A group is left out if its template belongs to another owner or was deleted.
    """
    keys = {item.id: item.key for item in inventory if item.kind == kinds.LAUNCH_TEMPLATE}
    groups = [item for item in inventory if item.kind == kinds.NODEGROUP]
    templates = {item.key: item.live.get("launchTemplate") for item in groups}
    return {
        group: keys[template["id"]] if template else ""
        for group, template in templates.items()
        if not template or template["id"] in keys
    }


def account_of(cluster: EKSCluster) -> Account:
    """Return the account of a cluster."""
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else OWN_IDENTITY
    return Account("EKS", cluster.spec.region, credentials)


def unbegun(cluster: EKSCluster) -> tuple[EKSPool, ...]:
    """Return the pools that need preflight checks because they were never created."""
    return preflight.unbegun(cluster, with_system(cluster.spec.node_pools), lambda pool: group_key(pool.name))


_SINGLE_RESOURCES: Final[Mapping[str, str]] = {
    "vpc": quotas.VPCS,
    "nat-eip": quotas.ADDRESSES,
    "cluster": quotas.CLUSTERS,
}
"""Quota of each resource of which a cluster has one, by the resource's key."""


def _preflight(observed: Observed) -> PreflightResult | None:
    """Return the result of the preflight checks; None while AWS was not queried."""
    if observed.offer is None:
        return None
    cluster, offer, pools = observed.cluster, observed.offer, unbegun(observed.cluster)
    single = [
        QuotaRequirement(code, 1, 1)
        for key, code in _SINGLE_RESOURCES.items()
        if key not in preflight.has_resources(cluster)
    ]
    of_pools = [
        QuotaRequirement(quotas.quota_of(pool.instance_type), cores * first_nodes(pool), cores * pool.max_node_count)
        for pool in pools
        if pool.capacity_block is None and (cores := offer.cores.get(pool.instance_type))
    ]
    reservation_problems = [problem for pool in pools if (problem := _reservation_problem(pool, offer))]
    return check(
        replace(offer, absent=(*offer.absent, *reservation_problems)),
        (*single, *of_pools),
        cluster.spec.kubernetes_version,
        f"ask for more in Service Quotas of {cluster.spec.region}",
    )


def _reservation_problem(pool: EKSPool, offer: Offer) -> str:
    """Return the problem with a pool's reservation; empty if there is none, or if it could not be queried."""
    name = pool.capacity_block.capacity_reservation_id if pool.capacity_block else ""
    if name not in offer.reservations:
        return ""
    subject, reservation = f"pool {pool.name}: capacity reservation {name}", offer.reservations[name]
    if reservation is None:
        return f"{subject} does not exist in this account and region"
    if reservation.state not in _USABLE_STATES:
        return f"{subject} is {reservation.state}: name another one"
    if reservation.machine != pool.instance_type:
        return f"{subject} is for {reservation.machine}, but the pool has {pool.instance_type}: name another one"
    if reservation.zone and reservation.zone not in pool.zones:
        return f"{subject} is in {reservation.zone}, but the pool is in {', '.join(pool.zones)}: name another one"
    if reservation.count < first_nodes(pool):
        return (
            f"{subject} has {reservation.count} of the {first_nodes(pool)} machines that the pool starts with: name a"
            " larger one"
        )
    return ""


_USABLE_STATES: Final = frozenset({"active", "assessing", "delayed", "payment-pending", "pending", "scheduled"})
"""States of reservations that have capacity, or will have it."""


def _account_mismatch(observed: Observed) -> str:
    """Return a message if the credentials belong to another account than the cluster; otherwise an empty string.

    In another account the cluster would look deleted, and would be created a second time.
    """
    facts = observed.cluster.status.facts if observed.cluster.status else None
    own, actual = _account_id(facts.principal if facts else ""), _account_id(observed.principal)
    if not own or not actual or own == actual:
        return ""
    return (
        f"the credentials belong to AWS account {actual}, but the cluster is in account {own}: restore credentials of"
        f" {own}; the operator changes nothing until then"
    )


def _account_id(arn: str) -> str:
    """Return the fifth part of an ARN; empty if it has none."""
    return "".join(arn.split(":")[4:5])


def unknown_machines(cluster: EKSCluster) -> tuple[str, ...]:
    """Return the pools' instance types whose properties are still unknown."""
    facts = cluster.status.facts if cluster.status else None
    described = {machine.instance_type for machine in facts.machines} if facts else set[str]()
    return tuple(sorted({pool.instance_type for pool in cluster.spec.node_pools} - described))


def _merge_facts(observed: Observed, stored: EKSFacts | None) -> EKSFacts | None:
    """Return the stored properties, completed by newly discovered ones; None while they were not queried.

    Machine types that no pool uses any longer are dropped.
    """
    unknown_types = unknown_machines(observed.cluster)
    if stored is not None and not unknown_types:
        # New credentials may have another principal, which has an access entry of its own.
        return stored.model_copy(update={"principal": observed.principal}) if observed.principal else stored
    if observed.facts is None:
        return None
    if absent := [item for item in unknown_types if item not in observed.facts.cards]:
        raise CannotMake(
            f"region {observed.cluster.spec.region} has no instance type {', '.join(absent)}: correct the pool's class"
        )
    discovered = observed.facts
    added = (
        Machine(instance_type=item, efa=discovered.cards[item], zones=discovered.offered.get(item, ()))
        for item in unknown_types
    )
    types_in_use = {pool.instance_type for pool in observed.cluster.spec.node_pools}
    machines = [*(item for item in (stored.machines if stored else ()) if item.instance_type in types_in_use), *added]
    return EKSFacts(
        zones=stored.zones if stored else zones_for(observed.cluster, discovered.zones),
        principal=discovered.principal,
        machines=tuple(sorted(machines, key=lambda item: item.instance_type)),
    )
