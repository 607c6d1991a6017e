"""What is said of an object as it is written: why it is refused, and what would come of it."""

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
