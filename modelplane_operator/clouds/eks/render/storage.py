"""Storage on EKS that many nodes can write to: a StorageClass over the cluster's own file system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest, entries
from kubeloop.types import STORAGE_CLASS
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.owned import owner_labels

NAME: Final = "modelplane-rwx-efs"
FILE_SYSTEM: Final = "efs-filesystem"
"""The key of the file system among a cluster's resources."""


def storage(cluster: InferenceCluster, infrastructure: Manifest) -> Iterator[Manifest]:
    """Nothing of it can be changed, and nothing of it does change: a cluster has one file system for all its life."""
    for one in entries(infrastructure, "status", "resources"):
        if one["key"] == FILE_SYSTEM and one["state"] == "Ready" and one.get("id"):
            yield {
                "apiVersion": STORAGE_CLASS.api_version,
                "kind": STORAGE_CLASS.kind,
                "metadata": {"name": NAME, "labels": owner_labels(cluster)},
                "provisioner": "efs.csi.aws.com",
                "parameters": {"provisioningMode": "efs-ap", "fileSystemId": one["id"], "directoryPerms": "700"},
                "volumeBindingMode": "Immediate",
            }
