"""Determine a model's GPU memory from its spec, a table, or its name. Nothing else is guessed.

A model needs its weights, and a quarter of them for activations and the KV cache. vLLM uses nine tenths of a GPU,
and the driver and CUDA take two GiB of each. The result is rather too large than too small.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from modelplane_operator.api.llm_inference import LLMInference

GIB: Final = 2**30
BYTES: Final = 2  # vLLM's dtype auto, for models that are not quantized
"""Bytes per parameter."""
ROOM: Final = 1.25
"""Factor for activations and the KV cache."""
USED: Final = 0.9
"""Fraction of a GPU's memory that vLLM uses."""
OVERHEAD: Final = 2
"""GiB of each GPU that the driver and CUDA take."""

WEIGHTS: Final[Mapping[str, float]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": 3.1,
    "BAAI/bge-base-en-v1.5": 0.5,
    "moonshotai/Kimi-K2.5": 595.0,
}
"""Size of the weights in GB, as large as their files, for models whose names do not have it or mislead."""

_SIZE: Final = re.compile(r"(?:(?P<experts>[0-9]{1,3})x)?(?P<number>[0-9]{1,4}(\.[0-9]{1,3})?)(?P<unit>[BM])", re.I)
"""Form of a size in a model's name, such as `8x7B`."""


@dataclass(frozen=True, slots=True)
class MemoryRequirement:
    """Memory of each GPU in GiB, and how it was determined."""

    per_gpu: int
    """GiB of each GPU."""
    source: Literal["Said", "KnownModel", "AssumedFromName"]
    """Source of the figure."""
    message: str
    """Message about the source."""


def memory_need(inference: LLMInference) -> MemoryRequirement | None:
    """Return the memory that each GPU must have; None if it cannot be determined."""
    spec = inference.spec
    if spec.memory:
        total = int(spec.memory.removesuffix("Gi"))
        return MemoryRequirement(math.ceil(total / spec.gpu), "Said", f"field spec.memory says {spec.memory}")
    if (weights := WEIGHTS.get(spec.model)) is not None:
        return MemoryRequirement(
            _memory_per_gpu(weights, spec.gpu), "KnownModel", f"Model {spec.model} has weights of {weights:g} GB"
        )
    if (parameters := _parse_parameters(spec.model)) is not None:
        weights = parameters * BYTES
        message = f"Model {spec.model} is taken to have {parameters:g} billion parameters of {BYTES} bytes, by its name"
        return MemoryRequirement(_memory_per_gpu(weights, spec.gpu), "AssumedFromName", message)
    return None


def _memory_per_gpu(weights: float, gpus: int) -> int:
    """Return the memory of each GPU in GiB for weights in GB."""
    return math.ceil(weights * 1e9 / GIB * ROOM / USED / gpus) + OVERHEAD


def _parse_parameters(model: str) -> float | None:
    """Return billions of parameters from the first part of the name that has a size; a mixture counts all experts."""
    for segment in re.split(r"[-_/]", model):
        if match := _SIZE.fullmatch(segment):
            number = float(match["number"]) * int(match["experts"] or 1)
            return number if match["unit"] in "Bb" else number / 1000
    return None
