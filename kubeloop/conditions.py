"""Conditions of any object, as whoever judges it tells them; the Gateway API's of parts of a status are read alike."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from kubeloop.objects import Section, entries, section


class Condition(NamedTuple):
    """One condition of an object. What is not told is empty: without the condition, all but its type."""

    type: str
    status: str = ""
    """`True`, `False` or `Unknown`."""
    reason: str = ""
    message: str = ""
    last_transition_time: str = ""
    current: bool = False
    """Whether it is about the object's present content: its `observedGeneration` is the object's `generation`.

    - An older one is about the content of before. A newer one is no better: it came with an object that somebody has
      restored from a backup, and whose generations began again.
    - One that names no generation, of an object that has one, is nobody's judgement yet: the API server puts such
      conditions on new Gateways and GatewayClasses, as defaults.
    - Of what has no generation, as a Node, every condition is.

    To be asked where something rests on the object's present content. Not where it is about what works now: a Gateway
    that is being changed answers as it did before.
    """

    @property
    def is_true(self) -> bool:
        return self.status == "True"

    @property
    def why(self) -> str:
        """Its reason and its message, as far as it has them."""
        return ": ".join(filter(None, (self.reason, self.message)))


def condition(live: Section, kind: str, part: Section | None = None) -> Condition:
    """The condition of that type of an object, or of a part of its status: of a listener, of a route at one gateway."""
    said = entries(live, "status", "conditions") if part is None else entries(part, "conditions")
    found = next((one for one in said if one.get("type") == kind), None)
    if found is None:
        return Condition(kind)
    observed, generation = found.get("observedGeneration"), section(live, "metadata").get("generation")
    fields = (found.get(name) for name in ("status", "reason", "message", "lastTransitionTime"))
    told = (text if isinstance(text, str) else "" for text in fields)
    return Condition(kind, *told, current=(observed or 0) == (generation or 0))


def gateways_of(live: Section) -> Sequence[Section]:
    """What each gateway says of a route (its `parents`) or of a policy (its `ancestors`).

    What one has said that is not asked any more stays there.
    """
    return (*entries(live, "status", "parents"), *entries(live, "status", "ancestors"))
