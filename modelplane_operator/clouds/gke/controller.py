"""Controller of GKECluster: what to read on Google Cloud before each plan."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, cast

from kubeloop.errors import ClientError, NotFound
from kubeloop.loop import Clients, Controller
from modelplane_operator.api.clusters.gke import GKECluster, GKEPool
from modelplane_operator.clouds.cluster import owner_of
from modelplane_operator.clouds.gke.plan import Observed, account_of, plan, unbegun
from modelplane_operator.clouds.gke.render import kinds
from modelplane_operator.clouds.work import CloudWork, holder, refresh_inventory

if TYPE_CHECKING:
    from modelplane_operator.clouds.gke.cloud import Gcp

LIVELY = frozenset({kinds.CLUSTER, kinds.NODE_POOL})
OWN = frozenset(kinds.KINDS) - {*kinds.SWEPT}


def controller(work: CloudWork) -> Controller[GKECluster, Observed]:
    """Return the controller of GKEClusters."""
    view = work.view(OWN - LIVELY)

    async def observe(cluster: GKECluster, clients: Clients) -> Observed:
        """Read the project, the cluster's resources and the offer.

        The first error ends the reading and is part of the result.
        """
        now = work.at()
        project, inventory, offer = "", None, None
        error: ClientError | None = None
        try:
            cloud = cast("Gcp", work.accounts.cloud(account_of(cluster)))
        except ClientError as failure:
            return Observed(
                cluster, error=failure, process=work.process, now=now, missing=isinstance(failure, NotFound)
            )
        try:
            if cluster.metadata.deletion_timestamp is None and (cluster.status is None or cluster.status.facts is None):
                project = await cloud.session.find_project()
            else:
                inventory = await refresh_inventory(
                    view, cloud, cluster, now, own=OWN, deleted_with_cluster=kinds.DELETED_WITH_CLUSTER
                )
                if cluster.metadata.deletion_timestamp is None and (pools := unbegun(cluster)):
                    offer = await work.offer(cluster, partial(cloud.fetch_offer, *_types_by_zone(pools)))
        except ClientError as failure:
            error = failure
        return Observed(
            cluster,
            inventory=inventory,
            error=error,
            offer=offer,
            journal=work.journal.of(owner_of(cluster).uid),
            process=work.process,
            now=now,
            used_by=holder(cluster, clients.hub),
            lag=work.lag,
            project=project,
        )

    return work.controller(GKECluster, observe, plan)


def _types_by_zone(pools: Sequence[GKEPool]) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
    """Return the machine types and accelerators of pools, each with a zone.

    A pool without zones is checked in the zone of another pool.
    """
    default_zone = next((zone for pool in pools for zone in pool.zones), "")
    pairs = [(pool, zone) for pool in pools for zone in pool.zones or (default_zone,) if zone]
    return (
        frozenset((pool.machine_type, zone) for pool, zone in pairs),
        frozenset((pool.gpu.accelerator_type, zone) for pool, zone in pairs if pool.gpu),
    )
