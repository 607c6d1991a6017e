"""The node pools of an InferenceCluster, and what of them cannot change."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.model import Model, Rule, must
from modelplane_operator.api.bounds import LABEL_TEXT, ZONES, CloudName, NodeCount, OurName, String63
from modelplane_operator.api.shared import QualifiedName, Sharing

NOT_SYSTEM = Rule(
    "self != 'system'",
    "The name system is taken by the pool that the operator adds to every cluster for its own pods: choose another.",
)


PoolName = Annotated[str, Field(max_length=40, pattern=LABEL_TEXT)]


class CapacityBlock(Model):
    """Machines that AWS holds for a time."""

    capacity_reservation_id: Annotated[str, Field(min_length=4, max_length=64, pattern="^cr-[0-9a-f]+$")]
    """Id of the Capacity Block reservation, for example `cr-0123456789abcdef0`."""


class InfiniBand(Model):
    """An InfiniBand fabric of Nebius."""

    fabric: String63
    """Id of an existing fabric, for example `fabric-2`."""


ONLY_WITH_INFINIBAND = Rule(
    "!has(self.infiniband) || self.type == 'InfiniBand'",
    "The infiniband block goes with `type: InfiniBand`: set that type, or remove the block.",
)


class PoolFabric(Model):
    """The network between the nodes of a pool."""

    rules: ClassVar = (ONLY_WITH_INFINIBAND,)

    type: Literal["None", "EFA", "InfiniBand"] = "None"
    """`EFA` on EKS, `InfiniBand` on AKS and Nebius; elsewhere it changes nothing."""
    infiniband: InfiniBand | None = None
    """Which InfiniBand fabric to join; Nebius needs it."""
    topology_key: QualifiedName | None = None
    """Label whose value all nodes of one fabric share, for example `topology.kubernetes.io/zone`. The pods of a gang
    then run on nodes with the same value."""


class NodePool(Model):
    """Nodes of one class."""

    name: Annotated[PoolName, must(NOT_SYSTEM)]
    """Name of the pool. The nodes carry it as label modelplane.ai/pool; on a cluster that you bring, you set that
    label. On AKS: at most 12 lower-case letters and digits, beginning with a letter."""
    class_name: OurName
    """InferenceClass of the nodes."""
    node_count: NodeCount = 1
    """Nodes in the pool, over all zones; with `maxNodeCount`, the number at the start. On a cluster that you bring,
    only existing nodes with the pool's label count."""
    min_node_count: NodeCount | None = None
    """Minimum of nodes for the autoscaler."""
    max_node_count: Annotated[NodeCount, Field(ge=1)] | None = None
    """Maximum of nodes for the autoscaler; the scheduler counts all of them. Without it the pool keeps its size."""
    zones: Annotated[tuple[CloudName, ...], Field(max_length=ZONES)] = ()
    """Zones to place the nodes in. GKE and EKS need them; AKS takes them; elsewhere they change nothing."""
    capacity_block: CapacityBlock | None = None
    """An AWS Capacity Block to take the nodes from; on EKS only."""
    fabric: PoolFabric | None = None
    """The network between the nodes."""
    sharing: Sharing | None = None
    """`Device`: replicas share a node, and each takes the devices that it claims. `Node`: each pod that claims devices
    takes a whole node. Without it, what the class says."""


def _pools_stay(source: str, condition: str, message: str) -> Rule:
    """What holds for a node pool before (`o`) and after (`p`): the cloud cannot change the rest of it."""
    kept = f"self.nodePools.all(p, oldSelf.nodePools.all(o, o.name != p.name || ({condition})))"
    lists = "!has(self.nodePools) || !has(oldSelf.nodePools)"
    return Rule(f"self.cluster.source != '{source}' || {lists} || {kept}", message, field="nodePools")


def _zones(of: str) -> str:
    return f"(has({of}.zones) ? {of}.zones : [])"


def _same(part: str, value: str) -> str:
    """A part of a pool that is optional, by something within it."""
    return " == ".join(f"(has({one}.{part}) ? {one}.{value} : '')" for one in "op")


POOLS_OF_EKS_STAY = _pools_stay(
    "EKS",
    f"{_zones('o')} == {_zones('p')} && {_same('capacityBlock', 'capacityBlock.capacityReservationId')} && "
    "(has(o.fabric) && o.fabric.type == 'EFA') == (has(p.fabric) && p.fabric.type == 'EFA')",
    "On EKS the zones, the Capacity Block and EFA of a node pool cannot change: add a pool of another name, and remove "
    "this one.",
)
POOLS_OF_GKE_STAY = _pools_stay(
    "GKE",
    f"{_zones('o')}.all(z, z in {_zones('p')})",
    "On GKE a zone can be added to a node pool, and none taken away, since its nodes would end with all that runs "
    "there: add a pool of another name, and remove this one.",
)
