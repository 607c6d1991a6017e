"""What an engine's command line says, as far as it can be read without running it.

Read as the engine reads it: the last of several counts, and underscores in the name of a flag are dashes. Of a shell's
script, only those commands count that start an engine: `ray start --port=6379` is about Ray.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from itertools import pairwise

from modelplane_operator.api.pods import Container

_SHELLS = frozenset({"sh", "ash", "bash", "dash", "ksh", "zsh"})
_OF_SHELLS = "();<>|&\n"  # what ends a word of a shell's, and mostly the command
_ENGINES = re.compile(r"vllm|sglang|trtllm|tensorrt_llm|llama|lmdeploy|text-generation-launcher|tritonserver")
_SGLANG = re.compile(r"(?:/.*/)?sglang|sglang\..*|.*/sglang/.*\.py")
_WITH_SHELL = frozenset({"vllm-openai", "sglang", "llm-d-cuda"})  # images of engines that are built on a distribution
_OTHERS = frozenset({"ray"})  # programs whose flags are like an engine's
_REFERENCE = re.compile(r"\$(?:\((\w+)\)|\{(\w+)\}|(\w+))")


def flag_value(container: Container, *flags: str) -> str | None:
    """The value of the last of these flags, written `--flag value` or `--flag=value`; None without one.

    A variable that the container has a value for is replaced by it.
    """
    value: str | None = None
    for words in _commands(container):
        for word, following in zip(words, (*words[1:], None), strict=False):
            name, equals, said = word.partition("=")
            if _flag(name) in flags:
                value = said if equals else following
    return _expanded(container, value) if value else value


def model_of(container: Container) -> str | None:
    """The model that an engine is told to serve, by a flag or, as vLLM takes it, behind `serve`."""
    named = flag_value(container, "--model", "--model-path")
    behind = (after for words in _commands(container) for word, after in pairwise(words) if word == "serve")
    served = next((word for word in behind if not word.startswith("-")), None)
    return named or (_expanded(container, served) if served else None)


def has_flag(container: Container, flag: str) -> bool:
    return any(_flag(argument.partition("=")[0]) == flag for argument in container.args)


def mentions(container: Container, flag: str) -> bool:
    """Whether the engine is given the flag, or a part of it: vLLM takes `--flag.name value`, too."""
    return any(
        _flag(word.partition("=")[0]).partition(".")[0] == flag for words in _commands(container) for word in words
    )


def is_sglang(container: Container) -> bool:
    """Whether the engine is SGLang; others are taken to be vLLM, or to be like it.

    What it is called counts, and not what it is given: a model may be called anything, and so may a registry of vLLM.
    """
    image = container.image.partition("@")[0]
    named = "sglang" in image and "vllm" not in image.rpartition("/")[2].partition(":")[0]
    return named or any(_SGLANG.fullmatch(word) for words in _commands(container) for word in _programs(words))


def shell_of(container: Container) -> str | None:
    """The shell that the container has for certain: the one that starts its engine, or that of a well-known image."""
    named = next((word for word in container.command if word.rpartition("/")[2] in _SHELLS), None)
    image = container.image.partition("@")[0].rpartition("/")[2].partition(":")[0]
    return named or ("sh" if image in _WITH_SHELL else None)


def _programs(words: Sequence[str]) -> Iterator[str]:
    """What a command runs: its words before the first flag of two dashes, and the Python module that it names."""
    for word in words:
        if word.rpartition("/")[2] == "vllm" or (word.startswith("--") and word != "--"):
            break
        yield word
    yield from (module for option, module in pairwise(words) if option == "-m")


def is_legible(container: Container) -> bool:
    """Whether its arguments are all that the engine is told: no program of the user's own, no file stands between."""
    runs_engine = any(map(_runs_engine, _commands(container)))
    return (runs_engine or not container.command) and flag_value(container, "--config") is None


def is_complete(container: Container) -> bool:
    """Whether a flag that is not among the words is not given: a variable or a command may stand for any."""
    words = (word for command in _commands(container) for word in command)
    known = (_expanded(container, word) if word.startswith("--") else word for word in words)
    return not any("$" in word or "`" in word for word in known)


def _flag(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _commands(container: Container) -> Sequence[Sequence[str]]:
    """The commands that start the engine, in words."""
    words = (*container.command, *container.args)
    script = _script(words)
    if script is None:
        return [words]
    commands = [command for command in _split(script) if command]
    engines = [command for command in commands if _runs_engine(command)]
    return engines or [command for command in commands if command[0] not in _OTHERS]


def _runs_engine(words: Sequence[str]) -> bool:
    return words[0] not in _OTHERS and any(map(_ENGINES.search, words)) if words else False


def _script(words: Sequence[str]) -> str | None:
    """What a shell is told by `-c`, with `-lc` and the like; None without a shell."""
    shell = next((at for at, word in enumerate(words) if word.rpartition("/")[2] in _SHELLS), None)
    if shell is None:
        return None
    for at, word in enumerate(words[shell + 1 :], start=shell + 1):
        if not word.startswith("-"):
            return None
        if "c" in word and not word.startswith("--"):
            return next(iter(words[at + 1 :]), None)
    return None


def _split(script: str) -> Iterator[Sequence[str]]:
    lines = script.replace("\\\n", " ")
    lexer = shlex.shlex(lines, posix=True, punctuation_chars=_OF_SHELLS)
    lexer.whitespace, lexer.whitespace_split, lexer.commenters = " \t\r", True, ""
    try:
        words = list(lexer)
    except ValueError:  # quotes that only a shell can make sense of
        words = re.sub(f"([{re.escape(_OF_SHELLS)}]+)", r" \1 ", lines).replace("\n", " ; ").split()
    command: list[str] = []
    for word in words:
        if set(word) <= set(_OF_SHELLS) and not set(word) <= set("<>"):
            yield command
            command = []
        else:
            command.append(word)
    yield command


def _expanded(container: Container, value: str) -> str:
    known = {variable.name: variable.value for variable in container.env if variable.value is not None}
    return _REFERENCE.sub(lambda found: known.get(found[1] or found[2] or found[3]) or found[0], value)
