"""Mark children with their owner: by labels on every cluster, and by owner references on the hub."""

from __future__ import annotations

from typing import Any

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from kubeloop.resource import Resource
from modelplane_operator.api import labels, names

Owner = Resource[Any, Any]


def on_hub(owner: Owner, name: str, *, namespace: str | None = None, extra: dict[str, str] | None = None) -> Manifest:
    """Return the metadata of a child on the hub, by default in the owner's namespace.

    Kubernetes' garbage collector deletes the child with its owner, even while the operator is down.
    """
    target_namespace = namespace or owner.metadata.namespace
    return {
        "name": name,
        **({"namespace": target_namespace} if target_namespace else {}),
        "labels": {**(extra or {}), **owner_labels(owner)},
        "ownerReferences": [
            {
                "apiVersion": owner.definition.api_version,
                "kind": owner.definition.kind,
                "name": owner.metadata.name,
                "uid": owner.metadata.uid,
                "controller": True,
            }
        ],
    }


def on_cluster(owner: Owner, name: str) -> Manifest:
    """Return the metadata of a child on a workload cluster, in the namespace that represents the owner's."""
    return {
        "name": name,
        "namespace": names.remote_namespace(owner.key.namespace),
        "labels": owner_labels(owner),
    }


def namespace_labels(namespace: str, uid: str) -> dict[str, str]:
    """Return the labels of objects on a workload cluster that belong to a namespace of the hub."""
    return {labels.OWNER_KIND: "Namespace", labels.OWNER_NAME: namespace, labels.OWNER_UID: uid}


def render_remote_namespace(namespace: str, uid: str, *, level: str) -> Manifest:
    """Return the Namespace on a workload cluster that represents a namespace of the hub.

    All replicas of the hub namespace share it, so its owner is the hub namespace itself.
    """
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": names.remote_namespace(namespace),
            "labels": {
                **namespace_labels(namespace, uid),
                labels.POD_SECURITY: level,  # the operator's pods comply with it; all other pods here must, too
            },
        },
    }
