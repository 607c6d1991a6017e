"""GKECluster: what to read of it on Google Cloud."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from kubeloop.errors import ClientError, NotFound
from kubeloop.loop import Clients, Controller
from modelplane_operator.api.clusters.gke import GKECluster, GKEPool
from modelplane_operator.clouds.cluster import owner_of
from modelplane_operator.clouds.gke.plan import Observed, account_of, plan, unbegun
from modelplane_operator.clouds.gke.render import kinds
from modelplane_operator.clouds.work import CloudWork, holder, looked

LIVELY = frozenset({kinds.CLUSTER, kinds.NODE_POOL})
OWN = frozenset(kinds.KINDS) - {*kinds.SWEPT}


def controller(work: CloudWork) -> Controller[GKECluster, Observed]:
    view = work.view(OWN - LIVELY)

    async def observe(cluster: GKECluster, clients: Clients) -> Observed:
        at = work.at()
        project, seen, offer = "", None, None
        error: ClientError | None = None
        try:
            cloud = work.accounts.google(account_of(cluster))
        except ClientError as failed:
            return Observed(cluster, error=failed, process=work.process, now=at, missing=isinstance(failed, NotFound))
        try:
            if cluster.metadata.deletion_timestamp is None and (cluster.status is None or cluster.status.facts is None):
                project = await cloud.session.found_project()
            else:
                seen = await looked(view, cloud, cluster, at, own=OWN, left=kinds.LEFT)
                if cluster.metadata.deletion_timestamp is None and (pools := unbegun(cluster)):
                    offer = await work.offer(cluster, partial(cloud.offered, *_asked(pools)))
        except ClientError as failed:
            error = failed
        return Observed(
            cluster,
            seen=seen,
            error=error,
            offer=offer,
            journal=work.journal.of(owner_of(cluster).uid),
            process=work.process,
            now=at,
            held=holder(cluster, clients.hub),
            lag=work.lag,
            project=project,
        )

    return work.controller(GKECluster, observe, plan)


def _asked(pools: Sequence[GKEPool]) -> tuple[frozenset[tuple[str, str]], frozenset[tuple[str, str]]]:
    """The machines and the accelerators of pools, each with a zone; what names none is asked for where others are."""
    somewhere = next((zone for pool in pools for zone in pool.zones), "")
    pairs = [(pool, zone) for pool in pools for zone in pool.zones or (somewhere,) if zone]
    return (
        frozenset((pool.machine_type, zone) for pool, zone in pairs),
        frozenset((pool.gpu.accelerator_type, zone) for pool, zone in pairs if pool.gpu),
    )
