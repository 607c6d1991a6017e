"""The calls that change something, for each kind: what is asked for, from the parameters that a resource has.

The role of the operator on Google Cloud is made from this table, and from that in `lists`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kubeloop.errors import Invalid
from modelplane_operator.api import labels
from modelplane_operator.clouds.gke.render import kinds as k
from modelplane_operator.clouds.gke.render import numbers
from modelplane_operator.clouds.resources import Found, Owner, Wanted

CLUSTER: Final = "modelplane-cluster"
MANAGED_BY: Final = "modelplane-managed-by"
RESOURCE: Final = "modelplane-resource"
UID: Final = "modelplane-uid"
SCOPES: Final = tuple(
    f"https://www.googleapis.com/auth/{one}"
    for one in (
        "devstorage.read_only",
        "logging.write",
        "monitoring",
        "service.management.readonly",
        "servicecontrol",
        "trace.append",
    )
)
"""For what tokens of nodes are good: what GKE gives nodes itself, to pull images and to write logs and metrics. What
more the service account of the nodes may do, no token of a node does; so for an account of their own, too, though
Google advises `cloud-platform` there: pods ask by Workload Identity, and nodes need no more."""
IMAGE: Final = "COS_CONTAINERD"
OF_MASTER: Final = "-"
"""The version that the control plane has: a newer patch of the same minor one would be refused."""
PEERINGS: Final = "/peerings/"
"""Between a network and a peering of it, which is a part of that and has no path of its own."""
_VERSION: Final = "version"  # held to what it is, and no parameter of a creation


@dataclass(frozen=True, slots=True)
class Gke:
    """A call to GKE, by the name that the SDK's client has for it."""

    operation: str
    request: Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Http:
    """A call to another service."""

    method: str
    service: str
    path: str
    """Within the project."""
    body: Mapping[str, Any] | None = None


Request = Gke | Http


def tags(owner: Owner, key: str) -> dict[str, str]:
    """Labels of Google Cloud: no slashes, no capitals, 63 characters."""
    said = {MANAGED_BY: "modelplane", CLUSTER: owner.cluster, UID: owner.uid, RESOURCE: key}
    return {name: re.sub("[^-_a-z0-9]", "-", value.lower())[:63] for name, value in said.items()}


def described(owner: Owner, key: str) -> str:
    """For what has no labels: they are in its description."""
    return " ".join(f"{name}={value}" for name, value in tags(owner, key).items())


def described_as(description: str) -> Mapping[str, str]:
    """What `described` says."""
    return dict(part.split("=", 1) for part in description.split() if "=" in part)


@dataclass(frozen=True, slots=True)
class Where:
    """In which project and region; paths follow from it."""

    project: str
    region: str

    @property
    def parent(self) -> str:
        return f"projects/{self.project}/locations/{self.region}"

    def cluster(self, name: str) -> str:
        return f"{self.parent}/clusters/{name}"

    def pool(self, found: str) -> str:
        """`found`: its id, which begins with that of its cluster."""
        cluster, _, name = found.partition("/")
        return f"{self.cluster(cluster)}/nodePools/{name}"

    def collection(self, kind: str) -> str:
        """Where a kind of Compute Engine is, of which we make one."""
        return {k.NETWORK: "global/networks", k.SUBNETWORK: f"regions/{self.region}/subnetworks"}[kind]


def creation(where: Where, owner: Owner, wanted: Wanted, cluster: str) -> Request:
    """`cluster`: what GKE calls it, for what is within."""
    said = {name: value for name, value in wanted.parameters.items() if name != _VERSION}
    match wanted.kind:
        case k.SERVICE:
            return Http("POST", "serviceusage", f"services/{said['name']}:enable", {})
        case k.NETWORK | k.SUBNETWORK:
            body = {**said, "description": described(owner, wanted.key)}
            return Http("POST", "compute", where.collection(wanted.kind), body)
        case k.CLUSTER:
            pools = [_pool(owner, one) for one in said["node_pools"]]
            made = {**said, "node_pools": pools, "resource_labels": tags(owner, wanted.key)}
            return Gke("create_cluster", {"parent": where.parent, "cluster": made})
        case k.NODE_POOL:
            return Gke("create_node_pool", {"parent": where.cluster(cluster), "node_pool": _pool(owner, said)})
        case _:
            raise Invalid(f"nobody makes a {wanted.kind}")


def _pool(owner: Owner, said: Mapping[str, Any]) -> dict[str, Any]:
    accelerators = [
        {
            "accelerator_type": one["type"],
            "accelerator_count": one["count"],
            "gpu_driver_installation_config": {"gpu_driver_version": "DEFAULT"},
        }
        for one in said["accelerators"]
    ]
    return {
        "name": said["name"],
        "initial_node_count": said["initial_node_count"],
        "config": {
            "machine_type": said["machine_type"],
            "disk_size_gb": said["disk_size_gb"],
            "image_type": IMAGE,
            **({"service_account": said["service_account"]} if "service_account" in said else {}),
            "oauth_scopes": [*SCOPES],
            # Pods that may reach the metadata service get no token of the node there. The cluster has a workload pool.
            "workload_metadata_config": {"mode": "GKE_METADATA"},
            "labels": said["labels"],
            "accelerators": accelerators,
            "resource_labels": tags(owner, f"nodepool-{said['labels'][labels.POOL]}"),
        },
        "autoscaling": {"enabled": True, **said["autoscaling"]},
        **({"locations": said["locations"]} if said["locations"] else {}),
    }


def update(where: Where, wanted: Wanted, found: Found, changed: Collection[str]) -> Request:
    """One call; what else differs is for the next."""
    said = wanted.parameters
    if wanted.kind == k.CLUSTER and _VERSION in changed:
        version = _next(found.live[_VERSION], said[_VERSION])
        return Gke("update_master", {"name": where.cluster(found.id), "master_version": version})
    if wanted.kind == k.NODE_POOL and "autoscaling" in changed:
        asked = {"name": where.pool(found.id), "autoscaling": {"enabled": True, **said["autoscaling"]}}
        return Gke("set_node_pool_autoscaling", asked)
    if wanted.kind == k.NODE_POOL and "locations" in changed:
        return Gke("update_node_pool", {"name": where.pool(found.id), "locations": said["locations"]})
    if wanted.kind == k.NODE_POOL and _VERSION in changed:
        asked = {"name": where.pool(found.id), "node_version": OF_MASTER, "image_type": IMAGE}
        return Gke("update_node_pool", asked)
    raise Invalid(f"{', '.join(sorted(changed))} of a {wanted.kind} cannot be changed")


def _next(runs: str, asked: str) -> str:
    """A control plane goes from one minor version to the next."""
    major, minor = numbers(runs)
    return min(f"{major}.{minor + 1}", asked, key=numbers)


def deletion(where: Where, found: Found) -> Request:
    match found.kind:
        case k.CLUSTER:
            return Gke("delete_cluster", {"name": where.cluster(found.id)})
        case k.NODE_POOL:
            return Gke("delete_node_pool", {"name": where.pool(found.id)})
        case k.NETWORK | k.SUBNETWORK:
            return Http("DELETE", "compute", f"{where.collection(found.kind)}/{found.id}")
        case k.FILES:
            return Http("DELETE", "file", found.id)
        case k.PEERING:
            network, _, name = found.id.partition(PEERINGS)
            return Http("POST", "compute", f"{network}/removePeering", {"name": name})
        case _ if found.kind in k.SWEPT:
            return Http("DELETE", "compute", found.id)
        case _:
            raise Invalid(f"a {found.kind} is never deleted")
