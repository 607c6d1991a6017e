"""Whose a child is: labels that say it on every cluster, and on the hub a reference that Kubernetes acts on."""

from __future__ import annotations

from typing import Any

from kubeloop.objects import Manifest
from kubeloop.resource import Resource
from modelplane_operator.api import labels, names

Owner = Resource[Any, Any]


def owner_labels(owner: Owner) -> dict[str, str]:
    """The labels of everything that exists because of this object."""
    if not owner.metadata.uid:
        raise ValueError(f"{owner.definition.kind} {owner.key} was never stored: nothing can be its child")
    return {
        labels.OWNER_KIND: owner.definition.kind,
        **({labels.OWNER_NAMESPACE: owner.metadata.namespace} if owner.metadata.namespace else {}),
        labels.OWNER_NAME: owner.metadata.name,
        labels.OWNER_UID: owner.metadata.uid,
    }


def on_hub(owner: Owner, name: str, *, namespace: str | None = None, extra: dict[str, str] | None = None) -> Manifest:
    """Metadata of a child on the hub, in the owner's namespace unless said otherwise.

    Kubernetes' garbage collector removes such a child with its owner even while the operator is down.
    """
    where = namespace or owner.metadata.namespace
    return {
        "name": name,
        **({"namespace": where} if where else {}),
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
    """Metadata of a child on a workload cluster, in the namespace that stands for the owner's."""
    return {
        "name": name,
        "namespace": names.remote_namespace(owner.key.namespace),
        "labels": owner_labels(owner),
    }


def namespace_labels(namespace: str, uid: str) -> dict[str, str]:
    """The labels of what exists on a workload cluster because of a namespace of the hub."""
    return {labels.OWNER_KIND: "Namespace", labels.OWNER_NAME: namespace, labels.OWNER_UID: uid}


def render_remote_namespace(namespace: str, uid: str, *, level: str) -> Manifest:
    """What holds the objects of a hub namespace on a workload cluster.

    Every replica of the hub namespace needs it, so it belongs to none: its owner is the hub namespace itself.
    """
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": names.remote_namespace(namespace),
            "labels": {
                **namespace_labels(namespace, uid),
                labels.POD_SECURITY: level,  # our own pods keep to it; what else someone starts here must too
            },
        },
    }
