"""How much GPU memory a model needs: what its author says, a table, or what its name tells. Nothing else is guessed.

A model is taken to need its weights, and a quarter of them for what is computed and kept of conversations; vLLM uses
nine tenths of a GPU, and two GiB of each are the driver's and CUDA's. That errs to one side: too large a GPU at worst.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from modelplane_operator.api.llm_inference import LLMInference

GIB: Final = 2**30
BYTES: Final = 2  # of a parameter, as vLLM's dtype auto has it for what is not quantized
ROOM: Final = 1.25
USED: Final = 0.9
OVERHEAD: Final = 2

WEIGHTS: Final[Mapping[str, float]] = {
    "Qwen/Qwen2.5-1.5B-Instruct": 3.1,
    "BAAI/bge-base-en-v1.5": 0.5,
    "moonshotai/Kimi-K2.5": 595.0,
}
"""In GB, of models whose names say nothing of it, or something else: as large as their files are."""

_SIZE: Final = re.compile(r"(?:(?P<experts>[0-9]{1,3})x)?(?P<number>[0-9]{1,4}(\.[0-9]{1,3})?)(?P<unit>[BM])", re.I)


@dataclass(frozen=True, slots=True)
class MemoryRequirement:
    """Memory of each GPU in GiB, and by what it is known."""

    per_gpu: int
    known: Literal["Said", "KnownModel", "AssumedFromName"]
    words: str


def memory_need(inference: LLMInference) -> MemoryRequirement | None:
    """What each GPU must have; None when nobody can tell."""
    spec = inference.spec
    if spec.memory:
        total = int(spec.memory.removesuffix("Gi"))
        return MemoryRequirement(math.ceil(total / spec.gpu), "Said", f"spec.memory says {spec.memory}")
    if (weights := WEIGHTS.get(spec.model)) is not None:
        return MemoryRequirement(
            _each(weights, spec.gpu), "KnownModel", f"Model {spec.model} has weights of {weights:g} GB"
        )
    if (parameters := _parameters(spec.model)) is not None:
        weights = parameters * BYTES
        words = f"Model {spec.model} is taken to have {parameters:g} billion parameters of {BYTES} bytes, by its name"
        return MemoryRequirement(_each(weights, spec.gpu), "AssumedFromName", words)
    return None


def _each(weights: float, gpus: int) -> int:
    return math.ceil(weights * 1e9 / GIB * ROOM / USED / gpus) + OVERHEAD


def _parameters(model: str) -> float | None:
    """Billions of parameters, by the first part of the name that says so; of a mixture, those of all experts."""
    for part in re.split(r"[-_/]", model):
        if found := _SIZE.fullmatch(part):
            number = float(found["number"]) * int(found["experts"] or 1)
            return number if found["unit"] in "Bb" else number / 1000
    return None
