"""How much memory a model is taken to need, and by what."""

from __future__ import annotations

import pytest

from modelplane_operator.api import LLMInference
from modelplane_operator.models.llm_inference.model_memory import MemoryRequirement, memory_need


def need(model: str, gpu: int = 1, memory: str | None = None) -> MemoryRequirement | None:
    said = {"memory": memory} if memory else {}
    spec = {"model": model, "gpu": gpu, "placement": "Fleet", **said}
    return memory_need(LLMInference.parse({"metadata": {"name": "a", "namespace": "b"}, "spec": spec}))


@pytest.mark.parametrize(
    ("model", "gpu", "memory", "known", "per_gpu"),
    [
        pytest.param("a/b", 1, "40Gi", "Said", 40, id="what is said counts"),
        pytest.param("a/b", 3, "40Gi", "Said", 14, id="what is said is shared by the GPUs, and rounded up"),
        pytest.param("moonshotai/Kimi-K2.5", 8, None, "KnownModel", 99, id="a model of the table"),
        pytest.param("moonshotai/Kimi-K2.5", 8, "800Gi", "Said", 100, id="what is said counts before the table"),
        pytest.param("Qwen/Qwen3-8B", 1, None, "AssumedFromName", 23, id="parameters in the name"),
        pytest.param("Qwen/Qwen2.5-0.5B", 1, None, "AssumedFromName", 4, id="a fraction of a billion"),
        pytest.param("a/embed-137M", 1, None, "AssumedFromName", 3, id="millions"),
        pytest.param("Qwen/Qwen3-30B-A3B", 2, None, "AssumedFromName", 41, id="all parameters, not the active ones"),
        pytest.param("mistralai/Mixtral-8x7B-v0.1", 2, None, "AssumedFromName", 75, id="those of all experts"),
    ],
)
def test_what_is_known(model: str, gpu: int, memory: str | None, known: str, per_gpu: int) -> None:
    found = need(model, gpu, memory)

    assert found is not None
    assert (found.source, found.per_gpu) == (known, per_gpu)


@pytest.mark.parametrize("model", ["a/b", "openai/gpt-4b2", "a/B", "a/7Bs", "intfloat/e5-large-v2"])
def test_what_no_name_tells_is_not_guessed(model: str) -> None:
    assert need(model) is None
