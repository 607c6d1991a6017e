"""What is said of a cache: its conditions, its figures, and what whoever starts from it waits for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition
from kubeloop.objects import Manifest, is_terminating, labels_of, section
from kubeloop.words import counted, listed
from modelplane_operator.api.model_cache import ArtifactReady, CachedCluster, ClustersMatched, ModelCache
from modelplane_operator.models.cache.cache_sources import claim_of, credentials, named, pin_of, source_of, to_pin
from modelplane_operator.models.cache.hydration import resolved

TOLD: Final = 3  # clusters and replicas that a message names
CHANGED: Final = "had another content than was verified and came again"
UNLISTED: Final = "that the source does not name in the volume"
REMEDY: Final = "name a StorageClass in spec.cluster.existing.cache of the InferenceClusters"


def judged(
    cache: ModelCache, meant: Sequence[CachedCluster], now: datetime, *, left_out: Sequence[str], secret_missing: bool
) -> tuple[Condition, Condition]:
    """Whether there are clusters for it, and whether the weights are on all of them. `left_out`: those that it selects,
    and that have no storage for caches."""
    source = source_of(cache)
    if not meant:
        why = _nowhere(cache, left_out)
        return (
            ClustersMatched.NO_CLUSTERS.condition(now, message=why),
            ArtifactReady.NO_CLUSTERS.condition(now, message=why),
        )
    clusters, these = counted(len(meant), "cluster"), listed((one.name for one in meant), TOLD)
    others = f". {_without(left_out)}" if left_out else ""
    matched = ClustersMatched.MATCHED.condition(now, message=f"{clusters}: {these}{others}")
    ready = [one for one in meant if one.phase == "Ready"]
    broken = [one for one in meant if one.phase == "Failed"]
    asked = credentials(source)
    differ = _differ(cache, ready)
    if len(ready) == len(meant) and differ:
        return matched, ArtifactReady.CONTENTS_DIFFER.condition(now, message=differ)
    if len(ready) == len(meant):
        told = f"{named(source)} is on {clusters}" if claim_of(cache) else f"{named(source)} is staged on {clusters}"
        return matched, ArtifactReady.STAGED.condition(now, message="; ".join([told, *_altered(ready)]))
    ready_of_all = f"{len(ready)} of {clusters} ready"
    if asked and secret_missing:
        keys = listed(asked.variables.values())
        lack = f"Secret {cache.key.namespace}/{asked.secret} does not exist, or has no key {keys}"
        told = f"{lack}: write {'the token' if len(asked.variables) == 1 else 'them'} there; {ready_of_all}"
        return matched, ArtifactReady.AUTH_SECRET_MISSING.condition(now, message=told)
    waiting = [f"{one.name}: {one.message}" for one in (broken or meant) if one.message and one.phase != "Ready"]
    told = "; ".join([ready_of_all, *waiting[:TOLD], *filter(None, [differ]), *_altered(ready)])
    if broken:
        return matched, ArtifactReady.FAILED.condition(now, message=told)
    return matched, (ArtifactReady.PARTIAL if ready else ArtifactReady.HYDRATING).condition(now, message=told)


def _differ(cache: ModelCache, ready: Iterable[CachedCluster]) -> str:
    """That clusters hold different contents, by their own words; empty while they do not say so."""
    source, held = source_of(cache), dict[str, list[str]]()
    if pin := pin_of(source):
        held[pin] = ["the spec"]
    for one in ready:
        if revision := resolved(one.revision):
            held.setdefault(revision, []).append(one.name)
    if len(held) < 2:
        return ""
    these = listed((f"{revision} ({listed(names, TOLD)})" for revision, names in held.items()), TOLD)
    return f"clusters hold different contents of {named(source)}: {these}; {to_pin(source)}"


def _altered(ready: Iterable[CachedCluster]) -> Sequence[str]:
    """Return on which clusters somebody else has written into the volume."""
    found = [
        f"on cluster {one.name} {' and '.join(words)}"
        for one in ready
        if (words := [*_counted(one.changed_files, CHANGED), *_counted(one.unlisted_files, UNLISTED)])
    ]
    more = [f"{len(found) - TOLD} more clusters like that"] if len(found) > TOLD else []
    return [*found[:TOLD], *more, "see who can write there"] if found else []


def _counted(count: int | None, what: str) -> Sequence[str]:
    return [f"{counted(count, 'file')} {what}"] if count else []


def _nowhere(cache: ModelCache, left_out: Sequence[str]) -> str:
    if left_out:
        return f"{_without(left_out)}: {REMEDY}"
    matches = "matches clusterSelector" if cache.spec.cluster_selector else "is there"
    return f"No cluster {matches}: label one, or correct it"


def _without(left_out: Sequence[str]) -> str:
    return f"Clusters without storage for caches are left out: {listed(left_out, TOLD)}"


def ready_of(meant: Sequence[CachedCluster]) -> str:
    return f"{sum(one.phase == 'Ready' for one in meant)}/{len(meant)}"


def progress_of(meant: Iterable[CachedCluster]) -> str | None:
    coming = [one.progress for one in meant if one.progress and one.phase != "Ready"]
    whole = sum(one.total_bytes or 0 for one in coming)
    return f"{100 * sum(one.bytes or 0 for one in coming) // whole}%" if whole else None


def is_meant(cache: ModelCache, cluster: Manifest) -> bool:
    """True if a cluster is to hold the weights of a cache."""
    fetched = cache.spec.source != "PersistentVolumeClaim"
    storage = not fetched or section(cluster, "status", "cache").get("storageClassName")
    return bool(storage) and is_selected(cache.match_labels, cluster)


def is_selected(match_labels: Mapping[str, str], cluster: Manifest) -> bool:
    """True if a cluster that stays carries the labels that a cache names, with storage or without."""
    matches = all(labels_of(cluster).get(key) == value for key, value in match_labels.items())
    return matches and not is_terminating(cluster)


def awaited(cache: ModelCache, cluster: Manifest) -> str:
    """Return that the weights are still on their way to a cluster; empty when they are there, or none come."""
    name, where = cache.key.name, cluster["metadata"]["name"]
    told = cache.on(where)
    if told is None:
        known = not is_meant(cache, cluster)
        return "" if known else f"the weights of ModelCache {name} are to come to cluster {where}"
    if told.volume:
        return ""
    progress = told.progress
    there = f": {100 * (progress.bytes or 0) // progress.total_bytes}%" if progress and progress.total_bytes else ""
    end = progress.estimated_completion if progress else None
    until = f", until about {end:%H:%M} UTC" if end else ""
    wrong = f"; {told.message}" if told.message else ""
    return f"the weights of ModelCache {name} are not on cluster {where} yet{there}{until}{wrong}"
