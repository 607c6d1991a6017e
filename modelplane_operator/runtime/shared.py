"""Where several pods share the clusters: which objects are of which, and who is told when a cluster changes hands."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import Any

from modelplane_operator.api import labels
from modelplane_operator.clients.connection import Connection
from modelplane_operator.clients.fleet import Fleet
from modelplane_operator.clients.helm import Helm
from modelplane_operator.clients.indexed import Index
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.lease import Lease
from modelplane_operator.clients.sharing import Around, Sharing
from modelplane_operator.clients.watches import Watched
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.kube.resources import LEASE
from modelplane_operator.runtime.loop import Controller
from modelplane_operator.settings import Settings

POLL_INTERVAL = 0.01  # what was just written is on its way
SHARE = "share"
"""The index that finds what is of a cluster."""

Woken = tuple[Controller[Any, Any], Callable[[Key], None]]
"""A controller, and who is told of an object of its kind that is to be looked at."""


def share_of(controller: Controller[Any, Any], manifest: Manifest) -> str | None:
    """The cluster whose holder reconciles an object; None for what the leader reconciles."""
    if controller.cluster_of is None:
        return None
    try:
        return controller.cluster_of(manifest)
    except Exception:  # noqa: BLE001 - the reconcile will say what is wrong with it, and one pod is to say so
        return ""


def watched_leases(namespace: str) -> Watched:
    """By which pods share the clusters; those of an operator beside this one are told apart by their names."""
    return Watched(LEASE, labels.SHARING, namespace=namespace)


def found_by_share(watched: Iterable[Watched], controllers: Iterable[Controller[Any, Any]]) -> tuple[Watched, ...]:
    """The same watches, by which what is reconciled where its cluster is held is found by that cluster."""
    shared = {one.type: one for one in controllers if one.cluster_of}

    def by_share(controller: Controller[Any, Any]) -> Index:
        return lambda manifest: (share_of(controller, manifest) or "",)

    return tuple(
        replace(one, indexes={**one.indexes, SHARE: by_share(shared[one.type])}) if one.type in shared else one
        for one in watched
    )


def sharing(  # noqa: PLR0917 - the parts of an operator
    settings: Settings,
    client: Callable[[], Kube],
    lease: Lease,
    hub: Connection,
    fleet: Fleet,
    controllers: Callable[[], Iterable[Woken]],
    helm: Helm | None,
) -> Sharing:
    """This pod's part. `controllers` are there only after it."""

    async def leases(version: int, era: int) -> tuple[int, int, Iterable[Manifest]]:
        while (informer := hub.find(LEASE)) is None or not informer.covers(version, era):  # noqa: ASYNC110 - a bookmark wakes nobody
            await asyncio.sleep(POLL_INTERVAL)
        return informer.era, informer.reached, informer

    def begin_again() -> int:
        hub.begin_again()
        return informer.era if (informer := hub.find(LEASE)) else 0

    def clusters() -> Collection[str]:
        found = set[str]()
        for controller, _ in controllers():
            if controller.cluster_of and (informer := hub.find(controller.type)):
                found |= {str(one) for one in informer.values(SHARE)}
        return found

    def needs() -> Collection[str]:
        return {name for controller, _ in controllers() for name in controller.clusters_used(hub)}

    def connects(name: str) -> None:
        fleet.review(name)
        if helm and name not in share.connected:
            helm.forget(name)

    def gained(names: Collection[str]) -> None:
        for name in names:
            if known := fleet.find(name):
                known.invalidate()
        for controller, wake in controllers():
            if controller.cluster_of and (informer := hub.find(controller.type)):
                for key in [key for name in names for key in informer.keys_by(SHARE, name)]:
                    wake(key)

    def busy(name: str) -> bool:
        return helm is not None and helm.busy(name)

    around = Around(leases, begin_again, clusters, lambda: lease.held, needs, busy, connects, gained)
    share = Sharing(
        client, lease.key, lease.identity, lease.now, lease.chance, settings.times, around, settings.stop_grace
    )
    fleet.admits = lambda name: name in share.connected
    return share
