"""Helpers for wording messages.

A message is a sentence that names its subject. Clauses are written as they would stand in the middle of a sentence, so
that they can be combined in any order; `sentence` capitalizes the first letter. Names of objects and fields would be
others with a capital, so no clause begins with one: write `chart metallb is not installed`. `sentence` leaves those
alone that it recognizes.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

MAX_NAMES: Final = 5  # names that are listed; the others are counted
_NAME: Final = re.compile(r"[^\s:;,]*([-./_=\d]|[a-z][A-Z])")
"""A first word that is the name of an object, a field or a flag, and not a word of the language."""


def sentence(*clauses: str) -> str:
    """Join the non-empty clauses to one capitalized sentence; empty without any. A name at its beginning stays."""
    text = "; ".join(filter(None, clauses))
    return text if _NAME.match(text) else f"{text[:1].upper()}{text[1:]}"


def count_of(count: int, noun: str, plural: str = "") -> str:
    """Return a number with its noun, in the singular for 1."""
    return f"{count} {noun}" if count == 1 else f"{count} {plural or noun + 's'}"


def list_names(names: Iterable[str], at_most: int = MAX_NAMES) -> str:
    """Return the first names of many, and the number of the others."""
    all_names = tuple(names)
    more = f" and {len(all_names) - at_most} more" if len(all_names) > at_most else ""
    return f"{', '.join(all_names[:at_most])}{more}"


_CONTROL_CHARACTERS = dict.fromkeys(
    {*range(0x20), *range(0x7F, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)} - {ord("\n"), ord("\t")},
    "\N{REPLACEMENT CHARACTER}",
)
"""Characters that control a terminal instead of being shown, including those that change the direction of text."""


def legible(text: str) -> str:
    """Return a text that is safe to show on a terminal. Pods and clusters control the texts that they report."""
    return text.translate(_CONTROL_CHARACTERS)
