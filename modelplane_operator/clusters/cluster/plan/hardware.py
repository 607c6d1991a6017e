"""The nodes and devices observed on a cluster: how many nodes of each pool are usable, and what the others lack.

Informers keep the reduced copies of `prune_node` and `prune_slice`, since thousands of nodes with their status would
fill the memory. `in_service` calls `nodes_by_pool` to publish the counts. The cluster is not trusted: numbers and
texts are limited.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, entries, labels_of, section
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import Fabric, GpuPool, PublishedDevice
from modelplane_operator.api.shared import Amounts
from modelplane_operator.models.replica.plan.nodes import describe_not_ready, unfit
from modelplane_operator.scheduling.cluster import Usability
from modelplane_operator.selectors import quantity

MOVING: Final = timedelta(minutes=10)
"""How long a node may take to join or to shut down."""
_MESSAGE_LENGTH = 100  # characters kept of each message in a node's status
_BLOCKING_EFFECTS = frozenset({"NoSchedule", "NoExecute"})
"""Effects of taints that keep pods without a toleration off a node."""


@dataclass(frozen=True, slots=True)
class ObservedHardware:
    """The nodes of a cluster with a pool label and its ResourceSlices, as `prune_node` and `prune_slice` keep them."""

    nodes: tuple[Manifest, ...]
    """Nodes with a pool label."""
    slices: tuple[Manifest, ...]
    """ResourceSlices of all drivers."""


@dataclass(frozen=True, slots=True)
class PoolNodes:
    """The observed nodes of a pool."""

    nodes: int
    """The number of nodes with the pool's label."""
    usable: int
    """The number of nodes that are ready, schedulable and have the devices."""
    first_problem: str = ""
    """The problem of the first node that is not usable."""
    cordoned: int = 0
    """The number of nodes that are ready and cordoned."""
    not_ready: int = 0
    """The number of nodes that are not ready."""
    moving: int = 0
    """The number of those whose kubelet has said so for a short time, as of nodes that join or shut down."""
    allocatable: Amounts | None = None
    """The smallest allocatable CPU (whole cores) and memory (Gi) of any node; None while no node reports them."""
    fabrics: Mapping[str, Fabric] = field(default_factory=dict[str, Fabric])
    """The most common value among the usable nodes, by fabric label; only labels that were read from every node."""

    @property
    def usability(self) -> Usability:
        """The counts of the nodes."""
        return Usability(self.nodes, self.usable, self.cordoned, self.not_ready)

    @property
    def without_devices(self) -> int:
        """The number of nodes that take pods and lack devices."""
        return self.nodes - self.usable - self.cordoned - self.not_ready


# Reduced copies -------------------------------------------------------------------------------------------------


def prune_node(node: Manifest, fabrics: Iterable[str] = ()) -> Manifest:
    """Return the parts of a Node that are used; a full Node is large and changes every few minutes.

    `fabrics`: the label keys that identify fabrics. A key that the node lacks is kept as empty, to show that it was
    read.
    """
    ready_condition = condition(node, "Ready")
    ready = {"type": "Ready", "status": ready_condition.status or "Unknown"}
    if not ready_condition.is_true:  # these details are only used for nodes that are not ready
        details = {"reason": ready_condition.reason, "lastTransitionTime": ready_condition.last_transition_time}
        ready |= {name: text[:_MESSAGE_LENGTH] for name, text in details.items() if text}
    pool = {name: value for name, value in labels_of(node).items() if name == labels.POOL}
    allocatable = section(node, "status", "allocatable")
    available = {name: units for name in _UNITS if (units := _round_down(name, str(allocatable.get(name, ""))))}
    fabric_values = {name: str(labels_of(node).get(name, ""))[:_LABEL_LENGTH] for name in sorted(fabrics)}
    return {
        "metadata": {**_get_identity(node), "labels": pool},
        "spec": {"unschedulable": True} if section(node, "spec").get("unschedulable") else {},
        "status": {"conditions": [ready], **({"allocatable": available} if available else {})},
        **({"fabrics": fabric_values} if fabric_values else {}),
    }


