"""List the permissions that the operator needs on Google Cloud, by call, for `examples/access/gke-role.yaml`.

A test compares it with every call of a cluster's lifecycle, in both directions.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Any, Final

import yaml

PERMISSIONS: Final[Mapping[str, tuple[str, ...]]] = {
    "compute DELETE backendServices": ("compute.regionBackendServices.delete",),
    "compute DELETE disks": ("compute.disks.delete",),
    "compute DELETE firewalls": ("compute.firewalls.delete", "compute.networks.updatePolicy"),
    "compute DELETE forwardingRules": ("compute.forwardingRules.delete",),
    "compute DELETE networkEndpointGroups": ("compute.networkEndpointGroups.delete",),
    "compute DELETE networks": ("compute.networks.delete",),
    "compute DELETE subnetworks": ("compute.subnetworks.delete",),
    "compute DELETE targetPools": ("compute.targetPools.delete",),
    "compute GET acceleratorTypes": ("compute.acceleratorTypes.get",),
    "compute GET backendServices": ("compute.regionBackendServices.list",),
    "compute GET disks": ("compute.disks.list",),
    "compute GET firewalls": ("compute.firewalls.list",),
    "compute GET forwardingRules": ("compute.forwardingRules.list",),
    "compute GET machineTypes": ("compute.machineTypes.get",),
    "compute GET networkEndpointGroups": ("compute.networkEndpointGroups.list",),
    "compute GET networks": ("compute.networks.get",),
    "compute GET operations": ("compute.globalOperations.list", "compute.regionOperations.list"),
    "compute GET projects": ("compute.projects.get",),
    "compute GET regions": ("compute.regions.get",),
    "compute GET subnetworks": ("compute.subnetworks.get",),
    "compute GET targetPools": ("compute.targetPools.list",),
    "compute POST removePeering": ("compute.networks.removePeering",),
    "compute POST networks": ("compute.networks.create",),
    "compute POST subnetworks": ("compute.networks.updatePolicy", "compute.subnetworks.create"),
    "container CreateCluster": ("container.clusters.create",),
    "container CreateNodePool": ("container.clusters.update",),
    "container DeleteCluster": ("container.clusters.delete",),
    "container DeleteNodePool": ("container.clusters.update",),
    "container GetCluster": ("container.clusters.get",),
    "container GetServerConfig": ("container.clusters.list",),
    "container ListOperations": ("container.operations.list",),
    "container SetNodePoolAutoscaling": ("container.clusters.update",),
    "container UpdateMaster": ("container.clusters.update",),
    "container UpdateNodePool": ("container.clusters.update",),
    "file DELETE instances": ("file.instances.delete",),
    "file GET instances": ("file.instances.list",),
    "serviceusage GET services": ("serviceusage.services.get",),
    "serviceusage POST services": ("serviceusage.services.enable",),
}
"""Permissions of each call: a method of GKE, or a verb and a collection of another service."""
IMPLIED: Final = ("compute.networks.use", "compute.subnetworks.use", "iam.serviceAccounts.actAs")
"""Permissions that Google requires in addition: a cluster uses its network, and its nodes act as a service account."""


def role() -> Mapping[str, Any]:
    """Return a custom role of a project, in the format of `gcloud iam roles create --file`."""
    return {
        "title": "Modelplane operator",
        "description": "What the operator calls to make and delete clusters on GKE",
        "stage": "GA",
        "includedPermissions": sorted({*chain.from_iterable(PERMISSIONS.values()), *IMPLIED}),
    }


def role_file() -> str:
    return yaml.safe_dump(role(), sort_keys=False, width=120)
