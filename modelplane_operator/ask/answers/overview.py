"""Summarize the fleet: a line for each cluster, each model, and each replica that comes or goes."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition, Ready
from modelplane_operator.api import ModelReplica, ModelService, labels
from modelplane_operator.api.model_deployment import Progressing
from modelplane_operator.api.model_service import Answering
from modelplane_operator.api.remedies import remedy as remedy_of
from modelplane_operator.ask.answers.snapshot import Snapshot, ready
from modelplane_operator.ask.answers.why import STARTING
from modelplane_operator.scheduling.placement import charges, read

MAX_SERVICES: Final = 3
"""Number of failing services in the note of a cluster."""


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """A pool of a cluster."""

    name: str
    nodes: int
    """Number of nodes."""
    used: int
    """Number of nodes that replicas use."""


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """A cluster of the fleet."""

    name: str
    ready: bool
    """True if its Ready condition is True."""
    reason: str
    """Reason of the Ready condition."""
    source: str
    """Value of `spec.cluster.source`."""
    replicas: int
    """Number of replicas that are placed there."""
    nodes: int
    """Number of nodes in its pools."""
    used: int
    """Number of those nodes that replicas use."""
    pools: tuple[PoolSummary, ...]
    taints: str
    """Taints as `key:effect`, joined by commas."""
    note: str
    """Reason and message of the Ready condition if that is not True or Degraded; otherwise failing services."""


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """A ModelDeployment, by its own conditions."""

    namespace: str
    name: str
    ready: bool
    reason: str
    """Reason of the Ready condition."""
    says: str
    """Message of the Ready condition, or its reason."""
    since: datetime | None
    """Time of the last transition of the Ready condition."""
    running: int
    """Number of replicas that are Ready."""
    replicas: int
    """Number of existing replicas."""
    desired: int
    """Number of requested replicas."""
    nodes: int
    """Number of nodes that its replicas use."""
    clusters: tuple[str, ...]
    """Names of the clusters that have its replicas."""
    progress: str
    """Current changes, or why there are none; "" if all is stable."""


@dataclass(frozen=True, slots=True)
class Transit:
    """A replica that comes or goes."""

    namespace: str
    name: str
    model: str
    """Name of the ModelDeployment."""
    cluster: str
    stage: str
    """Stage of its life, such as `starting`."""
    says: str
    """Message of the Ready condition, if that is not True."""
    since: datetime | None
    """Time when the stage began, if it is known."""


@dataclass(frozen=True, slots=True)
class Aspect:
    """A condition of a cluster."""

    type: str
    status: str
    reason: str
    says: str
    """Message of the condition."""
    help: str
    """Remedy for its reason."""
    since: datetime
    """Time of its last transition."""


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica on a cluster."""

    namespace: str
    name: str
    model: str
    """Name of the ModelDeployment."""
    pool: str
    """Pools of the replica's engines, joined by `+`."""
    nodes: int
    """Number of nodes that it uses."""
    ready: bool


@dataclass(frozen=True, slots=True)
class ClusterDetail:
    """A cluster with its conditions and its replicas."""

    cluster: ClusterSummary
    conditions: tuple[Aspect, ...]
    replicas: tuple[PlacedReplica, ...]


def clusters(snapshot: Snapshot, services: Sequence[ModelService] = ()) -> tuple[ClusterSummary, ...]:
    """Return a summary of each cluster, by name. Only services know of a Ready cluster that requests there fail."""
    model, counts = snapshot.fleet(), Counter(item.spec.cluster_name for item in snapshot.replicas)
    failing_services = _find_failing_services(snapshot, services)
    summaries: list[ClusterSummary] = []
    for name, cluster in sorted(snapshot.cluster.items()):
        info, state = model.info(name), ready(cluster.conditions)
        pools_info = info.cluster.pools if info else None
        pools = (
            tuple(
                PoolSummary(pool, nodes, nodes - free)
                for pool, nodes, free in zip(pools_info.names, pools_info.nodes, info.free, strict=True)
            )
            if info and pools_info
            else ()
        )
        good = is_good(state)
        message = ": ".join(filter(None, (state.reason, state.message))) if state else STARTING
        summaries.append(
            ClusterSummary(
                name=name,
                ready=good,
                reason=state.reason if state else "",
                source=cluster.spec.cluster.source,
                replicas=counts[name],
                nodes=sum(pool.nodes for pool in pools),
                used=sum(pool.used for pool in pools),
                pools=pools,
                taints=", ".join(f"{item.key}:{item.effect}" for item in cluster.spec.taints),
                note=message
                if not good or (state and state.reason == Ready.DEGRADED.reason)
                else _join(failing_services.get(name, ())),
            )
        )
    return tuple(summaries)


