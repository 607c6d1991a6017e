"""Parse the text of a selector to a syntax tree, or to an error with a position.

The grammar is cel-python's, read from that package without running its code (an import would change the process's
recursion limit). It is amended where it differs from the API server's language; see AMENDMENTS. Trees are built
bottom-up during parsing, so nesting cannot exhaust the stack here, and MAX_DEPTH protects all later traversals.
"""

import importlib.util
import re
from functools import cache
from pathlib import Path
from typing import Any, cast

import lark

from modelplane_operator.selectors.builder import Builder
from modelplane_operator.selectors.literals import ESCAPE
from modelplane_operator.selectors.tree import CompileError, Expr

MAX_LENGTH = 10_240  # the API server's limit, in bytes


def parse(text: str) -> Expr:
    """Return the tree of a selector. Raise CompileError."""
    if len(text.encode("utf-8", "replace")) > MAX_LENGTH:
        raise CompileError(f"the selector is longer than {MAX_LENGTH} bytes", 0, "split it over several selectors")
    if not text.strip():
        raise CompileError("the selector is empty", 0, 'write a condition, such as device.driver == "gpu.nvidia.com"')
    try:
        tree: Expr = _build_parser().parse(text)
        return tree
    except lark.exceptions.VisitError as error:
        # lark wraps the errors that Builder raises.
        raise error.orig_exc from None
    except lark.UnexpectedToken as error:
        raise _explain_token(error, text) from None
    except lark.UnexpectedCharacters as error:
        raise _explain_character(text, cast("int", error.pos_in_stream)) from None


# Amendments to cel-python's grammar, where the API server's parser differs: minus signs are operators (`8-1`), numbers
# need digits after the point, words end at a word boundary (`x iny` is not
# `x in y`), escapes are checked, `.?` and `[?` and `{?k: v}` are optional access, lists may end in a comma, and
# `!-x` is rejected.
_AMENDMENTS = r"""
%override INT_LIT: /0x[0-9a-fA-F]+|[0-9]+/
%override UINT_LIT: /(?:0x[0-9a-fA-F]+|[0-9]+)[uU]/
%override FLOAT_LIT: /[0-9]+\.[0-9]+(?:[eE][+-]?[0-9]+)?|[0-9]+[eE][+-]?[0-9]+|\.[0-9]+(?:[eE][+-]?[0-9]+)?/
%override BOOL_LIT: /(?:true|false)(?![_a-zA-Z0-9])/
%override NULL_LIT: /null(?![_a-zA-Z0-9])/
%override IDENT: /(?!(?:true|false|null|in)(?![_a-zA-Z0-9]))[_a-zA-Z][_a-zA-Z0-9]*/
%override STRING_LIT: /ESCAPED_OR_RAW/
%override MLSTRING_LIT: /TRIPLE_QUOTED/
%override BYTES_LIT: /[bB](?:TRIPLE_QUOTED|ESCAPED_OR_RAW)/
IN: /in(?![_a-zA-Z0-9])/

%override relation_in: relation IN
%override unary: member | "!"+ member | "-"+ member
%override member_dot: member "." ["?"] IDENT
%override member_index: member "[" ["?"] expr "]"
%override list_lit: "[" [element ("," element)* [","]] "]" | "[" "," "]"
%override map_lit: "{" [entry ("," entry)* [","]] "}" | "{" "," "}"
element: ["?"] expr
entry: ["?"] expr ":" expr
"""
_TRIPLE_QUOTED = "|".join(rf"{q}(?:{ESCAPE}|[^\\])*?{q}|[rR]{q}(?s:.*?){q}" for q in ('"""', "'''"))
"""Strings that may contain line breaks, with escapes or raw."""
_ESCAPED_OR_RAW = "|".join(rf"{q}(?:{ESCAPE}|[^{q}\\\n\r])*{q}|[rR]{q}[^{q}\n\r]*{q}" for q in ('"', "'"))
"""Strings on one line."""
# Precedence of tokens that match at the same position, highest first.
_PRIORITIES = [
    "MLSTRING_LIT",
    "BYTES_LIT",
    "STRING_LIT",
    "FLOAT_LIT",
    "UINT_LIT",
    "INT_LIT",
    "BOOL_LIT",
    "NULL_LIT",
    "IN",
]


@cache
def _build_parser() -> Any:  # a lark.Lark that returns what Builder creates
    """Return the parser, built once from cel-python's grammar and the amendments."""
    package = importlib.util.find_spec("celpy")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("cel-python is not installed", name="celpy")
    grammar = (Path(package.origin).parent / "cel.lark").read_text() + _AMENDMENTS
    grammar = grammar.replace("TRIPLE_QUOTED", _TRIPLE_QUOTED).replace("ESCAPED_OR_RAW", _ESCAPED_OR_RAW)
    for priority, terminal in enumerate(reversed(_PRIORITIES), start=1):
        grammar = re.sub(rf"^(%override )?{terminal} *:", rf"\1{terminal}.{priority} :", grammar, flags=re.MULTILINE)
    return lark.Lark(grammar, parser="lalr", start="expr", keep_all_tokens=True, maybe_placeholders=False,
                     transformer=Builder())  # fmt: skip


def _explain_token(error: lark.UnexpectedToken, text: str) -> CompileError:
    """Return the error for a token in the wrong place, with a hint for common mistakes."""
    token = cast("lark.Token", error.token)
    if token.type == "$END":
        unclosed = _find_unclosed(text)
        if unclosed is not None:
            return CompileError(f"the {text[unclosed]} is never closed", unclosed)
        return CompileError("the selector ends too early", len(text.rstrip()), "complete the condition")
    at = token.start_pos or 0
    hint = {"=": "compare with ==", "and": "write &&", "or": "write ||", "not": "write !", "AND": "write &&"}.get(
        token, ""
    )
    if re.search(r"\bnot\s+$", text[:at]):
        hint = "write ! in place of not"
    return CompileError(f"syntax error at {token!s}", at, hint)


_INSTEAD = {"=": "compare with ==", "&": "write &&", "|": "write ||", "and": "write &&", "or": "write ||",
            "not": "write !", '"': "close the string", "'": "close the string"}  # fmt: skip
"""Hints by unexpected character."""


def _explain_character(text: str, at: int) -> CompileError:
    """Return the error for a character at which no token begins."""
    character = text[at]
    subject = "a string that is never closed or has a wrong escape" if character in "\"'" else f"unexpected {character}"
    return CompileError(subject, at, _INSTEAD.get(character, ""))


def _find_unclosed(text: str) -> int | None:
    """Return the position of the innermost bracket that is never closed; None if there is none."""
    open_brackets: list[int] = []
    for token in re.finditer(rf"{_TRIPLE_QUOTED}|{_ESCAPED_OR_RAW}|//[^\n]*|[(\[{{]|[)\]}}]", text):
        if token[0] in "([{":
            open_brackets.append(token.start())
        elif token[0] in ")]}" and open_brackets:
            open_brackets.pop()
    return open_brackets[-1] if open_brackets else None
