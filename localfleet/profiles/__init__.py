"""What hardware a fleet pretends to have: profiles, and the objects that publish them in a cluster."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Any, cast

import yaml

from localfleet.errors import FleetError
from localfleet.kubeclient import Manifest

DEFAULT = Path(__file__).parent / "default.yaml"
POOL_LABEL = "modelplane.ai/pool"
DEVICES_PER_SLICE = 128  # the API's bound


class ProfileError(FleetError):
    """A profile says something that cannot be."""


class Gateway(Enum):
    """The gateways that a cluster may have, as an InferenceGateway names them."""

    TRAEFIK = "Traefik"
    ENVOY_GATEWAY = "EnvoyGateway"

    @property
    def folder(self) -> str:
        """Of its manifests."""
        return "traefik" if self is Gateway.TRAEFIK else "envoy-gateway"


@dataclass(frozen=True, slots=True)
class Devices:
    """The devices of one driver on each node of a pool."""

    driver: str
    count: int
    attributes: Mapping[str, Any]
    capacity: Mapping[str, str]
    device_class: str


@dataclass(frozen=True, slots=True)
class Pool:
    """Nodes that are all alike."""

    name: str
    nodes: int
    labels: Mapping[str, str]
    taints: Sequence[Mapping[str, str]]
    capacity: Mapping[str, str]
    devices: Sequence[Devices]


@dataclass(frozen=True, slots=True)
class Profile:
    """The pools of the hub and of each worker cluster, and the hub's gateway."""

    hub: tuple[Pool, ...]
    workers: tuple[tuple[Pool, ...], ...]
    hub_gateway: Gateway = Gateway.TRAEFIK

    def gateway(self, index: int) -> Gateway:
        """Return the gateway of cluster number `index`."""
        return self.hub_gateway if index == 0 else Gateway.ENVOY_GATEWAY

    def pools(self, index: int) -> tuple[Pool, ...]:
        """The pools of cluster number `index`: 0 is the hub; the last worker's entry serves all further ones."""
        return self.hub if index == 0 else self.workers[min(index, len(self.workers)) - 1]


def load(path: Path = DEFAULT) -> Profile:
    """Read a profile file, refusing what it does not know."""
    try:
        said = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ProfileError(f"profile {path} cannot be read: {error}") from error
    document = checked(said, {"pools", "hub", "workers", "hubGateway"}, f"profile {path}")
    pools = {str(name): pool(str(name), body, path) for name, body in document.get("pools", {}).items()}

    def chosen(names: Sequence[str]) -> tuple[Pool, ...]:
        if unknown := [name for name in names if name not in pools]:
            raise ProfileError(f"profile {path}: no pool {', '.join(unknown)}; there are {', '.join(pools)}")
        return tuple(pools[name] for name in names)

    workers = tuple(chosen(names) for names in document.get("workers", []))
    if not workers:
        raise ProfileError(f"profile {path}: `workers` needs at least one list of pools")
    gateway = document.get("hubGateway", Gateway.TRAEFIK.value)
    if gateway not in (possible := [each.value for each in Gateway]):
        raise ProfileError(f"profile {path}: `hubGateway` is {' or '.join(possible)}, not {gateway}")
    return Profile(chosen(document.get("hub", [])), workers, Gateway(gateway))


def pool(name: str, body: Any, path: Path) -> Pool:
    where = f"profile {path}, pool {name}"
    said = checked(body, {"nodes", "labels", "taints", "capacity", "devices"}, where)
    return Pool(
        name=name,
        nodes=int(said.get("nodes", 1)),
        labels=said.get("labels", {}),
        taints=tuple(said.get("taints", [])),
        capacity={"cpu": "64", "memory": "256Gi", "pods": "250", **said.get("capacity", {})},
        devices=tuple(devices(entry, where) for entry in said.get("devices", [])),
    )


def devices(body: Any, where: str) -> Devices:
    said = checked(body, {"driver", "count", "attributes", "capacity", "deviceClass"}, f"{where}, devices")
    if "driver" not in said:
        raise ProfileError(f"{where}: devices need a `driver`")
    return Devices(
        driver=said["driver"],
        count=int(said.get("count", 1)),
        attributes=said.get("attributes", {}),
        capacity=said.get("capacity", {}),
        device_class=said.get("deviceClass", said["driver"]),
    )


def checked(body: Any, known: set[str], where: str) -> dict[str, Any]:
    if not isinstance(body, dict):
        raise ProfileError(f"{where}: a mapping is expected")
    said = cast("dict[str, Any]", body)
    if unknown := said.keys() - known:
        raise ProfileError(f"{where}: does not know {', '.join(sorted(unknown))}; it knows {', '.join(sorted(known))}")
    return said


def manifests(cluster: str, pools: Sequence[Pool]) -> Iterator[Manifest]:
    """The nodes of these pools, the slices that publish their devices, and the classes to claim them by."""
    classes = {entry.device_class: entry.driver for each in pools for entry in each.devices}
    for name, driver in classes.items():
        yield {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "DeviceClass",
            "metadata": {"name": name},
            "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{driver}'"}}]},
        }
    for each in pools:
        for number in range(each.nodes):
            yield from node(f"{cluster}-{each.name}-{number}", each)


def node(name: str, each: Pool) -> Iterator[Manifest]:
    yield {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": name,
            "annotations": {"kwok.x-k8s.io/node": "fake"},
            "labels": {
                "kubernetes.io/hostname": name,
                "kubernetes.io/os": "linux",
                "kubernetes.io/arch": "amd64",
                POOL_LABEL: each.name,
                **each.labels,
            },
        },
        "spec": {"taints": list(each.taints)},
        "status": {"capacity": dict(each.capacity), "allocatable": dict(each.capacity)},
    }
    for entry in each.devices:
        for first in range(0, entry.count, DEVICES_PER_SLICE):
            yield {
                "apiVersion": "resource.k8s.io/v1",
                "kind": "ResourceSlice",
                "metadata": {"name": f"{name}-{entry.driver}-{first // DEVICES_PER_SLICE}"},
                "spec": {
                    "driver": entry.driver,
                    "nodeName": name,
                    "pool": {
                        "name": name,
                        "generation": 1,
                        "resourceSliceCount": -(-entry.count // DEVICES_PER_SLICE),
                    },
                    "devices": [
                        {
                            "name": f"device-{index}",
                            "attributes": dict(entry.attributes),
                            "capacity": {key: {"value": value} for key, value in entry.capacity.items()},
                        }
                        for index in range(first, min(first + DEVICES_PER_SLICE, entry.count))
                    ],
                },
            }
