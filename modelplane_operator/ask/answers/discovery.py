"""Derive pools of equal nodes and their InferenceClasses from the devices that a cluster's DRA drivers publish."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubeloop.objects import Manifest, Section, entries, labels_of, section
from modelplane_operator.api import labels

_DEVICE_IDENTITY = frozenset({"index", "minor", "parentUUID", "pciBusID", "pcieBusID", "pcieRoot", "uuid"})
"""Attributes that identify a single device."""
_SOFTWARE_VERSIONS = frozenset({"cudaDriverVersion", "driverVersion"})
"""Attributes that change with an upgrade, after which a class with them would not match."""
_NAME_LENGTH = 30  # the names become parts of other names
"""Longest name of a pool or class."""

_Kind = tuple[str, str, tuple[tuple[str, str], ...]]
"""Driver, product and capacity, by which devices count as equal."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes with the same devices."""

    name: str
    class_name: str
    """Name of the InferenceClass."""
    nodes: tuple[str, ...]
    """Names of the nodes."""
    unlabelled: tuple[str, ...]
    """Nodes without the pool's label."""
    description: str
    """Devices of a node, for people."""
    devices: tuple[Section, ...]
    """Devices in the form of an InferenceClass."""

    def inference_class(self) -> Manifest:
        """Render the InferenceClass of the pool."""
        spec = {"description": self.description, "devices": [*self.devices]}
        return {
            "apiVersion": "modelplane.ai/v1alpha1",
            "kind": "InferenceClass",
            "metadata": {"name": self.class_name},
            "spec": spec,
        }

    def in_cluster(self) -> Section:
        """Return the pool in the form of an InferenceCluster's spec."""
        return {"name": self.name, "className": self.class_name, "nodeCount": len(self.nodes)}


def discover_pools(nodes: Iterable[Manifest], slices: Iterable[Manifest], classes: Iterable[str]) -> tuple[Pool, ...]:
    """Return the pools of a cluster.

    `classes` are its DeviceClasses. Nodes with a pool's label stay in that pool.
    """
    devices_by_node: dict[str, dict[_Kind, list[Section]]] = defaultdict(lambda: defaultdict(list))
    for spec in _newest_slices(slices):
        for device in entries(spec, "devices"):
            product = section(device, "attributes", "productName").get("string") or ""
            capacity = sorted((name, str(item.get("value"))) for name, item in section(device, "capacity").items())
            kind = (str(spec.get("driver")), str(product), tuple(capacity))
            devices_by_node[str(spec.get("nodeName") or "")][kind].append(device)
    device_classes, nodes_by_devices = frozenset(classes), dict[Any, list[Manifest]]()
    for node in nodes:
        if by_kind := devices_by_node.get(node["metadata"]["name"]):
            counts = tuple(sorted((kind, len(devices)) for kind, devices in by_kind.items()))
            nodes_by_devices.setdefault((labels_of(node).get(labels.POOL, ""), counts), []).append(node)
    pools, used_names = list[Pool](), set[str]()
    for (label, counts), members in sorted(nodes_by_devices.items(), key=lambda item: item[0]):
        pools.append(
            _create_pool(label, counts, members, devices_by_node, device_classes=device_classes, taken=used_names)
        )
    return tuple(pools)


def _newest_slices(slices: Iterable[Manifest]) -> Iterable[Section]:
    """Return the specs of the newest generation. Slices of the previous one may exist for a moment."""
    specs = [section(manifest, "spec") for manifest in slices]
    newest: dict[tuple[Any, Any], int] = {}
    for spec in specs:
        pool = section(spec, "pool")
        key = (spec.get("driver"), pool.get("name"))
        newest[key] = max(newest.get(key, 0), int(pool.get("generation") or 0))
    return (
        spec
        for spec in specs
        if int((pool := section(spec, "pool")).get("generation") or 0) == newest[spec.get("driver"), pool.get("name")]
    )


def _create_pool(
    label: str,
    counts: Sequence[tuple[_Kind, int]],
    members: Sequence[Manifest],
    published_devices: Mapping[str, Mapping[_Kind, Sequence[Section]]],
    *,
    device_classes: frozenset[str],
    taken: set[str],
) -> Pool:
    """Return the pool of nodes with equal devices."""
    names = sorted(node["metadata"]["name"] for node in members)
    phrases = [f"{count} {product or driver}" for (driver, product, _), count in counts]
    slug = re.sub(r"[^a-z0-9]+", "-", "-".join(phrases).lower()).strip("-")
    class_name = _claim_name(slug[:_NAME_LENGTH].strip("-") or "gpu", taken)
    pool = label or class_name
    drivers = [driver for (driver, _, _), _ in counts]
    return Pool(
        name=pool,
        class_name=class_name,
        nodes=tuple(names),
        unlabelled=() if label else tuple(names),
        description=f"{', '.join(phrases)} on each node"[:200],
        devices=tuple(
            _render_device(
                kind,
                count,
                [device for name in names for device in published_devices[name][kind]],
                device_classes,
                number=drivers[:index].count(kind[0]),
            )
            for index, (kind, count) in enumerate(counts)
        ),
    )


def _render_device(
    kind: _Kind, count: int, devices: Sequence[Section], device_classes: frozenset[str], *, number: int
) -> Section:
    """Render a device of an InferenceClass, with the attributes that all devices of the pool share.

    Those of single devices and of software are left out.
    """
    driver, _, capacity = kind
    name = driver.partition(".")[0]
    is_claimed = driver in device_classes
    first, *others = (section(device, "attributes") for device in devices)
    return {
        "name": f"{name}-{number}" if number else name,
        **({"deviceClassName": driver} if is_claimed else {"claim": "Synthetic"}),
        "driver": driver,
        "count": count,
        "attributes": {
            attribute: dict(value)
            for attribute, value in first.items()
            if attribute.rpartition("/")[2] not in _DEVICE_IDENTITY | _SOFTWARE_VERSIONS
            and all(attributes.get(attribute) == value for attributes in others)
        },
        "capacity": {key: {"value": value} for key, value in capacity},
    }


def _claim_name(name: str, taken: set[str]) -> str:
    """Return a name that is not used yet, with a number if necessary, and mark it as used."""
    unused = next(
        candidate for number in range(1, 1000) if (candidate := f"{name}-{number}" if number > 1 else name) not in taken
    )
    taken.add(unused)
    return unused
