"""How messages are worded, whoever writes them.

A message is a sentence that names its subject. Its clauses are written as they would stand in the middle of one, so
that they can be put together in any order, and whatever makes the message of them puts a capital in front. So no
message begins with a name, which would then be another one: `chart metallb is not installed`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

NAMED: Final = 5  # of many; the others are counted


def sentence(*clauses: str) -> str:
    """Those clauses that say something, as one sentence; empty without any."""
    words = "; ".join(filter(None, clauses))
    return f"{words[:1].upper()}{words[1:]}"


def counted(count: int, noun: str, plural: str = "") -> str:
    """A number of things, in the singular where it is one."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def listed(names: Iterable[str], at_most: int = NAMED) -> str:
    """The first names of many, and how many more there are."""
    known = tuple(names)
    more = f" and {len(known) - at_most} more" if len(known) > at_most else ""
    return f"{', '.join(known[:at_most])}{more}"


_OBEYED = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {ord("\n"), ord("\t")},
    "\N{REPLACEMENT CHARACTER}",
)
"""What a terminal obeys and does not show: control characters, and those that turn the direction of a text."""


def legible(text: str) -> str:
    """The text as it may be shown on a terminal: pods, and whole clusters, have others say what they like."""
    return text.translate(_OBEYED)