_LABEL_LENGTH = 63  # Kubernetes' limit for the value of a label
_UNITS = {"cpu": 1, "memory": 2**30}
_MAX_UNITS = {"cpu": 10_000, "memory": 16_000}  # upper bounds in units, so that false reports cannot bloat the status


def _round_down(resource: str, amount: str) -> int:
    """Return an amount in whole units, within bounds: the exact memory of a node differs with every report."""
    try:
        units = quantity.parse(amount).as_float() // _UNITS[resource]
    except quantity.QuantityError:
        return 0
    return int(max(0, min(units, _MAX_UNITS[resource])))


def prune_slice(resource_slice: Manifest) -> Manifest:
    """Return the parts of a ResourceSlice that are used: the number of devices by capacity, without tainted devices.

    Raises KeyError, TypeError or ValueError if the slice is malformed; the caller skips it.
    """
    spec = section(resource_slice, "spec")
    counted = Counter(
        tuple(sorted((name, amount["value"]) for name, amount in section(device, "capacity").items()))
        for device in entries(spec, "devices")
        if not any(taint.get("effect") in _BLOCKING_EFFECTS for taint in entries(device, "taints"))
    )
    devices = [{"capacity": dict(capacity), "count": count} for capacity, count in sorted(counted.items())]
    identifiers = (spec["driver"], spec["pool"]["name"], spec.get("nodeName", ""))
    if not all(isinstance(name, str) for name in identifiers) or not isinstance(spec["pool"]["generation"], int):
        raise TypeError("it does not say of which driver and pool it is")
    retained = {name: spec[name] for name in ("driver", "nodeName", "pool") if name in spec}
    return {"metadata": _get_identity(resource_slice), "spec": {**retained, "devices": devices}}


def _get_identity(manifest: Manifest) -> Manifest:
    """Return the metadata that identify an object and its version."""
    return {name: manifest["metadata"][name] for name in ("name", "uid", "resourceVersion")}


# Evaluation -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Stock:
    """The devices that drivers have published."""

    of_nodes: Mapping[tuple[str, str], Sequence[Section]]
    """Capacities with the number of devices that have them, by node and driver."""
    of_none: frozenset[str]
    """Drivers with devices that belong to no single node and cannot be counted by node."""


def nodes_by_pool(pools: Iterable[GpuPool], observed: ObservedHardware, now: datetime) -> dict[str, PoolNodes]:
    """Return the observed nodes by pool; nodes with a label of no pool are ignored."""
    by_pool: dict[str, list[Manifest]] = {}
    for node in observed.nodes:
        by_pool.setdefault(labels_of(node).get(labels.POOL, ""), []).append(node)
    stock = _build_stock(observed.slices)
    return {pool.name: _evaluate_pool(pool, by_pool.get(pool.name, ()), stock, now) for pool in pools}


def _is_moving(node: Manifest, now: datetime) -> bool:
    """True if the kubelet of a node has said for a short time that it is not ready. A lost one says nothing."""
    ready = condition(node, "Ready")
    with suppress(ValueError, TypeError):  # a cluster may return anything
        return ready.status == "False" and now - datetime.fromisoformat(ready.last_transition_time) < MOVING
    return False


def _evaluate_pool(pool: GpuPool, nodes: Sequence[Manifest], stock: _Stock, now: datetime) -> PoolNodes:
    """Return the nodes of a pool: their number, how many are usable, and the problem of one that is not."""
    evaluated = [(node, _find_node_problem(node, pool.devices, stock)) for node in nodes]
    problems = [problem for _, problem in evaluated if problem]
    fabrics = _find_largest_fabrics(nodes, [node for node, problem in evaluated if not problem])
    not_ready = sum(bool(describe_not_ready(node)) for node in nodes)
    return PoolNodes(
        len(nodes),
        len(nodes) - len(problems),
        min(problems, default=""),
        cordoned=sum(bool(unfit(node)) for node in nodes) - not_ready,
        not_ready=not_ready,
        moving=sum(_is_moving(node, now) for node in nodes),
        allocatable=_compute_min_allocatable(nodes),
        fabrics=fabrics,
    )


