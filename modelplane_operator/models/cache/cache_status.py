"""Compute the conditions and figures of a ModelCache, and the message for replicas that wait for its weights.

`plan` calls it with the rows of all clusters, which `cached_cluster` computes. Messages name a few clusters only, so
that a status stays small with any fleet.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition
from kubeloop.objects import Manifest, is_terminating, labels_of, section
from kubeloop.words import count_of, list_names
from modelplane_operator.api.model_cache import ArtifactReady, CachedCluster, ClustersMatched, ModelCache
from modelplane_operator.api.model_replica import ModelAccepted
from modelplane_operator.models.cache.cache_sources import (
    claim_of,
    credentials,
    describe_source,
    pin_of,
    source_of,
    to_pin,
)
from modelplane_operator.models.cache.hydration import validate_revision
from modelplane_operator.models.replica.plan.observed import Awaited

MAX_NAMES: Final = 3
"""Number of clusters or replicas that a message names."""
CHANGED: Final = "differed from the verified content and were fetched again"
"""Phrase for files whose content differed and that were fetched again."""
UNLISTED: Final = "in the volume that the source does not list"
"""Phrase for files in the volume that the source does not list."""
REMEDY: Final = "name a StorageClass in spec.cluster.existing.cache of the InferenceClusters"
"""Advice for clusters without storage for caches."""


def compute_conditions(
    cache: ModelCache,
    selected: Sequence[CachedCluster],
    now: datetime,
    *,
    without_storage: Sequence[str],
    secret_missing: bool,
) -> tuple[Condition, Condition]:
    """Return the conditions ClustersMatched and ArtifactReady.

    `selected` are the clusters that must hold the weights; `without_storage` are selected clusters without storage for
    caches.
    """
    source = source_of(cache)
    if not selected:
        no_clusters = _explain_no_clusters(cache, without_storage)
        return (
            ClustersMatched.NO_CLUSTERS.condition(now, message=no_clusters),
            ArtifactReady.NO_CLUSTERS.condition(now, message=no_clusters),
        )
    clusters, cluster_names = count_of(len(selected), "cluster"), list_names((row.name for row in selected), MAX_NAMES)
    suffix = f". {_list_without_storage(without_storage)}" if without_storage else ""
    matched = ClustersMatched.MATCHED.condition(now, message=f"{clusters}: {cluster_names}{suffix}")
    ready = [row for row in selected if row.phase == "Ready"]
    failed = [row for row in selected if row.phase == "Failed"]
    required = credentials(source)
    difference = _describe_differences(cache, ready)
    if len(ready) == len(selected) and difference:
        return matched, ArtifactReady.CONTENTS_DIFFER.condition(now, message=difference)
    if len(ready) == len(selected):
        message = (
            f"{describe_source(source)} is on {clusters}"
            if claim_of(cache)
            else f"{describe_source(source)} is staged on {clusters}"
        )
        return matched, ArtifactReady.STAGED.condition(now, message="; ".join([message, *_describe_alterations(ready)]))
    ready_of_all = f"{len(ready)} of {clusters} ready"
    if required and secret_missing:
        message = f"{describe_missing_secret(cache)}; {ready_of_all}"
        return matched, ArtifactReady.AUTH_SECRET_MISSING.condition(now, message=message)
    unbound = [row for row in selected if row.reason == ArtifactReady.VOLUME_NOT_BOUND.reason]
    stuck = failed or unbound or [row for row in selected if row.reason]
    waiting = [f"{row.name}: {row.message}" for row in (stuck or selected) if row.message and row.phase != "Ready"]
    message = "; ".join(
        [ready_of_all, *waiting[:MAX_NAMES], *filter(None, [difference]), *_describe_alterations(ready)]
    )
    if stuck:
        reason = ArtifactReady.VOLUME_NOT_BOUND if stuck is unbound else ArtifactReady.FAILED
        return matched, reason.condition(now, message=message)
    return matched, (ArtifactReady.PARTIAL if ready else ArtifactReady.HYDRATING).condition(now, message=message)


def describe_missing_secret(cache: ModelCache) -> str:
    """Return what the Secret of a cache's source lacks, with what mends it; "" if the source needs none."""
    required = credentials(source_of(cache))
    if required is None:
        return ""
    problem = f"Secret {cache.key.namespace}/{required.secret} does not exist, or has no key"
    written = "the token" if len(required.variables) == 1 else "them"
    return f"{problem} {list_names(required.variables.values())}: write {written} there"


