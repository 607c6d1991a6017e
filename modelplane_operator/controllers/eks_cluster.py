"""EKSCluster: what to read of it on AWS."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable
from datetime import datetime, timedelta

from modelplane_operator.api import InferenceCluster, names
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.api.types import of
from modelplane_operator.clients.clouds.eks import account
from modelplane_operator.clients.clouds.view import View
from modelplane_operator.clients.informer import Informer
from modelplane_operator.controllers.cloud_accounts import Accounts
from modelplane_operator.controllers.cloud_clusters import EKS, Tokens
from modelplane_operator.kube.errors import ClientError, NotFound
from modelplane_operator.kube.objects import Key, Manifest, is_terminating, section
from modelplane_operator.planning.clouds.decide import unsettled
from modelplane_operator.planning.eks_cluster import Observed, Told, account_of, owner_of, plan, unknown_machines
from modelplane_operator.rendering.clusters.eks import kinds
from modelplane_operator.runtime.clouds import Journal, by
from modelplane_operator.runtime.loop import Change, Clients, Controller
from modelplane_operator.runtime.reading import Cluster, find

CLUSTERS = of(InferenceCluster)
SLOW = timedelta(minutes=30)
"""For what nobody changes but by hand; clusters and nodes are looked at every five minutes."""
LIVELY = frozenset({kinds.CLUSTER, kinds.NODEGROUP, kinds.ADDON})
OWN = frozenset(kinds.KINDS) - {*kinds.SWEPT}


def controller(accounts: Accounts, tokens: Tokens, now: Callable[[], datetime]) -> Controller[EKSCluster, Observed]:
    journal, view = Journal(), View(dict.fromkeys(OWN - LIVELY, SLOW))
    process = uuid.uuid4().hex[:12]

    def listen(informer: Informer) -> None:
        if informer.type == EKS:
            informer.subscribe(forget)

    def forget(_: Key, old: Manifest | None, new: Manifest | None) -> None:
        """What was known of a cluster goes with its object: another of the same name has a uid of its own."""
        if old is not None and new is None:
            journal.forget(old["metadata"]["uid"])
            view.forget(old["metadata"]["uid"])

    async def observe(cluster: EKSCluster, clients: Clients) -> Observed:
        at, owner = now().replace(microsecond=0), owner_of(cluster)
        going = cluster.metadata.deletion_timestamp is not None
        known, told, seen = cluster.status.facts if cluster.status else None, None, None
        lacking = unknown_machines(cluster)
        error: ClientError | None = None
        who = ""
        try:
            cloud = accounts.cloud(account_of(cluster))
        except ClientError as failed:
            return Observed(cluster, None, None, failed, {}, process, at, missing=isinstance(failed, NotFound))
        try:
            who = await account.principal(cloud.session)
            if (known is None or lacking) and not going:
                said = await account.told(cloud.session, lacking)
                told = Told(said.zones, said.principal, said.cards, said.offered)
            else:
                records = cluster.status.resources if cluster.status else ()
                wanted = frozenset(kinds.KINDS) if going else OWN
                due = wanted if going else unsettled(records) or (frozenset[str]() if records else wanted)
                seen = await view.look(cloud, owner, wanted, due, at)
        except ClientError as failed:
            error = failed
        held = _holder(cluster, clients.hub) if going else ""
        return Observed(cluster, told, seen, error, journal.of(owner.uid), process, at, principal=who, held=held)

    return Controller(
        EKSCluster,
        observe,
        plan,
        watches={CLUSTERS: _of_cluster},
        concurrency_key=lambda manifest: f"cloud of {manifest['metadata']['name']}",
        listeners=(accounts.listen, tokens.listen, listen),
        while_leading=(tokens.run,),
        executors=by(accounts.cloud, journal, now),
    )


def _holder(cluster: EKSCluster, hub: Cluster) -> str:
    """The InferenceCluster that has it, until that says that nothing is left there which has to go first."""
    for owner in cluster.metadata.owner_references:
        found = find(hub, CLUSTERS, Key("", owner.name)) if owner.kind == CLUSTERS.kind else None
        if found is not None and found["metadata"]["uid"] == owner.uid and not _lets_go(found):
            return f"InferenceCluster {owner.name}"
    return ""


def _lets_go(cluster: Manifest) -> bool:
    return is_terminating(cluster) and section(cluster, "status", "deletion").get("phase") == "DeleteCluster"


def _of_cluster(change: Change, _: Cluster) -> Iterable[Key]:
    """The cloud's object of an InferenceCluster that begins to let it go, or is gone."""
    before, after = (one is None or _lets_go(one) for one in change)
    return (Key(names.SYSTEM_NAMESPACE, change.latest["metadata"]["name"]),) if after and not before else ()
