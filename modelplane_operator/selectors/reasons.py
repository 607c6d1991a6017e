"""Explain why a device does not match: the first failing condition, the device's value and the required one.

`cel.evaluate` calls `reason` and `measure_closeness` after a miss. Both evaluate parts of the selector again, without
side effects. The texts become part of conditions and of the answers of `modelplane why`; `scheduling` ranks devices
by their closeness and shows the reason of the nearest one.
"""

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from modelplane_operator.selectors.device import Device, format_value
from modelplane_operator.selectors.evaluate import Frame
from modelplane_operator.selectors.program import Program
from modelplane_operator.selectors.quantity import Quantity
from modelplane_operator.selectors.refusals import path_of
from modelplane_operator.selectors.tree import Call, Expr, Ident, Literal, Logic, Select, iterate_children
from modelplane_operator.selectors.values import EvaluationError, Value

MAX_LENGTH = 256  # maximum length of a reason, which becomes part of a condition's message
_WRITTEN = 80  # maximum length of a quoted part of the selector


@dataclass(frozen=True, slots=True)
class _Question:
    """A selector and a device. All evaluations for the explanation share the steps of one evaluation."""

    text: str
    """Text of the selector, from which parts are quoted."""
    program: Program
    device: Device
    frame: Frame
    """State with the remaining steps."""

    def value(self, node: Expr) -> Value:
        """Return the value of a part. Raise EvaluationError."""
        return self.program.evaluate(node, self.frame)


@dataclass(frozen=True, slots=True)
class _Comparison:
    """A condition that compares a value of the device with a required value."""

    actual: Expr
    """Expression that reads the device."""
    sign: str
    """Words or sign before the required value; empty for equality."""
    needed: Expr
    """Expression of the required value."""


def reason(text: str, program: Program, device: Device, frame: Frame) -> str:
    """Return the reason as a sentence. The selector must not match the device."""
    question = _Question(text, program, device, frame)
    for condition in _split_conditions(program.root):
        failing_reason = _find_failure(question, condition)
        if failing_reason is not None:
            return _shorten(failing_reason, MAX_LENGTH)
    return "the selector is false"


# Levels of a failing condition: the device has no such domain; it lacks the attribute; or its value differs, which for
# numbers also counts the distance.
_FOREIGN, _ABSENT, _OTHER = 0.0, 0.25, 0.5


def measure_closeness(program: Program, device: Device, frame: Frame) -> float:
    """Return the number of conditions that hold before the first failing one, plus how close that one is (0 to 1)."""
    question = _Question("", program, device, frame)
    for satisfied, condition in enumerate(_split_conditions(program.root)):
        try:
            if question.value(condition) is not True:
                return satisfied + _OTHER + _closeness(question, condition) * (1 - _OTHER)
        except EvaluationError:
            return satisfied + (_ABSENT if device.domains & _domains(condition) else _FOREIGN)
    return 0.0


def _domains(node: Expr) -> frozenset[str]:
    """Return the domains that a condition reads."""
    path = path_of(node)
    if path is not None:
        return frozenset({path[1]})
    return frozenset(domain for child in iterate_children(node) for domain in _domains(child))


def _split_conditions(tree: Expr) -> Iterator[Expr]:
    """Yield the terms of a conjunction."""
    match tree:
        case Logic(conjunction=True):
            for term in tree.terms:
                yield from _split_conditions(term)
        case _:
            yield tree


def _find_failure(question: _Question, node: Expr) -> str | None:
    """Return why a condition does not hold; None if it does."""
    try:
        value = question.value(node)
    except EvaluationError as error:
        return str(error)
    if value is True:
        return None
    if value is not False:
        return f"{_name_of(question, node)} is {format_value(value)}, not true or false"
    match node:
        case Logic(conjunction=False):
            return " and ".join(filter(None, (_find_failure(question, term) for term in node.terms)))
        case Select(tested=True):
            path = path_of(Select(node.operand, node.field, at=0, start=0, end=0, depth=0))
            missing_name = _short_name(question, path) if path is not None else _quote(question, node)
            return f"the device has no {missing_name}"
        case Call(function="@in", args=(Literal(value=str(domain)), Select(operand=Ident(name="device"), field=what))):
            return f"the device has no {what} of {domain}"
        case _:
            pass
    comparison = _to_comparison(node)
    if comparison is None:
        return f"{_quote(question, node)} is false"
    try:
        actual, needed = _format_actual(question, comparison.actual), _format_needed(question, comparison.needed)
        in_unit, proposal = _propose_rounded(question, comparison)
    except EvaluationError:
        return f"{_quote(question, node)} is false"
    return f"{_name_of(question, comparison.actual)} is {actual}{in_unit}, needs {comparison.sign}{needed}{proposal}"


