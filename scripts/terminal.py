"""Text that fits a terminal: nothing that is shown is wider, and commands can still be pasted."""

from __future__ import annotations

import re
import shutil
import textwrap
from collections.abc import Iterator

WORD = re.compile(r"(?:'[^']*'|\"[^\"]*\"|[^\s'\"])+")


def width() -> int:
    return shutil.get_terminal_size().columns


def short(line: str, columns: int | None = None) -> str:
    """The line, cut where the terminal ends."""
    columns = columns or width()
    return line if len(line) <= columns else f"{line[: columns - 3]}..."


def folded(text: str, columns: int | None = None) -> str:
    """The text with its long lines folded: commands, which are indented, as a shell goes on reading them."""
    columns = columns or width()
    return "\n".join(part for line in text.splitlines() for part in _folded(line, columns))


def _folded(line: str, columns: int) -> Iterator[str]:
    if len(line) <= columns:
        yield line
    elif line.startswith("  "):
        yield from command(line, columns)
    else:
        yield from textwrap.wrap(line, columns, break_long_words=False, break_on_hyphens=False)


def command(line: str, columns: int) -> Iterator[str]:
    """A command over several lines. JSON in quotes is broken at its commas, where that changes nothing of it."""
    indent = " " * (len(line) - len(line.lstrip()))
    so_far = indent.removesuffix(" ")
    for word in WORD.findall(line):
        if len(so_far) + len(word) + 3 > columns and so_far.strip():
            yield f"{so_far} \\"
            so_far = f"{indent}  "[:-1]
        if len(so_far) + len(word) + 3 > columns and re.match(r"'[\[{]", word):
            *above, last = broken(word, columns - len(so_far) - 3)
            for part in above:
                yield f"{so_far} {part}"
                so_far = f"{indent} "
            so_far += f" {last}"
            continue
        so_far += f" {word}"
    yield so_far


def broken(json: str, room: int) -> Iterator[str]:
    """Pieces of JSON, each as long as there is room for."""
    piece = ""
    for part in re.split(r"(?<=,)(?=\s?[\"{\[])", json):
        if piece and len(piece) + len(part) > room:
            yield piece
            piece = ""
        piece += part if piece else part.lstrip()
    yield piece
