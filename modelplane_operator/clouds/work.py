"""State and steps that the controllers of all clouds' kinds have in common.

The operator creates one CloudWork, and each cloud's module `controller` builds its controller from it. The clouds
share the journal, the cached lists, the tokens and the executors; each reads its own resources before a plan.
"""

from __future__ import annotations

import uuid
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Any, TypeVar

from kubeloop.cache.informer import Informer
from kubeloop.loop import Change, Clients, Controller
from kubeloop.objects import Key, Manifest, is_terminating, section
from kubeloop.plan import Plan
from kubeloop.reading import Cluster, find
from kubeloop.resource import Resource, of
from kubeloop.strands import Executors
from modelplane_operator.api import InferenceCluster, names
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.calls import Journal, by
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.cluster import owner_of
from modelplane_operator.clouds.decide import LAG, find_unsettled_kinds
from modelplane_operator.clouds.resources import Inventory, Offer
from modelplane_operator.clouds.tokens import CLOUDS, Tokens
from modelplane_operator.clouds.view import LIST_INTERVAL, View

CLUSTERS = of(InferenceCluster)
SLOW = timedelta(minutes=30)
"""Poll interval of kinds that only change by hand. Clusters and nodes are polled every five minutes."""

R = TypeVar("R", bound=Resource[Any, Any])
O = TypeVar("O")


@dataclass(slots=True)
class CloudWork:
    """Clients, caches and executors that the controllers of all clouds share."""

    accounts: Accounts
    tokens: Tokens
    """Tokens for the clusters' API servers."""
    now: Callable[[], datetime]
    """Clock, in UTC."""
    lag: timedelta = LAG
    """Time that a cloud may take to list a new resource."""
    journal: Journal = field(default_factory=Journal)
    """Outcomes of all calls of this process."""
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """Random id of this process."""
    executors: Executors = field(init=False)
    """Executors of cloud steps."""
    _views: list[View] = field(default_factory=list[View], init=False)
    """Caches of all kinds of clusters, to drop deleted owners."""
    _offers: dict[str, tuple[int | None, datetime, Offer]] = field(
        default_factory=dict[str, tuple[int | None, datetime, Offer]], init=False
    )
    """Offers by the cluster's uid, with the generation and the time of the query."""

    def __post_init__(self) -> None:
        self.executors = by(self.accounts.cloud, self.journal, self.now)

    def view(self, slow: Iterable[str]) -> View:
        """Return a new cache of lists for one kind of cluster.

        `slow` names the resource kinds that only change by hand.
        """
        self._views.append(view := View(dict.fromkeys(slow, SLOW)))
        return view

    async def offer(self, cluster: Resource[Any, Any], ask: Callable[[], Awaitable[Offer]]) -> Offer:
        """Return the cloud's capacity and quotas, queried again when the spec changes, and after `LIST_INTERVAL`.

        An offer that the cloud could not answer yet is queried again at once.
        """
        uid, generation, now = cluster.metadata.uid or "", cluster.metadata.generation, self.now()
        cached = self._offers.get(uid)
        if cached is None or cached[0] != generation or now - cached[1] >= LIST_INTERVAL or cached[2].later:
            cached = self._offers[uid] = (generation, now, await ask())
        return cached[2]

    def at(self) -> datetime:
        """Return the current time without microseconds, as the status stores it."""
        return self.now().replace(microsecond=0)

    def controller(
        self, kind: type[R], observe: Callable[[R, Clients], Awaitable[O]], plan: Callable[[O], Plan]
    ) -> Controller[R, O]:
        """Return a controller of one cloud's kind, with the shared executors and listeners."""
        return Controller(
            kind,
            observe,
            plan,
            watches={CLUSTERS: of_cluster},
            concurrency_key=lambda manifest: f"cloud of {manifest['metadata']['name']}",
            listeners=(self.accounts.add_event_handlers, self.tokens.add_event_handlers, self.add_event_handlers),
            while_leading=(self.tokens.run,),
            executors=self.executors,
        )

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the deletion of clusters on clouds."""
        if informer.type in CLOUDS:
            informer.subscribe(self._forget)

    def _forget(self, _: Key, old: Manifest | None, new: Manifest | None) -> None:
        """Drop everything cached for a deleted cluster. A new one of the same name has another uid."""
        if old is not None and new is None:
            self.journal.forget(old["metadata"]["uid"])
            self._offers.pop(old["metadata"]["uid"], None)
            for view in self._views:
                view.forget(old["metadata"]["uid"])


async def refresh_inventory(
    view: View,
    cloud: Cloud,
    cluster: Resource[Any, Any],
    at: datetime,
    *,
    own: frozenset[str],
    deleted_with_cluster: frozenset[str],
) -> Inventory:
    """Return the resources on the cloud.

    `own` are the kinds of a living cluster, `deleted_with_cluster` those of one being deleted.
    """
    terminating = cluster.metadata.deletion_timestamp is not None
    records = cluster.status.resources if cluster.status else ()
    relevant = deleted_with_cluster if terminating else own
    # While something is in transition, only its kinds are listed at every poll; during a deletion, all of them.
    due = relevant if terminating else find_unsettled_kinds(records) or (frozenset[str]() if records else relevant)
    return await view.refresh(cloud, owner_of(cluster), relevant, due, at)


def holder(cluster: Resource[Any, Any], hub: Cluster) -> str:
    """Return the InferenceCluster that still uses a cluster being deleted, or an empty string."""
    if cluster.metadata.deletion_timestamp is None:
        return ""
    for owner in cluster.metadata.owner_references:
        inference_cluster = find(hub, CLUSTERS, Key("", owner.name)) if owner.kind == CLUSTERS.kind else None
        if (
            inference_cluster is not None
            and inference_cluster["metadata"]["uid"] == owner.uid
            and not _is_released(inference_cluster)
        ):
            return f"InferenceCluster {owner.name}"
    return ""


def _is_released(cluster: Manifest) -> bool:
    """True if an InferenceCluster has reached the phase that deletes its cloud's object."""
    return is_terminating(cluster) and section(cluster, "status", "deletion").get("phase") == "DeleteCluster"


def of_cluster(change: Change, _: Cluster) -> Iterable[Key]:
    """Return the key of the cloud's object when its InferenceCluster starts to release it or is deleted."""
    was_released, is_released = (manifest is None or _is_released(manifest) for manifest in change)
    return (Key(names.SYSTEM_NAMESPACE, change.latest["metadata"]["name"]),) if is_released and not was_released else ()
