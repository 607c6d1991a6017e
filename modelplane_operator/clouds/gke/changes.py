"""Build the calls that create, update and delete resources on Google Cloud.

The operator's role is generated from these calls and from the ones in `lists`. `Gcp` sends the requests; nothing here
does I/O. GKE is called by its SDK, since its requests are nested messages; the other services are called by HTTP.
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
from modelplane_operator.clouds.resources import DesiredResource, ExistingResource, Owner

CLUSTER: Final = "modelplane-cluster"
"""Label with the name of the cluster, for people."""
MANAGED_BY: Final = "modelplane-managed-by"
RESOURCE: Final = "modelplane-resource"
UID: Final = "modelplane-uid"
"""Label with the uid of the owner, by which resources are recognized."""
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
"""Scopes of the nodes' tokens: GKE's defaults, to pull images and to write logs and metrics.

A node's token can do no more, even if its service account can. Google advises `cloud-platform` for custom accounts, but
pods authenticate by Workload Identity, and nodes need no more.
"""
IMAGE: Final = "COS_CONTAINERD"
"""Image of nodes: Container-Optimized OS, on which GKE installs the drivers."""
OF_MASTER: Final = "-"
"""Version alias of the control plane's version. A newer patch of the same minor version would be rejected."""
PEERINGS: Final = "/peerings/"
"""Separator between a network and a peering, which has no path of its own."""
_VERSION: Final = "version"  # kept up to date by updates; not a parameter of creation


@dataclass(frozen=True, slots=True)
class Gke:
    """A call to GKE, by its name in the SDK's client."""

    operation: str
    """Name of the method in the SDK's client."""
    request: Mapping[str, Any]
    """Fields of the request, as the SDK takes them."""


@dataclass(frozen=True, slots=True)
class Http:
    """A call to another service."""

    method: str
    """HTTP method."""
    service: str
    """Name of the service in `session.HOSTS`."""
    path: str
    """Path within the project."""
    body: Mapping[str, Any] | None = None
    """JSON body; None for requests without one."""


Request = Gke | Http


def tags(owner: Owner, key: str) -> dict[str, str]:
    """Return the labels of a resource in Google Cloud's format: no slashes, no capitals, at most 63 characters."""
    values = {MANAGED_BY: "modelplane", CLUSTER: owner.cluster, UID: owner.uid, RESOURCE: key}
    return {name: re.sub("[^-_a-z0-9]", "-", value.lower())[:63] for name, value in values.items()}


def format_description(owner: Owner, key: str) -> str:
    """Return the tags as a description, for resources without labels."""
    return " ".join(f"{name}={value}" for name, value in tags(owner, key).items())


def parse_description(description: str) -> Mapping[str, str]:
    """Parse the tags from a description."""
    return dict(part.split("=", 1) for part in description.split() if "=" in part)


@dataclass(frozen=True, slots=True)
class Where:
    """A project and a region, from which paths are derived."""

    project: str
    region: str
    """Region of the cluster and its subnet."""

    @property
    def parent(self) -> str:
        """Path of the region for GKE."""
        return f"projects/{self.project}/locations/{self.region}"

    def cluster(self, name: str) -> str:
        return f"{self.parent}/clusters/{name}"

    def pool(self, pool_id: str) -> str:
        """Return the path of a node pool. Its id (`pool_id`) begins with its cluster's name."""
        cluster, _, name = pool_id.partition("/")
        return f"{self.cluster(cluster)}/nodePools/{name}"

    def collection(self, kind: str) -> str:
        """Return the path of a collection of Compute Engine, for the kinds that a cluster has one of."""
        return {k.NETWORK: "global/networks", k.SUBNETWORK: f"regions/{self.region}/subnetworks"}[kind]


