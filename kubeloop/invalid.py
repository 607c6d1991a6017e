"""Messages about objects that cannot be parsed: the fields as Kubernetes writes them, without their values."""

from __future__ import annotations

from pydantic import ValidationError

from kubeloop.resource import WrongKindError

MAX_FIELDS = 5  # fields that are named
LONGEST_PART = 63  # characters of a part of a path
PLAIN = {"Tuple": "List", "Dictionary": "Map", " after validation": ""}  # the API's words in place of Python's


def describe_invalid(error: ValidationError | WrongKindError) -> str:
    """Return which fields are wrong and why, without their values."""
    if isinstance(error, WrongKindError):
        return str(error)
    problems = error.errors(include_input=False, include_url=False, include_context=False)
    messages = list[str]()
    for problem in problems[:MAX_FIELDS]:
        # The path as Kubernetes writes it. Keys of maps are users' text, and shortened.
        parts = (f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_PART]}" for part in problem["loc"])
        path, text = "".join(parts)[1:], problem["msg"]
        for python, plain in PLAIN.items():
            text = text.replace(python, plain)
        messages.append(f"field {path}: {text}")
    return "; ".join(messages) + (f"; and {len(problems) - MAX_FIELDS} more" if len(problems) > MAX_FIELDS else "")