def _propose_rounded(question: _Question, comparison: _Comparison) -> tuple[str, str]:
    """Return the device's quantity in the unit of the required one, and a smaller requirement that it meets.

    Both are empty unless it misses by little. GPUs publish less than their name says: an H100 of 80 GB has 79.6Gi.
    """
    nothing = "", ""
    match comparison.needed:
        case Call(function="quantity", args=(Literal(value=str(text)),)) if comparison.sign in _AT_LEAST:
            written = _WITH_UNIT.fullmatch(text)
        case _:
            return nothing
    if written is None:
        return nothing
    actual, needed = question.value(comparison.actual), question.value(comparison.needed)
    if not isinstance(actual, Quantity) or not isinstance(needed, Quantity):
        return nothing
    in_unit = actual.as_float() / needed.as_float() * float(written[1])
    if not _NEARLY <= actual.as_float() / needed.as_float() < 1 or in_unit < 1:
        return nothing
    unit = written[2]
    published = "" if in_unit.is_integer() else f" ({math.floor(in_unit * 10) / 10:g}{unit})"
    return published, f": write {math.floor(in_unit)}{unit}"


_SIGNS = {"_==_": "", "_!=_": "anything but ", "_<_": "< ", "_<=_": "<= ", "_>_": "> ", "_>=_": ">= "}
"""Signs in messages, by operator."""
_SWAPPED = {"_<_": "_>_", "_<=_": "_>=_", "_>_": "_<_", "_>=_": "_<=_"}
"""Operators with exchanged operands, for conditions such as `80 <= x`."""
_AT_LEAST = frozenset({">= ", "> "})
"""Signs of a required minimum."""
_NEARLY = 0.9  # an L4 of 24 GB publishes 22.5Gi
"""Fraction of a required quantity from which a smaller requirement is proposed."""
_WITH_UNIT = re.compile(r"([1-9][0-9]*)([EPTGMK]i|[EPTGMk])")
"""Quantity as users write it: a whole number and a unit."""
_METHODS = {"isGreaterThan": "> ", "isLessThan": "< "}
"""Signs in messages, by method of a quantity or version."""


def _to_comparison(node: Expr) -> _Comparison | None:
    """Return a condition as a comparison; None if it has no such form."""
    match node:
        case Call(function="!_", args=(inner,)):
            return _Comparison(inner, "", _bool_literal(node, value=False))
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
            return _Comparison(node, "", _bool_literal(node, value=True))
        case _:
            return None


def _bool_literal(node: Expr, *, value: bool) -> Literal:
    """Return a literal at the position of another node, as the required value of a bare condition."""
    return Literal(value, at=node.at, start=node.start, end=node.end, depth=1)


def _format_needed(question: _Question, node: Expr) -> str:
    """Return the required value: as it is written if possible, otherwise computed."""
    match node:
        case Literal(value=value):
            return format_value(value)
        case Call(function="quantity" | "semver", args=(Literal(value=str(text)), *_)):
            return text
        case _:
            return _format(question.value(node))


def _format_actual(question: _Question, node: Expr) -> str:
    """Return the device's value: as its driver has published it if possible, otherwise computed."""
    path = path_of(node)
    written = question.device.format_entry(*path) if path is not None else None
    return written if written is not None else _format(question.value(node))


def _format(value: Any) -> str:
    """Return a value in the notation of selectors; the elements of a list without brackets."""
    return ", ".join(map(_format, cast("tuple[Any, ...]", value))) if isinstance(value, tuple) else format_value(value)


def _name_of(question: _Question, node: Expr) -> str:
    """Return the name of an attribute or field, otherwise the quoted expression."""
    path = path_of(node)
    if path is not None:
        return _short_name(question, path)
    match node:
        case Select(operand=Ident(name="device"), field=field):
            return field
        case _:
            return _quote(question, node)


def _short_name(question: _Question, path: tuple[str, str, str]) -> str:
    """Return the id, after its domain unless that is the driver's own."""
    _, domain, identifier = path
    return identifier if domain == question.device.driver else f"{domain}/{identifier}"


def _quote(question: _Question, node: Expr) -> str:
    """Return a part of the selector in backquotes, on one line."""
    written = " ".join(question.text[node.start : node.end].split())
    return f"`{_shorten(written, _WRITTEN)}`"


def _shorten(text: str, limit: int) -> str:
    """Return a text of at most so many characters."""
    return text if len(text) <= limit else f"{text[: limit - 3]}..."


def _closeness(question: _Question, node: Expr) -> float:
    """Return the ratio of the smaller to the larger of the actual and the required number, from 0 to less than 1.

    Texts that differ only in upper and lower case are as close as possible.
    """
    comparison = _to_comparison(node)
    if comparison is None:
        return 0.0
    try:
        actual_value, needed_value = question.value(comparison.actual), question.value(comparison.needed)
    except (EvaluationError, KeyError):
        return 0.0
    if isinstance(actual_value, str) and isinstance(needed_value, str):
        return 0.999 if actual_value.casefold() == needed_value.casefold() else 0.0
    actual, needed = _to_number(actual_value), _to_number(needed_value)
    if actual is None or needed is None or min(actual, needed) <= 0:
        return 0.0
    return min(actual, needed) / max(actual, needed) * 0.999


def _to_number(value: Value) -> float | None:
    """Return a numeric value as a float; None for other values."""
    match value:
        case Quantity():
            return value.as_float()
        case bool():
            return None
        case int() | float():
            return float(value)
        case _:
            return None
