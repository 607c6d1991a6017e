"""An LLMInference as it is written: what its GPUs have to have, and where the fleet would run it."""

from __future__ import annotations

from kubeloop.verdict import Verdict
from kubeloop.words import sentence
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.models.llm_inference.model_memory import MemoryRequirement
from modelplane_operator.models.llm_inference.plan import memory_words


def judge(new: LLMInference, need: MemoryRequirement | None, deployment: Verdict) -> Verdict:
    """`deployment`: what is said of the ModelDeployment that would be made of it; nothing without `need`."""
    words = sentence(memory_words(new, need))
    if need is None:
        return Verdict(warnings=(words,))
    return Verdict(warnings=deployment.warnings, forecast=(words, *deployment.forecast))
