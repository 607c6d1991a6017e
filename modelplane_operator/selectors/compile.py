"""Check a syntax tree, and compile it to a program: a type and a closure for each node.

One pass does both, since the types determine the closures: a call with a certain overload invokes it directly, any
other selects it by the types of its arguments at each evaluation. The type rules are CEL's, so that the same selectors
are rejected as by the API server.
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
from modelplane_operator.selectors.refusals import CONDITION_HINTS, describe_missing, explain_refusal, path_of
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
    """Check an expression whose only variable is `device`. Raise CompileError."""
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


def _placeholder(_: Frame) -> None:
    """Stand in for a closure that is set later."""


@dataclass(slots=True)
class _Compiler:
    """A visitor that checks and compiles all nodes of a tree."""

    bindings: t.Bindings = field(default_factory=dict[t.Type, t.Type])
    """Types bound to type parameters so far."""
    parts: dict[int, Typed] = field(default_factory=dict[int, Typed])
    """Checked nodes by identity."""
    scope: dict[str, Typed] = field(default_factory=dict[str, Typed])
    """Visible variables of macros."""
    equal_types: list[tuple[Expr, t.Type, t.Type]] = field(default_factory=list[tuple[Expr, t.Type, t.Type]])
    """Pairs of element types that must turn out equal, with their nodes."""
    slots: int = 0
    """Number of variables' slots."""
    fresh: int = 0
    """Number of type parameters created so far."""
    folding: Frame = field(default_factory=lambda: Frame({}, 0))
    """Frame for constants. All of them together may take as many steps as one evaluation."""

    def visit(self, node: Expr) -> Typed:
        """Check and compile a node."""
        match node:
            case Literal():
                typed = self._compile_literal(node)
            case Ident():
                typed = self._compile_ident(node)
            case Select():
                typed = self._compile_select(node)
            case Call():
                typed = self._compile_call(node)
            case Logic():
                typed = self._compile_logic(node)
            case ListOf():
                typed = self._compile_list(node)
            case MapOf():
                typed = self._compile_map(node)
            case Comprehension():
                typed = self._compile_comprehension(node)
            case Bind():
                typed = self._compile_bind(node)
            case _:
                assert_never(node)
        self.parts[id(node)] = typed
        return typed

    # --- types ---

    def _new_parameter(self) -> t.Type:
        """Return a new type parameter."""
        self.fresh += 1
        return t.parameter(f"_{self.fresh}")

    def _substitute(self, type_: t.Type) -> t.Type:
        """Return the type with the parameters that are bound so far."""
        return t.substitute(self.bindings, type_)

    def _assign(self, froms: Iterable[t.Type], tos: Iterable[t.Type]) -> bool:
        """Bind type parameters so that the types are assignable. Return True if it is possible."""
        bindings = t.assignable(self.bindings, froms, tos)
        if bindings is not None:
            self.bindings = bindings
        return bindings is not None

    def _join_types(self, node: Expr, earlier: t.Type | None, type_: t.Type) -> t.Type:
        """Return the common type of a list's or map's elements. Raise CompileError if there is none."""
        if earlier is None:
            return type_
        # Exact equality is checked at the end: an empty list may still become a list of anything.
        self.equal_types.append((node, earlier, type_))
        if not self._assign([earlier], [type_]):
            raise self._type_mismatch(node, earlier, type_)
        return t.most_general(earlier, type_)

    def _type_mismatch(self, node: Expr, first: t.Type, second: t.Type) -> CompileError:
        """Return the error for an element of another type than those before it."""
        expected, actual = self.final(first), self.final(second)
        return CompileError(f"all elements must be of one type: expected {expected}, found {actual}", node.start)

    def final(self, type_: t.Type) -> t.Type:
        """Return the type after the whole check. A type parameter that was never bound is `dyn`."""
        return t.substitute(self.bindings, type_, free=t.DYN)

    def check_literals(self) -> None:
        """Raise CompileError for literals whose elements differ in type.

        The API server requires equal types, and `dyn` is one.
        """
        for node, first, second in self.equal_types:
            if self.final(first) != self.final(second):
                raise self._type_mismatch(node, first, second)

    def _require_bool(self, node: Expr, typed: Typed, context: str) -> None:
        """Raise CompileError unless the value can be a boolean."""
        if not self._assign([typed.type], [t.BOOL]):
            raise CompileError(f"{context} needs a condition, not a {self._substitute(typed.type)}", node.start)

    # --- leaves and selection ---

    def _compile_literal(self, node: Literal) -> Typed:
        """Return the type and the constant of a literal."""
        value = node.value
        return Typed(t.LITERAL_TYPES[type(value)], ev.constant(value), constant=True, sure=True)

    def _compile_ident(self, node: Ident) -> Typed:
        """Check an identifier: a macro's variable, or `device`. Raise CompileError for others."""
        if node.name in self.scope:
            return self.scope[node.name]
        if node.name == "device":
            return Typed(t.DEVICE, lambda frame: frame.device, sure=True)
        if node.name in t.TYPE_NAMES:
            raise CompileError(f"types such as {node.name} cannot be used as values", node.start, f.UNSUPPORTED["type"])
        hint = f'texts stand in quotes: "{node.name}"' if node.start else "the only variable is device"
        raise CompileError(f"{node.name} is not known", node.start, hint)

    def _compile_select(self, node: Select) -> Typed:
        """Check a field access. The type of the operand decides how it is evaluated."""
        operand = self.visit(node.operand)
        type_, wrapped = t.unwrap_optional(self._substitute(operand.type))
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
        run, missing = operand.run, describe_missing(node)
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
        """Return the path of an attribute or capacity that the node reads; None for other nodes."""
        path = path_of(node)
        if path is None or path[0] not in ("attributes", "capacity") or "device" in self.scope:
            return None
        return path

    # --- calls ---

    def _compile_call(self, node: Call) -> Typed:
        """Check a call: find its overloads, and compute it now if it is constant."""
        namespaced = self._find_namespaced(node)
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
        typed = Typed(
            result, _placeholder, sure=all(not o.result.is_parameter for o in candidates), overloads=candidates
        )
        path, special = self._path(node), ev.SPECIAL.get(name)
        if path is not None:
            return replace(typed, run=ev.entry(path, describe_missing(node)), sure=True)
        if name == "@in" and isinstance(node.args[1], ListOf) and not node.args[1].elements:
            # The API server does not evaluate the item for an empty list.
            return replace(typed, run=ev.constant(value=False))
        if special is not None:
            return replace(typed, run=special(*(a.run for a in args)))
        sure = all(map(certain, args, candidates[0].parameters))
        typed = replace(typed, run=ev.dispatch(name, candidates, [a.run for a in args], certain=sure))
        if not all(a.constant for a in args):
            return typed
        try:
            return _fold_constant(typed, self.folding)
        except EvaluationError as error:
            if name in CONVERSIONS and all(map(is_plain, node.args)):
                # The API server does these conversions at compile time, too.
                raise CompileError(str(error), node.start) from None
            # The error may be absorbed by && or ||, so it stays one of the evaluation.
            return typed

    def _find_namespaced(self, node: Call) -> str | None:
        """Return the name of a function like `sets.contains`, whose name contains a dot; None for a method call."""
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
        """Return the result type, and the overloads that may apply. The type is None if there are none."""
        result: t.Type | None = None
        candidates: list[f.Overload] = []
        for overload in overloads:
            if len(overload.parameters) != len(arguments):
                continue
            # The parameter A of one call has nothing to do with the A of another.
            names = {p for type_ in (*overload.parameters, overload.result) for p in t.parameters_of(type_)}
            renamed: t.Bindings = {name: self._new_parameter() for name in sorted(names, key=str)}
            if not self._assign(arguments, [t.substitute(renamed, p) for p in overload.parameters]):
                continue
            candidates.append(overload)
            candidate_result = self._substitute(t.substitute(renamed, overload.result))
            if result is None:
                result = candidate_result
            # Overloads with different results: only the evaluation decides between them.
            elif not t.is_dynamic(result) and candidate_result != result:
                result = t.DYN
        return result, tuple(candidates)

    def _check_regex(self, node: Call, name: str) -> None:
        """Raise CompileError for an invalid regular expression in a literal."""
        pattern = node.operands[1] if name in _REGEX_FUNCTIONS and len(node.operands) > 1 else None
        if isinstance(pattern, Literal) and isinstance(pattern.value, str):
            try:
                regexes.regex(pattern.value)
            except EvaluationError as error:
                raise CompileError(str(error), pattern.start) from None

    # --- logic ---

    def _compile_logic(self, node: Logic) -> Typed:
        terms: list[Run] = []
        for term in node.terms:
            typed = self.visit(term)
            self._require_bool(term, typed, "&&" if node.conjunction else "||")
            terms.append(typed.run)
        return Typed(t.BOOL, ev.chain(terms, conjunction=node.conjunction), sure=True)

    # --- lists and maps ---

    def _compile_list(self, node: ListOf) -> Typed:
        """Check a list. A list of constants is computed now."""
        element: t.Type | None = None
        runs: list[tuple[Run, bool]] = []
        constant = not any(node.optional)
        for child, optional in zip(node.elements, node.optional, strict=True):
            typed = self.visit(child)
            constant = constant and typed.constant
            element = self._join_types(child, element, self._element_type(child, typed, optional=optional))
            runs.append((typed.run, optional))

        typed = Typed(t.list_of(element or self._new_parameter()), ev.list_of(runs), sure=True)
        return _fold_constant(typed, self.folding) if constant else typed

    def _element_type(self, node: Expr, typed: Typed, *, optional: bool) -> t.Type:
        """Return the type of an element. An optional element must have an optional type."""
        type_ = self._substitute(typed.type)
        if not optional:
            return typed.type
        inner, wrapped = t.unwrap_optional(type_)
        if not wrapped:
            raise CompileError(f"? needs an optional value, not a {type_}", node.start)
        return inner

    def _compile_map(self, node: MapOf) -> Typed:
        """Check a map. Raise CompileError for keys of an invalid type."""
        key_type: t.Type | None = None
        value_type: t.Type | None = None
        runs: list[tuple[Run, Run, bool]] = []
        for key, value, optional in zip(node.keys, node.values, node.optional, strict=True):
            typed_key, typed_value = self.visit(key), self.visit(value)
            resolved_key = self._substitute(typed_key.type)
            if not (t.is_dynamic(resolved_key) or resolved_key.is_parameter or resolved_key.name in t.KEYS):
                raise CompileError(f"the key of a map cannot be a {resolved_key}", key.start)
            key_type = self._join_types(key, key_type, typed_key.type)
            value_type = self._join_types(value, value_type, self._element_type(value, typed_value, optional=optional))
            runs.append((typed_key.run, typed_value.run, optional))

        return Typed(
            t.map_of(key_type or self._new_parameter(), value_type or self._new_parameter()), ev.map_of(runs), sure=True
        )

    # --- variables ---

    def _check_within(self, variables: Mapping[str, Typed], *bodies: Expr) -> tuple[list[int], list[Typed]]:
        """Check bodies in which new variables are visible. Return the variables' slots and the checked bodies."""
        # An inner variable hides an outer one of the same name only within the body.
        outer = dict(self.scope)
        slots = list(range(self.slots, self.slots + len(variables)))
        self.slots += len(variables)
        for slot, (name, typed_variable) in zip(slots, variables.items(), strict=True):
            self.scope[name] = Typed(typed_variable.type, folds.variable(slot), sure=typed_variable.sure)
        typed = [self.visit(body) for body in bodies]
        self.scope = outer
        return slots, typed

    def _compile_bind(self, node: Bind) -> Typed:
        """Check cel.bind, optMap or optFlatMap."""
        value = self.visit(node.value)
        if node.through is None:
            (slot,), (body,) = self._check_within({node.variable: value}, node.body)
            return Typed(body.type, folds.bind(slot, value.run, body.run), sure=body.sure)
        inner, _ = self._resolve(f.OVERLOADS["value"], [value.type])
        if inner is None:
            actual = self._substitute(value.type)
            raise CompileError(f"{node.through}() needs an optional value, not a {actual}", node.value.start)
        (slot,), (body,) = self._check_within({node.variable: Typed(inner, _placeholder)}, node.body)
        flat = node.through == "optFlatMap"
        some = body.type if flat else t.optional_of(body.type)
        result, _ = self._resolve(f.OVERLOADS["_?_:_"], [t.BOOL, some, t.optional_of(self._new_parameter())])
        if result is None:
            raise CompileError("optFlatMap() needs an optional result", node.body.start)
        return Typed(result, folds.through(slot, value.run, body.run, flat=flat))

    def _compile_comprehension(self, node: Comprehension) -> Typed:
        """Check a macro over a list or a map."""
        items = self.visit(node.range)
        type_ = self._substitute(items.type)
        if type_.is_parameter:
            self._assign([t.DYN], [type_])
        elif type_.name not in ("list", "map", "dyn"):
            hint = "an attribute is a single value" if type_ == t.ANY else ""
            raise CompileError(f"{node.fold.value}() needs a list or a map, not {type_}", node.range.start, hint)
        two = len(node.variables) > 1
        types = [Typed(element, _placeholder) for element in t.element_types(type_, two=two)]
        variables = dict(zip(node.variables, types, strict=True))
        bodies = [*filter(None, [node.filter]), node.body]
        slots, typed = self._check_within(variables, *bodies)
        # Charged for each element, since most closures charge nothing.
        steps = 1 + sum(map(size_of, bodies))
        if node.filter is not None:
            self._require_bool(node.filter, typed[0], f"{node.fold.value}()")
        each = folds.each_of(slots, items.run, typed[0].run if node.filter is not None else None, steps)
        return self._compile_fold(node, items, types[0].type, typed[-1], each)

    def _compile_fold(self, node: Comprehension, items: Typed, first: t.Type, body: Typed, each: folds.Each) -> Typed:
        """Return the result of a macro; `first` is the type of its first variable."""
        match node.fold:
            case Fold.ALL | Fold.EXISTS:
                self._require_bool(node.body, body, f"{node.fold.value}()")
                return Typed(t.BOOL, folds.quantify(each, body.run, decisive=node.fold is Fold.EXISTS), sure=True)
            case Fold.EXISTS_ONE:
                self._require_bool(node.body, body, "exists_one()")
                return Typed(t.BOOL, lambda frame: sum(ev.truth(body.run(frame)) for _ in each(frame)) == 1, sure=True)
            case Fold.LIST:
                return Typed(t.list_of(body.type), lambda frame: tuple(body.run(frame) for _ in each(frame)), sure=True)
            case Fold.MAP_VALUES:
                return Typed(t.map_of(first, body.type), lambda frame: {k: body.run(frame) for k in each(frame)})
            case Fold.MAP_ENTRIES:
                entry = self._substitute(body.type)
                if entry.name != "map" and not t.is_dynamic(entry):
                    raise CompileError(f"transformMapEntry() needs a map, not a {entry}", node.body.start)
                result_type = t.map_of(t.DYN, t.DYN) if t.is_dynamic(entry) else entry
                return Typed(result_type, lambda frame: folds.merge(body.run(frame) for _ in each(frame)))
            case Fold.SORT_BY:
                result, _ = self._resolve(f.OVERLOADS["@sortBy"], [items.type, t.list_of(body.type)])
                if result is None:
                    raise CompileError("sortBy() needs a list and keys that can be ordered", node.body.start)
                return Typed(result, lambda frame: lists.sort_by(
                    frame.spend, items.run(frame), tuple(body.run(frame) for _ in each(frame))))  # fmt: skip
            case _:
                assert_never(node.fold)


def _fold_constant(typed: Typed, frame: Frame) -> Typed:
    """Return a constant instead of a computation that always has the same result. Raise EvaluationError."""
    value = typed.run(frame)
    return replace(typed, run=ev.constant(value), constant=True)


_NAMESPACES = frozenset({"cel", "sets", "lists", "strings", "optional", "math", "format", "ip", "authorizer"})
"""Prefixes of function names. An unknown function after one gets an error of its own."""
_REGEX_FUNCTIONS = frozenset({"matches", "find", "findAll"})
"""Functions whose first argument after the text is a regular expression."""
