"""Why a device does not match: the first condition that fails, with what the device has and what is needed."""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from modelplane_operator.selectors.device import Device, shown
from modelplane_operator.selectors.evaluate import Frame
from modelplane_operator.selectors.program import Program
from modelplane_operator.selectors.quantity import Quantity
from modelplane_operator.selectors.refusals import path_of
from modelplane_operator.selectors.tree import Call, Expr, Ident, Literal, Logic, Select, children
from modelplane_operator.selectors.values import EvaluationError, Value

MAX_LENGTH = 256  # of a reason: it becomes part of a condition's message
_WRITTEN = 80  # of a part of the selector quoted in it


@dataclass(frozen=True, slots=True)
class _Question:
    """One device asked by one selector; all that is asked for the answer shares the steps of one evaluation."""

    text: str
    program: Program
    device: Device
    frame: Frame

    def value(self, node: Expr) -> Value:
        return self.program.evaluate(node, self.frame)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A condition of the form: what the device has, and what is needed of it."""

    actual: Expr
    sign: str
    needed: Expr


def reason(text: str, program: Program, device: Device, frame: Frame) -> str:
    """The sentence for a person; the selector must not match the device."""
    question = _Question(text, program, device, frame)
    for condition in _conditions(program.root):
        failed = _failure(question, condition)
        if failed is not None:
            return _shortened(failed, MAX_LENGTH)
    return "the selector is false"


# How near a condition is to holding that does not: it cannot be asked of a device that knows nothing of its domain; it
# asks for what the device does not say of itself; or the device says something else, for numbers near to it or not.
_FOREIGN, _ABSENT, _OTHER = 0.0, 0.25, 0.5


def nearness(program: Program, device: Device, frame: Frame) -> float:
    """The conditions that hold before the first that fails, plus how far that one is from holding (0 to 1)."""
    question = _Question("", program, device, frame)
    for held, condition in enumerate(_conditions(program.root)):
        try:
            if question.value(condition) is not True:
                return held + _OTHER + _share(question, condition) * (1 - _OTHER)
        except EvaluationError:
            return held + (_ABSENT if device.domains & _domains(condition) else _FOREIGN)
    return 0.0


def _domains(node: Expr) -> frozenset[str]:
    """The domains of what a condition asks for."""
    path = path_of(node)
    if path is not None:
        return frozenset({path[1]})
    return frozenset(domain for child in children(node) for domain in _domains(child))


def _conditions(tree: Expr) -> Iterator[Expr]:
    match tree:
        case Logic(conjunction=True):
            for term in tree.terms:
                yield from _conditions(term)
        case _:
            yield tree


def _failure(question: _Question, node: Expr) -> str | None:
    """Why a condition does not hold; None when it does."""
    try:
        value = question.value(node)
    except EvaluationError as error:
        return str(error)
    if value is True:
        return None
    if value is not False:
        return f"{_name(question, node)} is {shown(value)}, not true or false"
    match node:
        case Logic(conjunction=False):
            return " and ".join(filter(None, (_failure(question, term) for term in node.terms)))
        case Select(tested=True):
            path = path_of(Select(node.operand, node.field, at=0, start=0, end=0, depth=0))
            what = _short(question, path) if path is not None else _quoted(question, node)
            return f"the device has no {what}"
        case _:
            pass
    domain = _tested_domain(node)
    if domain is not None:
        return f"the device has no {domain[0]} of {domain[1]}"
    comparison = _comparison(node)
    if comparison is None:
        return f"{_quoted(question, node)} is false"
    return _unmet(question, comparison) or f"{_quoted(question, node)} is false"


def _tested_domain(node: Expr) -> tuple[str, str] | None:
    match node:
        case Call(function="@in", args=(Literal(value=str(domain)), Select(operand=Ident(name="device"), field=what))):
            return what, domain
        case _:
            return None


_SIGNS = {"_==_": "", "_!=_": "anything but ", "_<_": "< ", "_<=_": "<= ", "_>_": "> ", "_>=_": ">= "}
_SWAPPED = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
_METHODS = {"isGreaterThan": "> ", "isLessThan": "< "}


def _comparison(node: Expr) -> _Comparison | None:
    match node:
        case Call(function="!_", args=(inner,)):
            return _Comparison(inner, "", _truth(node, value=False))
        case Call(function=("isGreaterThan" | "isLessThan") as method, target=actual, args=(needed,)) if actual:
            return _Comparison(actual, _METHODS[method], needed)
        case Call(function="@in", args=(actual, needed)):
            return _Comparison(actual, "one of ", needed)
        case Call(
            function=operator, args=(Call(function="compareTo", target=actual, args=(needed,)), Literal(value=0))
        ) if actual and operator in _SIGNS:
            return _Comparison(actual, _SIGNS[operator], needed)
        case Call(function=operator, args=(Literal() as needed, actual)) if operator in _SIGNS:
            return _Comparison(actual, _SIGNS[_SWAPPED.get(operator, operator)], needed)
        case Call(function=operator, args=(actual, needed)) if operator in _SIGNS:
            return _Comparison(actual, _SIGNS[operator], needed)
        case Select() if path_of(node) is not None:
            return _Comparison(node, "", _truth(node, value=True))
        case _:
            return None


def _truth(node: Expr, *, value: bool) -> Literal:
    return Literal(value, at=node.at, start=node.start, end=node.end, depth=1)


def _unmet(question: _Question, comparison: _Comparison) -> str | None:
    try:
        actual, needed = _has(question, comparison.actual), _needs(question, comparison.needed)
    except EvaluationError:
        return None
    return f"{_name(question, comparison.actual)} is {actual}, needs {comparison.sign}{needed}"


def _needs(question: _Question, node: Expr) -> str:
    match node:
        case Literal(value=value):
            return shown(value)
        case Call(function="quantity" | "semver", args=(Literal(value=str(text)), *_)):
            return text
        case _:
            return _shown(question.value(node))


def _has(question: _Question, node: Expr) -> str:
    path = path_of(node)
    written = question.device.written(*path) if path is not None else None
    return written if written is not None else _shown(question.value(node))


def _shown(value: Any) -> str:
    return ", ".join(map(_shown, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else shown(value)


def _name(question: _Question, node: Expr) -> str:
    path = path_of(node)
    if path is not None:
        return _short(question, path)
    match node:
        case Select(operand=Ident(name="device"), field=field):
            return field
        case _:
            return _quoted(question, node)


def _short(question: _Question, path: tuple[str, str, str]) -> str:
    _, domain, identifier = path
    return identifier if domain == question.device.driver else f"{domain}/{identifier}"


def _quoted(question: _Question, node: Expr) -> str:
    written = " ".join(question.text[node.start : node.end].split())
    return f"`{_shortened(written, _WRITTEN)}`"


def _shortened(text: str, limit: int) -> str:
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _share(question: _Question, node: Expr) -> float:
    """How much of what is needed the device has, from 0 to less than 1."""
    comparison = _comparison(node)
    if comparison is None:
        return 0.0
    try:
        actual, needed = _number(question.value(comparison.actual)), _number(question.value(comparison.needed))
    except (EvaluationError, KeyError):
        return 0.0
    if actual is None or needed is None or min(actual, needed) <= 0:
        return 0.0
    return min(actual, needed) / max(actual, needed) * 0.999


def _number(value: Value) -> float | None:
    match value:
        case Quantity():
            return value.as_float()
        case bool():
            return None
        case int() | float():
            return float(value)
        case _:
            return None
