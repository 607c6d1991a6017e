"""Messages about objects that cannot be parsed: the fields as Kubernetes writes them, without their values."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from kubeloop.resource import WrongKindError

MAX_FIELDS = 5  # fields that are named
LONGEST_PART = 63  # characters of a part of a path


def describe_invalid(error: ValidationError | WrongKindError) -> str:
    """Return which fields are wrong and why, without their values."""
    if isinstance(error, WrongKindError):
        return str(error)
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    messages = [
        f"{_format_path(problem['loc'])}: {_plain_message(problem['msg'])}" for problem in problems[:MAX_FIELDS]
    ]
    return "; ".join(messages) + (f"; and {len(problems) - MAX_FIELDS} more" if len(problems) > MAX_FIELDS else "")


def _format_path(location: Iterable[int | str]) -> str:
    """Return the path of a field as Kubernetes writes it. Keys of maps are users' text, and shortened."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_PART]}" for part in location)[1:]


def _plain_message(message: str) -> str:
    """Return the message with the API's words for types instead of Python's."""
    for python, plain in (("Tuple", "List"), ("Dictionary", "Map"), (" after validation", "")):
        message = message.replace(python, plain)
    return message
