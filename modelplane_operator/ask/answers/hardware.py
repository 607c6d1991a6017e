"""What hardware the fleet has: devices that models may ask for, the nodes that have them, and how to ask."""

from __future__ import annotations

import re
from collections.abc import Iterator

from modelplane_operator.api.inference_cluster import PublishedDevice
from modelplane_operator.ask.answers.documents import Hardware
from modelplane_operator.ask.answers.snapshot import Snapshot

TELLING = ("productName", "architecture", "type")
"""Attributes by which people tell devices apart."""


def hardware(snapshot: Snapshot) -> tuple[Hardware, ...]:
    """By class and device; what differs although its class is the same stands apart."""
    found: dict[tuple[str, PublishedDevice | str], Hardware] = {}
    fleet = snapshot.fleet()
    for cluster in snapshot.clusters:
        name, classes = cluster.metadata.name, {pool.name: pool.class_name for pool in cluster.spec.node_pools}
        info = fleet.info(name)
        for pool in cluster.status.gpu_pools if cluster.status else ():
            free = max(info.free_in(pool.name), 0) if info else 0
            for device in pool.devices:
                key = (classes.get(pool.name, ""), str(sorted(device.to_manifest().items(), key=str)))
                known = found.get(key)
                found[key] = Hardware(
                    inference_class=classes.get(pool.name, ""),
                    device=device.name,
                    driver=device.driver,
                    per_node=device.count or 0,
                    claimed=device.claim != "Synthetic",
                    attributes=dict(_attributes(device)),
                    capacity={name: amount.value for name, amount in device.capacity.items()},
                    nodes=(known.nodes if known else 0) + (pool.nodes or 0),
                    free=(known.free if known else 0) + free,
                    clusters=tuple(sorted({*(known.clusters if known else ()), name})),
                    selector=selector(device),
                )
    return tuple(sorted(found.values(), key=lambda one: (one.inference_class, one.device)))


def selector(device: PublishedDevice) -> str:
    """One that this device meets, and few others."""
    parts = [f'device.driver == "{device.driver}"']
    for name, amount in sorted(device.capacity.items())[:1]:
        parts.append(f'{_field(device, "capacity", name)}.compareTo(quantity("{amount.value}")) >= 0')
    for name, text in _attributes(device):
        if name.rpartition("/")[2] in TELLING and device.attributes[name].string is not None:
            parts.append(f'{_field(device, "attributes", name)} == "{text}"')
            break
    return " && ".join(parts)


def _attributes(device: PublishedDevice) -> Iterator[tuple[str, str]]:
    for name, value in sorted(device.attributes.items()):
        said = (value.string, value.version, value.integer, value.boolean)
        text = next((one for one in said if one is not None), "")
        yield name, str(text).lower() if isinstance(text, bool) else str(text)


def _field(device: PublishedDevice, what: str, name: str) -> str:
    domain, slash, identifier = name.partition("/")
    domain, identifier = (domain, identifier) if slash else (device.driver, name)
    field = f".{identifier}" if re.fullmatch(r"[A-Za-z_]\w*", identifier) else f'["{identifier}"]'
    return f'device.{what}["{domain}"]{field}'
