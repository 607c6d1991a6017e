"""Admission rules per kind: reasons to reject an object, and warnings about its consequences."""

from modelplane_operator.ask.admission.rules import (
    inference_class,
    inference_cluster,
    llm_inference,
    model_cache,
    model_deployment,
    model_endpoint,
    model_service,
)

__all__ = [
    "inference_class",
    "inference_cluster",
    "llm_inference",
    "model_cache",
    "model_deployment",
    "model_endpoint",
    "model_service",
]
