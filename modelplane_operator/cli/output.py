"""Format answers: tables for people, JSON and YAML for programs, and exit codes."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from enum import IntEnum, StrEnum
from typing import Any, TypeVar

import yaml
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from kubeloop.words import legible
from modelplane_operator.ask.answers.schema import document

T = TypeVar("T")

NO_CLUSTERS = "there is no InferenceCluster: register one as in docs/clusters.md"
"""Message for an empty fleet."""


class Exit(IntEnum):
    """Exit codes of the command."""

    YES = 0
    """Positive answer, or a completed command."""
    ERROR = 1
    """Failure for another reason than those below."""
    USAGE = 2
    """Invalid options or arguments. The value is click's."""
    NO = 3
    """Negative answer: a model is not ready, or a plan leaves a replica without a place."""
    OUT_OF_REACH = 4
    """The hub does not respond, or the user must not read it."""


class No(Exception):  # noqa: N818 - an answer, not an error
    """The answer is no. The message says what to do."""


class FailedError(Exception):
    """There is no answer. The message gives the reason and what to do."""

    code = Exit.ERROR
    """Exit code of the command."""


class OutOfReachError(FailedError):
    """A cluster cannot be reached from here. The message says what to do instead."""

    code = Exit.OUT_OF_REACH


class Format(StrEnum):
    """Formats of the output."""

    TABLE = "table"
    WIDE = "wide"
    """Table with more detail, for commands that have some."""
    JSON = "json"
    YAML = "yaml"

    @property
    def is_structured(self) -> bool:
        """True if the output is for programs."""
        return self in {Format.JSON, Format.YAML}


def console() -> Console:
    """Return a console as wide as the terminal, with colours on terminals only. Lines in pipes are never wrapped."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 10_000)


def print_structured(kind: str, value: Any, form: Format) -> None:
    """Print a dataclass, or several, for programs."""
    content = document(kind, value)
    if form is Format.JSON:
        sys.stdout.write(json.dumps(content, indent=2) + "\n")
    else:
        sys.stdout.write(yaml.safe_dump(content, sort_keys=False, allow_unicode=True))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Return a table with kubectl's columns. The last column takes the remaining width."""
    result = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns[:-1]:
        # Names must stay in one piece to be copied, so only the last column wraps.
        result.add_column(column, no_wrap=True)
    result.add_column(columns[-1], overflow="fold")
    for row in rows:
        result.add_row(*(text(cell) for cell in row))
    return result


def print_items(
    kind: str,
    items: Sequence[T],
    form: Format,
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    nothing: str,
) -> None:
    """Print several items, for programs or as a table. Raise No, with what to do, if there are none."""
    if form.is_structured:
        print_structured(kind, items, form)
    elif items:
        console().print(table(columns, map(row, items)))
    else:
        raise No(nothing)


def text(value: object) -> str:
    """Return a value as printable text. Names and messages come from others, so control characters are escaped."""
    match value:
        case None | "":
            return "-"
        case True:
            return "yes"
        case False:
            return "no"
        case _:
            return escape(legible(str(value)).replace("\n", " "))


def print_piece(out: Console, piece: str) -> None:
    """Print a piece of a model's answer at once, with its line breaks and without its control characters."""
    out.print(legible(piece), end="", soft_wrap=True, markup=False, emoji=False)
    sys.stdout.flush()


def age(since: datetime | None, now: datetime) -> str:
    """Return the age as kubectl does: in the largest unit, with the next one if that number is small."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    for unit, length, smaller_length in (("d", 86400, 3600), ("h", 3600, 60), ("m", 60, 1)):
        if seconds >= length:
            count, remainder = divmod(seconds, length)
            smaller_unit = {"d": "h", "h": "m", "m": "s"}[unit]
            suffix = f"{remainder // smaller_length}{smaller_unit}" if count < 8 and remainder >= smaller_length else ""
            return f"{count}{unit}{suffix}"
    return f"{seconds}s"
