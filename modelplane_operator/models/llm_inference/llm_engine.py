"""Read the readiness of an LLMInference's engine from its VLLMRuntime or Deployment.

The tenant controls the API server behind a kubeconfig, so the data may be malformed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, key_of, section
from kubeloop.remote_messages import sanitize
from kubeloop.words import sentence
from modelplane_operator.api.llm_inference import ModelReady
from modelplane_operator.models.llm_inference.render_deployment import SELECTING
from modelplane_operator.models.replica.plan.symptoms import describe_unfinished

MOST: Final = 2**31 - 1
"""Largest count that the API has."""
_COUNTS: Final = ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas")
"""Fields of a status that are counts."""
_REASONS: Final[Mapping[object, ModelReady]] = {
    "Ready": ModelReady.READY,
    "Updating": ModelReady.UPDATING,
    "NotReady": ModelReady.NOT_READY,
}
"""Reasons by the `modelStatus` of a VLLMRuntime."""


def model_ready(engine: Manifest | None, now: datetime) -> Condition:
    """Return the ModelReady condition for an engine, or for none."""
    if engine is None:
        return ModelReady.NOT_CREATED.condition(now)
    return (_check_deployment if engine["kind"] == "Deployment" else _check_runtime)(engine, now)


def replicas(engine: Manifest | None) -> int | None:
    """Return the number of running copies, if the engine reports it."""
    name = "readyReplicas" if engine and engine["kind"] == "Deployment" else "replicas"
    return _read_counts(section(engine or {}, "status")).get(name)


def _check_runtime(runtime: Manifest, now: datetime) -> Condition:
    """Return the ModelReady condition of a VLLMRuntime."""
    model_status = section(runtime, "status").get("modelStatus")
    reason = _REASONS.get(model_status, ModelReady.UNKNOWN) if isinstance(model_status, str) else ModelReady.UNKNOWN
    if reason is ModelReady.READY:
        return reason.condition(now)
    key = key_of(runtime)
    message = (
        f"VLLMRuntime {key.name}: its modelStatus is not Ready; on its cluster `kubectl describe vllmruntime "
        f"{key.name} -n {key.namespace}` says more"
    )
    return reason.condition(now, message=message)


def _check_deployment(deployment: Manifest, now: datetime) -> Condition:
    """Return the ModelReady condition of a Deployment."""
    counts = _read_counts(section(deployment, "status"))
    generation = _read_counts(section(deployment, "metadata"), ("generation",))
    missing = describe_unfinished({"metadata": generation, "status": {"observedGeneration": 0, **counts}}, 1)
    if not missing:
        return ModelReady.READY.condition(now)
    failed = condition(deployment, "ReplicaFailure").is_true or condition(deployment, "Progressing").status == "False"
    waiting = ModelReady.UPDATING if counts.get("readyReplicas") else ModelReady.NOT_READY
    reason = ModelReady.FAILING if failed else waiting
    message = sentence(f"Deployment {deployment['metadata']['name']}: {missing}", *_explain(deployment))
    return reason.condition(now, message=message)


def _explain(deployment: Manifest) -> Sequence[str]:
    """Return why pods are not created or do not become ready in time, and a command that shows more."""
    failed, progressing = (
        condition(deployment, condition_type) for condition_type in ("ReplicaFailure", "Progressing")
    )
    if failed.is_true:
        return (sanitize(failed.reason, failed.message),)
    key = key_of(deployment)
    hint = f"on its cluster `kubectl describe pods -n {key.namespace} -l {SELECTING}={key.name}` says more"
    return (sanitize(progressing.reason, progressing.message) if progressing.status == "False" else "", hint)


def _read_counts(fields: Mapping[str, object], field_names: tuple[str, ...] = _COUNTS) -> Mapping[str, int]:
    """Return the fields that are integers in the API's range."""
    values = {name: fields.get(name) for name in field_names}
    return {
        name: value
        for name, value in values.items()
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
    }