def _find_failing_services(snapshot: Snapshot, services: Iterable[ModelService]) -> Mapping[str, Sequence[str]]:
    """Return a clause for each service whose requests fail, by the clusters of the replicas that it selects."""
    replicas, clauses = defaultdict[str, list[ModelReplica]](list), defaultdict[str, list[str]](list)
    for replica in snapshot.replicas:
        replicas[replica.key.namespace].append(replica)
    for service in services:
        answering = next((item for item in service.conditions if item.type == Answering.__name__), None)
        state = ready(service.conditions)
        is_degraded = state is not None and state.reason == Ready.DEGRADED.reason
        failing = answering if answering is not None and answering.status == "False" else state if is_degraded else None
        if failing is None:
            continue
        selectors = [entry.selector.match_labels.items() for entry in service.spec.endpoints]
        for name in {
            replica.spec.cluster_name
            for replica in replicas[service.key.namespace]
            if any(selector <= replica.metadata.labels.items() for selector in selectors)
        }:
            clauses[name].append(f"ModelService {service.key}: {failing.message or failing.reason}")
    return clauses


def _join(clauses: Sequence[str]) -> str:
    """Return the first clauses, and how many more there are."""
    more = [f"and {len(clauses) - MAX_SERVICES} more"] if len(clauses) > MAX_SERVICES else []
    return "; ".join((*clauses[:MAX_SERVICES], *more))


def cluster(name: str, snapshot: Snapshot) -> ClusterDetail | None:
    """Return the details of a cluster; None if it does not exist."""
    summary = next((item for item in clusters(snapshot) if item.name == name), None)
    if summary is None:
        return None
    conditions = (
        Aspect(item.type, item.status, item.reason, item.message or "", remedy_of("InferenceCluster", item), since)
        for item in snapshot.cluster[name].conditions
        if (since := item.last_transition_time)
    )
    owned = sorted((item for item in snapshot.replicas if item.spec.cluster_name == name), key=lambda item: item.key)
    return ClusterDetail(summary, tuple(conditions), tuple(map(_summarize_replica, owned)))


def _summarize_replica(replica: ModelReplica) -> PlacedReplica:
    """Return the summary of a replica on a cluster."""
    parsed, (namespace, name) = read(replica), replica.key
    nodes_by_pool = charges(parsed.engines)
    pools, nodes = "+".join(sorted(nodes_by_pool)), sum(nodes_by_pool.values())
    return PlacedReplica(namespace, name, parsed.owner.name, pools, nodes, is_good(ready(replica.conditions)))


def models(snapshot: Snapshot) -> tuple[ModelSummary, ...]:
    """Return a summary of each ModelDeployment, by key."""
    summaries: list[ModelSummary] = []
    for key, deployment in sorted(snapshot.deployment.items()):
        owned, state = snapshot.owned.get(key, ()), ready(deployment.conditions)
        progress = next((item for item in deployment.conditions if item.type == Progressing.__name__), None)
        progress_message = ""  # once it is settled
        if progress is not None and progress.reason != Progressing.SETTLED.reason:
            progress_message = f"{progress.reason}: {progress.message}" if progress.message else progress.reason
        summaries.append(
            ModelSummary(
                namespace=key.namespace,
                name=key.name,
                ready=is_good(state),
                reason=state.reason if state else "NotReconciled",
                says=(state.message or state.reason) if state else STARTING,
                since=state.last_transition_time if state else None,
                running=sum(is_good(ready(item.conditions)) for item in owned),
                replicas=len(owned),
                desired=deployment.spec.replicas,
                nodes=sum(sum(charges(read(item).engines).values()) for item in owned),
                clusters=tuple(sorted({item.spec.cluster_name for item in owned})),
                progress=progress_message,
            )
        )
    return tuple(summaries)


def in_transit(snapshot: Snapshot) -> tuple[Transit, ...]:
    """Return the replicas that end, drain, or do not answer yet."""
    transits: list[Transit] = []
    for replica in snapshot.replicas:
        state, metadata = ready(replica.conditions), replica.metadata
        if metadata.deletion_timestamp is not None:
            stage, since = "ending", metadata.deletion_timestamp
        elif labels.DRAINING_SINCE in metadata.annotations:
            stage, since = "finishing its answers", None
        elif not is_good(state):
            stage, since = "starting", state.last_transition_time if state else None
        else:
            continue
        says = (state.message or "") if state and not is_good(state) else ""
        transits.append(
            Transit(
                replica.key.namespace,
                replica.key.name,
                read(replica).owner.name,
                replica.spec.cluster_name,
                stage,
                says,
                since,
            )
        )
    return tuple(sorted(transits, key=lambda transit: (transit.namespace, transit.model, transit.name)))


def is_good(state: Condition | None) -> bool:
    """True if a condition is True."""
    return state is not None and state.status == "True"
