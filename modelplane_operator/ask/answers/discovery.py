"""What hardware a cluster has, as its DRA drivers publish it: pools of equal nodes, and a class for each."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kubeloop.objects import Manifest, Section, entries, labels_of, section
from modelplane_operator.api import labels

_OF_ONE = frozenset({"index", "minor", "parentUUID", "pciBusID", "pcieBusID", "pcieRoot", "uuid"})
"""Attributes that tell one device from another, where there is but one to compare."""
_OF_SOFTWARE = frozenset({"cudaDriverVersion", "driverVersion"})
"""Attributes that an upgrade changes: a class that named them would fit no more."""
_NAME = 30  # characters: pools and classes become parts of other names

_Kind = tuple[str, str, tuple[tuple[str, str], ...]]
"""Driver, product and capacity: what makes devices alike."""


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes with the same devices."""

    name: str
    class_name: str
    nodes: tuple[str, ...]
    unlabelled: tuple[str, ...]
    """Those that do not carry the pool's label yet."""
    description: str
    devices: tuple[Section, ...]
    """Of an InferenceClass."""

    def inference_class(self) -> Manifest:
        spec = {"description": self.description, "devices": [*self.devices]}
        return {
            "apiVersion": "modelplane.ai/v1alpha1",
            "kind": "InferenceClass",
            "metadata": {"name": self.class_name},
            "spec": spec,
        }

    def in_cluster(self) -> Section:
        return {"name": self.name, "className": self.class_name, "nodeCount": len(self.nodes)}


def discovered(nodes: Iterable[Manifest], slices: Iterable[Manifest], classes: Iterable[str]) -> tuple[Pool, ...]:
    """`classes`: the DeviceClasses of the cluster. Nodes that carry a pool's label stay in that pool."""
    held: dict[str, dict[_Kind, list[Section]]] = defaultdict(lambda: defaultdict(list))
    for spec in _newest(slices):
        for device in entries(spec, "devices"):
            held[str(spec.get("nodeName") or "")][_kind(str(spec.get("driver")), device)].append(device)
    known, alike = frozenset(classes), dict[Any, list[Manifest]]()
    for node in nodes:
        if found := held.get(node["metadata"]["name"]):
            counts = tuple(sorted((kind, len(devices)) for kind, devices in found.items()))
            alike.setdefault((labels_of(node).get(labels.POOL, ""), counts), []).append(node)
    pools, taken = list[Pool](), set[str]()
    for (label, counts), members in sorted(alike.items(), key=lambda one: one[0]):
        pools.append(_pool(label, counts, members, held, known=known, taken=taken))
    return tuple(pools)


def _newest(slices: Iterable[Manifest]) -> Iterable[Section]:
    """A driver that publishes anew raises the generation; slices of the one before may be there for a moment."""
    specs = [section(one, "spec") for one in slices]
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


def _kind(driver: str, device: Section) -> _Kind:
    product = section(device, "attributes", "productName").get("string") or ""
    return driver, str(product), tuple(sorted((name, str(one.get("value"))) for name, one in _capacity(device).items()))


def _capacity(device: Section) -> Mapping[str, Section]:
    return section(device, "capacity")


def _pool(
    label: str,
    counts: Sequence[tuple[_Kind, int]],
    members: Sequence[Manifest],
    held: Mapping[str, Mapping[_Kind, Sequence[Section]]],
    *,
    known: frozenset[str],
    taken: set[str],
) -> Pool:
    names = sorted(node["metadata"]["name"] for node in members)
    words = [f"{count} {product or driver}" for (driver, product, _), count in counts]
    class_name = _free(_slug("-".join(f"{word}" for word in words)), taken)
    pool = label or class_name
    drivers = [driver for (driver, _, _), _ in counts]
    return Pool(
        name=pool,
        class_name=class_name,
        nodes=tuple(names),
        unlabelled=() if label else tuple(names),
        description=f"{', '.join(words)} on each node"[:200],
        devices=tuple(
            _device(
                kind,
                count,
                [device for name in names for device in held[name][kind]],
                known,
                number=drivers[:place].count(kind[0]),
            )
            for place, (kind, count) in enumerate(counts)
        ),
    )


def _device(kind: _Kind, count: int, devices: Sequence[Section], known: frozenset[str], *, number: int) -> Section:
    driver, _, capacity = kind
    name = driver.partition(".")[0]
    claimed = driver in known
    return {
        "name": f"{name}-{number}" if number else name,
        **({"deviceClassName": driver} if claimed else {"claim": "Synthetic"}),
        "driver": driver,
        "count": count,
        "attributes": _common(devices),
        "capacity": {key: {"value": value} for key, value in capacity},
    }


def _common(devices: Sequence[Section]) -> Section:
    first, *others = (section(device, "attributes") for device in devices)
    return {
        name: dict(value)
        for name, value in first.items()
        if name.rpartition("/")[2] not in _OF_ONE | _OF_SOFTWARE and all(one.get(name) == value for one in others)
    }


def _slug(text: str) -> str:
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    return plain[:_NAME].strip("-") or "gpu"


def _free(name: str, taken: set[str]) -> str:
    found = next(one for number in range(1, 1000) if (one := f"{name}-{number}" if number > 1 else name) not in taken)
    taken.add(found)
    return found
