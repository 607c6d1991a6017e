"""The hardware that is there: which nodes of a pool can run what the pool's class says, and what the others lack."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, entries, labels_of, section
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import Fabric, GpuPool, PublishedDevice
from modelplane_operator.api.shared import Amounts
from modelplane_operator.models.replica.plan.nodes import unfit
from modelplane_operator.selectors import quantity

_WORDS = 100  # of what a node says of itself
_KEEPING_PODS_OFF = frozenset({"NoSchedule", "NoExecute"})


@dataclass(frozen=True, slots=True)
class ObservedHardware:
    """The nodes of a cluster that carry a pool's label, and all its ResourceSlices, cut down as below."""

    nodes: tuple[Manifest, ...]
    slices: tuple[Manifest, ...]


@dataclass(frozen=True, slots=True)
class PoolNodes:
    """The nodes of a pool that are there."""

    nodes: int
    usable: int
    """Those that are ready, take pods, and have the devices."""
    lacking: str = ""
    """What the first of the others lacks."""
    allocatable: Amounts | None = None
    """What the least of them has for pods, in whole processors and Gi; None while none says."""
    fabrics: Mapping[str, Fabric] = field(default_factory=dict[str, Fabric])
    """By label, the value that most of the usable nodes have; of labels that were looked for on all nodes."""


# What is kept of them -------------------------------------------------------------------------------------------------


def cut_node(node: Manifest, fabrics: Iterable[str] = ()) -> Manifest:
    """What matters of a Node, which is large and has news every few minutes.

    `fabrics`: the labels by which the fleet tells fabrics. One that a node lacks is kept as empty: it was looked for.
    """
    said = condition(node, "Ready")
    ready = {"type": "Ready", "status": said.status or "Unknown"}
    if not said.is_true:  # of one that is ready, nobody asks since when
        told = {"reason": said.reason, "lastTransitionTime": said.last_transition_time}
        ready |= {name: words[:_WORDS] for name, words in told.items() if words}
    pool = {name: value for name, value in labels_of(node).items() if name == labels.POOL}
    allocatable = section(node, "status", "allocatable")
    offered = {name: whole for name in _UNITS if (whole := _whole(name, str(allocatable.get(name, ""))))}
    found = {name: str(labels_of(node).get(name, ""))[:_VALUE] for name in sorted(fabrics)}
    return {
        "metadata": {**_identity(node), "labels": pool},
        "spec": {"unschedulable": True} if section(node, "spec").get("unschedulable") else {},
        "status": {"conditions": [ready], **({"allocatable": offered} if offered else {})},
        **({"fabrics": found} if found else {}),
    }


_VALUE = 63  # of a label, as Kubernetes has it
_UNITS = {"cpu": 1, "memory": 2**30}
_MOST = {"cpu": 10_000, "memory": 16_000}  # of units: no node has more, and a cluster that lies fills no status


def _whole(resource: str, amount: str) -> int:
    """An amount in whole units: what a node reports of its memory is never twice the same."""
    try:
        whole = quantity.parse(amount).as_float() // _UNITS[resource]
    except quantity.QuantityError:
        return 0
    return int(max(0, min(whole, _MOST[resource])))


def cut_slice(known: Manifest) -> Manifest:
    """What matters of a ResourceSlice: how many devices of which capacity, without those that keep pods off.

    Raises KeyError, TypeError or ValueError for what is none: it is passed over.
    """
    spec = section(known, "spec")
    counted = Counter(
        tuple(sorted((name, one["value"]) for name, one in section(device, "capacity").items()))
        for device in entries(spec, "devices")
        if not any(taint.get("effect") in _KEEPING_PODS_OFF for taint in entries(device, "taints"))
    )
    devices = [{"capacity": dict(capacity), "count": count} for capacity, count in sorted(counted.items())]
    named = (spec["driver"], spec["pool"]["name"], spec.get("nodeName", ""))
    if not all(isinstance(name, str) for name in named) or not isinstance(spec["pool"]["generation"], int):
        raise TypeError("it does not say of which driver and pool it is")
    kept = {name: spec[name] for name in ("driver", "nodeName", "pool") if name in spec}
    return {"metadata": _identity(known), "spec": {**kept, "devices": devices}}


def _identity(manifest: Manifest) -> Manifest:
    return {name: manifest["metadata"][name] for name in ("name", "uid", "resourceVersion")}


# What it comes to -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stock:
    """The devices that drivers have published."""

    of_nodes: Mapping[tuple[str, str], Sequence[Section]]
    """Capacities and how many devices have them, by node and driver."""
    of_none: frozenset[str]
    """Drivers with devices that belong to no single node: what they have cannot be counted by node."""


