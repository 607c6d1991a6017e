"""Selectors: which device a request wants, in the expression language of Kubernetes' DRA (CEL).

    selector = compile('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0')
    evaluate(selector, device)      # Evaluation(matched=False, reason="memory is 40960Mi, needs >= 80Gi")

The same text is evaluated on the workload cluster by the real allocator, so a selector means here what it means there,
and what the API server would refuse is refused here, with the position and what to write instead.
docs/selector-language.md lists the differences.
"""

from dataclasses import dataclass, field

from kubeloop.memo import remembered
from modelplane_operator.selectors.compile import compile_expression
from modelplane_operator.selectors.cost import LIMIT, worst_cost
from modelplane_operator.selectors.device import Attribute, Device, Version
from modelplane_operator.selectors.evaluate import BUDGET, Frame
from modelplane_operator.selectors.program import Program
from modelplane_operator.selectors.reasons import nearness, reason
from modelplane_operator.selectors.syntax import parse
from modelplane_operator.selectors.tree import CompileError, SelectorError
from modelplane_operator.selectors.values import EvaluationError, OutOfBudget

__all__ = ["Attribute", "Device", "Evaluation", "Selector", "SelectorError", "Version", "compile", "evaluate"]


@dataclass(frozen=True, slots=True)
class Selector:
    """A checked selector; two with the same text are the same. Its program is kept elsewhere, within bounds."""

    text: str

    @property
    def program(self) -> Program:
        return _checked(self.text).program

    @property
    def cost(self) -> int:
        """The worst that one evaluation may cost, in the API server's units."""
        return _checked(self.text).cost


@dataclass(frozen=True, slots=True)
class Evaluation:
    """Whether a device is wanted, and if not, why not, in words a person can act on."""

    matched: bool
    reason: str = ""
    nearness: float = 0.0
    """Of the devices that do not match, the one with the highest is the nearest miss."""
    steps: int = field(default=0, compare=False)
    """What it took to find that out."""


_TOO_MUCH = "compare shorter things: a text or list that is computed, or a type, may be of any size"


def _counted(cost: int) -> str:
    return f"{cost:,}" if cost < 10**12 else "countless"


@dataclass(frozen=True, slots=True)
class _Checked:
    program: Program
    cost: int


KEPT_BYTES = 64 << 20  # of programs, and as much of verdicts


def _program_size(text: str) -> int:
    return 2_000 + 450 * len(text)  # as measured: up to 440 bytes for each byte of the text


def _verdict_size(selector: Selector, _: Device) -> int:
    return 1_000 + len(selector.text)


@remembered(most=KEPT_BYTES, size=_program_size)
def _looked_at(text: str) -> _Checked | SelectorError:
    """The program of a selector, or why there is none: to refuse one takes as long as to accept it."""
    try:
        return _check(text)
    except SelectorError as error:
        return error.with_traceback(None)


def _checked(text: str) -> _Checked:
    found = _looked_at(text)
    if isinstance(found, SelectorError):
        raise SelectorError(found.message, text, found.position, found.hint)
    return found


def compile(text: str) -> Selector:  # noqa: A001  (it is what it does, and `cel.compile` reads well)
    """Check a selector; raises SelectorError. Remembers the texts it was given last."""
    _checked(text)
    return Selector(text)


def knows(text: str) -> bool:
    """Whether that text was checked lately, so that it costs nothing to do it again."""
    return _looked_at.knows(text)


def forget() -> None:
    """Forget all texts, and what they came to."""
    _looked_at.cache_clear()
    evaluate.cache_clear()


def _check(text: str) -> _Checked:
    try:
        program = compile_expression(parse(text))
        cost = worst_cost(program.root, program)
    except CompileError as fault:
        raise SelectorError(fault.message, text, fault.at, fault.hint) from None
    except Exception as error:  # our mistake; one selector must not stop the scheduler
        raise SelectorError(f"internal error: {error!r}", text, 0) from error
    if cost > LIMIT:
        raise SelectorError(f"the selector may cost {_counted(cost)} units, {LIMIT:,} are allowed", text, 0, _TOO_MUCH)
    return _Checked(program, cost)


@remembered(most=KEPT_BYTES, size=_verdict_size)
def evaluate(selector: Selector, device: Device) -> Evaluation:
    """Whether the device matches; never raises. Remembers the pairs it was asked about last.

    A run-time error (no such attribute, a value of another type, too much work) is a non-match with that reason.
    """
    try:
        program = selector.program
        asked = Frame(device.fields, program.variables)
        if _holds(program, asked):
            return Evaluation(matched=True, steps=asked.spent)
        explained = Frame(device.fields, program.variables)
        why = reason(selector.text, program, device, explained)
        near = nearness(program, device, explained)
        return Evaluation(matched=False, reason=why, nearness=near, steps=asked.spent + explained.spent)
    except OutOfBudget as error:
        return Evaluation(matched=False, reason=str(error), steps=BUDGET)
    except Exception as error:  # noqa: BLE001  (our mistake; one selector must not stop the scheduler)
        return Evaluation(matched=False, reason=f"internal error: {error!r}", steps=BUDGET)


def _holds(program: Program, frame: Frame) -> bool:
    try:
        return program.evaluate(program.root, frame) is True
    except OutOfBudget:
        raise
    except EvaluationError:
        return False
