"""What every message of the operator holds to, so that it can be read alone: in `kubectl describe`, in an Event."""

from __future__ import annotations

import re
from collections.abc import Iterator

SUBJECTS = re.compile(
    "a|all|another|any|artifact|bucket|chart|clusters?|device|engine|gateway|host|http|image|label|load|manifest"
    "|namespaces?|neither|no|nobody|nodes?|nothing|objects|operator|pods?|pool|region|release|replicas?|repository"
    "|requests|resource|route|serving|some|starting|the|there|token|volume|waiting|weights|what"
)
"""Words with which a message may begin. None is the name of an object, which a capital would make another one."""

_PRONOUNS = frozenset({"it", "its", "they", "their", "them", "he", "she"})
_VERBS = "is|has|was|does|goes|serves|stays|waits|says|less|its|this|as"
_ONE_OF_MANY = re.compile(rf"(?<![\w.,:/#=-])1 (?!(?:{_VERBS})\b)[a-z]+s\b(?!')")
_ANY_NUMBER = re.compile(r"\w\((?:s|es)\)")


def faults(words: str) -> Iterator[str]:
    """What is wrong with a message, as it was put together."""
    first = re.split(r"[\s:;,]", words, maxsplit=1)[0]
    if first.lower() in _PRONOUNS:
        yield "it does not name its subject"
    elif first[:1].islower() and not SUBJECTS.fullmatch(first):
        yield f"it begins with {first}, which is a name, or is to be among the SUBJECTS"
    if found := _ONE_OF_MANY.search(words):
        yield f"it says {found[0]!r}"
    if found := _ANY_NUMBER.search(words):
        yield f"it says {found[0]!r}: count the things"
