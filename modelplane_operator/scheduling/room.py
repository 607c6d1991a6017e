"""Pack pods onto the nodes of a pool that is shared by device: which nodes have how much left.

A pod takes devices, CPU, memory and disk of one node, so the sums of a pool do not tell whether it fits. Pods whose
nodes are known are charged there. The others are planned: the largest first, each onto the node that it fills best,
so that whole nodes stay free for as long as possible. The plan depends only on which pods there are, and not on the
order in which they were observed.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import lru_cache
from typing import NamedTuple

from kubeloop.memo import memoize_bounded
from modelplane_operator.api.placement import Claim
from modelplane_operator.scheduling.cached_hash import CachedHash
from modelplane_operator.scheduling.cluster import NOTHING_SAID, Amount, NodeDevice, SharedNode
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import SelectorError

Vector = tuple[int, ...]
"""Amounts of a node: the devices of each entry in published order, then CPU, memory and disk."""


@dataclass(frozen=True, slots=True)
class PodShape(CachedHash):
    """What a pod takes of its node."""

    claims: tuple[Claim, ...]
    """Devices that it claims."""
    amounts: Amount = NOTHING_SAID
    """CPU, memory and disk that its template requests."""

    __hash__ = CachedHash.__hash__


class PodsOn(NamedTuple):
    """Equal pods in one pool."""

    pool: str
    shape: PodShape | None
    """What each pod takes; None for pods of an earlier shape, which take all that others leave of their node."""
    node: str = ""
    """Node on which the pods run; empty while it is not known."""


Pods = tuple[tuple[PodShape, int], ...]
"""Pods by shape, with their numbers."""


@dataclass(frozen=True, slots=True)
class Room:
    """The nodes of a shared pool, by what pods leave of them."""

    node: SharedNode
    """What each node has."""
    nodes: int
    """Number of nodes."""
    taken: Mapping[tuple[str, Vector], int] = field(compare=False)
    """Number of pods by their node, which may be unknown, and by what each takes."""
    remaining: tuple[tuple[Vector, int], ...] = field(init=False)
    """Number of nodes by what pods leave of each."""
    short: int = field(init=False)
    """Number of pods for which no node has room, as after a pool has shrunk."""

    def __post_init__(self) -> None:
        remaining, short = _plan(self)
        object.__setattr__(self, "remaining", tuple(sorted(remaining.items())))
        object.__setattr__(self, "short", short)

    @classmethod
    def of(cls, node: SharedNode, nodes: int, pods: Iterable[tuple[PodsOn, int]]) -> Room:
        """Return the room of a pool on which these pods run or are to run."""
        return cls(node, nodes, _count(node, pods))

    def charge(self, pods: Iterable[tuple[PodsOn, int]]) -> Room:
        """Return the room with these pods as well. Negative numbers take pods away."""
        taken = Counter(self.taken)
        for key, number in _count(self.node, pods).items():
            taken[key] += number
        return Room(self.node, self.nodes, {key: number for key, number in taken.items() if number})

    def fits(self, pods: Pods) -> bool:
        """True if the nodes have room for these pods as well."""
        return not self.is_too_full(pods) and self.with_pods(pods).short == self.short

    def is_too_full(self, pods: Pods) -> bool:
        """True if no node has enough for one of these pods: then nothing has to be planned."""
        demands = [demand(shape, self.node) for shape, _ in pods]
        return not all(any(_has(remaining, required) for remaining, _ in self.remaining) for required in demands)

    def with_pods(self, pods: Pods) -> Room:
        """Return the room with these pods planned as well."""
        return self.charge((PodsOn("", shape), number) for shape, number in pods)

    def count_needed(self, pods: Pods) -> int:
        """Return the number of empty nodes that would have room for these pods."""
        number = sum(count for _, count in pods)
        plans = (Room(self.node, nodes, {}).with_pods(pods) for nodes in range(1, number))
        return next((room.nodes for room in plans if not room.short), number)

    @property
    def free_devices(self) -> tuple[tuple[int, int], ...]:
        """Return the nodes with free devices: how many are free on each, and the number of such nodes, most first."""
        counter = Counter[int]()
        for remaining, number in self.remaining:
            counter[sum(remaining[: len(self.node.devices)])] += number
        return tuple((free, counter[free]) for free in sorted(counter, reverse=True) if free)

    @property
    def empty(self) -> Room:
        """Return the room as it would be without any pods."""
        return Room(self.node, self.nodes, {})

    @property
    def free_nodes(self) -> int:
        """Number of nodes without pods; minus the number of pods that find no room, if there are any."""
        return -self.short or dict(self.remaining).get(capacity_of(self.node), 0)

    @property
    def share(self) -> float:
        """Nodes that are free, by their remaining devices: half a node counts 0.5."""
        devices = len(self.node.devices)
        total = sum(capacity_of(self.node)[:devices])
        return sum(sum(remaining[:devices]) * number for remaining, number in self.remaining) / total if total else 0.0


def _count(node: SharedNode, pods: Iterable[tuple[PodsOn, int]]) -> Counter[tuple[str, Vector]]:
    """Return the numbers of pods by their node and by what each takes."""
    counter = Counter[tuple[str, Vector]]()
    for key, number in pods:
        counter[key.node, demand(key.shape, node) if key.shape else _everything(node)] += number
    return counter


def _everything(node: SharedNode) -> Vector:
    """Return what a pod of an earlier shape takes: all that other pods leave of its node."""
    return (UNKNOWN,) * len(capacity_of(node))


def _plan(room: Room) -> tuple[Counter[Vector], int]:
    """Return what pods leave of the nodes, and the number of pods for which no node has room."""
    capacity = capacity_of(room.node)
    used: dict[str, Vector] = {}
    planned: list[tuple[Vector, int]] = []
    for (name, required), number in room.taken.items():
        if name:
            before = used.get(name, (0,) * len(capacity))
            used[name] = tuple(amount + each * number for amount, each in zip(before, required, strict=True))
        else:
            planned.append((required, number))
    # A node that no longer counts may still have pods. The fullest nodes are counted, which is never too little.
    used_nodes = sorted(
        tuple(max(has - amount, 0) for has, amount in zip(capacity, taken, strict=True)) for taken in used.values()
    )[: max(room.nodes, 0)]
    remaining = Counter(used_nodes)
    if room.nodes > len(used_nodes):
        remaining[capacity] += room.nodes - len(used_nodes)

    def order(row: tuple[Vector, int]) -> tuple[float, Vector]:
        """Return the order of a pod: the larger its largest share of a node, the earlier it is planned."""
        shares = (amount / has for amount, has in zip(row[0], capacity, strict=True) if has)
        return max(shares, default=0.0), row[0]

    devices, short = len(room.node.devices), max(len(used) - max(room.nodes, 0), 0)
    everything = _everything(room.node)
    for required, number in sorted(planned, key=order, reverse=True):
        if required != everything:
            short += _put(remaining, required, number, devices)
    # Pods of an earlier shape come last, since they have their nodes already; the emptiest might be theirs.
    for _ in range(room.taken.get(("", everything), 0) if remaining else 0):
        _put(remaining, max(remaining), 1, devices)
    return remaining, short


def _put(remaining: Counter[Vector], required: Vector, number: int, devices: int) -> int:
    """Take the amounts of so many pods, each from the node that it fills best; return how many find no room.

    Those are taken from the fullest nodes, of which then less is left than nothing.
    """
    while number:
        fitting = [has for has in remaining if _has(has, required)]
        best = min(fitting, key=lambda has: (sum(has[:devices]), has), default=None)
        if best is None:
            break
        # The node that a pod fills best is also the best one for its equals, until it has no more room for them.
        each = min((has // amount for has, amount in zip(best, required, strict=True) if amount), default=number)
        nodes, pods = (min(remaining[best], number // each), each) if number >= each else (1, number)
        _move(remaining, best, tuple(has - amount * pods for has, amount in zip(best, required, strict=True)), nodes)
        number -= nodes * pods
    for _ in range(number if remaining else 0):
        fullest = min(remaining, key=lambda has: (sum(has[:devices]), has))
        rest = tuple(max(has - amount, 0) for has, amount in zip(fullest, required, strict=True))
        _move(remaining, fullest, rest, 1)
    return number


def _move(remaining: Counter[Vector], before: Vector, after: Vector, nodes: int) -> None:
    """Count so many nodes by what is left of them now."""
    remaining[before] -= nodes
    if not remaining[before]:
        del remaining[before]
    remaining[after] += nodes


def _has(remaining: Vector, required: Vector) -> bool:
    """True if a node has enough left."""
    return all(has >= amount for has, amount in zip(remaining, required, strict=True))


def count_devices(shape: PodShape) -> int:
    """Return the number of devices that a pod claims."""
    return sum(claim.count for claim in shape.claims)


def find_excess(pods: Pods, node: SharedNode) -> str:
    """Return what a pod requests more of than an empty node has; empty if each pod fits onto one."""
    capacity = capacity_of(node)
    for shape, _ in pods:
        for name, required, has in zip(_AMOUNTS, demand(shape, node)[-3:], capacity[-3:], strict=True):
            if required > has:
                return name
    return ""


_AMOUNTS = ("CPU", "memory", "disk")
"""Names of the last amounts of a vector."""
UNKNOWN = 1 << 62  # more than any node has
"""Amount of CPU, memory or disk of a node that publishes none, which limits nothing."""


@lru_cache(maxsize=1024)
def capacity_of(node: SharedNode) -> Vector:
    """Return what a node has. Devices that are not claimed limit nothing."""
    devices = tuple(device.count if device.claimable else 0 for device in node.devices)
    return (*devices, *(UNKNOWN if amount is None else amount for amount in node.allocatable))


def _size_of_demand(shape: PodShape, node: SharedNode) -> int:
    """Return the estimated bytes of a cached demand, whose key has the texts of the selectors."""
    return 500 + 50 * len(node.devices) + sum(len(text) for claim in shape.claims for text in claim.selectors)


@memoize_bounded(most=8 << 20, size=_size_of_demand)
def demand(shape: PodShape, node: SharedNode) -> Vector:
    """Return what a pod takes of a node.

    A claim that several entries of the node meet is charged to each of them, since the cluster may take either. One
    that none meets, as after a change of the class, is charged a whole node.
    """
    capacity = capacity_of(node)
    devices = [0] * len(node.devices)
    for claim in shape.claims:
        matching = [index for index, device in enumerate(node.devices) if _meets(claim, device)]
        if not matching:
            return capacity
        for index in matching:
            devices[index] = min(devices[index] + claim.count, node.devices[index].count)
    shares = (Fraction(taken, has) for taken, has in zip(devices, capacity, strict=False) if has)
    half = min(max(shares, default=Fraction(0)), Fraction(1)) / 2
    cpu, memory, _ = (int((amount or 0) * half) for amount in node.allocatable)
    defaults = (cpu, memory, 0)  # as engines request by default
    amounts = (own if own is not None else default for own, default in zip(shape.amounts, defaults, strict=True))
    return (*devices, *amounts)


def _meets(claim: Claim, device: NodeDevice) -> bool:
    """True if a device of this entry can be allocated for the claim."""
    if not device.claimable or device.device_class != claim.device_class:
        return False
    try:
        return all(cel.evaluate(cel.compile(text), device.device).matched for text in claim.selectors)
    except SelectorError:
        return False
