"""What can be asked of a simulated engine, and how it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from enum import StrEnum
from typing import Any, TypeVar

ANNOTATION_PREFIX = "localfleet.dev/"
ARGUMENT_PREFIX = "--localfleet-"
NODE_DOWN = "localfleet.dev/node-down"

T = TypeVar("T")


class Hang(StrEnum):
    """What an engine no longer answers; requests that hang go on when the setting changes."""

    NOTHING = "false"
    GENERATION = "generation"
    EVERYTHING = "true"


def _setting(default: T, purpose: str) -> T:
    return field(default=default, metadata={"purpose": purpose})


@dataclass(frozen=True, slots=True)
class Settings:
    """The behaviour of one engine. A setting's public name is its field's, with dashes."""

    startup_seconds: float = _setting(0.0, "how long weights load before the port opens")
    first_token_seconds: float = _setting(0.02, "time to the first token")
    tokens_per_second: float = _setting(200.0, "per request, after the first; 0: no pause")
    output_tokens: int = _setting(32, "length of an answer when the request does not say")
    max_running: int = _setting(64, "requests served at a time; the others wait")
    error_rate: float = _setting(0.0, "share of generation requests that fail, spread evenly")
    error_status: int = _setting(500, "the HTTP status of those failures")
    hang: Hang = _setting(Hang.NOTHING, "true: nothing is answered, streams stop; generation: /health still works")
    crash: int = _setting(-1, "the exit code with which the engine goes down after each start; -1: never")
    crash_after_seconds: float = _setting(0.0, "how long after its start it goes down")
    crash_times: int = _setting(0, "only the first N starts go down; 0: every one")
    model: str = _setting("", "the only model name it serves; empty: what its arguments say")


class SettingError(ValueError):
    """A setting has a name or a value that means nothing."""


def purposes() -> Mapping[str, str]:
    """What each setting is for, by public name, with its default."""
    return {_public(entry.name): f"{entry.metadata['purpose']} [{entry.default}]" for entry in fields(Settings)}


def read(texts: Mapping[str, str], *, onto: Settings) -> Settings:
    """`onto` with the settings that `texts` gives by public name; raises SettingError."""
    known = {_public(entry.name): entry for entry in fields(Settings)}
    changes: dict[str, Any] = {}
    for name, text in texts.items():
        if name not in known:
            raise SettingError(f"there is no setting {name!r}; there are: {', '.join(known)}")
        entry = known[name]
        try:
            changes[entry.name] = type(entry.default)(text)
        except ValueError as error:
            raise SettingError(f"{name} cannot be {text!r}: {error}") from error
    return replace(onto, **changes)


def _public(name: str) -> str:
    return name.replace("_", "-")
