"""A replica as the scheduler sees it, read from a ModelReplica, and the nodes that engines take."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import orjson

from kubeloop.condition_types import Ready, is_true
from kubeloop.objects import Key
from kubeloop.resource import Metadata
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReady, ModelReplica, PlacedEngine, PlacedMember
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement

MOST_DIGITS: Final = 9
INDICES: Final = 2000  # as many as a deployment can have on one cluster, while all of them are replaced
MOST_NODES: Final = 100_000  # no pool has more; a figure beyond that was not written by us


@dataclass(frozen=True, slots=True)
class ReplicaOwner:
    """Whose a replica is. A deployment that was deleted and made again has another uid, and none of the old ones."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Replica:
    """A ModelReplica as the scheduler sees it."""

    key: Key
    owner: ReplicaOwner
    cluster: str
    index: int
    engines: tuple[EnginePlacement, ...]
    ready: bool = False
    terminating: bool = False
    """It is being deleted: it no longer counts, but has its nodes until it is gone."""
    holding: tuple[tuple[str, int], ...] = ()
    """Nodes, by pool, that it took in the shape it had before, while it is not known to have let go of them."""
    unschedulable_since: datetime | None = None
    """Since when it has found no nodes, if it serves nobody."""

    @property
    def placement(self) -> Placement:
        return Placement(self.cluster, self.index, self.engines)

    @property
    def charges(self) -> Mapping[str, int]:
        """Nodes that it takes, by pool."""
        nodes = charges(self.engines)
        return larger(nodes, dict(self.holding)) if self.holding else nodes


def charges(engines: Iterable[EnginePlacement]) -> Mapping[str, int]:
    """Nodes that these engines take, by pool."""
    nodes = Counter[str]()
    for engine in engines:
        for member in engine.members:
            if member.nodes:
                nodes[member.pool] += member.nodes
    return nodes


def larger(one: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """Of each pool the larger number of nodes."""
    return Counter(one) | Counter(other)


def pods(role: str, worker_nodes: int | None) -> int:
    """Pods of one copy of a member: only workers can be many, and each has a node of its own."""
    return worker_nodes if role == "Worker" and worker_nodes else 1


def read(replica: ModelReplica) -> Replica:
    """The replica as the scheduler sees it; never raises."""
    metadata = replica.metadata
    return Replica(
        key=replica.key,
        owner=_owner(metadata),
        cluster=replica.spec.cluster_name,
        index=_index(replica),
        engines=tuple(
            EnginePlacement(engine.name, tuple(_member(engine, member) for member in engine.members))
            for engine in replica.spec.engines
        ),
        ready=is_true(replica.conditions, Ready),
        terminating=metadata.deletion_timestamp is not None,
        holding=_holding(replica),
        unschedulable_since=_unschedulable_since(replica),
    )


def _unschedulable_since(replica: ModelReplica) -> datetime | None:
    if replica.status is None or is_true(replica.conditions, ModelReady):
        return None
    return replica.status.unschedulable_since


def held_nodes(was: Mapping[str, int], is_to_be: Mapping[str, int]) -> str:
    """What the annotation of a replica says that is given another shape; empty when that needs no less of any pool."""
    more = {pool: nodes for pool, nodes in sorted(was.items()) if nodes > is_to_be.get(pool, 0)}
    return orjson.dumps(more).decode() if more else ""


def _holding(replica: ModelReplica) -> tuple[tuple[str, int], ...]:
    """By what was written down when its shape was changed, and by what is seen of its pods since."""
    seen = {held.pool: held.nodes for held in replica.status.held_nodes} if replica.status else {}
    return tuple(sorted(larger(_written(replica.metadata.annotations.get(labels.HELD_NODES, "")), seen).items()))


def _written(text: str) -> Mapping[str, int]:
    """What somebody else has written there counts for nothing."""
    try:
        nodes = orjson.loads(text or "{}")
    except orjson.JSONDecodeError:
        return {}
    if not isinstance(nodes, dict):
        return {}
    return {
        pool: count
        for pool, count in cast(dict[str, Any], nodes).items()
        if isinstance(count, int) and 0 < count <= MOST_NODES
    }


def _owner(metadata: Metadata) -> ReplicaOwner:
    """From the owner reference, where names of any length have room; else from the labels."""
    namespace = metadata.namespace or ""
    for reference in metadata.owner_references:
        if reference.kind == ModelDeployment.definition.kind:
            return ReplicaOwner(namespace, reference.name, reference.uid)
    return ReplicaOwner(
        namespace, metadata.labels.get(labels.DEPLOYMENT, ""), metadata.labels.get(labels.OWNER_UID, "")
    )


def _index(replica: ModelReplica) -> int:
    """From the label, unless the name says that somebody has edited that."""
    text = replica.metadata.labels.get(labels.REPLICA_INDEX, "")
    told = int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else 0
    owner = _owner(replica.metadata)

    def is_its_name(index: int) -> bool:
        name = names.replica(owner.namespace, owner.name, replica.spec.cluster_name, index)
        return name == replica.metadata.name

    if is_its_name(told):
        return told
    return next(filter(is_its_name, range(INDICES)), told)


def _member(engine: PlacedEngine, member: PlacedMember) -> MemberPlacement:
    claims = tuple(
        Claim(request.name, request.device_class_name, request.count, tuple(s.cel or "" for s in request.selectors))
        for request in member.device_requests
    )
    nodes = pods(member.role, member.worker.nodes if member.worker else None) * engine.copies
    return MemberPlacement(member.role, member.node_pool_name, nodes if claims else 0, claims)