def _describe_differences(cache: ModelCache, ready: Iterable[CachedCluster]) -> str:
    """Return a message if clusters report different contents; "" while they do not."""
    source, clusters_by_revision = source_of(cache), dict[str, list[str]]()
    if pin := pin_of(source):
        clusters_by_revision[pin] = ["the spec"]
    for row in ready:
        if revision := validate_revision(row.revision):
            clusters_by_revision.setdefault(revision, []).append(row.name)
    if len(clusters_by_revision) < 2:
        return ""
    contents = list_names(
        (f"{revision} ({list_names(names, MAX_NAMES)})" for revision, names in clusters_by_revision.items()), MAX_NAMES
    )
    return f"clusters hold different contents of {describe_source(source)}: {contents}; {to_pin(source)}"


def _describe_alterations(ready: Iterable[CachedCluster]) -> Sequence[str]:
    """Return messages about clusters where another program has written into the volume."""
    messages = [
        f"on cluster {row.name} {' and '.join(phrases)}"
        for row in ready
        if (phrases := [*_count_files(row.changed_files, CHANGED), *_count_files(row.unlisted_files, UNLISTED)])
    ]
    omitted = [f"{len(messages) - MAX_NAMES} more clusters like that"] if len(messages) > MAX_NAMES else []
    return [*messages[:MAX_NAMES], *omitted, "find out what else writes into these volumes"] if messages else []


def _count_files(count: int | None, phrase: str) -> Sequence[str]:
    """Return a number of files as a phrase."""
    return [f"{count_of(count, 'file')} {phrase}"] if count else []


def _explain_no_clusters(cache: ModelCache, excluded: Sequence[str]) -> str:
    """Return why no cluster must hold the weights."""
    if excluded:
        return f"{_list_without_storage(excluded)}: {REMEDY}"
    matches = "matches clusterSelector" if cache.spec.cluster_selector else "is there"
    return f"No cluster {matches}: label one, or correct it"


def _list_without_storage(excluded: Sequence[str]) -> str:
    """Return a message with the selected clusters that have no storage for caches."""
    return f"Clusters without storage for caches are left out: {list_names(excluded, MAX_NAMES)}"


def ready_of(selected: Sequence[CachedCluster]) -> str:
    """Return the number of ready clusters and of all, as `1/2`."""
    return f"{sum(row.phase == 'Ready' for row in selected)}/{len(selected)}"


def progress_of(selected: Iterable[CachedCluster]) -> str | None:
    """Return the progress over all clusters in percent; None while no size is known."""
    unfinished = [row.progress for row in selected if row.progress and row.phase != "Ready"]
    total = sum(row.total_bytes or 0 for row in unfinished)
    return f"{100 * sum(row.bytes or 0 for row in unfinished) // total}%" if total else None


def must_hold(cache: ModelCache, cluster: Manifest) -> bool:
    """True if a cluster must hold the weights of a cache: it is selected and has storage, if the source needs any."""
    fetched = cache.spec.source != "PersistentVolumeClaim"
    storage = not fetched or section(cluster, "status", "cache").get("storageClassName")
    return bool(storage) and is_selected(cache.match_labels, cluster)


def is_selected(match_labels: Mapping[str, str], cluster: Manifest) -> bool:
    """True if a cluster has the labels that a cache selects and is not being deleted."""
    matches = all(labels_of(cluster).get(key) == value for key, value in match_labels.items())
    return matches and not is_terminating(cluster)


def find_awaited(cache: ModelCache, cluster: Manifest) -> Awaited | None:
    """Return the weights that replicas on a cluster wait for; None once they are complete there."""
    name, cluster_name = cache.key.name, cluster["metadata"]["name"]
    row = cache.on(cluster_name)
    if row is None:
        if must_hold(cache, cluster):
            return Awaited(f"the weights of ModelCache {name} are to come to cluster {cluster_name}")
        lacks = (
            f"it has no storage for caches: {REMEDY}"
            if is_selected(cache.match_labels, cluster)
            else f"clusterSelector of ModelCache {name} does not select it: label the cluster, or correct the selector"
        )
        message = f"cluster {cluster_name} gets no weights of ModelCache {name}, as {lacks}"
        return Awaited(message, ModelAccepted.MODEL_CACHE_FAILED.reason)
    if row.volume:
        return None
    progress = row.progress
    percent = f": {100 * (progress.bytes or 0) // progress.total_bytes}%" if progress and progress.total_bytes else ""
    completion = progress.estimated_completion if progress else None
    until_text = f", until about {completion:%H:%M} UTC" if completion else ""
    problem = f"; {row.message}" if row.message else ""
    message = f"the weights of ModelCache {name} are not on cluster {cluster_name} yet{percent}{until_text}{problem}"
    return Awaited(message, row.reason or "")
