"""Semantic versions as the DRA allocator reads them: strict, or normalised first.

Order follows semver.org: numbers, then prerelease identifiers; build metadata counts for nothing.
"""

import re
from dataclasses import dataclass
from functools import total_ordering

_UINT64_MAX = 2**64 - 1
_NUMBER = r"(0|[1-9][0-9]*)"
_IDENTIFIERS = r"[0-9A-Za-z-]+(?:\.[0-9A-Za-z-]+)*"
_STRICT = re.compile(rf"{_NUMBER}\.{_NUMBER}\.{_NUMBER}(?:-({_IDENTIFIERS}))?(?:\+{_IDENTIFIERS})?", re.ASCII)


class SemverError(ValueError):
    """The text is not a semantic version; the message says so in a user's words."""


@total_ordering
@dataclass(frozen=True, slots=True)
class Semver:
    """A version; equal and ordered by everything but its build metadata."""

    major: int
    minor: int
    patch: int
    prerelease: tuple[int | str, ...] = ()

    def compare(self, other: "Semver") -> int:
        """-1, 0 or 1 when this is older than, the same as or newer than the other."""
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
    """Read three numbers with optional prerelease and build.

    With `normalize`, a leading `v`, leading zeros and missing minor or patch numbers are forgiven.
    Raises SemverError.
    """
    match = _STRICT.fullmatch(_normalized(text) if normalize else text)
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


def _normalized(text: str) -> str:
    parts = [_without_leading_zeros(part) for part in text.removeprefix("v").split(".", 2)]
    missing = 3 - len(parts)
    if missing and ("+" in parts[-1] or "-" in parts[-1]):
        return ""  # where the missing numbers belong cannot be told
    return ".".join(parts + ["0"] * missing)


def _without_leading_zeros(part: str) -> str:
    if len(part) <= 1:
        return part
    rest = part.lstrip("0")
    return rest if rest and rest[0] in "0123456789" else f"0{rest}"
