"""What the controllers of all clouds' kinds have in common: what to look at, and what is remembered of it."""

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
from modelplane_operator.clouds.decide import LAG, unsettled
from modelplane_operator.clouds.resources import Inventory, Offer
from modelplane_operator.clouds.tokens import CLOUDS, Tokens
from modelplane_operator.clouds.view import AT_REST, View

CLUSTERS = of(InferenceCluster)
SLOW = timedelta(minutes=30)
"""For what nobody changes but by hand; clusters and nodes are looked at every five minutes."""

R = TypeVar("R", bound=Resource[Any, Any])
O = TypeVar("O")


@dataclass(slots=True)
class CloudWork:
    """Shared by the controllers of all clouds: their steps are the same, and so is who carries them out."""

    accounts: Accounts
    tokens: Tokens
    now: Callable[[], datetime]
    lag: timedelta = LAG
    """How long a cloud may take to show what was made."""
    journal: Journal = field(default_factory=Journal)
    process: str = field(default_factory=lambda: uuid.uuid4().hex[:12])
    """A word that no other process has."""
    executors: Executors = field(init=False)
    _views: list[View] = field(default_factory=list[View], init=False)
    _offers: dict[str, tuple[int | None, datetime, Offer]] = field(
        default_factory=dict[str, tuple[int | None, datetime, Offer]], init=False
    )

    def __post_init__(self) -> None:
        self.executors = by(self.accounts.cloud, self.journal, self.now)

    def view(self, slow: Iterable[str]) -> View:
        """What was seen of the clusters of one kind. `slow`: the kinds of resources that nobody changes but by hand."""
        self._views.append(view := View(dict.fromkeys(slow, SLOW)))
        return view

    async def offer(self, cluster: Resource[Any, Any], ask: Callable[[], Awaitable[Offer]]) -> Offer:
        """What the cloud says before something is made. It is asked again when the spec is another, and after a while;
        at once while it says that it cannot tell yet."""
        uid, generation, now = cluster.metadata.uid or "", cluster.metadata.generation, self.now()
        known = self._offers.get(uid)
        if known is None or known[0] != generation or now - known[1] >= AT_REST or known[2].later:
            known = self._offers[uid] = (generation, now, await ask())
        return known[2]

    def at(self) -> datetime:
        return self.now().replace(microsecond=0)

    def controller(
        self, kind: type[R], observe: Callable[[R, Clients], Awaitable[O]], plan: Callable[[O], Plan]
    ) -> Controller[R, O]:
        return Controller(
            kind,
            observe,
            plan,
            watches={CLUSTERS: of_cluster},
            concurrency_key=lambda manifest: f"cloud of {manifest['metadata']['name']}",
            listeners=(self.accounts.listen, self.tokens.listen, self.listen),
            while_leading=(self.tokens.run,),
            executors=self.executors,
        )

    def listen(self, informer: Informer) -> None:
        if informer.type in CLOUDS:
            informer.subscribe(self._forget)

    def _forget(self, _: Key, old: Manifest | None, new: Manifest | None) -> None:
        """What was known of a cluster goes with its object: another of the same name has a uid of its own."""
        if old is not None and new is None:
            self.journal.forget(old["metadata"]["uid"])
            self._offers.pop(old["metadata"]["uid"], None)
            for view in self._views:
                view.forget(old["metadata"]["uid"])


async def looked(
    view: View, cloud: Cloud, cluster: Resource[Any, Any], at: datetime, *, own: frozenset[str], left: frozenset[str]
) -> Inventory:
    """What there is on the cloud. `own`: the kinds of a cluster that stays; `left`: those of one that goes."""
    terminating = cluster.metadata.deletion_timestamp is not None
    records = cluster.status.resources if cluster.status else ()
    wanted = left if terminating else own
    due = wanted if terminating else unsettled(records) or (frozenset[str]() if records else wanted)
    return await view.look(cloud, owner_of(cluster), wanted, due, at)


def holder(cluster: Resource[Any, Any], hub: Cluster) -> str:
    """The InferenceCluster that has it, until that says that nothing is left there which has to go first."""
    if cluster.metadata.deletion_timestamp is None:
        return ""
    for owner in cluster.metadata.owner_references:
        found = find(hub, CLUSTERS, Key("", owner.name)) if owner.kind == CLUSTERS.kind else None
        if found is not None and found["metadata"]["uid"] == owner.uid and not _lets_go(found):
            return f"InferenceCluster {owner.name}"
    return ""


def _lets_go(cluster: Manifest) -> bool:
    return is_terminating(cluster) and section(cluster, "status", "deletion").get("phase") == "DeleteCluster"


def of_cluster(change: Change, _: Cluster) -> Iterable[Key]:
    """The cloud's object of an InferenceCluster that begins to let it go, or is gone."""
    before, after = (one is None or _lets_go(one) for one in change)
    return (Key(names.SYSTEM_NAMESPACE, change.latest["metadata"]["name"]),) if after and not before else ()
