"""Storage on GKE that many nodes can write to: a StorageClass of Filestore in the cluster's own network."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest, entries
from kubeloop.types import STORAGE_CLASS
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.owned import owner_labels

NAME: Final = "modelplane-rwx"
NETWORK: Final = "network"
"""The key of the network among a cluster's resources."""


def storage(cluster: InferenceCluster, infrastructure: Manifest) -> Iterator[Manifest]:
    """Nothing of it can be changed, and nothing of it does change: a cluster has one network for all its life."""
    for one in entries(infrastructure, "status", "resources"):
        if one["key"] == NETWORK and one["state"] == "Ready" and one.get("id"):
            yield {
                "apiVersion": STORAGE_CLASS.api_version,
                "kind": STORAGE_CLASS.kind,
                "metadata": {"name": NAME, "labels": owner_labels(cluster)},
                "provisioner": "filestore.csi.storage.gke.io",
                "parameters": {"tier": "enterprise", "network": one["id"]},
                "volumeBindingMode": "Immediate",
                "allowVolumeExpansion": True,
            }
