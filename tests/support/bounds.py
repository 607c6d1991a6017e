"""A case for each bound of a definition: a manifest that keeps it, and one that does not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, get_args

from modelplane_operator.api.cache_sources import Reference, WebAddress
from tests.api.contract import contracts, rich
from tests.support.manifests import ABSENT, find

COMPLAINTS = {
    "minimum": "should be greater than or equal to",
    "maximum": "should be less than or equal to",
    "minLength": "should be at least|at least",
    "maxLength": "may not be more than|Too long",
    "minItems": "should have at least",
    "maxItems": "must have at most",
    "minProperties": "should have at least",
    "maxProperties": "must have at most",
    "pattern": "should match",
    "enum": "Unsupported value",
    "keys": "Duplicate value",
    "required": "Required value",
}


def _pattern(of: Any) -> str:
    """The pattern of a text that is declared once and used in several fields."""
    (field,) = get_args(of)[1:]
    return next(one.pattern for one in field.metadata if hasattr(one, "pattern"))


# How the shortest and the longest text look where a pattern rules: what they begin with, else `a`, and their end.
PATTERNS = {
    _pattern(WebAddress): ("http://", ""),
    _pattern(Reference): ("a/", ""),
    "^cr-[0-9a-f]+$": ("cr-", ""),
    "^(https?|oci)://[^ ]+$": ("oci://", ""),
    "^(/[^/:]+)+$": ("/", ""),
    r"^(/[!-\[\]-~]*)?$": ("/", ""),
    "^/[!-~]*$": ("/", ""),
    r"^[a-z0-9][-a-z0-9]*@([a-z0-9][-a-z0-9]*\.)+gserviceaccount\.com$": ("a", "@lab.iam.gserviceaccount.com"),
    "^/([A-Za-z0-9_-]+(/[A-Za-z0-9_-]+)*)?$": ("/", ""),
    "^sha256:[0-9a-f]{64}$": ("sha256:", ""),
    r"^[0-9a-fA-F:.]{2,39}/[0-9]{1,3}$": ("", "/128"),
    "^[1-9][0-9]{0,6}(Mi|Gi|Ti)$": ("1111111", "Gi"),
    r"^([1-9][0-9]{0,6}m?|[0-9]{1,4}\.[0-9]{1,3})$": ("1111111", "m"),
    "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$": ("", f"/{'a' * 63}"),
}

# What a pattern refuses where '!' before the text of rich.yaml is as good as any.
REFUSED_BY = {
    "^[ -<>-~]+$": "A=B",
    r"^([^-\s]\S*)?$": "-main",
    "^sha256:[0-9a-f]{64}$": f"sha256:{'g' * 64}",
    "^[0-9a-f]{64}$": "g" * 64,
}

# An attribute has one value, in rich.yaml a string: admission.yaml has the rows for the others.
ELSEWHERE = ("spec.devices[].attributes{}.version",)


@dataclass(frozen=True, slots=True)
class Case:
    """A field of an object with every field set, a value that is stored and one that is refused."""

    of: str
    path: str
    keyword: str
    stored: Any
    refused: Any

    def __str__(self) -> str:
        return f"{self.of} {self.path} {self.keyword}"


def cases() -> Iterator[Case]:
    """Each bound of a field once: in the first object of its kind that sets it, since some fields exclude others."""
    for kind, contract in contracts().items():
        shapes = {of: manifest for of, manifest in rich().items() if of.partition(" ")[0] == kind}
        for path, field in contract.fields.items():
            setting = ((of, found) for of, one in shapes.items() if (found := find(one, path)) is not ABSENT)
            of, found = next(setting, ("", None))
            if of:
                yield from cases_of(of, path, field, found)
            elif field.keys() & {*COMPLAINTS, "each"}:
                assert path in ELSEWHERE, f"rich.yaml sets no {kind} {path}"


def cases_of(of: str, path: str, field: dict[str, Any], found: Any) -> Iterator[Case]:
    pattern = field.get("pattern", "")
    for keyword, bound in field.items():
        match keyword:
            case "minimum" | "maximum":
                beyond = bound - 1 if keyword == "minimum" else bound + 1
                yield Case(of, path, keyword, bound, beyond)
            case "minLength" | "maxLength":
                beyond = bound - 1 if keyword == "minLength" else bound + 1
                yield Case(of, path, keyword, text_of(bound, pattern), text_of(beyond, pattern))
            case "minItems" | "maxItems":
                beyond = bound - 1 if keyword == "minItems" else bound + 1
                yield Case(of, path, keyword, items_of(found, bound, field), items_of(found, beyond, field))
            case "maxProperties":
                yield Case(of, path, keyword, entries_of(found, bound), entries_of(found, bound + 1))
            case "pattern":
                yield Case(of, path, keyword, found, REFUSED_BY.get(bound, f"!{found}"))
            case "enum":
                yield Case(of, path, keyword, found, "Bogus")
            case "keys":
                yield Case(of, path, keyword, found, [found[0], found[0]])
            case "required" if path != "spec":
                yield Case(of, path, keyword, found, ABSENT)
            case "each":
                yield from each(of, path, bound, found)
            case _:
                pass


def each(of: str, path: str, bounds: dict[str, Any], found: Any) -> Iterator[Case]:
    """The bounds of a list's items, or of a map's values."""
    inside = f"{path}[]" if isinstance(found, list) else f"{path}{{}}"
    pattern = bounds.get("pattern", "")
    for keyword, bound in bounds.items():
        match keyword:
            case "minLength":
                yield Case(of, inside, keyword, text_of(bound, pattern), text_of(bound - 1, pattern))
            case "maxLength":
                yield Case(of, inside, keyword, text_of(bound, pattern), text_of(bound + 1, pattern))
            case "enum":
                yield Case(of, inside, keyword, found[0], "Bogus")
            case "minProperties":
                yield Case(of, inside, keyword, found[0], {})
            case "pattern":
                yield Case(of, inside, keyword, found[0], f"!{found[0]}")
            case _:
                raise AssertionError(f"no case for {keyword} of {inside}")


def text_of(length: int, pattern: str = "") -> str:
    start, end = PATTERNS.get(pattern, ("", ""))
    room = length - len(end)
    return f"{start[:room].ljust(room, 'a')}{end}" if room > 0 else "a" * length


def items_of(found: list[Any], count: int, field: dict[str, Any]) -> list[Any]:
    """As many items, told apart by the first of the list's keys, or as texts."""
    key = field.get("keys", [None])[0]
    items = [*found, *[found[-1]] * count][:count]
    if count <= len(found):
        return items
    if enum := field.get("each", {}).get("enum"):
        return [enum[index % len(enum)] for index in range(count)]
    if isinstance(found[-1], str):
        return [f"{item}{index}" for index, item in enumerate(items)]
    if key is None:
        return items
    return [{**item, key: f"{item[key]}{index}"} for index, item in enumerate(items)]


def entries_of(found: dict[str, Any], count: int) -> dict[str, Any]:
    (value, *_) = found.values()
    return {f"k{index}": value for index in range(count)}
