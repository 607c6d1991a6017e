"""Semantic versions as the DRA allocator parses them: strictly, or normalized first.

The order follows semver.org: numbers, then prerelease identifiers. Build metadata is ignored.
"""

import re
from dataclasses import dataclass
from functools import total_ordering

_UINT64_MAX = 2**64 - 1
_NUMBER = r"(0|[1-9][0-9]*)"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_STRICT = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?", re.ASCII)
"""Grammar of semver.org, without the rule for leading zeros in the prerelease."""


class SemverError(ValueError):
    """The text is not a semantic version. The message is for users."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A version, compared by everything but its build metadata."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()
    """Identifiers after the hyphen; empty for a release. Numbers are compared as numbers."""

    def compare(self, other: "Semver") -> int:
        """Return -1, 0 or 1 when this is older than, the same as or newer than the other."""
        return (self > other) - (self < other)

    def __lt__(self, other: "Semver") -> bool:
        return self._rank < other._rank

    @property
    def _rank(self) -> tuple[object, ...]:
        # A release is newer than its prereleases; a number is older than a word.
        identifiers = tuple((isinstance(i, str), i if isinstance(i, int) else 0, str(i)) for i in self.prerelease)
        return self.major, self.minor, self.patch, not self.prerelease, identifiers

    def __str__(self) -> str:
        release = f"{self.major}.{self.minor}.{self.patch}"
        return f"{release}-{'.'.join(map(str, self.prerelease))}" if self.prerelease else release


def parse(text: str, *, normalize: bool = False) -> Semver:
    """Parse three numbers with optional prerelease and build. Raise SemverError.

    With `normalize`, a leading `v`, leading zeros and missing minor or patch numbers are accepted.
    """
    match = _STRICT.fullmatch(_normalize(text) if normalize else text)
    if match is None:
        raise SemverError(f'"{text[:80]}" is not a semantic version: write three numbers, such as 9.0.0')
    identifiers = match[4].split(".") if match[4] else []
    if any(len(i) > 1 and i[0] == "0" and i.isdigit() for i in identifiers):
        raise SemverError(f'"{text[:80]}" is not a semantic version: a number in its prerelease starts with 0')
    numbers = [match[1], match[2], match[3], *filter(str.isdigit, identifiers)]
    if any(len(n) > len(str(_UINT64_MAX)) or int(n) > _UINT64_MAX for n in numbers):
        raise SemverError(f'"{text[:80]}" is not a semantic version: a number in it has more than 64 bits')
    prerelease = tuple(int(i) if i.isdigit() else i for i in identifiers)
    return Semver(int(match[1]), int(match[2]), int(match[3]), prerelease)


def _normalize(text: str) -> str:
    """Return the text without a leading `v` and leading zeros, and with three numbers; empty if that is ambiguous."""
    parts = [_strip_leading_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    missing = 3 - len(parts)
    if missing and ("+" in parts[-1] or "-" in parts[-1]):
        return ""  # the position of the missing numbers is ambiguous
    return ".".join(parts + ["0"] * missing)


def _strip_leading_zeros(part: str) -> str:
    """Return a part of a version without leading zeros; one is left before anything but a digit."""
    if len(part) <= 1:
        return part
    stripped = part.lstrip("0")
    return stripped if stripped and stripped[0] in "0123456789" else f"0{stripped}"
