"""Where a replica runs: decided by us, or read back from a ModelReplica."""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from modelplane_operator.api import labels
from modelplane_operator.api.base import Key, Metadata
from modelplane_operator.api.conditions import Ready, is_true
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember


@dataclass(frozen=True, slots=True)
class Owner:
    """Whose a replica is. A deployment that was deleted and made again has another uid, and none of the old ones."""

    namespace: str
    name: str
    uid: str


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices that every pod of a member claims on its node."""

    name: str
    device_class: str
    count: int
    selectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """One kind of pod of an engine: the pool it runs on, and how many of its nodes it takes."""

    role: str
    pool: str
    nodes: int
    claims: tuple[Claim, ...]


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    name: str
    members: tuple[MemberPlacement, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """One replica on one cluster. The index tells a deployment's replicas on a cluster apart and implies no order."""

    cluster: str
    index: int
    gateway: str
    engines: tuple[EnginePlacement, ...]


@dataclass(frozen=True, slots=True)
class Replica:
    """A ModelReplica as the scheduler sees it."""

    key: Key
    owner: Owner
    cluster: str
    index: int
    engines: tuple[EnginePlacement, ...]
    ready: bool = False
    going: bool = False
    """It is being deleted: it no longer counts, but has its nodes until it is gone."""

    @property
    def charges(self) -> Mapping[str, int]:
        """Nodes that it takes, by pool."""
        return charges(self.engines)


def charges(engines: Iterable[EnginePlacement]) -> Mapping[str, int]:
    """Nodes that these engines take, by pool."""
    nodes = Counter[str]()
    for engine in engines:
        for member in engine.members:
            if member.nodes:
                nodes[member.pool] += member.nodes
    return nodes


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
        index=_index(metadata.labels.get(labels.REPLICA_INDEX, "")),
        engines=tuple(
            EnginePlacement(engine.name, tuple(_member(engine, member) for member in engine.members))
            for engine in replica.spec.engines
        ),
        ready=is_true(replica.conditions, Ready),
        going=metadata.deletion_timestamp is not None,
    )


def _owner(metadata: Metadata) -> Owner:
    """From the owner reference, where names of any length have room; else from the labels."""
    namespace = metadata.namespace or ""
    for reference in metadata.owner_references:
        if reference.kind == ModelDeployment.definition.kind:
            return Owner(namespace, reference.name, reference.uid)
    return Owner(namespace, metadata.labels.get(labels.DEPLOYMENT, ""), metadata.labels.get(labels.OWNER_UID, ""))


def _index(text: str) -> int:
    return int(text) if text.isascii() and text.isdigit() else 0


def _member(engine: PlacedEngine, member: PlacedMember) -> MemberPlacement:
    claims = tuple(
        Claim(request.name, request.device_class_name, request.count, tuple(s.cel or "" for s in request.selectors))
        for request in member.device_requests
    )
    nodes = pods(member.role, member.worker.nodes if member.worker else None) * engine.copies
    return MemberPlacement(member.role, member.node_pool_name, nodes if claims else 0, claims)
