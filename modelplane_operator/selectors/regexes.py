"""Regular expressions by RE2, as in the API server: matching takes time in proportion to the text, for every
pattern.
"""

import re
from functools import lru_cache
from typing import Any

import re2 as _re2  # pyright: ignore[reportMissingTypeStubs]

from modelplane_operator.selectors.operations import Items
from modelplane_operator.selectors.values import Charge, EvaluationError

re2: Any = _re2  # the library has no type hints


# \C matches a single byte; Go's RE2 rejects it and C++'s accepts it. Within \Q...\E it is ordinary text.
# The possessive `*+` prevents backtracking, which would try every subset of the \E.
_SINGLE_BYTE = re.compile(r"(?s)(?:\\Q.*?(?:\\E|$)|\\[^QC]|[^\\])*+\\C")

# A short pattern can take long to match: `((a?){100}){100}` stands for ten thousand choices at each character.
# So its text and its program are limited, and matching is charged by both text and program.
REGEX_LENGTH = 512
"""Maximum characters of a pattern."""
_REGEX_BYTES = 64 << 10  # of the program, and as much for matching; 2,700 instructions at most
_REGEX_STEP = 32  # number of characters times instructions that count as a step
_REGEX_CHECKED = 16  # steps to check a character of a pattern


@lru_cache(maxsize=128)
def regex(pattern: str) -> Any:
    """Return the compiled pattern. Raise EvaluationError if it is invalid."""
    if len(pattern) > REGEX_LENGTH:
        raise EvaluationError(f"the regular expression is longer than {REGEX_LENGTH} characters")
    if _SINGLE_BYTE.match(pattern):
        raise EvaluationError("the regular expression is not valid: invalid escape sequence: \\C")
    options = re2.Options()
    options.log_errors = False
    options.max_mem = _REGEX_BYTES
    try:
        return re2.compile(pattern, options)
    except re2.error as error:
        reason: Any = error.args[0] if error.args else "it cannot be compiled"
        text = reason.decode("utf-8", "replace") if isinstance(reason, bytes) else str(reason)
        raise EvaluationError(f"the regular expression is not valid: {text}") from None


def _spend_on_match(charge: Charge, text: str, pattern: str) -> Any:
    """Charge for compiling and matching, and return the compiled pattern."""
    charge(1 + _REGEX_CHECKED * len(pattern))
    # Charged before the pattern is compiled, since a computed pattern may be new for each device.
    compiled = regex(pattern)
    charge(len(text) * compiled.programsize // _REGEX_STEP)
    return compiled


def matches(charge: Charge, text: str, pattern: str) -> bool:
    """True if the pattern matches a part of the text."""
    return _spend_on_match(charge, text, pattern).search(text) is not None


def find(charge: Charge, text: str, pattern: str) -> str:
    """Return the first match, or an empty text."""
    match = _spend_on_match(charge, text, pattern).search(text)
    return match.group() if match is not None else ""


def find_all(charge: Charge, text: str, pattern: str, count: int = -1) -> Items:
    """Return up to `count` matches, all if it is negative."""
    compiled = _spend_on_match(charge, text, pattern)
    results: list[str] = []
    last_end = -1
    for match in compiled.finditer(text):
        if len(results) == count:
            break
        if match.end() > match.start() or match.start() != last_end:  # Go skips an empty match right after another
            results.append(match.group())
        last_end = match.end()
    return tuple(results)
