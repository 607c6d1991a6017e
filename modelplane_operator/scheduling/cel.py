"""Selectors: which device a request wants, in the expression language of Kubernetes' DRA (CEL).

    selector = compile('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0')
    evaluate(selector, device)      # Verdict(matched=False, reason="memory is 40960Mi, needs >= 80Gi")

The same text is evaluated on the workload cluster by the real allocator, so a selector means here what it means there,
and what the API server would refuse is refused here, with the position and what to write instead.
docs/selector-language.md lists the differences.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from modelplane_operator.scheduling.selectors.compile import Program, compile_expression
from modelplane_operator.scheduling.selectors.cost import LIMIT, worst_cost
from modelplane_operator.scheduling.selectors.device import Attribute, Device, Version
from modelplane_operator.scheduling.selectors.reasons import nearness, reason
from modelplane_operator.scheduling.selectors.syntax import Fault, SelectorError, parse
from modelplane_operator.scheduling.selectors.values import EvaluationError, OutOfBudget

__all__ = ["Attribute", "Device", "Selector", "SelectorError", "Verdict", "Version", "compile", "evaluate"]


@dataclass(frozen=True, slots=True)
class Selector:
    """A checked selector; two with the same text are the same."""

    text: str
    program: Program = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a device is wanted, and if not, why not, in words a person can act on."""

    matched: bool
    reason: str = ""
    nearness: float = 0.0
    """Of the devices that do not match, the one with the highest is the nearest miss."""


_MATCHED = Verdict(matched=True)


_TOO_MUCH = "compare shorter things: a text or list that is computed, or a type, may be of any size"


def _counted(cost: int) -> str:
    return f"{cost:,}" if cost < 10**12 else "countless"


@lru_cache(maxsize=4096)
def compile(text: str) -> Selector:  # noqa: A001  (it is what it does, and `cel.compile` reads well)
    """Check a selector; raises SelectorError. Remembers the texts it was given last."""
    try:
        program = compile_expression(parse(text))
        cost = worst_cost(program.root, program)
    except Fault as fault:
        raise SelectorError(fault.message, text, fault.at, fault.hint) from None
    except Exception as error:  # our mistake; one selector must not stop the scheduler
        raise SelectorError(f"internal error: {error!r}", text, 0) from error
    if cost > LIMIT:
        raise SelectorError(f"the selector may cost {_counted(cost)} units, {LIMIT:,} are allowed", text, 0, _TOO_MUCH)
    return Selector(text, program)


@lru_cache(maxsize=65_536)
def evaluate(selector: Selector, device: Device) -> Verdict:
    """Whether the device matches; never raises. Remembers the pairs it was asked about last.

    A run-time error (no such attribute, a value of another type, too much work) is a non-match with that reason.
    """
    try:
        if _holds(selector.program, device):
            return _MATCHED
        why = reason(selector.text, selector.program, device)
        return Verdict(matched=False, reason=why, nearness=nearness(selector.program, device))
    except OutOfBudget as error:
        return Verdict(matched=False, reason=str(error))
    except Exception as error:  # noqa: BLE001  (our mistake; one selector must not stop the scheduler)
        return Verdict(matched=False, reason=f"internal error: {error!r}")


def _holds(program: Program, device: Device) -> bool:
    try:
        return program.evaluate(program.root, device.fields) is True
    except OutOfBudget:
        raise
    except EvaluationError:
        return False
