"""List the fleet's hardware: devices that models may request, the nodes that have them, and a selector for each."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence

from kubeloop.words import count_of, sentence
from modelplane_operator.api.inference_cluster import PublishedDevice
from modelplane_operator.ask.answers.documents import Hardware
from modelplane_operator.ask.answers.snapshot import Snapshot

LISTED = 10
"""Number of devices in a sentence."""
TELLING = ("productName", "architecture", "type")
"""Attributes by which people distinguish devices."""


def hardware(snapshot: Snapshot) -> tuple[Hardware, ...]:
    """Return the devices by class and content. Devices that differ within a class are listed separately."""
    by_device: dict[tuple[str, PublishedDevice | str], Hardware] = {}
    fleet = snapshot.fleet()
    for cluster in snapshot.clusters:
        name, classes = cluster.metadata.name, {pool.name: pool.class_name for pool in cluster.spec.node_pools}
        info = fleet.info(name)
        for pool in cluster.status.gpu_pools if cluster.status else ():
            free = max(info.free_in(pool.name), 0) if info else 0
            for device in pool.devices:
                key = (classes.get(pool.name, ""), str(sorted(device.to_manifest().items(), key=str)))
                earlier = by_device.get(key)
                by_device[key] = Hardware(
                    inference_class=classes.get(pool.name, ""),
                    device=device.name,
                    driver=device.driver,
                    per_node=device.count or 0,
                    claimed=device.claim != "Synthetic",
                    attributes=dict(_attribute_texts(device)),
                    capacity={name: amount.value for name, amount in device.capacity.items()},
                    nodes=(earlier.nodes if earlier else 0) + (pool.nodes or 0),
                    free=(earlier.free if earlier else 0) + free,
                    clusters=tuple(sorted({*(earlier.clusters if earlier else ()), name})),
                    selector=selector(device),
                )
    return tuple(sorted(by_device.values(), key=lambda device_row: (device_row.inference_class, device_row.device)))


def describe_hardware(devices: Sequence[Hardware]) -> str:
    """Return the devices as a sentence, for people who ask with kubectl alone."""
    if not devices:
        return "No cluster publishes devices: see the conditions of the InferenceClusters, or ask the platform team"
    texts = list[str]()
    for device in devices[:LISTED]:
        properties = ", ".join(f"{name} {value}" for name, value in {**device.capacity, **device.attributes}.items())
        texts.append(
            f"{device.per_node} x {device.device} of InferenceClass {device.inference_class} on each of "
            f"{count_of(device.nodes, 'node')}, {device.free} free ({properties}), selected by {device.selector}"
        )
    more = [f"and {len(devices) - LISTED} more: modelplane hardware"] if len(devices) > LISTED else []
    return sentence(f"{count_of(len(devices), 'kind')} of devices may be requested", *texts, *more)


def selector(device: PublishedDevice) -> str:
    """Return a selector that this device matches, and few others do."""
    terms = [f'device.driver == "{device.driver}"']
    for name, amount in sorted(device.capacity.items())[:1]:
        terms.append(f'{_cel_field(device, "capacity", name)}.compareTo(quantity("{amount.value}")) >= 0')
    for name, text in _attribute_texts(device):
        if name.rpartition("/")[2] in TELLING and device.attributes[name].string is not None:
            terms.append(f'{_cel_field(device, "attributes", name)} == "{text}"')
            break
    return " && ".join(terms)


def _attribute_texts(device: PublishedDevice) -> Iterator[tuple[str, str]]:
    """Yield the names and texts of a device's attributes."""
    for name, value in sorted(device.attributes.items()):
        values = (value.string, value.version, value.integer, value.boolean)
        text = next((item for item in values if item is not None), "")
        yield name, str(text).lower() if isinstance(text, bool) else str(text)


def _cel_field(device: PublishedDevice, section: str, name: str) -> str:
    """Return the CEL expression of a device's field."""
    domain, slash, identifier = name.partition("/")
    domain, identifier = (domain, identifier) if slash else (device.driver, name)
    field = f".{identifier}" if re.fullmatch(r"[A-Za-z_]\w*", identifier) else f'["{identifier}"]'
    return f'device.{section}["{domain}"]{field}'
