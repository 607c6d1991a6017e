"""A checked selector: the type and the closure of each part."""

from dataclasses import dataclass

from modelplane_operator.selectors import functions as f
from modelplane_operator.selectors import types as t
from modelplane_operator.selectors.evaluate import Frame, Run
from modelplane_operator.selectors.tree import Expr
from modelplane_operator.selectors.values import Value


@dataclass(frozen=True, slots=True)
class Typed:
    """The result of checking an expression."""

    type: t.Type
    """Static type; its parameters may be bound later."""
    run: Run
    """Closure that computes the value."""
    constant: bool = False
    """True if the value is the same for every device."""
    sure: bool = False
    """True if the value is certain to be of the type; elements that came through `dyn` are not."""
    overloads: tuple[f.Overload, ...] = ()
    """Overloads that a call may have."""


@dataclass(slots=True)
class Program:
    """A checked expression with its checked parts, by identity, for explanations."""

    root: Expr
    parts: dict[int, Typed]
    """Checked nodes by identity."""
    bindings: t.Bindings
    """Types of the type parameters after the check."""
    variables: int
    """Number of slots for variables."""

    def evaluate(self, part: Expr, frame: Frame) -> Value:
        """Return the value of the expression, or of a part outside of any macro. Raise EvaluationError."""
        return self.parts[id(part)].run(frame)

    def type_of(self, part: Expr) -> t.Type:
        """Return the type of a part; `dyn` if it is undetermined."""
        return t.substitute(self.bindings, self.parts[id(part)].type, free=t.DYN)

    def overloads_of(self, part: Expr) -> tuple[f.Overload, ...]:
        """Return the overloads that a call may have, by its types."""
        return self.parts[id(part)].overloads


def certain(argument: Typed, parameter: t.Type) -> bool:
    """True if the parameter accepts every possible value of the argument."""
    accepts_all = parameter.is_parameter or t.is_dynamic(parameter)
    return accepts_all or (argument.sure and t.is_concrete(argument.type))
