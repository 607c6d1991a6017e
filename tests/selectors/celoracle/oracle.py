"""Ask the oracle, and read what it said before.

`python -m tests.selectors.celoracle.oracle` records its answers anew, in data/answers.jsonl.
"""

import json
import subprocess
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from localfleet import binaries
from modelplane_operator.selectors.cel import Attribute, Device, Version
from tests.selectors.celoracle.generate import Generator

_DATA = Path(__file__).parents[1] / "data"

# What is recorded: enough that every function is met often, and small enough to replay in a second or two.
RECORDED_SEEDS = {1: 0.0, 2: 0.02, 3: 0.1}
RECORDED_EACH = 500


@dataclass(frozen=True, slots=True)
class Answer:
    """What the API server makes of a selector: whether it takes it, and + - or ! (an error) for each device."""

    selector: str
    accepted: bool
    outcomes: str = ""


def build() -> Path:
    """The program, from the cache of the local fleet's tools."""
    return binaries.ensure("celoracle")["celoracle"]


def ask(program: Path, selectors: Iterable[str], devices: list[dict[str, Any]]) -> list[Answer]:
    """Put the selectors to the API server's library, each with all the devices."""
    asked = list(selectors)
    questions = "".join(json.dumps({"expression": text, "devices": devices}) + "\n" for text in asked)
    said = subprocess.run([program], input=questions, capture_output=True, text=True, check=True, timeout=300)
    answers = [json.loads(line) for line in said.stdout.split("\n") if line]
    return [
        Answer(text, answer["accepted"], _outcomes(answer) if answer["accepted"] else "")
        for text, answer in zip(asked, answers, strict=True)
    ]


def _outcomes(answer: dict[str, Any]) -> str:
    return "".join("!" if o.get("error") else "+" if o["matches"] else "-" for o in answer["outcomes"])


def devices() -> list[dict[str, Any]]:
    """The devices that selectors are tried on, as the oracle reads them."""
    return json.loads((_DATA / "devices.json").read_text())


def device(written: dict[str, Any]) -> Device:
    """A device of the oracle's as our scheduler reads it."""
    attributes = {name: _attribute(**value) for name, value in written.get("attributes", {}).items()}
    return Device.of(
        written["driver"],
        attributes=attributes,
        capacity=written.get("capacity", {}),
        allow_multiple_allocations=written.get("allowMultipleAllocations", False),
    )


def _attribute(*, version: str | None = None, **others: Attribute) -> Attribute:
    return Version(version) if version is not None else next(iter(others.values()))


def written_selectors() -> list[str]:
    """The selectors of data/selectors.txt: those of the specification, and what a person thought of."""
    lines = (_DATA / "selectors.txt").read_text().split("\n")
    return [line for line in lines if line and not line.startswith("# ")]


def generated_selectors(seed: int, count: int, *, wrong: float) -> list[str]:
    """So many selectors by chance."""
    generator = Generator(seed, wrong=wrong)
    return [generator.selector(limit=300) for _ in range(count)]


def recorded_answers() -> list[Answer]:
    """What the oracle said when it was last recorded."""
    return [Answer(**json.loads(line)) for line in (_DATA / "answers.jsonl").read_text().split("\n") if line]


def _record() -> None:
    generated = [generated_selectors(seed, RECORDED_EACH, wrong=wrong) for seed, wrong in RECORDED_SEEDS.items()]
    selectors = dict.fromkeys([*written_selectors(), *(text for some in generated for text in some)])
    answers = ask(build(), selectors, devices())
    lines = "".join(json.dumps(asdict(answer), ensure_ascii=False) + "\n" for answer in answers)
    (_DATA / "answers.jsonl").write_text(lines)
    print(f"recorded {len(answers)} answers")  # noqa: T201


if __name__ == "__main__":
    _record()