def _find_largest_fabrics(nodes: Sequence[Manifest], usable: Sequence[Manifest]) -> dict[str, Fabric]:
    """Return the largest fabric by label; it is empty for a label that no usable node has."""
    common_keys = set[str].intersection(*(set(section(node, "fabrics")) for node in nodes)) if nodes else set[str]()
    fabrics: dict[str, Fabric] = {}
    for key in sorted(common_keys):
        counts = Counter(section(node, "fabrics")[key] for node in usable)
        nonempty = ((value, nodes_of_value) for value, nodes_of_value in counts.items() if value)
        # the first by name if several are equal
        largest, count = min(nonempty, key=lambda item: (-item[1], item[0]), default=("", 0))
        fabrics[key] = Fabric(value=largest, nodes=count)
    return fabrics


def _compute_min_allocatable(nodes: Sequence[Manifest]) -> Amounts | None:
    """Return the CPU and memory that every node can allocate; None unless all nodes report both."""
    reports = [section(node, "status", "allocatable") for node in nodes]
    cpu, memory = (min((report.get(name, 0) for report in reports), default=0) for name in _UNITS)
    return Amounts(cpu=str(cpu), memory=f"{memory}Gi") if cpu and memory else None


def _find_node_problem(node: Manifest, devices: Iterable[PublishedDevice], stock: _Stock) -> str:
    """Return why a node cannot run pods with the devices of its class; empty when it can."""
    name = node["metadata"]["name"]
    if problem := unfit(node):
        return f"node {name} {problem}"
    return next(
        (f"node {name} {problem}" for device in devices if (problem := _find_missing_devices(device, name, stock))), ""
    )


def _find_missing_devices(device: PublishedDevice, node: str, stock: _Stock) -> str:
    """Return what a node is missing of the devices in one entry of its class; empty when it has enough."""
    if device.claim == "Synthetic" or device.driver in stock.of_none:
        return ""
    desired, published = device.count or 0, stock.of_nodes.get((node, device.driver), ())
    total = sum(item["count"] for item in published)
    fitting = sum(item["count"] for item in published if _fits(device, item["capacity"]))
    if fitting >= desired:
        return ""
    if total < desired:
        return f"has {total} of {desired} {device.name} ({device.driver})"
    sizes = ", ".join(f"{name} {item.value}" for name, item in sorted(device.capacity.items()))
    return f"has {fitting} of {desired} {device.name} ({device.driver}) with {sizes}, the others have less"


def _fits(device: PublishedDevice, capacity: Mapping[str, str]) -> bool:
    """True if a published device has at least every declared capacity. Attributes are not compared."""
    published = {_qualify(name, device.driver): amount for name, amount in capacity.items()}
    for name, declared in device.capacity.items():
        if (amount := published.get(_qualify(name, device.driver))) is None:
            return False
        with suppress(quantity.QuantityError):  # malformed amounts are reported in the InferenceClass's own condition
            if quantity.parse(amount) < quantity.parse(declared.value):
                return False
    return True


def _qualify(name: str, driver: str) -> str:
    """Return a device attribute's full name: names without a domain are in the driver's."""
    return name if "/" in name else f"{driver}/{name}"


def _build_stock(slices: Iterable[Manifest]) -> _Stock:
    """Return the devices in the newest generation of each driver's pools; older generations do not count."""
    specs = [item["spec"] for item in slices]
    newest: dict[tuple[str, str], int] = {}
    for spec in specs:
        pool = (spec["driver"], spec["pool"]["name"])
        newest[pool] = max(newest.get(pool, 0), spec["pool"]["generation"])
    of_nodes: dict[tuple[str, str], list[Section]] = {}
    for spec in specs:
        if spec["pool"]["generation"] == newest[spec["driver"], spec["pool"]["name"]] and "nodeName" in spec:
            of_nodes.setdefault((spec["nodeName"], spec["driver"]), []).extend(spec["devices"])
    return _Stock(of_nodes, frozenset(spec["driver"] for spec in specs if "nodeName" not in spec))
