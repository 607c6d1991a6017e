"""Read an engine's command line without running it.

It is read as engines read it: the last of repeated flags counts, and underscores in a flag's name equal dashes. In
a shell script, only commands that start an engine count: `ray start --port=6379` configures Ray.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from modelplane_operator.api.pods import Container

_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
"""Names of shells that run a script given by `-c`."""
_SHELL_PUNCTUATION = "();<>|&\n"  # most of it ends the command, too
"""Punctuation that ends a word of a shell script."""
_ENGINES = re.compile(r"vllm|sglang|trtllm|tensorrt_llm|llama|lmdeploy|text-generation-launcher|tritonserver")
"""Expression that is found in commands that start an engine."""
_SGLANG = re.compile(r"(?:/.*/)?sglang|sglang\..*|.*/sglang/.*\.py")
"""Expression for words that start SGLang."""
_IMAGES_WITH_SHELL = frozenset({"vllm-openai", "sglang", "llm-d-cuda"})  # built on a Linux distribution
"""Names of engine images that have a shell."""
_OTHER_PROGRAMS = frozenset({"ray"})  # `--port` of Ray, for example
"""Programs that have flags named like an engine's."""
_REFERENCE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")
"""Form of a reference to a variable, of Kubernetes or of a shell."""


def flag_value(container: Container, *flags: str) -> str | None:
    """Return the value of the last of these flags, written `--flag value` or `--flag=value`; None without one.

    A reference to a variable of the container is replaced by the variable's value.
    """
    value: str | None = None
    for command in _find_engine_commands(container):
        for word, following in zip(command, (*command[1:], None), strict=False):
            name, equals, assigned = word.partition("=")
            if _normalize_flag(name) in flags:
                value = assigned if equals else following
    return _expand_variables(container, value) if value else value


def model_of(container: Container) -> str | None:
    """Return the model that an engine serves, given by a flag or, for vLLM, after `serve`."""
    from_flag = flag_value(container, "--model", "--model-path")
    after_serve = (
        after for command in _find_engine_commands(container) for word, after in pairwise(command) if word == "serve"
    )
    served = next((word for word in after_serve if not word.startswith("-")), None)
    return from_flag or (_expand_variables(container, served) if served else None)


def has_flag(container: Container, flag: str) -> bool:
    """True if a container's arguments have a flag. Scripts of a shell are not read."""
    return any(_normalize_flag(argument.partition("=")[0]) == flag for argument in container.args)


def mentions(container: Container, flag: str) -> bool:
    """True if the engine gets the flag or a field of it: vLLM also takes `--flag.name value`."""
    return any(
        _normalize_flag(word.partition("=")[0]).partition(".")[0] == flag
        for command in _find_engine_commands(container)
        for word in command
    )


def is_sglang(container: Container) -> bool:
    """True if the engine is SGLang. Others count as vLLM or similar.

    The image and the program decide, not the arguments: models and registries may have any name.
    """
    image = container.image.partition("@")[0]
    has_sglang_image = "sglang" in image and "vllm" not in image.rpartition("/")[2].partition(":")[0]
    return has_sglang_image or any(
        _SGLANG.fullmatch(word) for command in _find_engine_commands(container) for word in _find_program(command)
    )


def shell_of(container: Container) -> str | None:
    """Return a shell that the container certainly has: the one that starts its engine, or that of a known image."""
    from_command = next((word for word in container.command if word.rpartition("/")[2] in _SHELLS), None)
    image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return from_command or ("sh" if image in _IMAGES_WITH_SHELL else None)


def _find_program(command: Sequence[str]) -> Iterator[str]:
    """Yield the words that name the program of a command: those before the first long flag, and a `-m` module."""
    for word in command:
        if word.rpartition("/")[2] == "vllm" or (word.startswith("--") and word != "--"):
            break
        yield word
    yield from (module for option, module in pairwise(command) if option == "-m")


def is_legible(container: Container) -> bool:
    """True if the engine's arguments can be read: no program of the user's own and no config file hides them."""
    runs_engine = any(map(_runs_engine, _find_engine_commands(container)))
    return (runs_engine or not container.command) and flag_value(container, "--config") is None


def is_complete(container: Container) -> bool:
    """True if all flags of the engine are visible.

    A variable without a known value, or a command, may stand for any.
    """
    tokens = (word for command in _find_engine_commands(container) for word in command)
    expanded = (_expand_variables(container, word) if word.startswith("--") else word for word in tokens)
    return not any("$" in word or "`" in word for word in expanded)


def _normalize_flag(word: str) -> str:
    """Return a flag with dashes in place of underscores."""
    return word.replace("_", "-") if word.startswith("--") else word


def _find_engine_commands(container: Container) -> Sequence[Sequence[str]]:
    """Return the commands that start the engine, split into words."""
    argv = (*container.command, *container.args)
    script = _find_script(argv)
    if script is None:
        return [argv]
    commands = [command for command in _split_commands(script) if command]
    engines = [command for command in commands if _runs_engine(command)]
    return engines or [command for command in commands if command[0] not in _OTHER_PROGRAMS]


def _runs_engine(command: Sequence[str]) -> bool:
    return command[0] not in _OTHER_PROGRAMS and any(map(_ENGINES.search, command)) if command else False


def _find_script(argv: Sequence[str]) -> str | None:
    """Return the script that a shell runs by `-c`, `-lc` and similar; None without a shell."""
    shell_index = next((index for index, word in enumerate(argv) if word.rpartition("/")[2] in _SHELLS), None)
    if shell_index is None:
        return None
    for index, word in enumerate(argv[shell_index + 1 :], start=shell_index + 1):
        if not word.startswith("-"):
            return None
        if "c" in word and not word.startswith("--"):
            return next(iter(argv[index + 1 :]), None)
    return None


def _split_commands(script: str) -> Iterator[Sequence[str]]:
    """Yield the commands of a shell script, split into words."""
    lines = script.replace("\\\n", " ")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=_SHELL_PUNCTUATION)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        tokens = list(lexer)
    except ValueError:  # quotes that only a real shell can parse
        tokens = re.sub(f"([{re.escape(_SHELL_PUNCTUATION)}]+)", r" \1 ", lines).replace("\n", " ; ").split()
    command: list[str] = []
    for word in tokens:
        if set(word) <= set(_SHELL_PUNCTUATION) and not set(word) <= set("<>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _expand_variables(container: Container, value: str) -> str:
    """Replace references to variables of the container by their values. Unknown ones stay."""
    values = {variable.name: variable.value for variable in container.env if variable.value is not None}
    return _REFERENCE.sub(lambda match: values.get(match[1] or match[2] or match[3]) or match[0], value)
