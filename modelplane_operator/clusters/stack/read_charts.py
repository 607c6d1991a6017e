"""Observe the Helm releases of one owner on one cluster.

The controllers of ServingStacks and of InferenceGateways call `read_charts`. It returns what Helm has recorded and
what this process is running; `chart_states` decides on the next step.
"""

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
from kubeloop.ownership import add_content_hash, compute_owned_fields, is_current
from kubeloop.reading import Cluster
from kubeloop.reads import A_MOMENT
from kubeloop.types import CUSTOM_RESOURCE_DEFINITION, DAEMON_SET, DEPLOYMENT, SECRET, STATEFUL_SET
from modelplane_operator.api import labels
from modelplane_operator.api.labels import APPLIED
from modelplane_operator.clusters.stack.chart_states import ObservedCharts, Workload

_HELM_SELECTOR = "app.kubernetes.io/managed-by=Helm"  # Helm adds this label to every object it creates


EVERYWHERE = ("",)
"""Namespaces for a list of all namespaces."""


async def read_charts(
    remote: Cluster,
    owner: str,
    parts: Iterable[Component],
    helm: Helm,
    clients: Clients,
    *,
    homes: Container[str],
    namespaces: Collection[str] = EVERYWHERE,
) -> ObservedCharts:
    """Return the releases with this owner's uid and the workloads that they have created.

    `homes`: the namespaces that may have the owner's releases. Records in others are ignored: users may have written
    them, and Helm deletes the objects in a record. `namespaces`: where to list records and workloads.
    """
    runs = helm.runs(remote.name)  # read before the records, which then include the results of finished runs
    release_keys = {component.release.key for component in parts}
    # Cached records are from before the end of a later run, so these times are part of the cache's key.
    ended = frozenset((key, run.ended) for key, run in runs.items() if run.ended)
    records = await _read_records(remote, owner, clients, namespaces, ended)
    history = revisions(record for record in records if key_of(record).namespace in homes)
    release_keys |= history.keys()
    return ObservedCharts(
        cluster=remote.name,
        now=clients.now(),
        patience=helm.patience,
        history=history,
        contents=await helm.contents(remote, _select_revisions(history)),
        runs={key: run for key, run in runs.items() if key in release_keys},
        workloads=await _read_workloads(remote, history, clients, namespaces) if history else (),
    )


async def _read_records(
    remote: Cluster, owner: str, clients: Clients, namespaces: Collection[str], ended: Hashable
) -> Iterable[Manifest]:
    """Return Helm's Secrets: from the watch if there is one, else from a cached list."""
    informer = remote.find(SECRET)
    if informer is not None and informer.bare:
        return informer.children_of(owner)
    selector = f"{labels.OWNER_UID}={owner}"

    async def list_records(kube: Kube) -> Sequence[Manifest]:
        """List the metadata of Helm's Secrets with the owner's uid."""
        return [
            record
            for namespace in namespaces
            for record in (await kube.list(SECRET, namespace=namespace, selector=selector, bare=True)).items
        ]

    return await clients.reads.of(remote, ("records", owner, (*namespaces,), ended), list_records, clients.now())


def _select_revisions(history: Mapping[Key, tuple[Revision, ...]]) -> Iterator[Revision]:
    """Yield the revisions whose content is used: the newest, the deployed, and the last failed one."""
    for release_revisions in history.values():
        selected = [release_revisions[0]]
        for status in ("deployed", "failed"):
            selected += [revision for revision in release_revisions if revision.status == status][:1]
        yield from dict.fromkeys(selected)


async def _read_workloads(
    remote: Cluster, history: Mapping[Key, tuple[Revision, ...]], clients: Clients, namespaces: Collection[str]
) -> tuple[Workload, ...]:
    """Return the Deployments, DaemonSets and StatefulSets of the releases."""

    async def list_workloads(kube: Kube) -> tuple[Workload, ...]:
        """List Helm's workloads, and keep those of these releases."""
        workloads: list[Workload] = []
        for kind, namespace in product((DEPLOYMENT, DAEMON_SET, STATEFUL_SET), namespaces):
            for manifest in (await kube.list(kind, namespace=namespace, selector=_HELM_SELECTOR)).items:
                annotations = annotations_of(manifest)
                release_key = (
                    annotations.get("meta.helm.sh/release-namespace", ""),
                    annotations.get("meta.helm.sh/release-name", ""),
                )
                if (release := Key(*release_key)) in history:
                    workloads.append(_parse_workload(manifest, release))
        return tuple(workloads)

    # A new revision changes the pods, so revisions are part of the cache's key.
    revision_versions = frozenset(
        (revision.uid, revision.version) for release_revisions in history.values() for revision in release_revisions
    )
    return await clients.reads.of(
        remote, ("workloads", revision_versions, (*namespaces,)), list_workloads, clients.now()
    )


def _parse_workload(manifest: Manifest, release: Key) -> Workload:
    """Return the workload with its desired and ready pods."""
    status = section(manifest, "status")
    is_daemon_set = manifest["kind"] == "DaemonSet"
    desired = status.get("desiredNumberScheduled", 0) if is_daemon_set else manifest["spec"].get("replicas", 1)
    ready = status.get("numberReady" if is_daemon_set else "readyReplicas", 0)
    return Workload(release, manifest["kind"], manifest["metadata"]["name"], desired, ready)


async def list_outdated_definitions(
    remote: Cluster, clients: Clients, definitions: Collection[Manifest]
) -> tuple[Manifest, ...]:
    """Return the definitions to apply: missing ones, and outdated ones that the operator created.

    Definitions of other owners stay: they may be newer, and some clouds install them.
    """

    async def find_outdated(kube: Kube) -> tuple[Manifest, ...]:
        """List the cluster's definitions, and return those to apply."""
        listed = (await kube.list(CUSTOM_RESOURCE_DEFINITION, bare=True)).items
        existing = {key_of(item): item for item in listed}
        return tuple(item for item in definitions if _is_outdated(existing.get(key_of(item)), item))

    if not definitions:
        return ()
    cache_key, now = ("definitions", frozenset(map(key_of, definitions))), clients.now()
    # Not cached while some are missing, as they are about to be applied.
    return await clients.reads.of(remote, cache_key, find_outdated, now, lasts=timedelta(), nothing_lasts=A_MOMENT)


def _is_outdated(live: Manifest | None, definition: Manifest) -> bool:
    """True if the definition is missing, or is the operator's own and outdated."""
    if live is None:
        return True
    ours = APPLIED in annotations_of(live)
    return ours and not is_current(live, compute_owned_fields(live), add_content_hash(definition))
