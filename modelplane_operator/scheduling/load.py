"""The load of replicas on the pools of a cluster, in nodes and in pods.

Which of the two counts depends on the pool: its nodes are shared by device, or each pod takes one of them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from modelplane_operator.api.placement import EnginePlacement, MemberPlacement
from modelplane_operator.scheduling.cluster import Amount
from modelplane_operator.scheduling.room import Pods, PodShape, PodsOn


@dataclass(frozen=True, slots=True)
class Load:
    """What replicas take."""

    nodes: Mapping[str, int] = field(default_factory=dict[str, int])
    """Number of nodes, by pool."""
    pods: Mapping[PodsOn, int] = field(default_factory=dict[PodsOn, int])
    """Number of pods that claim devices, by pool, shape and node."""

    def __neg__(self) -> Load:
        return Load(
            {pool: -nodes for pool, nodes in self.nodes.items()}, {pods: -count for pods, count in self.pods.items()}
        )

    def larger(self, other: Load) -> Load:
        """Return the larger of both: nodes by pool, and the pods of this load with those that `other` has more of."""
        before, pods = _by_shape(self.pods), Counter(self.pods)
        for key, number in _by_shape(other.pods).items():
            if number > before[key]:
                pods[key] += number - before[key]
        return Load(Counter(self.nodes) | Counter(other.nodes), pods)

    def pods_in(self, pool: str) -> Pods:
        """Return the pods in a pool by their shapes."""
        return tuple((key.shape, n) for key, n in _by_shape(self.pods).items() if key.pool == pool and key.shape)

    def count_more_pods(self, other: Load, pool: str) -> int:
        """Return the number of pods in this pool for which the other load has none of the same shape."""
        theirs = _by_shape(other.pods)
        own = _by_shape(self.pods).items()
        return sum(max(number - theirs[key], 0) for key, number in own if key.pool == pool)


def _by_shape(pods: Mapping[PodsOn, int]) -> Counter[PodsOn]:
    """Return the pods without their nodes."""
    counter = Counter[PodsOn]()
    for key, number in pods.items():
        counter[key._replace(node="")] += number
    return counter


def load_of(engines: Iterable[EnginePlacement]) -> Load:
    """Return the load of these engines. Members without claims take nothing."""
    nodes, pods = Counter[str](), Counter[PodsOn]()
    for engine in engines:
        for member in engine.members:
            if member.nodes:
                nodes[member.pool] += member.nodes
                pods[PodsOn(member.pool, shape_of(member))] += member.nodes
    return Load(nodes, pods)


def shape_of(member: MemberPlacement) -> PodShape:
    """Return what each pod of a member takes."""
    return PodShape(member.claims, Amount(*member.amounts))
