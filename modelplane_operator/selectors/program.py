"""A checked selector: what is known of every part, and how it is computed."""

from dataclasses import dataclass

from modelplane_operator.selectors import functions as f
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.evaluate import Frame, Run
from modelplane_operator.selectors.tree import Expr
from modelplane_operator.selectors.values import Value


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

    def evaluate(self, part: Expr, frame: Frame) -> Value:
        """The value of the expression, or of a part outside any comprehension; raises EvaluationError."""
        return self.parts[id(part)].run(frame)

    def type_of(self, part: Expr) -> t.Type:
        """The type of a part; what nothing decided is `dyn`."""
        return t.substitute(self.bindings, self.parts[id(part)].type, free=t.DYN)

    def overloads_of(self, part: Expr) -> tuple[f.Overload, ...]:
        """The ways in which a call may be meant, as far as types tell."""
        return self.parts[id(part)].overloads


def certain(argument: Typed, parameter: t.Type) -> bool:
    """Whether the argument can be nothing at evaluation that the parameter does not take."""
    anything = parameter.is_parameter or t.is_dynamic(parameter)
    return anything or (argument.sure and t.is_concrete(argument.type))
