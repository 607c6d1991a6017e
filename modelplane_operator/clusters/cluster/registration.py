"""The mark of an InferenceCluster on its cluster, which shows a later InferenceCluster that it is the same cluster."""

from __future__ import annotations

from collections.abc import Iterable

from kubeloop.objects import Key, Manifest, annotations_of
from kubeloop.ownership import owner_labels
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster


def mark_key(uid: str) -> Key:
    """Return the key of the mark of the InferenceCluster with this uid."""
    return Key(names.SYSTEM_NAMESPACE, names.registration(uid))


def render_mark(cluster: InferenceCluster, others: Iterable[str]) -> Manifest:
    """Return the mark: a Secret without data, as Secrets in that namespace are already watched and permitted."""
    key = mark_key(cluster.metadata.uid or "")
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "labels": owner_labels(cluster),
        "annotations": {labels.ALSO_REGISTERED: ",".join(others)},
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def is_marked(mark: Manifest | None, uid: str) -> bool:
    """True if the observed mark names the InferenceCluster with this uid."""
    return mark is not None and uid in annotations_of(mark).get(labels.ALSO_REGISTERED, "").split(",")
