"""Review an LLMInference: the memory that its GPUs must have, and where the fleet would run it."""

from __future__ import annotations

from kubeloop.verdict import Verdict
from kubeloop.words import sentence
from modelplane_operator.api.llm_inference import LLMInference
from modelplane_operator.models.llm_inference.model_memory import MemoryRequirement
from modelplane_operator.models.llm_inference.plan import memory_message


def judge(new: LLMInference, need: MemoryRequirement | None, deployment: Verdict) -> Verdict:
    """Return the verdict. `deployment` is that of the ModelDeployment it would get; it has none without `need`."""
    message = sentence(memory_message(new, need))
    if need is None:
        return Verdict(warnings=(message,))
    return Verdict(warnings=deployment.warnings, forecast=(message, *deployment.forecast))
