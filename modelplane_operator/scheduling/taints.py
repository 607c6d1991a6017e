"""Taints of clusters, and the tolerations of deployments."""

from collections.abc import Collection, Iterable
from dataclasses import dataclass

NO_SCHEDULE = "NoSchedule"
"""Effect that keeps new replicas off a cluster."""
NO_EXECUTE = "NoExecute"
"""Effect that also moves existing replicas to other clusters."""


@dataclass(frozen=True, slots=True)
class Taint:
    """A taint, which keeps replicas off a cluster."""

    key: str
    value: str
    """Value of the taint; empty if it has none."""
    effect: str
    """`NoSchedule` or `NoExecute`."""


@dataclass(frozen=True, slots=True)
class Toleration:
    """A toleration. An empty field matches everything."""

    key: str
    exists: bool
    """True if every value of the key is tolerated."""
    value: str
    """Value of tolerated taints, unless every value is."""
    effect: str

    def tolerates(self, taint: Taint) -> bool:
        """True if the toleration covers the taint."""
        if self.effect not in ("", taint.effect):
            return False
        if self.exists:
            return self.key in ("", taint.key)
        return (self.key, self.value) == (taint.key, taint.value)


def find_untolerated(
    taints: Iterable[Taint], tolerations: Iterable[Toleration], effects: Collection[str]
) -> Taint | None:
    """Return the first taint with one of these effects that is not tolerated; None if all are."""
    for taint in taints:
        if taint.effect in effects and not any(toleration.tolerates(taint) for toleration in tolerations):
            return taint
    return None
