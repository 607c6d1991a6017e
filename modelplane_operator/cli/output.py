"""How answers look: tables for people, JSON and YAML for programs, and exit codes for both."""

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

NO_CLUSTERS = "there is no InferenceCluster: docs/clusters.md says how one is registered"


class Exit(IntEnum):
    YES = 0
    ERROR = 1
    USAGE = 2
    NO = 3
    """The answer is no: a model is not ready, a plan leaves a replica without a place."""
    OUT_OF_REACH = 4
    """The hub does not answer, or does not let the user read what the answer takes."""


class No(Exception):  # noqa: N818 - it is an answer
    """The answer is no; the message says what to do."""


class FailedError(Exception):
    """There is no answer; the message says why, and what to do."""

    code = Exit.ERROR


class OutOfReachError(FailedError):
    """A cluster cannot be asked from here; the message says what to do instead."""

    code = Exit.OUT_OF_REACH


class Format(StrEnum):
    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"

    @property
    def is_structured(self) -> bool:
        """Whether a program reads it."""
        return self in {Format.JSON, Format.YAML}


def console() -> Console:
    """As wide as the terminal, coloured on one alone; into a pipe lines are never broken."""
    return Console(highlight=False, soft_wrap=not sys.stdout.isatty(), width=None if sys.stdout.isatty() else 10_000)


def structured(kind: str, value: Any, form: Format) -> None:
    """A dataclass, or several, for programs."""
    told = document(kind, value)
    if form is Format.JSON:
        sys.stdout.write(json.dumps(told, indent=2) + "\n")
    else:
        sys.stdout.write(yaml.safe_dump(told, sort_keys=False, allow_unicode=True))


def table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> Table:
    """Columns as kubectl's, the last of which takes what room there is."""
    found = Table(box=None, pad_edge=False, show_edge=False, padding=(0, 3, 0, 0), header_style="bold")
    for column in columns[:-1]:
        found.add_column(column, no_wrap=True)
    found.add_column(columns[-1], overflow="fold")
    for row in rows:
        found.add_row(*(text(one) for one in row))
    return found


def shown(
    kind: str,
    found: Sequence[T],
    form: Format,
    columns: Sequence[str],
    row: Callable[[T], Sequence[object]],
    *,
    nothing: str,
) -> None:
    """Several of something: for programs, or in a table. Where there are none that is a no, with what to do."""
    if form.is_structured:
        structured(kind, found, form)
    elif found:
        console().print(table(columns, map(row, found)))
    else:
        raise No(nothing)


def text(value: object) -> str:
    """As it may be printed: others choose names and messages."""
    match value:
        case None | "":
            return "-"
        case True:
            return "yes"
        case False:
            return "no"
        case _:
            return escape(legible(str(value)).replace("\n", " "))


def age(since: datetime | None, now: datetime) -> str:
    """As kubectl counts: the largest unit, and the next one where that is small."""
    if since is None:
        return ""
    seconds = max(int((now - since).total_seconds()), 0)
    for unit, length, below in (("d", 86400, 3600), ("h", 3600, 60), ("m", 60, 1)):
        if seconds >= length:
            count, rest = divmod(seconds, length)
            smaller = {"d": "h", "h": "m", "m": "s"}[unit]
            more = f"{rest // below}{smaller}" if count < 8 and rest >= below else ""
            return f"{count}{unit}{more}"
    return f"{seconds}s"
