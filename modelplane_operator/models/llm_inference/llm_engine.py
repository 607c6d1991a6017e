"""What the engine of an LLMInference is said to be by what runs it: a VLLMRuntime or a Deployment.

Whoever gives us a kubeconfig decides what is said, and in which shape.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Final

from kubeloop.condition_types import Condition
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, key_of, section
from kubeloop.remote_messages import worded
from kubeloop.words import sentence
from modelplane_operator.api.llm_inference import ModelReady
from modelplane_operator.models.llm_inference.render_deployment import SELECTING
from modelplane_operator.models.replica.plan.symptoms import unfinished

MOST: Final = 2**31 - 1
_COUNTS: Final = ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas")
_TOLD: Final[Mapping[object, ModelReady]] = {
    "Ready": ModelReady.READY,
    "Updating": ModelReady.UPDATING,
    "NotReady": ModelReady.NOT_READY,
}


def model_ready(engine: Manifest | None, now: datetime) -> Condition:
    if engine is None:
        return ModelReady.NOT_CREATED.condition(now)
    return (_deployment if engine["kind"] == "Deployment" else _runtime)(engine, now)


def replicas(engine: Manifest | None) -> int | None:
    """How many copies run, as far as that is told."""
    name = "readyReplicas" if engine and engine["kind"] == "Deployment" else "replicas"
    return _counts(section(engine or {}, "status")).get(name)


def _runtime(runtime: Manifest, now: datetime) -> Condition:
    told = section(runtime, "status").get("modelStatus")
    reason = _TOLD.get(told, ModelReady.UNKNOWN) if isinstance(told, str) else ModelReady.UNKNOWN
    if reason is ModelReady.READY:
        return reason.condition(now)
    key = key_of(runtime)
    words = (
        f"VLLMRuntime {key.name}: its modelStatus is not Ready; on its cluster `kubectl describe vllmruntime "
        f"{key.name} -n {key.namespace}` says more"
    )
    return reason.condition(now, message=words)


def _deployment(deployment: Manifest, now: datetime) -> Condition:
    counts = _counts(section(deployment, "status"))
    generation = _counts(section(deployment, "metadata"), ("generation",))
    lacking = unfinished({"metadata": generation, "status": {"observedGeneration": 0, **counts}}, 1)
    if not lacking:
        return ModelReady.READY.condition(now)
    reason = ModelReady.UPDATING if counts.get("readyReplicas") else ModelReady.NOT_READY
    words = sentence(f"Deployment {deployment['metadata']['name']}: {lacking}", *_why(deployment))
    return reason.condition(now, message=words)


def _why(deployment: Manifest) -> Sequence[str]:
    """Why no pod is made, or else why none comes up in time, and how to see what is wrong with them."""
    failed, progressing = (condition(deployment, kind) for kind in ("ReplicaFailure", "Progressing"))
    if failed.is_true:
        return (worded(failed.reason, failed.message),)
    key = key_of(deployment)
    look = f"on its cluster `kubectl describe pods -n {key.namespace} -l {SELECTING}={key.name}` says more"
    return (worded(progressing.reason, progressing.message) if progressing.status == "False" else "", look)


def _counts(said: Mapping[str, object], names: tuple[str, ...] = _COUNTS) -> Mapping[str, int]:
    """Those that are numbers, and no larger than the API's."""
    found = {name: said.get(name) for name in names}
    return {
        name: value
        for name, value in found.items()
        if isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= MOST
    }
