"""B11: selectors by themselves: evaluations a second, from memory and not, and cel-python's own for comparison."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import product
from time import thread_time

import celpy
from celpy.adapter import json_to_cel

from benchmarks.report import Figure
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, Version
from modelplane_operator.selectors.evaluate import Frame

EVALUATIONS = 10_000
MODELS = [
    ("A100", "Ampere", "80Gi", "8.0.0"),
    ("L40S", "Ada", "46068Mi", "8.9.0"),
    ("H100", "Hopper", "81559Mi", "9.0.0"),
    ("H200", "Hopper", "141Gi", "9.0.0"),
    ("B200", "Blackwell", "180Gi", "10.0.0"),
]
_DEVICE = 'device.attributes["gpu.nvidia.com"]'

# Without quantities and versions, which cel-python does not know.
PLAIN = [
    'device.driver == "gpu.nvidia.com"',
    *(f'{_DEVICE}.productName == "{model}"' for model, *_ in MODELS),
    *(f'device.driver == "gpu.nvidia.com" && {_DEVICE}.architecture == "{name}"' for _, name, *_ in MODELS),
    f'{_DEVICE}.architecture in ["Hopper", "Blackwell"]',
    f"{_DEVICE}.ecc && {_DEVICE}.slices >= 4",
    f'["H100", "H200"].exists(model, {_DEVICE}.productName == model)',
    f'{_DEVICE}.productName.startsWith("H")',
]
SELECTORS = [
    *PLAIN,
    *(f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{memory}")) >= 0' for *_, memory, _ in MODELS),
    *(f'{_DEVICE}.cudaComputeCapability.isGreaterThan(semver("{version}"))' for *_, version in MODELS),
    *(
        f'device.driver == "gpu.nvidia.com" && {_DEVICE}.architecture == "{name}" && '
        f'device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("{memory}")) >= 0'
        for _, name, memory, _ in MODELS
    ),
    *(f"{_DEVICE}.cudaComputeCapability.major() >= {major}" for major in range(6, 12)),
    *(f'device.capacity["gpu.nvidia.com"].memory.isGreaterThan(quantity("{size}Gi"))' for size in (16, 40, 80, 141)),
]


def run(size: int) -> Iterator[Figure]:
    """The figures over the devices of so many clusters, which are of five models."""
    devices = [_device(*MODELS[i % len(MODELS)]) for i in range(size)]
    compiled = [cel.compile(text) for text in SELECTORS]
    pairs = _first(EVALUATIONS, product(compiled, devices))

    def rate(work: Callable[[], object], count: int) -> float:
        begin = thread_time()
        work()
        return round(count / (thread_time() - begin))

    cel.forget()
    cel.compile("true")  # makes the parser
    compiles = rate(lambda: [cel.compile(text) for text in SELECTORS], len(SELECTORS))
    yield Figure("B11", size, "checked selectors", compiles, "/s")
    raw = rate(lambda: [_evaluated(*pair) for pair in pairs], len(pairs))
    yield Figure("B11", size, "evaluations, not remembered", raw, "/s")
    cel.evaluate.cache_clear()
    yield Figure(
        "B11", size, "verdicts with reasons", rate(lambda: [cel.evaluate(*pair) for pair in pairs], len(pairs)), "/s"
    )
    known = cel.evaluate.cache_info()
    yield Figure("B11", size, "answered from memory", round(100 * known.hits / len(pairs), 2), "%")
    programs = _celpy_programs()
    theirs = rate(lambda: [programs[i % len(programs)].evaluate(_CELPY_DEVICE) for i in range(300)], 300)
    yield Figure("B11", size, "cel-python's own evaluations", theirs, "/s")


def _evaluated(selector: cel.Selector, device: Device) -> object:
    program = selector.program
    return program.evaluate(program.root, Frame(device.fields, program.variables))


def _device(model: str, architecture: str, memory: str, capability: str) -> Device:
    attributes = {"productName": model, "architecture": architecture, "cudaComputeCapability": Version(capability),
                  "ecc": True, "slices": 7}  # fmt: skip
    return Device.of("gpu.nvidia.com", attributes=attributes, capacity={"memory": memory})


def _first(count: int, pairs: Iterator[tuple[cel.Selector, Device]]) -> list[tuple[cel.Selector, Device]]:
    every = list(pairs)
    return (every * (count // len(every) + 1))[:count]


_CELPY_FIELDS = {"productName": "H100", "architecture": "Hopper", "ecc": True, "slices": 7}
_CELPY_DEVICE = {
    "device": json_to_cel({"driver": "gpu.nvidia.com", "attributes": {"gpu.nvidia.com": _CELPY_FIELDS}}),
}


def _celpy_programs() -> list[celpy.Runner]:
    environment = celpy.Environment()
    return [environment.program(environment.compile(text)) for text in PLAIN]
