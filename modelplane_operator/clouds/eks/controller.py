"""EKSCluster: what to read of it on AWS."""

from __future__ import annotations

from functools import partial

from kubeloop.errors import ClientError, NotFound
from kubeloop.loop import Clients, Controller
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.cluster import owner_of
from modelplane_operator.clouds.eks import account
from modelplane_operator.clouds.eks.plan import AwsFacts, Observed, account_of, plan, unbegun, unknown_machines
from modelplane_operator.clouds.eks.render import kinds
from modelplane_operator.clouds.work import CloudWork, holder, looked

LIVELY = frozenset({kinds.CLUSTER, kinds.NODEGROUP, kinds.ADDON})
ALL = frozenset(kinds.KINDS)
OWN = ALL - {*kinds.SWEPT}


def controller(work: CloudWork) -> Controller[EKSCluster, Observed]:
    view = work.view(OWN - LIVELY)

    async def observe(cluster: EKSCluster, clients: Clients) -> Observed:
        at = work.at()
        terminating = cluster.metadata.deletion_timestamp is not None
        known, told, seen, offer = cluster.status.facts if cluster.status else None, None, None, None
        lacking = unknown_machines(cluster)
        error: ClientError | None = None
        who = ""
        try:
            cloud = work.accounts.aws(account_of(cluster))
        except ClientError as failed:
            return Observed(cluster, error=failed, process=work.process, now=at, missing=isinstance(failed, NotFound))
        try:
            who = await account.principal(cloud.session)
            if (known is None or lacking) and not terminating:
                said = await account.told(cloud.session, lacking)
                told = AwsFacts(said.zones, said.principal, said.cards, said.offered)
            else:
                seen = await looked(view, cloud, cluster, at, own=OWN, left=ALL)
                if not terminating and (pools := unbegun(cluster)):
                    machines = {pool.instance_type for pool in pools}
                    blocks = {pool.capacity_block.capacity_reservation_id for pool in pools if pool.capacity_block}
                    offer = await work.offer(cluster, partial(cloud.offered, machines, blocks))
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
            told=told,
            principal=who,
        )

    return work.controller(EKSCluster, observe, plan)
