"""The mark of an InferenceCluster on its cluster, by which the same cluster under another name is recognized."""

from __future__ import annotations

from collections.abc import Iterable

from kubeloop.objects import Key, Manifest, annotations_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.owned import owner_labels


def mark_key(uid: str) -> Key:
    """Where the mark of an InferenceCluster of that uid is."""
    return Key(names.SYSTEM_NAMESPACE, names.registration(uid))


def render_mark(cluster: InferenceCluster, others: Iterable[str]) -> Manifest:
    """A Secret without content, for no other type in our namespace there is watched and needs no further permission."""
    key = mark_key(cluster.metadata.uid or "")
    metadata = {
        "name": key.name,
        "namespace": key.namespace,
        "labels": owner_labels(cluster),
        "annotations": {labels.ALSO_REGISTERED: ",".join(others)},
    }
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque"}


def is_marked(mark: Manifest | None, uid: str) -> bool:
    """Whether a mark, as it was observed, names an InferenceCluster."""
    return mark is not None and uid in annotations_of(mark).get(labels.ALSO_REGISTERED, "").split(",")
