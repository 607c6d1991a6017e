"""What is read of the Helm releases of one owner on one cluster."""

from __future__ import annotations

from collections.abc import Collection, Container, Hashable, Iterable, Iterator, Mapping, Sequence
from datetime import timedelta
from itertools import product

from kubeloop.client.kube import Kube
from kubeloop.helm.driver import Helm
from kubeloop.helm.records import revisions
from kubeloop.helm.release import Component, Revision
from kubeloop.loop import Clients
from kubeloop.objects import Key, Manifest, annotations_of, key_of, section
from kubeloop.ownership import is_current, marked, owned_fields
from kubeloop.reading import Cluster
from kubeloop.reads import A_MOMENT
from kubeloop.types import CUSTOM_RESOURCE_DEFINITION, DAEMON_SET, DEPLOYMENT, SECRET, STATEFUL_SET
from modelplane_operator.api import labels
from modelplane_operator.api.labels import APPLIED
from modelplane_operator.clusters.stack.chart_states import ObservedCharts, Workload

_OF_HELM = "app.kubernetes.io/managed-by=Helm"  # Helm puts it on everything it makes, whatever the chart


EVERYWHERE = ("",)


async def look(
    remote: Cluster,
    owner: str,
    parts: Iterable[Component],
    helm: Helm,
    clients: Clients,
    *,
    homes: Container[str],
    namespaces: Collection[str] = EVERYWHERE,
) -> ObservedCharts:
    """How the releases stand that carry this owner's uid, and the pods that they bring, in these namespaces.

    `homes`: where the owner's releases can be. Records elsewhere are anybody's, and Helm deletes what a record says.
    """
    runs = helm.runs(remote.name)  # before its records: of a run that has ended here, those tell what it left
    asked = {part.release.key for part in parts}
    # Of a run that has ended since they were read, records would tell nothing.
    ended = frozenset((key, run.ended) for key, run in runs.items() if run.ended)
    records = await _records(remote, owner, clients, namespaces, ended)
    history = revisions(record for record in records if key_of(record).namespace in homes)
    asked |= history.keys()
    return ObservedCharts(
        cluster=remote.name,
        now=clients.now(),
        patience=helm.patience,
        history=history,
        contents=await helm.contents(remote, _telling(history)),
        runs={key: run for key, run in runs.items() if key in asked},
        workloads=await _workloads(remote, history, clients, namespaces) if history else (),
    )


async def _records(
    remote: Cluster, owner: str, clients: Clients, namespaces: Collection[str], ended: Hashable
) -> Iterable[Manifest]:
    """Helm's Secrets: seen by the watch where it is one for them, else asked for."""
    seen = remote.find(SECRET)
    if seen is not None and seen.bare:
        return seen.owned_by(owner)
    selector = f"{labels.OWNER_UID}={owner}"

    async def ask(kube: Kube) -> Sequence[Manifest]:
        return [
            record
            for namespace in namespaces
            for record in (await kube.list(SECRET, namespace=namespace, selector=selector, bare=True)).items
        ]

    return await clients.reads.of(remote, ("records", owner, (*namespaces,), ended), ask, clients.now())


def _telling(history: Mapping[Key, tuple[Revision, ...]]) -> Iterator[Revision]:
    """The revisions whose content matters: the newest, the one that runs, and the latest that failed."""
    for known in history.values():
        of_interest = [known[0]]
        for status in ("deployed", "failed"):
            of_interest += [one for one in known if one.status == status][:1]
        yield from dict.fromkeys(of_interest)


async def _workloads(
    remote: Cluster, history: Mapping[Key, tuple[Revision, ...]], clients: Clients, namespaces: Collection[str]
) -> tuple[Workload, ...]:
    async def ask(kube: Kube) -> tuple[Workload, ...]:
        found: list[Workload] = []
        for kind, namespace in product((DEPLOYMENT, DAEMON_SET, STATEFUL_SET), namespaces):
            for manifest in (await kube.list(kind, namespace=namespace, selector=_OF_HELM)).items:
                noted = annotations_of(manifest)
                by = (noted.get("meta.helm.sh/release-namespace", ""), noted.get("meta.helm.sh/release-name", ""))
                if (release := Key(*by)) in history:
                    found.append(_workload(manifest, release))
        return tuple(found)

    # Each revision brings pods of its own.
    written = frozenset((one.uid, one.version) for known in history.values() for one in known)
    return await clients.reads.of(remote, ("workloads", written, (*namespaces,)), ask, clients.now())


def _workload(manifest: Manifest, release: Key) -> Workload:
    status = section(manifest, "status")
    of_nodes = manifest["kind"] == "DaemonSet"
    wanted = status.get("desiredNumberScheduled", 0) if of_nodes else manifest["spec"].get("replicas", 1)
    ready = status.get("numberReady" if of_nodes else "readyReplicas", 0)
    return Workload(release, manifest["kind"], manifest["metadata"]["name"], wanted, ready)


async def ours(remote: Cluster, clients: Clients, definitions: Collection[Manifest]) -> tuple[Manifest, ...]:
    """Definitions of kinds that are to be applied: those that are missing, and those of ours that say something else.

    What somebody else has made stays: theirs may be newer, and some clouds bring them along.
    """

    async def ask(kube: Kube) -> tuple[Manifest, ...]:
        listed = (await kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True)).items
        there = {key_of(one): one for one in listed}
        return tuple(one for one in definitions if _differs(there.get(key_of(one)), one))

    if not definitions:
        return ()
    question, now = ("definitions", frozenset(map(key_of, definitions))), clients.now()
    # What is missing is about to be there.
    return await clients.reads.of(remote, question, ask, now, lasts=timedelta(), nothing_lasts=A_MOMENT)


def _differs(live: Manifest | None, definition: Manifest) -> bool:
    if live is None:
        return True
    ours = APPLIED in annotations_of(live)
    return ours and not is_current(live, owned_fields(live), marked(definition))
