"""A replica from the scheduler's point of view, parsed from a ModelReplica, and the nodes that engines take.

The fleet calls `read` for each observed ModelReplica. Labels and annotations can be edited by users, so the index is
checked against the name, and invalid values are ignored.
"""

from collections import Counter
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Final, cast

import orjson

from kubeloop.condition_types import Ready, is_true
from kubeloop.objects import Key
from kubeloop.resource import Metadata
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReady, ModelReplica, PlacedEngine, PlacedMember, PodsOnNode
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.api.pods import PodTemplate
from modelplane_operator.scheduling.cluster import Amount
from modelplane_operator.scheduling.load import Load, load_of, shape_of
from modelplane_operator.scheduling.room import PodsOn

MOST_DIGITS: Final = 9
"""Limit for the digits of an index, since longer labels were not written by the operator."""
INDICES: Final = 2000  # the maximum on one cluster while all of them are replaced
MOST_NODES: Final = 100_000  # no pool is larger; a higher number was not written by the operator


@dataclass(frozen=True, slots=True)
class ReplicaOwner:
    """The owner of a replica. A deployment that was recreated has another uid, and owns none of the old replicas."""

    namespace: str
    name: str
    """Name of the ModelDeployment."""
    uid: str
    """Uid of the ModelDeployment."""


@dataclass(frozen=True, slots=True)
class Replica:
    """A ModelReplica from the scheduler's point of view."""

    key: Key
    """Key of the ModelReplica."""
    owner: ReplicaOwner
    """Deployment that the replica belongs to."""
    cluster: str
    """Name of its cluster, which never changes."""
    index: int
    """Number of the replica on its cluster."""
    engines: tuple[EnginePlacement, ...]
    """Pools and claims of its engines."""
    ready: bool = False
    """True if the replica serves requests."""
    terminating: bool = False
    """True if it is being deleted: it no longer counts, but keeps its nodes until it is gone."""
    holding: tuple[tuple[str, int], ...] = ()
    """Nodes, by pool, of its previous shape that it may not have released yet."""
    unschedulable_since: datetime | None = None
    """Time since when its pods have found no nodes, if it serves no requests."""
    pod_nodes: tuple[PodsOnNode, ...] = ()
    """Nodes of its pods in shared pools, as far as they are known."""

    @property
    def placement(self) -> Placement:
        """Place of the replica in its present shape."""
        return Placement(self.cluster, self.index, self.engines)

    @property
    def charges(self) -> Mapping[str, int]:
        """Return the nodes that it takes, by pool."""
        return self.load.nodes

    @property
    def load(self) -> Load:
        """Return what it takes. A pod of its previous shape takes the rest of a shared node until it ends."""
        load = load_of(self.engines)
        if not (self.holding or self.pod_nodes):
            return load
        pods = Counter(load.pods)
        for pool, nodes in self.holding:
            if nodes > load.nodes.get(pool, 0):
                pods[PodsOn(pool, None)] += nodes - load.nodes.get(pool, 0)
        members = {(engine.name, member.role): member for engine in self.engines for member in engine.members}
        for place in self.pod_nodes:
            if (member := members.get((place.engine, place.role))) is None or not member.nodes:
                continue
            planned = PodsOn(member.pool, shape_of(member))
            number = min(place.pods, pods[planned])
            pods[planned] -= number
            pods[planned._replace(node=place.node)] += number
            earlier = PodsOn(member.pool, None)
            number = min(place.pods, pods[earlier])
            pods[earlier] -= number
            pods[earlier._replace(node=place.node)] += number
        return Load(larger(load.nodes, dict(self.holding)), +pods)


def charges(engines: Iterable[EnginePlacement]) -> Mapping[str, int]:
    """Return the nodes that these engines take, by pool."""
    return load_of(engines).nodes


def larger(first: Mapping[str, int], other: Mapping[str, int]) -> Mapping[str, int]:
    """Return the larger number of nodes for each pool."""
    return Counter(first) | Counter(other)


def pods(role: str, worker_nodes: int | None) -> int:
    """Return the pods of one copy of a member. Only workers can be several, each on a node of its own."""
    return worker_nodes if role == "Worker" and worker_nodes else 1


