"""Render storage on GKE that many nodes can write to: a StorageClass for Filestore in the cluster's network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest, entries
from kubeloop.ownership import owner_labels
from kubeloop.types import STORAGE_CLASS
from modelplane_operator.api.inference_cluster import InferenceCluster

NAME: Final = "modelplane-rwx"
NETWORK: Final = "network"
"""Key of the network among a cluster's resources."""


def storage(cluster: InferenceCluster, infrastructure: Manifest) -> Iterator[Manifest]:
    """Yield the StorageClass once the network is ready. It is immutable, and a cluster keeps its network for life."""
    for resource in entries(infrastructure, "status", "resources"):
        if resource["key"] == NETWORK and resource["state"] == "Ready" and resource.get("id"):
            yield {
                "apiVersion": STORAGE_CLASS.api_version,
                "kind": STORAGE_CLASS.kind,
                "metadata": {"name": NAME, "labels": owner_labels(cluster)},
                "provisioner": "filestore.csi.storage.gke.io",
                "parameters": {"tier": "enterprise", "network": resource["id"]},
                "volumeBindingMode": "Immediate",
                "allowVolumeExpansion": True,
            }
