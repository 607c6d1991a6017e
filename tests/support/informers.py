"""Informers that hold what a test says, and objects as they would keep them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Event
from kubeloop.types import ResourceType
from tests.support.manifests import Manifest


def stored(kind: ResourceType, name: str, namespace: str = "", **metadata: Any) -> Manifest:
    known = {"name": name, "uid": f"uid-{name}", "resourceVersion": "1", **metadata}
    where = {"namespace": namespace} if namespace else {}
    return {"apiVersion": kind.api_version, "kind": kind.kind, "metadata": {**known, **where}, "spec": {}}


def holding(kind: ResourceType, found: Iterable[Manifest], **indexes: Any) -> Informer:
    informer = Informer(kind, now=lambda: 0.0, indexes=indexes)
    for one in found:
        informer.on_event(Event("ADDED", one))
    return informer
