"""Selectors: conditions on devices, in the expression language of Kubernetes' DRA (CEL).

`compile('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0')` returns a selector.
`evaluate(selector, device)` returns for example `Evaluation(matched=False, reason="memory is 40960Mi, needs >= 80Gi")`.

The real allocator evaluates the same text on the workload cluster, so a selector has the same meaning here. A text that
the API server would reject is rejected here, with the position and a hint. docs/selector-language.md lists the
differences.
"""

from dataclasses import dataclass, field

from kubeloop.memo import memoize_bounded
from modelplane_operator.selectors.compile import compile_expression
from modelplane_operator.selectors.cost import LIMIT, worst_cost
from modelplane_operator.selectors.device import Attribute, Device, Version
from modelplane_operator.selectors.evaluate import BUDGET, Frame
from modelplane_operator.selectors.program import Program
from modelplane_operator.selectors.reasons import measure_closeness, reason
from modelplane_operator.selectors.syntax import parse
from modelplane_operator.selectors.tree import CompileError, SelectorError
from modelplane_operator.selectors.values import EvaluationError, OutOfBudget

__all__ = ["Attribute", "Device", "Evaluation", "Selector", "SelectorError", "Version", "compile", "evaluate"]


@dataclass(frozen=True, slots=True)
class Selector:
    """A checked selector, equal to others with the same text. Its program is kept in a limited cache."""

    text: str
    """Text as the user wrote it."""

    @property
    def program(self) -> Program:
        """Return the compiled program, compiling it again if the cache has dropped it."""
        return _check_or_raise(self.text).program

    @property
    def cost(self) -> int:
        """Return the maximum cost of an evaluation, in the API server's units."""
        return _check_or_raise(self.text).cost


@dataclass(frozen=True, slots=True)
class Evaluation:
    """The result of an evaluation: a match, or the reason against it."""

    matched: bool
    """True if the device matches."""
    reason: str = ""
    """Reason why it does not match; empty if it does."""
    measure_closeness: float = 0.0
    """Closeness of a miss: of the devices that do not match, the one with the highest value is the nearest."""
    steps: int = field(default=0, compare=False)
    """Steps of the evaluation."""


_TOO_MUCH = "compare shorter things: a text or list that is computed, or a type, may be of any size"
"""Hint for a selector that costs too much."""


@dataclass(frozen=True, slots=True)
class _Checked:
    """A program and its maximum cost."""

    program: Program
    cost: int
    """Maximum cost in the API server's units, at most LIMIT."""


CACHE_BYTES = 64 << 20  # bytes of programs, and as many of results


def _program_size(text: str) -> int:
    """Return the estimated bytes of a cached program."""
    return 2_000 + 450 * len(text)  # measured: up to 440 bytes for each byte of the text


def _verdict_size(selector: Selector, _: Device) -> int:
    """Return the estimated bytes of a cached result, whose reason quotes parts of the text."""
    return 1_000 + len(selector.text)


@memoize_bounded(most=CACHE_BYTES, size=_program_size)
def _check_cached(text: str) -> _Checked | SelectorError:
    """Return the program of a selector, or the error. Errors are cached, too: rejecting takes as long as accepting."""
    try:
        return _check(text)
    except SelectorError as error:
        return error.with_traceback(None)


def _check_or_raise(text: str) -> _Checked:
    """Return the checked selector. Raise SelectorError if it is invalid."""
    result = _check_cached(text)
    if isinstance(result, SelectorError):
        # A new exception, since the cached one would collect the traceback of every caller.
        raise SelectorError(result.message, text, result.position, result.hint)
    return result


def compile(text: str) -> Selector:  # noqa: A001  (shadows the builtin on purpose: `cel.compile` reads well)
    """Check a selector. Raise SelectorError if it is invalid. Recent results are cached."""
    _check_or_raise(text)
    return Selector(text)


def knows(text: str) -> bool:
    """True if the result for this text is cached, so that checking it again costs nothing."""
    return _check_cached.knows(text)


def forget() -> None:
    """Clear the caches of programs and results."""
    _check_cached.cache_clear()
    evaluate.cache_clear()


def _check(text: str) -> _Checked:
    """Compile a selector and estimate its cost. Raise SelectorError."""
    try:
        program = compile_expression(parse(text))
        cost = worst_cost(program.root, program)
    except CompileError as fault:
        raise SelectorError(fault.message, text, fault.at, fault.hint) from None
    except Exception as error:  # a bug; one selector must not stop the scheduler
        raise SelectorError(f"internal error: {error!r}", text, 0) from error
    if cost > LIMIT:
        amount = f"{cost:,}" if cost < 10**12 else "countless"
        raise SelectorError(f"the selector may cost {amount} units, {LIMIT:,} are allowed", text, 0, _TOO_MUCH)
    return _Checked(program, cost)


@memoize_bounded(most=CACHE_BYTES, size=_verdict_size)
def evaluate(selector: Selector, device: Device) -> Evaluation:
    """Evaluate a selector on a device; never raise. Recent results are cached.

    A run-time error (missing attribute, wrong type, too many steps) counts as no match, with the error as the reason.
    """
    try:
        program = selector.program
        first_frame = Frame(device.fields, program.variables)
        if _holds(program, first_frame):
            return Evaluation(matched=True, steps=first_frame.spent)
        # A budget of its own: a selector that used most of its steps must still get a reason.
        reason_frame = Frame(device.fields, program.variables)
        explanation = reason(selector.text, program, device, reason_frame)
        closeness = measure_closeness(program, device, reason_frame)
        return Evaluation(
            matched=False, reason=explanation, measure_closeness=closeness, steps=first_frame.spent + reason_frame.spent
        )
    except OutOfBudget as error:
        return Evaluation(matched=False, reason=str(error), steps=BUDGET)
    except Exception as error:  # noqa: BLE001  (a bug; one selector must not stop the scheduler)
        return Evaluation(matched=False, reason=f"internal error: {error!r}", steps=BUDGET)


def _holds(program: Program, frame: Frame) -> bool:
    """True if the selector is true. An error counts as false, except OutOfBudget, which is raised."""
    try:
        return program.evaluate(program.root, frame) is True
    except OutOfBudget:
        raise
    except EvaluationError:
        return False
