"""Caches, and what there is of them on clusters, as plans see it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from kubeloop.objects import Manifest
from kubeloop.ownership import add_content_hash
from kubeloop.plan import Apply, Delete, Plan
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.models.cache.cached_cluster import ClusterState, Observed
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job, render_volume

NOW = datetime(2026, 11, 23, 12, tzinfo=UTC)
COMMIT, TOKEN = "c" * 40, "aGZfY2FuYXJ5"
HYDRATOR = Hydrator("operator:v1")
PLAIN = names.cache_volume("team", "qwen")


def cache(**changes: Any) -> ModelCache:
    source = {"repo": "org/model", "revision": "main", "sizeGiB": 20, **changes.pop("source", {})}
    metadata = {"name": "qwen", "namespace": "team", "uid": "u", "finalizers": [labels.FINALIZER], **changes}
    status, more = metadata.pop("status", {}), metadata.pop("spec", {})
    spec = {"source": "HuggingFace", "huggingFace": source, **more}
    return ModelCache.parse({"metadata": metadata, "spec": spec, "status": status})


def volume(of: ModelCache, name: str = PLAIN, *, staged: str = "", phase: str = "Bound") -> Manifest:
    return {**live(render_volume(of, name, "fast", 20, staged)), "status": {"phase": phase}}


def job(of: ModelCache, state: str = "", *, attempt: int = 1, **told: Any) -> Manifest:
    made = live(render_job(of, PLAIN, HYDRATOR, attempt=attempt))
    made["metadata"]["annotations"] |= {labels.PROGRESS: json.dumps(told)} if told else {}
    conditions = [{"type": state, "status": "True", "reason": "BackoffLimitExceeded"}] if state else []
    return {**made, "status": {"conditions": conditions}}


def rest(of: ModelCache) -> tuple[Manifest, ...]:
    return tuple(map(live, render_account(of)))


def live(manifest: Manifest) -> Manifest:
    stored = add_content_hash(manifest)
    return {**stored, "metadata": {**stored["metadata"], "uid": stored["metadata"]["name"]}}


def ended(message: str, phase: str = "Failed") -> Manifest:
    state = {"terminated": {"exitCode": 3, "message": message, "startedAt": "2026-11-23T11:00:00Z"}}
    status = {"phase": phase, "containerStatuses": [{"name": "hydrator", "state": state}]}
    return {"metadata": {"name": "pod", "namespace": "n"}, "spec": {"containers": []}, "status": status}


def seen(of: ModelCache, *clusters: ClusterState, token: str = "") -> Observed:
    return Observed(of, clusters, "home", HYDRATOR, NOW, {"HF_TOKEN": token} if token else {})


def cluster(*children: Manifest, name: str = "berlin", meant: bool = True, **more: Any) -> ClusterState:
    return ClusterState(name, meant, "fast", children=children, **more)


def told(decided: Plan, kind: str) -> str:
    assert decided.status is not None
    return next(f"{one.status}/{one.reason}" for one in decided.status.conditions if one.type == kind)


def applied(decided: Plan) -> Sequence[str]:
    return [one.manifest["kind"] for one in decided.steps if isinstance(one, Apply)]


def deleted(decided: Plan) -> set[str]:
    return {f"{one.type.kind} {one.key.name}" for one in decided.steps if isinstance(one, Delete)}


def phase(decided: Plan) -> str | None:
    (one,) = decided.status.clusters if decided.status else ()  # type: ignore[attr-defined]
    return one.phase