def creation(where: Where, owner: Owner, desired: DesiredResource, cluster: str) -> Request:
    """Return the call that creates a resource. `cluster` is the cluster's name on GKE, for resources within it."""
    parameters = {name: value for name, value in desired.parameters.items() if name != _VERSION}
    match desired.kind:
        case k.SERVICE:
            return Http("POST", "serviceusage", f"services/{parameters['name']}:enable", {})
        case k.NETWORK | k.SUBNETWORK:
            body = {**parameters, "description": format_description(owner, desired.key)}
            return Http("POST", "compute", where.collection(desired.kind), body)
        case k.CLUSTER:
            pools = [_pool(owner, pool) for pool in parameters["node_pools"]]
            cluster_body = {**parameters, "node_pools": pools, "resource_labels": tags(owner, desired.key)}
            return Gke("create_cluster", {"parent": where.parent, "cluster": cluster_body})
        case k.NODE_POOL:
            return Gke("create_node_pool", {"parent": where.cluster(cluster), "node_pool": _pool(owner, parameters)})
        case _:
            raise Invalid(f"nobody makes a {desired.kind}")


def _pool(owner: Owner, parameters: Mapping[str, Any]) -> dict[str, Any]:
    """Return a node pool in the format of the API."""
    accelerators = [
        {
            "accelerator_type": accelerator["type"],
            "accelerator_count": accelerator["count"],
            "gpu_driver_installation_config": {"gpu_driver_version": "DEFAULT"},
        }
        for accelerator in parameters["accelerators"]
    ]
    return {
        "name": parameters["name"],
        "initial_node_count": parameters["initial_node_count"],
        "config": {
            "machine_type": parameters["machine_type"],
            "disk_size_gb": parameters["disk_size_gb"],
            "image_type": IMAGE,
            **({"service_account": parameters["service_account"]} if "service_account" in parameters else {}),
            "oauth_scopes": [*SCOPES],
            # Pods that reach the metadata service get no token of the node. The cluster has a workload identity pool.
            "workload_metadata_config": {"mode": "GKE_METADATA"},
            "labels": parameters["labels"],
            "accelerators": accelerators,
            "resource_labels": tags(owner, f"nodepool-{parameters['labels'][labels.POOL]}"),
        },
        "autoscaling": {"enabled": True, **parameters["autoscaling"]},
        **({"locations": parameters["locations"]} if parameters["locations"] else {}),
    }


def update(where: Where, desired: DesiredResource, existing: ExistingResource, changed: Collection[str]) -> Request:
    """Return a call for one of the changed parameters. The others follow in later calls."""
    parameters = desired.parameters
    if desired.kind == k.CLUSTER and _VERSION in changed:
        major, minor = numbers(existing.live[_VERSION])
        version = min(f"{major}.{minor + 1}", parameters[_VERSION], key=numbers)  # it upgrades by one minor version
        return Gke("update_master", {"name": where.cluster(existing.id), "master_version": version})
    if desired.kind == k.NODE_POOL and "autoscaling" in changed:
        request = {"name": where.pool(existing.id), "autoscaling": {"enabled": True, **parameters["autoscaling"]}}
        return Gke("set_node_pool_autoscaling", request)
    if desired.kind == k.NODE_POOL and "locations" in changed:
        return Gke("update_node_pool", {"name": where.pool(existing.id), "locations": parameters["locations"]})
    if desired.kind == k.NODE_POOL and _VERSION in changed:
        request = {"name": where.pool(existing.id), "node_version": OF_MASTER, "image_type": IMAGE}
        return Gke("update_node_pool", request)
    raise Invalid(f"{', '.join(sorted(changed))} of a {desired.kind} cannot be changed")


def deletion(where: Where, existing: ExistingResource) -> Request:
    """Return the call that deletes a resource."""
    match existing.kind:
        case k.CLUSTER:
            return Gke("delete_cluster", {"name": where.cluster(existing.id)})
        case k.NODE_POOL:
            return Gke("delete_node_pool", {"name": where.pool(existing.id)})
        case k.NETWORK | k.SUBNETWORK:
            return Http("DELETE", "compute", f"{where.collection(existing.kind)}/{existing.id}")
        case k.FILES:
            return Http("DELETE", "file", existing.id)
        case k.PEERING:
            network, _, name = existing.id.partition(PEERINGS)
            return Http("POST", "compute", f"{network}/removePeering", {"name": name})
        case _ if existing.kind in k.SWEPT:
            return Http("DELETE", "compute", existing.id)
        case _:
            raise Invalid(f"a {existing.kind} is never deleted")