def read(replica: ModelReplica) -> Replica:
    """Parse a replica; never raise."""
    metadata, status = replica.metadata, replica.status
    # The nodes of the previous shape are in an annotation, and are observed by its pods.
    annotated = _parse_annotation(metadata.annotations.get(labels.HELD_NODES, ""))
    observed = {entry.pool: entry.nodes for entry in status.held_nodes} if status else {}
    return Replica(
        key=replica.key,
        owner=_owner(metadata),
        cluster=replica.spec.cluster_name,
        index=_index(replica),
        engines=tuple(
            EnginePlacement(engine.name, tuple(_member_placement(engine, member) for member in engine.members))
            for engine in replica.spec.engines
        ),
        ready=is_true(replica.conditions, Ready),
        terminating=metadata.deletion_timestamp is not None,
        holding=tuple(sorted(larger(annotated, observed).items())),
        unschedulable_since=status.unschedulable_since
        if status and not is_true(replica.conditions, ModelReady)
        else None,
        pod_nodes=status.pod_nodes if status else (),
    )


def reserved_nodes(was: Load, is_to_be: Load, shared: Container[str] = ()) -> str:
    """Return the annotation for a replica that changes its shape; empty if no pool needs less than before.

    In a shared pool, each old pod of another shape reserves a node beside those of the new pods, until it is gone.
    """
    more = {
        pool: is_to_be.nodes.get(pool, 0) + was.count_more_pods(is_to_be, pool) if pool in shared else nodes
        for pool, nodes in sorted(was.nodes.items())
        if (was.count_more_pods(is_to_be, pool) if pool in shared else nodes > is_to_be.nodes.get(pool, 0))
    }
    return orjson.dumps(more).decode() if more else ""


def _parse_annotation(text: str) -> Mapping[str, int]:
    """Parse the annotation. An invalid value, which the operator did not write, is ignored."""
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
    """Return the owner from the owner reference, which has room for names of any length; otherwise from the labels."""
    namespace = metadata.namespace or ""
    for reference in metadata.owner_references:
        if reference.kind == ModelDeployment.definition.kind:
            return ReplicaOwner(namespace, reference.name, reference.uid)
    return ReplicaOwner(
        namespace, metadata.labels.get(labels.DEPLOYMENT, ""), metadata.labels.get(labels.OWNER_UID, "")
    )


def _index(replica: ModelReplica) -> int:
    """Return the index from the label.

    If the replica's name contradicts it, the label was edited, and the name counts.
    """
    text = replica.metadata.labels.get(labels.REPLICA_INDEX, "")
    labelled = int(text) if text.isascii() and text.isdigit() and len(text) < MOST_DIGITS else 0
    owner = _owner(replica.metadata)

    def is_its_name(index: int) -> bool:
        """True if the operator would give the replica this name for the index."""
        name = names.replica(owner.namespace, owner.name, replica.spec.cluster_name, index)
        return name == replica.metadata.name

    if is_its_name(labelled):
        return labelled
    return next(filter(is_its_name, range(INDICES)), labelled)


def _member_placement(engine: PlacedEngine, member: PlacedMember) -> MemberPlacement:
    """Return the placement of a member. A member without claims takes no nodes of its own."""
    claims = tuple(
        Claim(request.name, request.device_class_name, request.count, tuple(s.cel or "" for s in request.selectors))
        for request in member.device_requests
    )
    nodes = pods(member.role, member.worker.nodes if member.worker else None) * engine.copies
    return MemberPlacement(
        member.role, member.node_pool_name, nodes if claims else 0, claims, amounts_of(member.template)
    )


def amounts_of(template: PodTemplate) -> Amount:
    """Return what a template requests of a node; a limit counts where nothing is requested, as in Kubernetes."""
    containers = template.spec.containers if template.spec else ()
    resources = next((container.resources for container in containers if container.resources), None)
    if resources is None:
        return Amount()
    requests, limits = Amount.of(resources.requests), Amount.of(resources.limits)
    return Amount(*(own if own is not None else limit for own, limit in zip(requests, limits, strict=True)))
