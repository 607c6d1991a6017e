"""Controller of EKSCluster: what to read on AWS before each plan."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, cast

from kubeloop.errors import ClientError, NotFound
from kubeloop.loop import Clients, Controller
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.cluster import owner_of
from modelplane_operator.clouds.eks import account
from modelplane_operator.clouds.eks.plan import AwsFacts, Observed, account_of, plan, unbegun, unknown_machines
from modelplane_operator.clouds.eks.render import kinds
from modelplane_operator.clouds.work import CloudWork, holder, refresh_inventory

if TYPE_CHECKING:
    from modelplane_operator.clouds.eks.cloud import Aws

LIVELY = frozenset({kinds.CLUSTER, kinds.NODEGROUP, kinds.ADDON})
"""Kinds that change without a call of the operator, and are polled more often."""
ALL = frozenset(kinds.KINDS)
"""All kinds, including those that workloads leave behind."""
OWN = ALL - {*kinds.SWEPT}
"""Kinds that the operator creates."""


def controller(work: CloudWork) -> Controller[EKSCluster, Observed]:
    """Return the controller of EKSClusters."""
    view = work.view(OWN - LIVELY)

    async def observe(cluster: EKSCluster, clients: Clients) -> Observed:
        """Read the account, the cluster's resources and the offer.

        The first error ends the reading and is part of the result.
        """
        now = work.at()
        terminating = cluster.metadata.deletion_timestamp is not None
        facts, discovered, inventory, offer = cluster.status.facts if cluster.status else None, None, None, None
        unknown_types = unknown_machines(cluster)
        error: ClientError | None = None
        principal = ""
        try:
            cloud = cast("Aws", work.accounts.cloud(account_of(cluster)))
        except ClientError as failure:
            return Observed(
                cluster, error=failure, process=work.process, now=now, missing=isinstance(failure, NotFound)
            )
        try:
            principal = await account.principal(cloud.session)
            if (facts is None or unknown_types) and not terminating:
                account_facts = await account.fetch_account_facts(cloud.session, unknown_types)
                # The next plan stores these values in the status, so that no inventory is needed yet.
                discovered = AwsFacts(
                    account_facts.zones, account_facts.principal, account_facts.cards, account_facts.offered
                )
            else:
                inventory = await refresh_inventory(view, cloud, cluster, now, own=OWN, deleted_with_cluster=ALL)
                if not terminating and (pools := unbegun(cluster)):
                    machines = {pool.instance_type for pool in pools}
                    blocks = {pool.capacity_block.capacity_reservation_id for pool in pools if pool.capacity_block}
                    offer = await work.offer(cluster, partial(cloud.fetch_offer, machines, blocks))
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
            facts=discovered,
            principal=principal,
        )

    return work.controller(EKSCluster, observe, plan)
