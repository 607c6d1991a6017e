"""Render storage on EKS that many nodes can write to: a StorageClass for the cluster's file system."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from kubeloop.objects import Manifest, entries
from kubeloop.ownership import owner_labels
from kubeloop.types import STORAGE_CLASS
from modelplane_operator.api.inference_cluster import InferenceCluster

NAME: Final = "modelplane-rwx-efs"
FILE_SYSTEM: Final = "efs-filesystem"
"""Key of the file system among a cluster's resources."""


def storage(cluster: InferenceCluster, infrastructure: Manifest) -> Iterator[Manifest]:
    """Yield the StorageClass once the file system is ready.

    It is immutable, and a cluster keeps its file system for life.
    """
    for resource in entries(infrastructure, "status", "resources"):
        if resource["key"] == FILE_SYSTEM and resource["state"] == "Ready" and resource.get("id"):
            yield {
                "apiVersion": STORAGE_CLASS.api_version,
                "kind": STORAGE_CLASS.kind,
                "metadata": {"name": NAME, "labels": owner_labels(cluster)},
                "provisioner": "efs.csi.aws.com",
                "parameters": {"provisioningMode": "efs-ap", "fileSystemId": resource["id"], "directoryPerms": "700"},
                "volumeBindingMode": "Immediate",
            }
