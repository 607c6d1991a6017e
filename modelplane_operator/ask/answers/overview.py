"""The fleet at a glance: a line for each cluster, for each model, and for each replica that is on its way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime

from kubeloop.condition_types import Condition
from modelplane_operator.api import ModelReplica, labels
from modelplane_operator.api.model_deployment import Progressing
from modelplane_operator.api.remedies import remedy as remedy_of
from modelplane_operator.ask.answers.snapshot import Snapshot, ready
from modelplane_operator.scheduling.placement import charges, read


@dataclass(frozen=True, slots=True)
class PoolSummary:
    """One pool of a cluster."""

    name: str
    nodes: int
    used: int


@dataclass(frozen=True, slots=True)
class ClusterSummary:
    """One cluster of the fleet."""

    name: str
    ready: bool
    reason: str
    source: str
    replicas: int
    nodes: int
    used: int
    pools: tuple[PoolSummary, ...]
    taints: str
    note: str


@dataclass(frozen=True, slots=True)
class ModelSummary:
    """One ModelDeployment, in the words of its own conditions."""

    namespace: str
    name: str
    ready: bool
    reason: str
    says: str
    since: datetime | None
    running: int
    replicas: int
    desired: int
    nodes: int
    clusters: tuple[str, ...]
    progress: str
    """What is under way, or why nothing is; empty when all is settled."""


@dataclass(frozen=True, slots=True)
class Transit:
    """One replica that comes or goes."""

    namespace: str
    name: str
    model: str
    cluster: str
    stage: str
    says: str
    since: datetime | None


@dataclass(frozen=True, slots=True)
class Aspect:
    """One condition."""

    type: str
    status: str
    reason: str
    says: str
    help: str
    since: datetime


@dataclass(frozen=True, slots=True)
class PlacedReplica:
    """A replica on a cluster."""

    namespace: str
    name: str
    model: str
    pool: str
    nodes: int
    ready: bool


@dataclass(frozen=True, slots=True)
class ClusterDetail:
    """One cluster, with all that it says, and what runs there."""

    cluster: ClusterSummary
    conditions: tuple[Aspect, ...]
    replicas: tuple[PlacedReplica, ...]


def clusters(seen: Snapshot) -> tuple[ClusterSummary, ...]:
    model, counts = seen.fleet(), Counter(one.spec.cluster_name for one in seen.replicas)
    found: list[ClusterSummary] = []
    for name, cluster in sorted(seen.cluster.items()):
        info, state = model.info(name), ready(cluster.conditions)
        known = info.cluster.pools if info else None
        pools = (
            tuple(
                PoolSummary(pool, nodes, nodes - free)
                for pool, nodes, free in zip(known.names, known.nodes, info.free, strict=True)
            )
            if info and known
            else ()
        )
        good = is_good(state)
        said = ": ".join(filter(None, (state.reason, state.message))) if state else "not looked at yet"
        found.append(
            ClusterSummary(
                name=name,
                ready=good,
                reason=state.reason if state else "",
                source=cluster.spec.cluster.source,
                replicas=counts[name],
                nodes=sum(pool.nodes for pool in pools),
                used=sum(pool.used for pool in pools),
                pools=pools,
                taints=", ".join(f"{one.key}:{one.effect}" for one in cluster.spec.taints),
                note="" if good else said,
            )
        )
    return tuple(found)


def cluster(name: str, seen: Snapshot) -> ClusterDetail | None:
    """None where there is none of that name."""
    found = next((one for one in clusters(seen) if one.name == name), None)
    if found is None:
        return None
    conditions = (
        Aspect(one.type, one.status, one.reason, one.message or "", remedy_of("InferenceCluster", one), since)
        for one in seen.cluster[name].conditions
        if (since := one.last_transition_time)
    )
    mine = sorted((one for one in seen.replicas if one.spec.cluster_name == name), key=lambda one: one.key)
    return ClusterDetail(found, tuple(conditions), tuple(map(_placed, mine)))


def _placed(replica: ModelReplica) -> PlacedReplica:
    known, (namespace, name) = read(replica), replica.key
    taken = charges(known.engines)
    pools, nodes = "+".join(sorted(taken)), sum(taken.values())
    return PlacedReplica(namespace, name, known.owner.name, pools, nodes, is_good(ready(replica.conditions)))


def models(seen: Snapshot) -> tuple[ModelSummary, ...]:
    found: list[ModelSummary] = []
    for key, deployment in sorted(seen.deployment.items()):
        mine, state = seen.owned.get(key, ()), ready(deployment.conditions)
        progress = next((one for one in deployment.conditions if one.type == Progressing.__name__), None)
        found.append(
            ModelSummary(
                namespace=key.namespace,
                name=key.name,
                ready=is_good(state),
                reason=state.reason if state else "NotReconciled",
                says=(state.message or state.reason) if state else "not looked at yet",
                since=state.last_transition_time if state else None,
                running=sum(is_good(ready(one.conditions)) for one in mine),
                replicas=len(mine),
                desired=deployment.spec.replicas,
                nodes=sum(sum(charges(read(one).engines).values()) for one in mine),
                clusters=tuple(sorted({one.spec.cluster_name for one in mine})),
                progress=_progress(progress),
            )
        )
    return tuple(found)


def _progress(found: Condition | None) -> str:
    if found is None or found.reason == Progressing.SETTLED.reason:
        return ""
    return f"{found.reason}: {found.message}" if found.message else found.reason


def in_transit(seen: Snapshot) -> tuple[Transit, ...]:
    """Replicas that end, finish their answers before they end, or do not answer yet."""
    return tuple(sorted(_in_transit(seen.replicas), key=lambda one: (one.namespace, one.model, one.name)))


def _in_transit(replicas: Sequence[ModelReplica]) -> Iterator[Transit]:
    for one in replicas:
        state, metadata = ready(one.conditions), one.metadata
        if metadata.deletion_timestamp is not None:
            stage, since = "ending", metadata.deletion_timestamp
        elif labels.DRAINING_SINCE in metadata.annotations:
            stage, since = "finishing its answers", None
        elif not is_good(state):
            stage, since = "starting", state.last_transition_time if state else None
        else:
            continue
        says = (state.message or "") if state and not is_good(state) else ""
        yield Transit(one.key.namespace, one.key.name, read(one).owner.name, one.spec.cluster_name, stage, says, since)


def is_good(state: Condition | None) -> bool:
    return state is not None and state.status == "True"