def present(pools: Iterable[GpuPool], seen: ObservedHardware) -> dict[str, PoolNodes]:
    """The nodes that are there, by pool."""
    by_pool: dict[str, list[Manifest]] = {}
    for node in seen.nodes:
        by_pool.setdefault(labels_of(node).get(labels.POOL, ""), []).append(node)
    stock = _stock(seen.slices)
    return {pool.name: _present(pool, by_pool.get(pool.name, ()), stock) for pool in pools}


def _present(pool: GpuPool, nodes: Sequence[Manifest], stock: _Stock) -> PoolNodes:
    judged = [(node, _lack(node, pool.devices, stock)) for node in nodes]
    lacking = [words for _, words in judged if words]
    fabrics = _fabrics(nodes, [node for node, words in judged if not words])
    return PoolNodes(len(nodes), len(nodes) - len(lacking), min(lacking, default=""), _least(nodes), fabrics)


def _fabrics(nodes: Sequence[Manifest], usable: Sequence[Manifest]) -> dict[str, Fabric]:
    """The largest fabric by each label; of no nodes where no usable one has the label."""
    known = set[str].intersection(*(set(section(node, "fabrics")) for node in nodes)) if nodes else set[str]()
    return {key: _largest(Counter(section(node, "fabrics")[key] for node in usable)) for key in sorted(known)}


def _largest(counts: Counter[str]) -> Fabric:
    value, nodes = min(((v, n) for v, n in counts.items() if v), key=lambda one: (-one[1], one[0]), default=("", 0))
    return Fabric(value=value, nodes=nodes)


def _least(nodes: Sequence[Manifest]) -> Amounts | None:
    """What every node has for pods, as far as they all say."""
    offers = [section(node, "status", "allocatable") for node in nodes]
    cpu, memory = (min((offer.get(name, 0) for offer in offers), default=0) for name in _UNITS)
    return Amounts(cpu=str(cpu), memory=f"{memory}Gi") if cpu and memory else None


def _lack(node: Manifest, devices: Iterable[PublishedDevice], stock: _Stock) -> str:
    """Why a node cannot run what its class says; empty when it can."""
    name = node["metadata"]["name"]
    if words := unfit(node):
        return f"node {name} {words}"
    return next((f"node {name} {words}" for device in devices if (words := _short(device, name, stock))), "")


def _short(device: PublishedDevice, node: str, stock: _Stock) -> str:
    """What a node has less of than a device's entry says; empty when it has enough."""
    if device.claim == "Synthetic" or device.driver in stock.of_none:
        return ""
    wanted, there = device.count or 0, stock.of_nodes.get((node, device.driver), ())
    total = sum(one["count"] for one in there)
    fitting = sum(one["count"] for one in there if _fits(device, one["capacity"]))
    if fitting >= wanted:
        return ""
    if total < wanted:
        return f"has {total} of {wanted} {device.name} ({device.driver})"
    sizes = ", ".join(f"{name} {one.value}" for name, one in sorted(device.capacity.items()))
    return f"has {fitting} of {wanted} {device.name} ({device.driver}) with {sizes}, the others have less"


def _fits(device: PublishedDevice, capacity: Mapping[str, str]) -> bool:
    """Whether an observed device has all the capacity that is declared. Its attributes are not compared."""
    there = {_in_domain(name, device.driver): amount for name, amount in capacity.items()}
    return all(
        (amount := there.get(_in_domain(name, device.driver))) is not None and _at_least(amount, declared.value)
        for name, declared in device.capacity.items()
    )


def _in_domain(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def _at_least(there: str, declared: str) -> bool:
    try:
        return not quantity.parse(there) < quantity.parse(declared)
    except quantity.QuantityError:
        return True  # the class's own condition says so


def _stock(slices: Iterable[Manifest]) -> _Stock:
    """What the newest generation of each driver's pools says; what is left of older ones no longer counts."""
    specs = [known["spec"] for known in slices]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        pool = (spec["driver"], spec["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), spec["pool"]["generation"])
    of_nodes: dict[tuple[str, str], list[Section]] = {}
    for spec in specs:
        if spec["pool"]["generation"] == newest[spec["driver"], spec["pool"]["name"]] and "nodeName" in spec:
            of_nodes.setdefault((spec["nodeName"], spec["driver"]), []).extend(spec["devices"])
    return _Stock(of_nodes, frozenset(spec["driver"] for spec in specs if "nodeName" not in spec))
