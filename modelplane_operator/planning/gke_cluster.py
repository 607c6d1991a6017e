"""One cluster on GKE: its project is kept first, then it is made, then held to its spec."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import Final

from modelplane_operator.api.clusters.gke import GKECluster, GKEClusterStatus, GKEFacts
from modelplane_operator.api.clusters.provisioning import Stalled
from modelplane_operator.kube.cloud import Account, Seen
from modelplane_operator.planning.clouds import cluster as clusters
from modelplane_operator.planning.clouds.cluster import Clouds, keep, refused, towards, without_the_cloud
from modelplane_operator.planning.clouds.conditions import Parts
from modelplane_operator.planning.clouds.decide import SOON
from modelplane_operator.planning.plan import Plan
from modelplane_operator.rendering.clusters.gke import Facts, kinds, resources
from modelplane_operator.rendering.clusters.gke.storage import NAME, NETWORK
from modelplane_operator.rendering.clusters.problem import CannotMake

GKE: Final = Clouds(
    GKEClusterStatus,
    kinds.KINDS,
    Parts(frozenset({kinds.SERVICE, kinds.NETWORK, kinds.SUBNETWORK}), kinds.CLUSTER, kinds.NODE_POOL),
    let_in_by=kinds.CLUSTER,
    files=NETWORK,
    storage_class=NAME,
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
    if seen.going:
        return towards(GKE, seen, account, (), facts=known)
    if known is None:
        project = seen.cluster.spec.project or seen.project
        return keep(GKE, seen, facts=GKEFacts(project=project)) if project else Plan(requeue_after=SOON)
    try:
        wanted = resources(seen.cluster, _facts(known.project, seen.seen))
    except CannotMake as error:
        return refused(GKE, seen, Stalled.STALLED, str(error))
    return towards(GKE, seen, account, wanted, facts=known)


def account_of(cluster: GKECluster) -> Account:
    """In the project that was found out, whatever project its credentials are of by now."""
    facts = cluster.status.facts if cluster.status else None
    project = facts.project if facts else cluster.spec.project or ""
    credentials = cluster.spec.credentials.name if cluster.spec.credentials else "default"
    return Account("GKE", cluster.spec.region, credentials, project)


def _facts(project: str, seen: Seen | None) -> Facts:
    """What runs, and where: GKE's release channel may have taken it further than the spec says."""
    live = {one.key: one.live for one in seen.found} if seen else {}
    versions = {key: one["version"] for key, one in live.items() if one.get("version")}
    return Facts(project, versions, {key: tuple(one["locations"]) for key, one in live.items() if "locations" in one})
