"""From a syntax tree to a checked program: the type of every part, and a closure that computes it.

One pass does both, because what is known about the types decides how the closure may go about it: a call whose
overload is certain calls it, any other looks at the types of its arguments each time. The rules for types are CEL's, so
that what is refused here is what the API server refuses.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias, assert_never, cast

from modelplane_operator.scheduling import cel_functions as f
from modelplane_operator.scheduling import cel_types as t
from modelplane_operator.scheduling.cel_syntax import (
    Bind,
    Call,
    Comprehension,
    Expr,
    Fault,
    Fold,
    Ident,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Select,
    children,
)
from modelplane_operator.scheduling.cel_values import (
    KINDS,
    NOTHING,
    DomainMap,
    EvaluationError,
    Malformed,
    Optional,
    OutOfBudget,
    Value,
    equal,
    kind,
)

# How many steps one evaluation may take; the longest useful selector we know takes about 100. The API server's own
# limit is 1,000,000 units, which here would be a second.
BUDGET = 100_000


class Frame:
    """One evaluation: the device, the values of variables, and how many steps are left."""

    __slots__ = ("device", "left", "variables")

    def __init__(self, device: Mapping[str, Any], variables: int) -> None:
        self.device = device
        self.variables: list[Any] = [None] * variables
        self.left = BUDGET

    def spend(self, steps: int) -> None:
        """Take steps off what is left; raises OutOfBudget."""
        self.left -= steps
        if self.left < 0:
            raise OutOfBudget(f"the selector takes more than {BUDGET} steps on this device")


Run: TypeAlias = Callable[[Frame], Any]


@dataclass(frozen=True, slots=True)
class Typed:
    """What is known about an expression."""

    type: t.Type
    run: Run
    constant: bool = False
    sure: bool = False
    """Whether the value is certain to be of the type; elements that came in through `dyn` need not be."""
    overloads: tuple[f.Overload, ...] = ()


@dataclass(slots=True)
class Program:
    """A checked expression, and the checked parts it was made of (by identity, for explaining a result)."""

    root: Expr
    parts: dict[int, Typed]
    bindings: t.Bindings
    variables: int

    def evaluate(self, part: Expr, device: Mapping[str, Any]) -> Value:
        """The value of the expression, or of a part outside any comprehension; raises EvaluationError."""
        return self.parts[id(part)].run(Frame(device, self.variables))

    def type_of(self, part: Expr) -> t.Type:
        """The type of a part; what nothing decided is `dyn`."""
        return t.substitute(self.bindings, self.parts[id(part)].type, free=t.DYN)

    def overloads_of(self, part: Expr) -> tuple[f.Overload, ...]:
        """The ways in which a call may be meant, as far as types tell."""
        return self.parts[id(part)].overloads


def compile_expression(tree: Expr) -> Program:
    """Check an expression whose only variable is `device`; raises Fault."""
    compiler = _Compiler()
    compiler.visit(tree)
    compiler.check_literals()
    program = Program(tree, compiler.parts, compiler.bindings, compiler.slots)
    type_ = program.type_of(tree)
    if type_ not in (t.BOOL, t.ANY):
        raise Fault(f"the selector is a {type_}, not a condition", tree.start, _CONDITION_HINTS.get(type_.name, ""))
    return program


_CONDITION_HINTS = {
    "string": "compare it with ==",
    "int": "compare it, such as with >= 1",
    "Quantity": 'compare it, such as with .compareTo(quantity("80Gi")) >= 0',
    "dyn": "compare it, such as with == true",
}
_MISSING = object()
_NOT_YET: Run = lambda _: None  # noqa: E731  (the place of a closure that is filled in later)
_RUNTIME: dict[str, frozenset[type]] = {}
for _type, _name in KINDS.items():
    _name = {"quantity": "Quantity", "version": "Semver"}.get(_name, _name)
    _RUNTIME[_name] = _RUNTIME.get(_name, frozenset()) | {_type}


def _read(value: Any) -> Any:
    if value.__class__ is Malformed:
        raise EvaluationError(value.reason)
    return value


def find(mapping: Mapping[Any, Any], key: Any) -> Any:
    """The value of a key, or _MISSING; raises EvaluationError for what can be no key, and for a malformed value."""
    if type(key) is str:
        if isinstance(mapping, DomainMap):
            return mapping[key]
        return _read(mapping.get(key, _MISSING))
    if key is None or isinstance(key, tuple | Mapping | Optional | f.Quantity | f.Semver | bytes):
        raise EvaluationError(f"a {kind(key)} cannot be the key of a map")
    # Python finds True under 1.
    value = mapping.get(key, _MISSING)
    if value is not _MISSING and isinstance(key, bool) is not any(isinstance(k, bool) for k in mapping):
        return _MISSING
    return _read(value)


def _size(node: Expr) -> int:
    return 1 + sum(map(_size, children(node)))


def _truth(value: Any) -> bool:
    if value is True or value is False:
        return value
    raise EvaluationError(f"a {kind(value)} is not a condition")


@dataclass(slots=True)
class _Compiler:
    bindings: t.Bindings = field(default_factory=dict[t.Type, t.Type])
    parts: dict[int, Typed] = field(default_factory=dict[int, Typed])
    scope: dict[str, Typed] = field(default_factory=dict[str, Typed])
    alike: list[tuple[Expr, t.Type, t.Type]] = field(default_factory=list[tuple[Expr, t.Type, t.Type]])
    slots: int = 0
    fresh: int = 0

    def visit(self, node: Expr) -> Typed:
        match node:
            case Literal():
                typed = self._literal(node)
            case Ident():
                typed = self._ident(node)
            case Select():
                typed = self._select(node)
            case Call():
                typed = self._call(node)
            case Logic():
                typed = self._logic(node)
            case ListOf():
                typed = self._list(node)
            case MapOf():
                typed = self._map(node)
            case Comprehension():
                typed = self._comprehension(node)
            case Bind():
                typed = self._bind(node)
            case _:
                assert_never(node)
        self.parts[id(node)] = typed
        return typed

    # --- types ---

    def _free(self) -> t.Type:
        self.fresh += 1
        return t.parameter(f"_{self.fresh}")

    def _resolved(self, type_: t.Type) -> t.Type:
        return t.substitute(self.bindings, type_)

    def _assign(self, froms: Iterable[t.Type], tos: Iterable[t.Type]) -> bool:
        bindings = t.assignable(self.bindings, froms, tos)
        if bindings is not None:
            self.bindings = bindings
        return bindings is not None

    def _joined(self, node: Expr, before: t.Type | None, type_: t.Type) -> t.Type:
        """The common type of a list's or map's elements, which must be one."""
        if before is None:
            return type_
        # Whether they are of one type shows when all is checked: an empty list may still become a list of anything.
        self.alike.append((node, before, type_))
        if not self._assign([before], [type_]):
            raise self._unlike(node, before, type_)
        return t.most_general(before, type_)

    def _unlike(self, node: Expr, one: t.Type, other: t.Type) -> Fault:
        expected, found = self.final(one), self.final(other)
        return Fault(f"the elements of a list or map must be of one type: expected {expected}, found {found}", node.start)

    def final(self, type_: t.Type) -> t.Type:
        """The type once all is checked; what was never bound is `dyn`."""
        return t.substitute(self.bindings, type_, free=t.DYN)

    def check_literals(self) -> None:
        """The API server wants the elements of a literal to be of one type exactly, and `dyn` is a type."""
        for node, one, other in self.alike:
            if self.final(one) != self.final(other):
                raise self._unlike(node, one, other)

    def _must_be_bool(self, node: Expr, typed: Typed, where: str) -> None:
        if not self._assign([typed.type], [t.BOOL]):
            raise Fault(f"{where} needs a condition, not a {self._resolved(typed.type)}", node.start)

    # --- leaves and selection ---

    def _literal(self, node: Literal) -> Typed:
        value = node.value
        return Typed(_LITERAL_TYPES[type(value)], lambda _: value, constant=True, sure=True)

    def _ident(self, node: Ident) -> Typed:
        if node.name in self.scope:
            return self.scope[node.name]
        if node.name == "device":
            return Typed(t.DEVICE, lambda frame: frame.device, sure=True)
        if node.name in _TYPE_NAMES:
            raise Fault(f"types such as {node.name} cannot be used as values", node.start, f.UNSUPPORTED["type"])
        hint = f'texts stand in quotes: "{node.name}"' if node.start else "the only variable is device"
        raise Fault(f"{node.name} is not known", node.start, hint)

    def _select(self, node: Select) -> Typed:
        operand = self.visit(node.operand)
        type_, wrapped = _unwrapped(self._resolved(operand.type))
        result, key = t.DYN, node.field
        if type_.name == "map" and not type_.is_parameter:
            result = type_.parameters[1]
        elif type_ == t.DEVICE:
            if key not in t.DEVICE_FIELDS:
                raise Fault(f"a device has no {key}", node.at, f"it has {', '.join(sorted(t.DEVICE_FIELDS))}")
            result = t.DEVICE_FIELDS[key]
        elif type_.is_parameter:
            self._assign([t.DYN], [type_])
        elif not t.is_dynamic(type_):
            raise Fault(f"a {type_} has no fields", node.at)
        run, missing = operand.run, missing_entry(node)
        if node.tested:
            return Typed(t.BOOL, lambda frame: _has(run(frame), key), sure=True)
        if node.optional or wrapped:
            return Typed(t.optional_of(result), lambda frame: _optional_entry(run(frame), key), sure=True)
        if type_ == t.DEVICE:
            return Typed(result, lambda frame: run(frame)[key], sure=True)
        path = self._path(node)
        if path is not None:
            return Typed(result, _entry(path, missing), sure=True)

        def select(frame: Frame) -> Any:
            mapping = run(frame)
            try:
                value = mapping[key]
            except (KeyError, TypeError):
                if not isinstance(mapping, Mapping):
                    raise EvaluationError(f"a {kind(mapping)} has no field {key}") from None
                raise EvaluationError(missing) from None
            if value.__class__ is Malformed:
                raise EvaluationError(value.reason)
            return value

        return Typed(result, select)

    def _path(self, node: Expr) -> tuple[str, str, str] | None:
        path = path_of(node)
        return path if path is not None and path[0] in ("attributes", "capacity") and "device" not in self.scope else None

    # --- calls ---

    def _call(self, node: Call) -> Typed:
        namespaced = self._namespaced(node)
        name = namespaced or node.function
        target = None if namespaced else node.target
        if name in f.UNSUPPORTED and name not in f.OVERLOADS:
            raise Fault(f"{name}() is not available", node.at, f.UNSUPPORTED[name])
        args = [self.visit(arg) for arg in ((target, *node.args) if target is not None else node.args)]
        method = target is not None
        overloads = [o for o in f.OVERLOADS.get(name, ()) if o.method is method]
        result, candidates = self._resolve(overloads, [a.type for a in args])
        if result is None:
            raise explain_refusal(node, name, [self.final(a.type) for a in args], method=method)
        self._check_regex(node, name)
        typed = Typed(result, _NOT_YET, sure=all(not o.result.is_parameter for o in candidates), overloads=candidates)
        path, special = self._path(node), _SPECIAL.get(name)
        if path is not None:
            return replace(typed, run=_entry(path, missing_entry(node)), sure=True)
        if name == "@in" and isinstance(node.args[1], ListOf) and not node.args[1].elements:
            return replace(typed, run=lambda _: False)  # the API server does not look for errors in an empty list
        if special is not None:
            return replace(typed, run=special(*(a.run for a in args)))
        typed = replace(typed, run=_dispatch(name, candidates, args))
        return self._constant(node, name, typed) if all(a.constant for a in args) else typed

    def _constant(self, node: Call, name: str, typed: Typed) -> Typed:
        """The result instead of what always computes the same; an error stays an error of the evaluation."""
        try:
            value = typed.run(Frame({}, 0))
        except EvaluationError as error:
            if name in _CONVERSIONS and all(_is_plain(arg) for arg in node.args):
                raise Fault(str(error), node.start) from None  # the API server does these conversions beforehand, too
            return typed
        return replace(typed, run=lambda _: value, constant=True)

    def _namespaced(self, node: Call) -> str | None:
        """`sets.contains` and the like: a function with a dot in its name, and not a method of a variable."""
        if not isinstance(node.target, Ident):
            return None
        name = f"{node.target.name}.{node.function}"
        if name in f.OVERLOADS or name in f.UNSUPPORTED:
            return name
        if node.target.name in _NAMESPACES and node.target.name not in self.scope:
            raise Fault(f"there is no function {name}()", node.start)
        return None

    def _resolve(
        self, overloads: Iterable[f.Overload], arguments: list[t.Type]
    ) -> tuple[t.Type | None, tuple[f.Overload, ...]]:
        """The result type, and the overloads that may apply."""
        result: t.Type | None = None
        candidates: list[f.Overload] = []
        for overload in overloads:
            if len(overload.parameters) != len(arguments):
                continue
            names = {p for type_ in (*overload.parameters, overload.result) for p in _parameters(type_)}
            renamed: t.Bindings = {name: self._free() for name in sorted(names, key=str)}
            if not self._assign(arguments, [t.substitute(renamed, p) for p in overload.parameters]):
                continue
            candidates.append(overload)
            this = self._resolved(t.substitute(renamed, overload.result))
            if result is None:
                result = this
            elif not t.is_dynamic(result) and this != result:
                result = t.DYN
        return result, tuple(candidates)

    def _check_regex(self, node: Call, name: str) -> None:
        pattern = node.operands[1] if name in _REGEX_FUNCTIONS and len(node.operands) > 1 else None
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                f.regex(pattern.value)
            except EvaluationError as error:
                raise Fault(str(error), pattern.start) from None

    # --- logic ---

    def _logic(self, node: Logic) -> Typed:
        terms: list[Run] = []
        for term in node.terms:
            typed = self.visit(term)
            self._must_be_bool(term, typed, "&&" if node.conjunction else "||")
            terms.append(typed.run)
        decisive = not node.conjunction

        def run(frame: Frame) -> bool:
            failure: EvaluationError | None = None
            for term in terms:
                try:
                    value = term(frame)
                except OutOfBudget:
                    raise
                except EvaluationError as error:
                    failure = failure or error
                    continue
                if value is decisive:
                    return decisive
                if value is not True and value is not False:
                    failure = failure or EvaluationError(f"a {kind(value)} is not a condition")
            if failure is not None:
                raise failure
            return not decisive

        return Typed(t.BOOL, run, sure=True)

    # --- lists and maps ---

    def _list(self, node: ListOf) -> Typed:
        element: t.Type | None = None
        runs: list[tuple[Run, bool]] = []
        constant = not any(node.optional)
        for child, optional in zip(node.elements, node.optional, strict=True):
            typed = self.visit(child)
            constant = constant and typed.constant
            element = self._joined(child, element, self._element(child, typed, optional=optional))
            runs.append((typed.run, optional))

        def build(frame: Frame) -> tuple[Any, ...]:
            items: list[Any] = []
            for run, optional in runs:
                value = run(frame)
                if optional:
                    items.extend(_present(value))
                else:
                    items.append(value)
            return tuple(items)

        type_ = t.list_of(element or self._free())
        if not constant:
            return Typed(type_, build, sure=True)
        value = build(Frame({}, 0))
        return Typed(type_, lambda _: value, constant=True, sure=True)

    def _element(self, node: Expr, typed: Typed, *, optional: bool) -> t.Type:
        type_ = self._resolved(typed.type)
        if not optional:
            return typed.type
        inner, wrapped = _unwrapped(type_)
        if not wrapped:
            raise Fault(f"? needs an optional value, not a {type_}", node.start)
        return inner

    def _map(self, node: MapOf) -> Typed:
        key_type: t.Type | None = None
        value_type: t.Type | None = None
        runs: list[tuple[Run, Run, bool]] = []
        for key, value, optional in zip(node.keys, node.values, node.optional, strict=True):
            typed_key, typed_value = self.visit(key), self.visit(value)
            held = self._resolved(typed_key.type)
            if not (t.is_dynamic(held) or held.is_parameter or held.name in _KEYS):
                raise Fault(f"the key of a map cannot be a {held}", key.start)
            key_type = self._joined(key, key_type, typed_key.type)
            value_type = self._joined(value, value_type, self._element(value, typed_value, optional=optional))
            runs.append((typed_key.run, typed_value.run, optional))

        def build(frame: Frame) -> dict[Any, Any]:
            entries: dict[Any, Any] = {}
            for key, value, optional in runs:
                name, held = _as_key(key(frame)), value(frame)
                for item in _present(held) if optional else (held,):
                    entries[name] = item
            return entries

        return Typed(t.map_of(key_type or self._free(), value_type or self._free()), build, sure=True)

    # --- variables ---

    def _within(self, variables: Mapping[str, Typed], *bodies: Expr) -> tuple[list[int], list[Typed]]:
        """The slots of new variables, and what is known about the bodies that see them."""
        outer = dict(self.scope)
        slots = list(range(self.slots, self.slots + len(variables)))
        self.slots += len(variables)
        for slot, (name, known) in zip(slots, variables.items(), strict=True):
            self.scope[name] = Typed(known.type, _variable(slot), sure=known.sure)
        typed = [self.visit(body) for body in bodies]
        self.scope = outer
        return slots, typed

    def _bind(self, node: Bind) -> Typed:
        value = self.visit(node.value)
        if node.through is None:
            (slot,), (body,) = self._within({node.variable: value}, node.body)
            return Typed(body.type, _binding(slot, value.run, body.run), sure=body.sure)
        inner, _ = self._resolve(f.OVERLOADS["value"], [value.type])
        if inner is None:
            raise Fault(f"{node.through}() needs an optional value, not a {self._resolved(value.type)}", node.value.start)
        (slot,), (body,) = self._within({node.variable: Typed(inner, _NOT_YET)}, node.body)
        flat = node.through == "optFlatMap"
        some = body.type if flat else t.optional_of(body.type)
        result, _ = self._resolve(f.OVERLOADS["_?_:_"], [t.BOOL, some, t.optional_of(self._free())])
        if result is None:
            raise Fault("optFlatMap() needs an optional result", node.body.start)
        return Typed(result, _through(slot, value.run, body.run, flat=flat))

    def _comprehension(self, node: Comprehension) -> Typed:
        items = self.visit(node.range)
        type_ = self._resolved(items.type)
        if type_.is_parameter:
            self._assign([t.DYN], [type_])
        elif type_.name not in ("list", "map", "dyn"):
            hint = "an attribute is a single value" if type_ == t.ANY else ""
            raise Fault(f"{node.fold.value}() needs a list or a map, not {type_}", node.range.start, hint)
        two = len(node.variables) > 1
        types = [Typed(element, _NOT_YET) for element in _element_types(type_, two=two)]
        variables = dict(zip(node.variables, types, strict=True))
        bodies = [*filter(None, [node.filter]), node.body]
        slots, typed = self._within(variables, *bodies)
        steps = 1 + sum(map(_size, bodies))
        condition = typed[0] if node.filter is not None else None
        if condition is not None and node.filter is not None:
            self._must_be_bool(node.filter, condition, f"{node.fold.value}()")
        each = _each(slots, items.run, condition.run if condition is not None else None, steps, two=two)
        body = typed[-1]
        match node.fold:
            case Fold.ALL | Fold.EXISTS:
                self._must_be_bool(node.body, body, f"{node.fold.value}()")
                return Typed(t.BOOL, _quantified(each, body.run, decisive=node.fold is Fold.EXISTS), sure=True)
            case Fold.EXISTS_ONE:
                self._must_be_bool(node.body, body, "exists_one()")
                return Typed(t.BOOL, lambda frame: sum(_truth(body.run(frame)) for _ in each(frame)) == 1, sure=True)
            case Fold.LIST:
                return Typed(t.list_of(body.type), lambda frame: tuple(body.run(frame) for _ in each(frame)), sure=True)
            case Fold.MAP_VALUES:
                key = types[0].type
                return Typed(t.map_of(key, body.type), lambda frame: {k: body.run(frame) for k in each(frame)})
            case Fold.MAP_ENTRIES:
                entry = self._resolved(body.type)
                if t.is_dynamic(entry):
                    entry = t.map_of(t.DYN, t.DYN)
                if entry.name != "map":
                    raise Fault(f"transformMapEntry() needs a map, not a {entry}", node.body.start)
                return Typed(entry, lambda frame: _merged(body.run(frame) for _ in each(frame)))
            case Fold.SORT_BY:
                keys = t.list_of(body.type)
                result, _ = self._resolve(f.OVERLOADS["@sortBy"], [items.type, keys])
                if result is None:
                    raise Fault("sortBy() needs a list and keys that can be ordered", node.body.start)
                return Typed(result, lambda frame: f.sort_by(
                    frame.spend, items.run(frame), tuple(body.run(frame) for _ in each(frame))))  # fmt: skip
            case _:
                assert_never(node.fold)


# --- what closures are made of ---


def _is_plain(node: Expr) -> bool:
    """A literal, or a conversion of one."""
    match node:
        case Literal():
            return True
        case Call(function=function, target=None, args=(arg,)):
            return function in _CONVERSIONS and _is_plain(arg)
        case _:
            return False


def _dispatch(name: str, candidates: tuple[f.Overload, ...], args: list[Typed]) -> Run:
    runs = [a.run for a in args]
    if len(candidates) == 1 and all(map(_certain, args, candidates[0].parameters)):
        return _direct(candidates[0], runs)
    known: dict[tuple[type, ...], f.Overload] = {}

    def call(frame: Frame) -> Any:
        values = [run(frame) for run in runs]
        types = tuple(map(type, values))
        chosen = known.get(types)
        if chosen is None:
            chosen = known[types] = _chosen(name, candidates, values)
        return chosen.implementation(frame.spend, *values) if chosen.spends else chosen.implementation(*values)

    return call


def _certain(argument: Typed, parameter: t.Type) -> bool:
    """Whether the argument can be nothing at evaluation that the parameter does not take."""
    anything = parameter.is_parameter or t.is_dynamic(parameter)
    return anything or (argument.sure and t.is_concrete(argument.type))


def _direct(overload: f.Overload, runs: list[Run]) -> Run:
    call = overload.implementation
    match runs:
        case _ if overload.spends:
            return lambda frame: call(frame.spend, *[run(frame) for run in runs])
        case [one]:
            return lambda frame: call(one(frame))
        case [one, other]:
            return lambda frame: call(one(frame), other(frame))
        case _:
            return lambda frame: call(*[run(frame) for run in runs])


def _chosen(name: str, overloads: Iterable[f.Overload], values: list[Any]) -> f.Overload:
    for overload in overloads:
        if all(map(_accepts, overload.parameters, values)):
            return overload
    types = [f"a {kind(value)}" for value in values]
    what = f"{name}()" if name[0] not in "_@!-" else name.strip("_@")
    raise EvaluationError(f"{what} cannot be applied to {' and '.join(types)}")


def _accepts(parameter: t.Type, value: Any) -> bool:
    return parameter.is_parameter or t.is_dynamic(parameter) or type(value) in _RUNTIME[parameter.name]


def _parameters(type_: t.Type) -> Iterable[t.Type]:
    if type_.is_parameter:
        yield type_
    for parameter in type_.parameters:
        yield from _parameters(parameter)


def _unwrapped(type_: t.Type) -> tuple[t.Type, bool]:
    wrapped = type_.name == "optional" and not type_.is_parameter
    return (type_.parameters[0], True) if wrapped else (type_, False)


def _element_types(range_: t.Type, *, two: bool) -> tuple[t.Type, ...]:
    match range_.name, range_.parameters:
        case "list", (element,):
            return (t.INT, element) if two else (element,)
        case "map", (key, value):
            return (key, value) if two else (key,)
        case _:
            return (t.DYN, t.DYN) if two else (t.DYN,)


def _present(value: Any) -> tuple[Any, ...]:
    if not isinstance(value, Optional):
        raise EvaluationError(f"? needs an optional value, not a {kind(value)}")
    return (value.value,) if value.present else ()


def _as_key(value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return value
    raise EvaluationError(f"a {kind(value)} cannot be the key of a map")


def _has(value: Any, key: str) -> bool:
    if isinstance(value, Optional):
        return value.present and _has(value.value, key)
    if not isinstance(value, Mapping):
        raise EvaluationError(f"a {kind(value)} has no field {key}")
    mapping = cast("Mapping[Any, Any]", value)
    return key in mapping or isinstance(mapping, DomainMap)


def _optional_entry(value: Any, key: Any) -> Optional:
    if isinstance(value, Optional):
        return _optional_entry(value.value, key) if value.present else NOTHING
    if isinstance(value, tuple):
        items = cast("tuple[Any, ...]", value)
        number = _list_index(key)
        return Optional(present=True, value=items[number]) if 0 <= number < len(items) else NOTHING
    if isinstance(value, Mapping):
        found = find(cast("Mapping[Any, Any]", value), key)
        return NOTHING if found is _MISSING else Optional(present=True, value=found)
    raise EvaluationError(f"a {kind(value)} has no entry {key}")


def _list_index(key: Any) -> int:
    if isinstance(key, float) and key.is_integer():
        return int(key)
    if isinstance(key, int) and not isinstance(key, bool):
        return int(key)
    raise EvaluationError(f"a {kind(key)} is no index of a list")


def _index(container: Run, index: Run) -> Run:
    def run(frame: Frame) -> Any:
        value, key = container(frame), index(frame)
        if isinstance(value, tuple):
            return f.element(cast("tuple[Any, ...]", value), _list_index(key))
        if isinstance(value, Mapping):
            found = find(cast("Mapping[Any, Any]", value), key)
            if found is _MISSING:
                raise EvaluationError(f"there is no {key}")
            return found
        if isinstance(value, Optional):
            return _optional_entry(value, key)
        raise EvaluationError(f"a {kind(value)} has no entry {key}")

    return run


def _membership(item: Run, container: Run) -> Run:
    def run(frame: Frame) -> bool:
        value, within = item(frame), container(frame)
        if isinstance(within, tuple):
            return f.contains(frame.spend, value, cast("tuple[Any, ...]", within))
        if isinstance(within, Mapping):
            return _in_map(value, cast("Mapping[Any, Any]", within))
        raise EvaluationError(f"in needs a list or a map, not a {kind(within)}")

    return run


def _in_map(key: Any, mapping: Mapping[Any, Any]) -> bool:
    if type(key) is str:
        return key in mapping
    return find(mapping, key) is not _MISSING


def _conditional(condition: Run, yes: Run, no: Run) -> Run:
    return lambda frame: yes(frame) if _truth(condition(frame)) else no(frame)


def _equals(a: Run, b: Run) -> Run:
    def run(frame: Frame) -> bool:
        one, other = a(frame), b(frame)
        if type(one) is str and type(other) is str:
            return one == other
        return equal(one, other, frame.spend)

    return run


def _differs(a: Run, b: Run) -> Run:
    def run(frame: Frame) -> bool:
        one, other = a(frame), b(frame)
        try:
            return not equal(one, other, frame.spend)
        except OutOfBudget:
            raise
        except EvaluationError:
            return True  # what cannot be equal differs

    return run


def _or_else(optional: Run, other: Run, *, unwrap: bool) -> Run:
    def run(frame: Frame) -> Any:
        value = optional(frame)
        if not isinstance(value, Optional):
            raise EvaluationError(f"a {kind(value)} is not optional")
        if not value.present:
            value = other(frame)
            if not unwrap and not isinstance(value, Optional):
                raise EvaluationError(f"a {kind(value)} is not optional")
            return value
        return value.value if unwrap else value

    return run


@dataclass(frozen=True, slots=True)
class _Pending:
    """The value of a cel.bind() variable that nobody has read yet."""

    run: Run


def _binding(slot: int, value: Run, body: Run) -> Run:
    # As in the API server it is computed when first read: an error in what is not read does not count.
    pending = _Pending(value)

    def run(frame: Frame) -> Any:
        frame.variables[slot] = pending
        return body(frame)

    return run


def _variable(slot: int) -> Run:
    def run(frame: Frame) -> Any:
        value = frame.variables[slot]
        if value.__class__ is _Pending:
            value = frame.variables[slot] = value.run(frame)
        return value

    return run


def _entry(path: tuple[str, str, str], missing: str) -> Run:
    what, domain, identifier = path

    def run(frame: Frame) -> Any:
        value = frame.device[what][domain].get(identifier, _MISSING)
        if value is _MISSING:
            raise EvaluationError(missing)
        if value.__class__ is Malformed:
            raise EvaluationError(value.reason)
        return value

    return run


def _through(slot: int, optional: Run, body: Run, *, flat: bool) -> Run:
    def run(frame: Frame) -> Any:
        value = optional(frame)
        if not isinstance(value, Optional):
            raise EvaluationError(f"a {kind(value)} is not optional")
        if not value.present:
            return NOTHING
        frame.variables[slot] = value.value
        result = body(frame)
        return result if flat else Optional(present=True, value=result)

    return run


def _each(slots: list[int], items: Run, condition: Run | None, steps: int, *, two: bool) -> Callable[[Frame], Iterable[Any]]:
    """Goes through the elements that meet the condition: sets the variables, yields the first."""

    def each(frame: Frame) -> Iterable[Any]:
        for first, second in _pairs(items(frame), two=two):
            frame.spend(steps)
            frame.variables[slots[0]] = first
            if two:
                frame.variables[slots[1]] = _read(second)
            if condition is None or _truth(condition(frame)):
                yield first

    return each


def _pairs(container: Any, *, two: bool) -> Iterable[tuple[Any, Any]]:
    if isinstance(container, tuple):
        items = cast("tuple[Any, ...]", container)
        return enumerate(items) if two else ((item, None) for item in items)
    if isinstance(container, Mapping):
        return cast("Mapping[Any, Any]", container).items()
    raise EvaluationError(f"a {kind(container)} has no elements")


def _quantified(each: Callable[[Frame], Iterable[Any]], body: Run, *, decisive: bool) -> Run:
    def run(frame: Frame) -> bool:
        failure: EvaluationError | None = None
        for _ in each(frame):
            try:
                if _truth(body(frame)) is decisive:
                    return decisive
            except OutOfBudget:
                raise
            except EvaluationError as error:
                failure = failure or error
        if failure is not None:
            raise failure
        return not decisive

    return run


def _merged(maps: Iterable[Any]) -> dict[Any, Any]:
    merged: dict[Any, Any] = {}
    for entries in maps:
        if not isinstance(entries, Mapping):
            raise EvaluationError(f"transformMapEntry() needs a map, not a {kind(entries)}")
        for key, value in entries.items():
            if key in merged:
                raise EvaluationError(f"transformMapEntry() makes the key {key} twice")
            merged[key] = value
    return merged


_LITERAL_TYPES = {bool: t.BOOL, int: t.INT, f.UInt: t.UINT, float: t.DOUBLE, str: t.STRING, bytes: t.BYTES,
                  type(None): t.NULL}  # fmt: skip
_TYPE_NAMES = frozenset(
    "bool int uint double string bytes list map null_type type dyn google net kubernetes optional_type".split()
)
_NAMESPACES = frozenset({"cel", "sets", "lists", "strings", "optional", "math", "format", "ip", "authorizer"})
_KEYS = frozenset({"bool", "int", "uint", "double", "string"})
_CONVERSIONS = frozenset({"bool", "bytes", "double", "dyn", "int", "string", "uint"})
_REGEX_FUNCTIONS = frozenset({"matches", "find", "findAll"})
_SPECIAL: dict[str, Callable[..., Run]] = {
    "_==_": _equals,
    "_!=_": _differs,
    "_?_:_": _conditional,
    "_[_]": _index,
    "_[?_]": lambda container, index: lambda frame: _optional_entry(container(frame), index(frame)),
    "@in": _membership,
    "or": lambda optional, other: _or_else(optional, other, unwrap=False),
    "orValue": lambda optional, other: _or_else(optional, other, unwrap=True),
}


# --- messages ---


def path_of(node: Expr) -> tuple[str, str, str] | None:
    """What a node reads of the device: ("attributes" or "capacity", domain, id)."""
    match node:
        case Select(operand=inner, field=identifier, optional=False, tested=False):
            domain = _domain_of(inner)
        case Call(function="_[_]", args=(inner, Literal(value=str(identifier)))):
            domain = _domain_of(inner)
        case _:
            return None
    return (*domain, identifier) if domain is not None else None


def _domain_of(node: Expr) -> tuple[str, str] | None:
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


def missing_entry(node: Expr) -> str:
    """What to say when the device lacks what the node reads."""
    path = path_of(node)
    if path is None:
        return f"there is no {node.field}" if isinstance(node, Select) else "there is no such key"
    what, domain, identifier = path
    return f"the device has no {'attribute' if what == 'attributes' else what} {domain}/{identifier}"


def explain_refusal(node: Call, name: str, types: list[t.Type], *, method: bool) -> Fault:
    """Why no overload fits, and what to write instead."""
    others = f.OVERLOADS.get(name, [])
    if not others:
        return Fault(f"there is no function {name}()", node.at)
    operator = name.strip("_@") if name[0] in "_@!-" else None
    shown = " and ".join(map(str, types))
    if operator is not None:
        return Fault(f"{_OPERATORS.get(name, operator)} cannot be applied to {shown}", node.at, _operator_hint(operator, types))
    if all(o.method is not method for o in others):
        hint = f"write {others[0]}"
        return Fault(f"{name}() is {'not a method' if method else 'a method'}", node.at, hint)
    accepted = [str(o) for o in others if o.method is method]
    receiver = f"a {types[0]} has no {name}()" if method else f"{name}()"
    given = f" for ({', '.join(map(str, types[method:]))})" if len(types) > method or not method else ""
    return Fault(f"{receiver}{given}" if method else f"{receiver} does not take ({shown})", node.at,
                 f"it is {' or '.join(accepted[:3])}")  # fmt: skip


_OPERATORS = {"_[_]": "[]", "_[?_]": "[?]", "_?_:_": "? :", "@in": "in", "-_": "-", "!_": "!"}
_INSTEAD_OF = {"<": "isLessThan", ">": "isGreaterThan", "<=": "compareTo", ">=": "compareTo"}


def _operator_hint(operator: str, types: list[t.Type]) -> str:
    one, other = types[0], types[-1]
    for type_, make in ((t.QUANTITY, 'quantity("80Gi")'), (t.SEMVER, 'semver("9.0.0")')):
        if type_ not in (one, other):
            continue
        if operator in ("==", "!="):
            return f"compare it with {make}"
        if operator in _INSTEAD_OF:
            method = _INSTEAD_OF[operator]
            return f"write .{method}({make})" + (f" {operator} 0" if method == "compareTo" else "")
        if operator in "+-":
            return f"write .{'add' if operator == '+' else 'sub'}(...)"
    if operator in ("==", "!=", "<", "<=", ">", ">="):
        numbers = {"int": "int", "double": "double", "uint": "uint"}
        if one.name in numbers and other.name in numbers:
            return f"write both numbers in the same way: as {one} or as {other}"
        if "string" in (one.name, other.name):
            return "numbers and truth values stand without quotes, texts with them"
    return ""
