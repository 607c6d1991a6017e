"""Explain errors of selectors and missing entries of devices, with hints what to write instead."""

import re
from typing import Final

from modelplane_operator.selectors import functions as f
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.tree import Call, CompileError, Expr, Ident, Literal, Select

LARGEST_IN_GI: Final = 4096
"""Number from which a memory without a unit counts bytes."""


def path_of(node: Expr) -> tuple[str, str, str] | None:
    """Return the path that a node reads of the device: ("attributes" or "capacity", domain, id); None for other
    nodes.
    """
    match node:
        case Select(operand=inner, field=identifier, optional=False, tested=False):
            domain = _domain_of(inner)
        case Call(function="_[_]", args=(inner, Literal(value=str(identifier)))):
            domain = _domain_of(inner)
        case _:
            return None
    return (*domain, identifier) if domain is not None else None


def _domain_of(node: Expr) -> tuple[str, str] | None:
    """Return (field, domain) that a node reads of the device; None for other nodes."""
    match node:
        case Select(operand=inner, field=domain, optional=False, tested=False):
            pass
        case Call(function="_[_]", args=(inner, Literal(value=str(domain)))):
            pass
        case _:
            return None
    match inner:
        case Select(operand=Ident(name="device"), field=what, optional=False, tested=False):
            return what, domain
        case _:
            return None


def describe_missing(node: Expr) -> str:
    """Return the message for an entry that the device does not have."""
    path = path_of(node)
    if path is None:
        return f"there is no {node.field}" if isinstance(node, Select) else "there is no such key"
    section, domain, identifier = path
    return f"the device has no {'attribute' if section == 'attributes' else section} {domain}/{identifier}"


def explain_refusal(node: Call, name: str, types: list[t.Type], *, method: bool) -> CompileError:
    """Return the error for a call without a matching overload, with a hint what to write instead."""
    others = f.OVERLOADS.get(name, [])
    if not others:
        similar = next((other for other in f.OVERLOADS if other.lower() == name.lower()), None)
        return CompileError(f"there is no function {name}()", node.at, f"write {similar}()" if similar else "")
    operator = name.strip("_@") if name[0] in "_@!-" else None
    type_list = " and ".join(map(str, types))
    if operator is not None:
        return CompileError(
            f"{_OPERATORS.get(name, operator)} cannot be applied to {type_list}",
            node.at,
            _operator_hint(operator, types, node),
        )
    if all(o.method is not method for o in others):
        hint = f"write {others[0]}"
        return CompileError(f"{name}() is {'not a method' if method else 'a method'}", node.at, hint)
    accepted = [str(o) for o in others if o.method is method]
    hint = f"it is {' or '.join(accepted[:3])}"
    literal = node.args[-1].value if node.args and isinstance(node.args[-1], Literal) else None
    if method and types[0] == t.QUANTITY and isinstance(literal, str) and name in _INSTEAD_OF.values():
        hint = f"write .{name}({_write_quantity(literal)})"
    if method and types[0] == t.ANY and isinstance(literal, int | float) and name in _COMPARED_BY:
        hint = f"write {_COMPARED_BY[name]} {literal}"
    receiver = f"{'an attribute' if types[0] == t.ANY else f'a {types[0]}'} has no {name}()" if method else f"{name}()"
    arguments = f" for ({', '.join(map(str, types[method:]))})" if len(types) > method or not method else ""
    message = f"{receiver}{arguments}" if method else f"{receiver} does not take ({type_list})"
    return CompileError(message, node.at, hint)


_OPERATORS = {"_[_]": "[]", "_[?_]": "[?]", "_?_:_": "? :", "@in": "in", "-_": "-", "!_": "!"}
"""Operators as users write them, by name of the function."""
_INSTEAD_OF = {"<": "isLessThan", ">": "isGreaterThan", "<=": "compareTo", ">=": "compareTo"}
"""Methods of quantities and versions that users need in place of an operator."""
_COMPARED_BY = {"isLessThan": "<", "isGreaterThan": ">"}
"""Operators of numbers that users need in place of a method."""


def _write_quantity(literal: object) -> str:
    """Return a quantity with the user's own literal, or with an example. A plain number most likely counts Gi."""
    match literal:
        case str() if re.fullmatch(r"[0-9]+(\.[0-9]+)?([EPTGMK]i|[EPTGMk])?", literal):
            return f'quantity("{literal}")'
        case int() if not isinstance(literal, bool) and literal > 0:
            return f'quantity("{literal}{"Gi" if literal < LARGEST_IN_GI else ""}")'
        case _:
            return 'quantity("79Gi")'


def _operator_hint(operator: str, types: list[t.Type], node: Call) -> str:
    """Return a hint for an operator with wrong types; empty if there is none."""
    first, second = types[0], types[-1]
    # The literals of the user: `80`, or that of `quantity("80Gi")`; of two, the one that something is compared with.
    operands = [inner for item in node.args for inner in (item, *(item.args if isinstance(item, Call) else ()))]
    literal = next((item.value for item in reversed(operands) if isinstance(item, Literal)), None)
    is_version = isinstance(literal, str) and re.fullmatch(r"[0-9]+\.[0-9]+\.[0-9]+", literal)
    version = f'semver("{literal}")' if is_version else 'semver("9.0.0")'
    for type_, example in ((t.QUANTITY, _write_quantity(literal)), (t.SEMVER, version)):
        if type_ not in (first, second):
            continue
        if operator in ("==", "!="):
            return f"compare it with {example}"
        if operator in _INSTEAD_OF:
            method = _INSTEAD_OF[operator]
            return f"write .{method}({example})" + (f" {operator} 0" if method == "compareTo" else "")
        if operator in "+-":
            return f"write .{'add' if operator == '+' else 'sub'}(...)"
    if operator in ("==", "!=", "<", "<=", ">", ">="):
        # `==` needs operands of one type, also for numbers; only `<` and the like accept an int and a double.
        numbers = {"int": "int", "double": "double", "uint": "uint"}
        if first.name in numbers and second.name in numbers:
            return f"write both numbers in the same way: as {first} or as {second}"
        path = _domain_of(node.args[0])
        if first.name == "map" and path is not None:
            what, (domain, slash, identifier) = path[0], path[1].partition("/")
            return f'write device.{what}["{domain}"].{identifier if slash else "name"}'
        if "string" in (first.name, second.name):
            return "numbers and truth values stand without quotes, texts with them"
    return ""


CONDITION_HINTS = {
    "string": "compare it with ==",
    "int": "compare it, such as with >= 1",
    "Quantity": 'compare it, such as with .compareTo(quantity("79Gi")) >= 0',
    "dyn": "compare it, such as with == true",
}
"""Hints for values that are no conditions, by their type."""
