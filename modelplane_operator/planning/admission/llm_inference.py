"""An LLMInference as it is written: what its GPUs have to have, and where the fleet would run it."""

from __future__ import annotations

from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.kube.words import sentence
from modelplane_operator.planning.admission.verdict import Verdict
from modelplane_operator.planning.llm_inference import memory_words
from modelplane_operator.rendering.model_memory import MemoryRequirement


def judge(new: LLMInference, need: MemoryRequirement | None, deployment: Verdict) -> Verdict:
    """`deployment`: what is said of the ModelDeployment that would be made of it; nothing without `need`."""
    words = sentence(memory_words(new, need))
    if need is None:
        return Verdict(warnings=(words,))
    return Verdict(warnings=deployment.warnings, forecast=(words, *deployment.forecast))
