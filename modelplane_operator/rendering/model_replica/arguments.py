"""What an engine's command line says, as far as it can be read without running it."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from modelplane_operator.api.shared import Container


def flag_value(container: Container, *flags: str) -> str | None:
    """The value of the first of these flags, written `--flag value` or `--flag=value`; None without one.

    A command such as `sh -c "exec engine --port=8001"` is read into, so that a flag counts wherever it is written.
    """
    words = tuple(_words(container))
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in flags:
            if equals:
                return value
            return words[position + 1] if position + 1 < len(words) else None
    return None


def has_flag(container: Container, flag: str) -> bool:
    return any(argument == flag or argument.startswith(f"{flag}=") for argument in container.args)


def _words(container: Container) -> Iterator[str]:
    for part in (*container.command, *container.args):
        if not any(space in part for space in " \t\n"):
            yield part
            continue
        try:
            yield from shlex.split(part)
        except ValueError:  # quotes that only a shell can make sense of
            yield from part.split()
