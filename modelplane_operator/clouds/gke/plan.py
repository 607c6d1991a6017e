"""One cluster on GKE: its project is kept first, then it is made, then held to its spec."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Final

from kubeloop.plan import Plan
from modelplane_operator.api.clusters.gke import GKECluster, GKEClusterStatus, GKEFacts, GKEPool
from modelplane_operator.api.clusters.provisioning import Stalled
from modelplane_operator.clouds import cluster as clusters
from modelplane_operator.clouds import preflight
from modelplane_operator.clouds.cluster import Clouds, keep, refused, towards, without_the_cloud
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
from modelplane_operator.clouds.preflight import PreflightResult, QuotaRequirement, judge
from modelplane_operator.clouds.problem import CannotMake
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
    """A cluster, and what was seen of it on Google Cloud."""

    _: KW_ONLY
    project: str = ""
    """That of the credentials; asked for while it is not known."""


def plan(seen: Observed) -> Plan:
    if (decided := without_the_cloud(GKE, seen)) is not None:
        return decided
    last = seen.cluster.status
    known = last.facts if last else None
    account = account_of(seen.cluster)
    if seen.terminating:
        return towards(GKE, seen, account, (), facts=known)
    if known is None:
        project = seen.cluster.spec.project or seen.project
        return keep(GKE, seen, facts=GKEFacts(project=project)) if project else Plan(requeue_after=REQUEUE_SOON)
    try:
        wanted = resources(seen.cluster, _facts(known.project, seen.seen))
    except CannotMake as error:
        return refused(GKE, seen, Stalled.STALLED, str(error))
    return towards(GKE, seen, account, wanted, _before(seen), facts=known)


def unbegun(cluster: GKECluster) -> tuple[GKEPool, ...]:
    """The pools that are asked about before they are made."""
    return preflight.unbegun(cluster, with_system(cluster.spec.node_pools), lambda pool: pool_key(pool.name))


def _before(seen: Observed) -> PreflightResult | None:
    cluster, offer = seen.cluster, seen.offer
    if offer is None:
        return None
    network = [] if NETWORK in preflight.begun(cluster) else [QuotaRequirement(quotas.NETWORKS, 1, 1)]
    of_pools = (need for pool in unbegun(cluster) for need in _needs(pool, offer.cores.get(pool.machine_type, 0)))
    asking = "ask for more in IAM & Admin, Quotas"
    return judge(offer, (*network, *of_pools), minor(cluster.spec.kubernetes_version), asking)


def _needs(pool: GKEPool, cores: int) -> Iterator[QuotaRequirement]:
    first = first_nodes(pool) * (len(pool.zones) or ZONES)

    def of(quota: str, each: int) -> QuotaRequirement:
        return QuotaRequirement(quota, each * first, each * max(pool.max_node_count, first))

    yield of(quotas.ADDRESSES, 1)
    if quotas.counts_disk(pool.machine_type):
        yield of(quotas.DISKS, pool.disk_size_gb)
    if quotas.counts_cores(pool.machine_type):
        yield of(quotas.CORES, cores)
    if pool.gpu and (metric := quotas.ACCELERATORS.get(pool.gpu.accelerator_type)):
        yield of(metric, pool.gpu.accelerator_count)
        yield of(quotas.ALL_GPUS, pool.gpu.accelerator_count)


def account_of(cluster: GKECluster) -> Account:
    """In the project that was found out, whatever project its credentials are of by now."""
    facts = cluster.status.facts if cluster.status else None
    project = facts.project if facts else cluster.spec.project or ""
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else "default"
    return Account("GKE", cluster.spec.region, credentials, project)


def _facts(project: str, seen: Inventory | None) -> Facts:
    """What runs, and where: GKE's release channel may have taken it further than the spec says."""
    live = {one.key: one.live for one in seen.found} if seen else {}
    versions = {key: one["version"] for key, one in live.items() if one.get("version")}
    return Facts(project, versions, {key: tuple(one["locations"]) for key, one in live.items() if "locations" in one})
