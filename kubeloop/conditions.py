"""Conditions as parsed from any object, including those in parts of a status, as the Gateway API has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kubeloop.objects import Section, entries, section


class Condition(NamedTuple):
    """A condition of an object. Fields that the object lacks are empty; for a missing condition all but the type."""

    type: str
    status: str = ""
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    current: bool = False
    """True if the condition is about the current content: its `observedGeneration` is the object's `generation`.

      - An older generation is about old content. A newer one proves nothing either: it comes from a restored object
        whose generations began again.
      - A condition without a generation, on an object that has one, is a default that no controller has written: the
        API server puts such conditions on new Gateways and GatewayClasses.
      - On objects without generations, such as Nodes, every condition is current.

    Check this where a decision depends on the current content, and not where only present behaviour matters: a Gateway
    that is being changed still serves as before.
    """

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def why(self) -> str:
        """Its reason and message, as far as it has them."""
        return ": ".join(filter(None, (self.reason, self.message)))


def condition(live: Section, kind: str, part: Section | None = None) -> Condition:
    """Return the condition of a type, of an object or of a part of its status, such as a listener or a route's
    parent."""
    candidates = entries(live, "status", "conditions") if part is None else entries(part, "conditions")
    existing = next((candidate for candidate in candidates if candidate.get("type") == kind), None)
    if existing is None:
        return Condition(kind)
    observed, generation = existing.get("observedGeneration"), section(live, "metadata").get("generation")
    fields = (existing.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
    texts = (text if isinstance(text, str) else "" for text in fields)
    return Condition(kind, *texts, current=(observed or 0) == (generation or 0))


def gateways_of(live: Section) -> Sequence[Section]:
    """Return the entries by gateway in the status of a route (`parents`) or a policy (`ancestors`).

    Entries of gateways that are no longer referenced may still be there.
    """
    return (*entries(live, "status", "parents"), *entries(live, "status", "ancestors"))
