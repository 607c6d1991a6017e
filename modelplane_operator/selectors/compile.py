"""From a syntax tree to a checked program: the type of every part, and a closure that computes it.

One pass does both, because what is known about the types decides how the closure may go about it: a call whose
overload is certain calls it, any other looks at the types of its arguments each time. The rules for types are CEL's, so
that what is refused here is what the API server refuses.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import assert_never

from modelplane_operator.selectors import evaluate as ev
from modelplane_operator.selectors import folds, lists, regexes
from modelplane_operator.selectors import functions as f
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.evaluate import Frame, Run
from modelplane_operator.selectors.program import Program, Typed, certain
from modelplane_operator.selectors.refusals import CONDITION_HINTS, explain_refusal, missing_entry, path_of
from modelplane_operator.selectors.tree import (
    CONVERSIONS,
    Bind,
    Call,
    CompileError,
    Comprehension,
    Expr,
    Fold,
    Ident,
    ListOf,
    Literal,
    Logic,
    MapOf,
    Select,
    is_plain,
    is_written_out,
    size_of,
)
from modelplane_operator.selectors.values import EvaluationError


def compile_expression(tree: Expr) -> Program:
    """Check an expression whose only variable is `device`; raises CompileError."""
    compiler = _Compiler()
    compiler.visit(tree)
    compiler.check_literals()
    program = Program(tree, compiler.parts, compiler.bindings, compiler.slots)
    type_ = program.type_of(tree)
    if type_ not in (t.BOOL, t.ANY):
        raise CompileError(
            f"the selector is a {type_}, not a condition", tree.start, CONDITION_HINTS.get(type_.name, "")
        )
    return program


def _not_yet(_: Frame) -> None:
    """The place of a closure that is filled in later."""


@dataclass(slots=True)
class _Compiler:
    bindings: t.Bindings = field(default_factory=dict[t.Type, t.Type])
    parts: dict[int, Typed] = field(default_factory=dict[int, Typed])
    scope: dict[str, Typed] = field(default_factory=dict[str, Typed])
    alike: list[tuple[Expr, t.Type, t.Type]] = field(default_factory=list[tuple[Expr, t.Type, t.Type]])
    slots: int = 0
    fresh: int = 0
    folding: Frame = field(default_factory=lambda: Frame({}, 0))
    """What computes constants: all of them together may take as many steps as one evaluation."""

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

    def _unlike(self, node: Expr, one: t.Type, other: t.Type) -> CompileError:
        expected, found = self.final(one), self.final(other)
        return CompileError(f"all elements must be of one type: expected {expected}, found {found}", node.start)

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
            raise CompileError(f"{where} needs a condition, not a {self._resolved(typed.type)}", node.start)

    # --- leaves and selection ---

    def _literal(self, node: Literal) -> Typed:
        value = node.value
        return Typed(t.LITERAL_TYPES[type(value)], ev.constant(value), constant=True, sure=True)

    def _ident(self, node: Ident) -> Typed:
        if node.name in self.scope:
            return self.scope[node.name]
        if node.name == "device":
            return Typed(t.DEVICE, lambda frame: frame.device, sure=True)
        if node.name in t.TYPE_NAMES:
            raise CompileError(f"types such as {node.name} cannot be used as values", node.start, f.UNSUPPORTED["type"])
        hint = f'texts stand in quotes: "{node.name}"' if node.start else "the only variable is device"
        raise CompileError(f"{node.name} is not known", node.start, hint)

    def _select(self, node: Select) -> Typed:
        operand = self.visit(node.operand)
        type_, wrapped = t.unwrapped(self._resolved(operand.type))
        result, key = t.DYN, node.field
        if type_.name == "map" and not type_.is_parameter:
            result = type_.parameters[1]
        elif type_ == t.DEVICE:
            if key not in t.DEVICE_FIELDS:
                raise CompileError(f"a device has no {key}", node.at, f"it has {', '.join(sorted(t.DEVICE_FIELDS))}")
            result = t.DEVICE_FIELDS[key]
        elif type_.is_parameter:
            self._assign([t.DYN], [type_])
        elif not t.is_dynamic(type_):
            raise CompileError(f"a {type_} has no fields", node.at)
        run, missing = operand.run, missing_entry(node)
        if node.tested:
            return Typed(t.BOOL, lambda frame: ev.has_entry(run(frame), key), sure=True)
        if node.optional or wrapped:
            return Typed(t.optional_of(result), lambda frame: ev.optional_entry(run(frame), key), sure=True)
        if type_ == t.DEVICE:
            return Typed(result, lambda frame: run(frame)[key], sure=True)
        path = self._path(node)
        if path is not None:
            return Typed(result, ev.entry(path, missing), sure=True)

        return Typed(result, ev.field_of(run, key, missing))

    def _path(self, node: Expr) -> tuple[str, str, str] | None:
        path = path_of(node)
        if path is None or path[0] not in ("attributes", "capacity") or "device" in self.scope:
            return None
        return path

    # --- calls ---

    def _call(self, node: Call) -> Typed:
        namespaced = self._namespaced(node)
        name = namespaced or node.function
        target = None if namespaced else node.target
        if name in f.UNSUPPORTED and name not in f.OVERLOADS:
            raise CompileError(f"{name}() is not available", node.at, f.UNSUPPORTED[name])
        args = [self.visit(arg) for arg in ((target, *node.args) if target is not None else node.args)]
        method = target is not None
        overloads = [o for o in f.OVERLOADS.get(name, ()) if o.method is method]
        result, candidates = self._resolve(overloads, [a.type for a in args])
        if result is None:
            raise explain_refusal(node, name, [self.final(a.type) for a in args], method=method)
        self._check_regex(node, name)
        if name in ("_[_]", "_[?_]") and is_written_out(node.args[1]) and args[1].type.name not in t.KEYS:
            raise CompileError(f"{args[1].type} cannot be an index", node.args[1].start)
        typed = Typed(result, _not_yet, sure=all(not o.result.is_parameter for o in candidates), overloads=candidates)
        path, special = self._path(node), ev.SPECIAL.get(name)
        if path is not None:
            return replace(typed, run=ev.entry(path, missing_entry(node)), sure=True)
        if name == "@in" and isinstance(node.args[1], ListOf) and not node.args[1].elements:
            return replace(
                typed, run=ev.constant(value=False)
            )  # the API server does not look for errors in an empty list
        if special is not None:
            return replace(typed, run=special(*(a.run for a in args)))
        sure = all(map(certain, args, candidates[0].parameters))
        typed = replace(typed, run=ev.dispatch(name, candidates, [a.run for a in args], certain=sure))
        if not all(a.constant for a in args):
            return typed
        try:
            return _constant(typed, self.folding)
        except EvaluationError as error:
            if name in CONVERSIONS and all(map(is_plain, node.args)):
                raise CompileError(
                    str(error), node.start
                ) from None  # the API server does these conversions beforehand, too
            return typed

    def _namespaced(self, node: Call) -> str | None:
        """`sets.contains` and the like: a function with a dot in its name, and not a method of a variable."""
        if not isinstance(node.target, Ident):
            return None
        name = f"{node.target.name}.{node.function}"
        if name in f.OVERLOADS or name in f.UNSUPPORTED:
            return name
        if node.target.name in _NAMESPACES and node.target.name not in self.scope:
            raise CompileError(f"there is no function {name}()", node.start)
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
            names = {p for type_ in (*overload.parameters, overload.result) for p in t.parameters_of(type_)}
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
                regexes.regex(pattern.value)
            except EvaluationError as error:
                raise CompileError(str(error), pattern.start) from None

    # --- logic ---

    def _logic(self, node: Logic) -> Typed:
        terms: list[Run] = []
        for term in node.terms:
            typed = self.visit(term)
            self._must_be_bool(term, typed, "&&" if node.conjunction else "||")
            terms.append(typed.run)
        return Typed(t.BOOL, ev.chain(terms, conjunction=node.conjunction), sure=True)

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

        typed = Typed(t.list_of(element or self._free()), ev.list_of(runs), sure=True)
        return _constant(typed, self.folding) if constant else typed

    def _element(self, node: Expr, typed: Typed, *, optional: bool) -> t.Type:
        type_ = self._resolved(typed.type)
        if not optional:
            return typed.type
        inner, wrapped = t.unwrapped(type_)
        if not wrapped:
            raise CompileError(f"? needs an optional value, not a {type_}", node.start)
        return inner

    def _map(self, node: MapOf) -> Typed:
        key_type: t.Type | None = None
        value_type: t.Type | None = None
        runs: list[tuple[Run, Run, bool]] = []
        for key, value, optional in zip(node.keys, node.values, node.optional, strict=True):
            typed_key, typed_value = self.visit(key), self.visit(value)
            held = self._resolved(typed_key.type)
            if not (t.is_dynamic(held) or held.is_parameter or held.name in t.KEYS):
                raise CompileError(f"the key of a map cannot be a {held}", key.start)
            key_type = self._joined(key, key_type, typed_key.type)
            value_type = self._joined(value, value_type, self._element(value, typed_value, optional=optional))
            runs.append((typed_key.run, typed_value.run, optional))

        return Typed(t.map_of(key_type or self._free(), value_type or self._free()), ev.map_of(runs), sure=True)

    # --- variables ---

    def _within(self, variables: Mapping[str, Typed], *bodies: Expr) -> tuple[list[int], list[Typed]]:
        """The slots of new variables, and what is known about the bodies that see them."""
        outer = dict(self.scope)
        slots = list(range(self.slots, self.slots + len(variables)))
        self.slots += len(variables)
        for slot, (name, known) in zip(slots, variables.items(), strict=True):
            self.scope[name] = Typed(known.type, folds.variable(slot), sure=known.sure)
        typed = [self.visit(body) for body in bodies]
        self.scope = outer
        return slots, typed

    def _bind(self, node: Bind) -> Typed:
        value = self.visit(node.value)
        if node.through is None:
            (slot,), (body,) = self._within({node.variable: value}, node.body)
            return Typed(body.type, folds.binding(slot, value.run, body.run), sure=body.sure)
        inner, _ = self._resolve(f.OVERLOADS["value"], [value.type])
        if inner is None:
            found = self._resolved(value.type)
            raise CompileError(f"{node.through}() needs an optional value, not a {found}", node.value.start)
        (slot,), (body,) = self._within({node.variable: Typed(inner, _not_yet)}, node.body)
        flat = node.through == "optFlatMap"
        some = body.type if flat else t.optional_of(body.type)
        result, _ = self._resolve(f.OVERLOADS["_?_:_"], [t.BOOL, some, t.optional_of(self._free())])
        if result is None:
            raise CompileError("optFlatMap() needs an optional result", node.body.start)
        return Typed(result, folds.through(slot, value.run, body.run, flat=flat))

    def _comprehension(self, node: Comprehension) -> Typed:
        items = self.visit(node.range)
        type_ = self._resolved(items.type)
        if type_.is_parameter:
            self._assign([t.DYN], [type_])
        elif type_.name not in ("list", "map", "dyn"):
            hint = "an attribute is a single value" if type_ == t.ANY else ""
            raise CompileError(f"{node.fold.value}() needs a list or a map, not {type_}", node.range.start, hint)
        two = len(node.variables) > 1
        types = [Typed(element, _not_yet) for element in t.element_types(type_, two=two)]
        variables = dict(zip(node.variables, types, strict=True))
        bodies = [*filter(None, [node.filter]), node.body]
        slots, typed = self._within(variables, *bodies)
        steps = 1 + sum(map(size_of, bodies))
        if node.filter is not None:
            self._must_be_bool(node.filter, typed[0], f"{node.fold.value}()")
        each = folds.each_of(slots, items.run, typed[0].run if node.filter is not None else None, steps)
        return self._folded(node, items, types[0].type, typed[-1], each)

    def _folded(self, node: Comprehension, items: Typed, first: t.Type, body: Typed, each: folds.Each) -> Typed:
        """What the macro makes of the bodies; `first` is the type of its first variable."""
        match node.fold:
            case Fold.ALL | Fold.EXISTS:
                self._must_be_bool(node.body, body, f"{node.fold.value}()")
                return Typed(t.BOOL, folds.quantified(each, body.run, decisive=node.fold is Fold.EXISTS), sure=True)
            case Fold.EXISTS_ONE:
                self._must_be_bool(node.body, body, "exists_one()")
                return Typed(t.BOOL, lambda frame: sum(ev.truth(body.run(frame)) for _ in each(frame)) == 1, sure=True)
            case Fold.LIST:
                return Typed(t.list_of(body.type), lambda frame: tuple(body.run(frame) for _ in each(frame)), sure=True)
            case Fold.MAP_VALUES:
                return Typed(t.map_of(first, body.type), lambda frame: {k: body.run(frame) for k in each(frame)})
            case Fold.MAP_ENTRIES:
                entry = self._resolved(body.type)
                if entry.name != "map" and not t.is_dynamic(entry):
                    raise CompileError(f"transformMapEntry() needs a map, not a {entry}", node.body.start)
                made = t.map_of(t.DYN, t.DYN) if t.is_dynamic(entry) else entry
                return Typed(made, lambda frame: folds.merged(body.run(frame) for _ in each(frame)))
            case Fold.SORT_BY:
                result, _ = self._resolve(f.OVERLOADS["@sortBy"], [items.type, t.list_of(body.type)])
                if result is None:
                    raise CompileError("sortBy() needs a list and keys that can be ordered", node.body.start)
                return Typed(result, lambda frame: lists.sort_by(
                    frame.spend, items.run(frame), tuple(body.run(frame) for _ in each(frame))))  # fmt: skip
            case _:
                assert_never(node.fold)


def _constant(typed: Typed, frame: Frame) -> Typed:
    """The value instead of what always computes the same; raises EvaluationError."""
    value = typed.run(frame)
    return replace(typed, run=ev.constant(value), constant=True)


_NAMESPACES = frozenset({"cel", "sets", "lists", "strings", "optional", "math", "format", "ip", "authorizer"})
_REGEX_FUNCTIONS = frozenset({"matches", "find", "findAll"})
