"""What is wrong with an object that cannot be read: its fields as Kubernetes writes them, and not what they say."""

from __future__ import annotations

from collections.abc import Iterable

from pydantic import ValidationError

from kubeloop.resource import WrongKindError

TOLD = 5  # fields
LONGEST_PART = 63


def wording(error: ValidationError | WrongKindError) -> str:
    """Which fields are wrong and why, without what they say."""
    if isinstance(error, WrongKindError):
        return str(error)
    wrong = error.errors(include_input=False, include_url=False, include_context=False)
    told = [f"{_path(one['loc'])}: {_plain(one['msg'])}" for one in wrong[:TOLD]]
    return "; ".join(told) + (f"; and {len(wrong) - TOLD} more" if len(wrong) > TOLD else "")


def _path(of: Iterable[int | str]) -> str:
    """A field as Kubernetes writes it; the keys of maps are users' and may be of any length."""
    return "".join(f"[{part}]" if isinstance(part, int) else f".{part[:LONGEST_PART]}" for part in of)[1:]


def _plain(message: str) -> str:
    """What is wrong, in the API's words and not in Python's."""
    for python, plain in (("Tuple", "List"), ("Dictionary", "Map"), (" after validation", "")):
        message = message.replace(python, plain)
    return message
