"""What can be asked of a simulated engine, and how it is read."""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Annotated, Any, get_type_hints

ANNOTATION_PREFIX = "localfleet.dev/"
ARGUMENT_PREFIX = "--localfleet-"
NODE_DOWN = "localfleet.dev/node-down"


class Hang(StrEnum):
    """What an engine no longer answers; requests that hang go on when the setting changes."""

    NOTHING = "false"
    GENERATION = "generation"
    EVERYTHING = "true"


class Pull(StrEnum):
    """What becomes of an engine's image."""

    WORKS = "works"
    FAILS = "fails"


@dataclass(frozen=True, slots=True)
class Settings:
    """The behaviour of one engine. A setting's public name is its field's, with dashes."""

    startup_seconds: Annotated[float, "how long weights load before the port opens"] = 0.0
    first_token_seconds: Annotated[float, "time to the first token"] = 0.02
    tokens_per_second: Annotated[float, "per request, after the first; 0: no pause"] = 200.0
    output_tokens: Annotated[
        int, "how long an answer gets, and the rest of its sentence, when the request does not say"
    ] = 32
    max_running: Annotated[int, "requests served at a time; the others wait"] = 64
    error_rate: Annotated[float, "share of generation requests that fail, spread evenly"] = 0.0
    error_status: Annotated[int, "the HTTP status of those failures"] = 500
    hang: Annotated[Hang, "true: nothing is answered, streams stop; generation: /health works"] = Hang.NOTHING
    crash: Annotated[int, "the exit code with which the engine goes down after each start; -1: never"] = -1
    crash_after_seconds: Annotated[float, "how long after its start it goes down"] = 0.0
    crash_times: Annotated[int, "only the first N starts go down; 0: every one"] = 0
    pull: Annotated[Pull, "fails: the registry has no such image, and the engine never starts"] = Pull.WORKS
    model: Annotated[str, "the only model name it serves; empty: what its arguments say"] = ""


class SettingError(ValueError):
    """A setting has a name or a value that means nothing."""


def purposes() -> Mapping[str, str]:
    """What each setting is for, by public name, with its default."""
    hints = get_type_hints(Settings, include_extras=True)
    return {_public(entry.name): f"{hints[entry.name].__metadata__[0]} [{entry.default}]" for entry in fields(Settings)}


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
