"""Selectors: which device a request wants, in the expression language of Kubernetes' DRA (CEL).

    selector = compile('device.capacity["gpu.nvidia.com"].memory.compareTo(quantity("80Gi")) >= 0')
    evaluate(selector, device)      # Verdict(matched=False, reason="memory is 40960Mi, needs >= 80Gi")

The same text is evaluated on the workload cluster by the real allocator, so a selector means here what it means there,
and what the API server would refuse is refused here, with the position and what to write instead.
docs/selector-language.md lists the differences.
"""

from dataclasses import dataclass, field
from functools import lru_cache

from modelplane_operator.scheduling.cel_compile import Program, compile_expression
from modelplane_operator.scheduling.cel_device import Attribute, Device, Version
from modelplane_operator.scheduling.cel_reasons import nearness, reason
from modelplane_operator.scheduling.cel_syntax import Expr, Fault, SelectorError, parse
from modelplane_operator.scheduling.cel_values import EvaluationError

__all__ = ["Attribute", "Device", "Selector", "SelectorError", "Verdict", "Version", "compile", "evaluate"]


@dataclass(frozen=True, slots=True)
class Selector:
    """A checked selector; two with the same text are the same."""

    text: str
    tree: Expr = field(compare=False, repr=False)
    program: Program = field(compare=False, repr=False)


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether a device is wanted, and if not, why not, in words a person can act on."""

    matched: bool
    reason: str = ""
    nearness: float = 0.0
    """Of the devices that do not match, the one with the highest is the nearest miss."""


_MATCHED = Verdict(matched=True)


@lru_cache(maxsize=4096)
def compile(text: str) -> Selector:  # noqa: A001  (it is what it does, and `cel.compile` reads well)
    """Check a selector; raises SelectorError. Remembers the texts it has seen last."""
    try:
        tree = parse(text)
        return Selector(text, tree, compile_expression(tree))
    except Fault as fault:
        raise SelectorError(fault.message, text, fault.at, fault.hint) from None
    except RecursionError:
        raise SelectorError("the selector is nested too deeply", text, 0) from None


@lru_cache(maxsize=65_536)
def evaluate(selector: Selector, device: Device) -> Verdict:
    """Whether the device matches; never raises. Remembers the pairs it was asked about last.

    A run-time error (no such attribute, a value of another type, too much work) is a non-match with that reason.
    """
    try:
        if selector.program.evaluate(None, device.fields) is True:
            return _MATCHED
        return Verdict(
            matched=False,
            reason=reason(selector.text, selector.tree, selector.program, device),
            nearness=nearness(selector.tree, selector.program, device),
        )
    except EvaluationError:
        return Verdict(
            matched=False,
            reason=reason(selector.text, selector.tree, selector.program, device),
            nearness=nearness(selector.tree, selector.program, device),
        )
    except RecursionError:
        return Verdict(matched=False, reason="the selector is nested too deeply to be evaluated")
