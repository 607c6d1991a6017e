"""Plan a cluster on GKE: store its project first, then create the cluster, then keep it as its spec says."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from kubeloop.plan import Plan
from modelplane_operator.api.clusters.gke import GKECluster, GKEClusterStatus, GKEFacts, GKEPool
from modelplane_operator.api.clusters.provisioning import Stalled
from modelplane_operator.clouds import cluster as clusters
from modelplane_operator.clouds import preflight
from modelplane_operator.clouds.cluster import Clouds, keep, report_rejected, towards, without_the_cloud
from modelplane_operator.clouds.conditions import Parts
from modelplane_operator.clouds.decide import REQUEUE_SOON
from modelplane_operator.clouds.gke.render import (
    ZONES,
    Facts,
    first_nodes,
    kinds,
    minor,
    pool_key,
    quotas,
    resources,
    with_system,
)
from modelplane_operator.clouds.gke.render.storage import NAME, NETWORK
from modelplane_operator.clouds.preflight import PreflightResult, QuotaRequirement, check
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.recipe import OWN_IDENTITY
from modelplane_operator.clouds.resources import Account, Inventory

GKE: Final = Clouds(
    GKEClusterStatus,
    kinds.KINDS,
    Parts(frozenset({kinds.SERVICE, kinds.NETWORK, kinds.SUBNETWORK}), kinds.CLUSTER, kinds.NODE_POOL),
    let_in_by=kinds.CLUSTER,
    files=NETWORK,
    storage_class=NAME,
    free=frozenset({kinds.SERVICE}),
)


@dataclass(frozen=True, slots=True)
class Observed(clusters.Observed[GKECluster]):
    """A cluster, and the resources observed on Google Cloud."""

    _: KW_ONLY
    project: str = ""
    """Project of the credentials; queried only while it is unknown."""


def plan(observed: Observed) -> Plan:
    """Return the next calls to Google Cloud and the status of the cluster."""
    if (early_plan := without_the_cloud(GKE, observed)) is not None:
        return early_plan
    last = observed.cluster.status
    stored_facts = last.facts if last else None
    account = account_of(observed.cluster)
    if observed.terminating:
        return towards(GKE, observed, account, (), facts=stored_facts)
    if stored_facts is None:
        project = observed.cluster.spec.project or observed.project
        return keep(GKE, observed, facts=GKEFacts(project=project)) if project else Plan(requeue_after=REQUEUE_SOON)
    try:
        desired = resources(observed.cluster, _observed_facts(stored_facts.project, observed.inventory))
    except CannotMake as error:
        return report_rejected(GKE, observed, Stalled.STALLED, str(error))
    return towards(GKE, observed, account, desired, _preflight(observed), facts=stored_facts)


def unbegun(cluster: GKECluster) -> tuple[GKEPool, ...]:
    """Return the pools that need preflight checks because they were never created."""
    return preflight.unbegun(cluster, with_system(cluster.spec.node_pools), lambda pool: pool_key(pool.name))


def _preflight(observed: Observed) -> PreflightResult | None:
    """Return the result of the preflight checks; None while Google was not queried."""
    cluster, offer = observed.cluster, observed.offer
    if offer is None:
        return None
    network = [] if NETWORK in preflight.has_resources(cluster) else [QuotaRequirement(quotas.NETWORKS, 1, 1)]
    of_pools = (
        need for pool in unbegun(cluster) for need in _quota_requirements(pool, offer.cores.get(pool.machine_type, 0))
    )
    remedy = "ask for more in IAM & Admin, Quotas"
    return check(offer, (*network, *of_pools), minor(cluster.spec.kubernetes_version), remedy)


def _quota_requirements(pool: GKEPool, cores: int) -> Iterator[QuotaRequirement]:
    """Yield the quotas that a pool uses, at first and at its maximum size."""
    first_count = first_nodes(pool) * (len(pool.zones) or ZONES)

    def requirement(quota: str, amount: int) -> QuotaRequirement:
        """Return the requirement of a quota, with this amount per node."""
        return QuotaRequirement(quota, amount * first_count, amount * max(pool.max_node_count, first_count))

    yield requirement(quotas.ADDRESSES, 1)
    if quotas.counts_disk(pool.machine_type):
        yield requirement(quotas.DISKS, pool.disk_size_gb)
    if quotas.counts_cores(pool.machine_type):
        yield requirement(quotas.CORES, cores)
    if pool.gpu and (metric := quotas.ACCELERATORS.get(pool.gpu.accelerator_type)):
        yield requirement(metric, pool.gpu.accelerator_count)
        yield requirement(quotas.ALL_GPUS, pool.gpu.accelerator_count)


def account_of(cluster: GKECluster) -> Account:
    """Return the account of a cluster, in the project from its status even if the credentials' project has changed."""
    facts = cluster.status.facts if cluster.status else None
    project = facts.project if facts else cluster.spec.project or ""
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else OWN_IDENTITY
    return Account("GKE", cluster.spec.region, credentials, project)


def _observed_facts(project: str, inventory: Inventory | None) -> Facts:
    """Return the versions and zones of what is running. GKE's release channel may be ahead of the spec."""
    live = {item.key: item.live for item in inventory.existing} if inventory else {}
    versions = {key: item["version"] for key, item in live.items() if item.get("version")}
    return Facts(
        project, versions, {key: tuple(item["locations"]) for key, item in live.items() if "locations" in item}
    )
