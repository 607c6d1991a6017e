"""From the text of a selector to its syntax tree, or to an error that points at the place.

The grammar is cel-python's, read from that package without running any of its code (importing it changes the process's
recursion limit). It is amended where it differs from the language that the API server reads; see AMENDMENTS.
Trees are built bottom-up while parsing, so no depth of nesting can exhaust the stack here, and MAX_DEPTH protects
everything that walks a tree afterwards.
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
    """The tree of a selector; raises CompileError."""
    if len(text.encode("utf-8", "replace")) > MAX_LENGTH:
        raise CompileError(f"the selector is longer than {MAX_LENGTH} bytes", 0, "split it over several selectors")
    if not text.strip():
        raise CompileError("the selector is empty", 0, 'write a condition, such as device.driver == "gpu.nvidia.com"')
    try:
        tree: Expr = _parser().parse(text)
        return tree
    except lark.exceptions.VisitError as error:
        raise error.orig_exc from None
    except lark.UnexpectedToken as error:
        raise _unexpected_token(error, text) from None
    except lark.UnexpectedCharacters as error:
        raise _unexpected_character(text, cast("int", error.pos_in_stream)) from None


# Amendments to cel-python's grammar. Each is something that the API server's parser reads differently:
# minus signs are operators (`8-1`), numbers need digits after the point, words end at a word boundary (`x iny` is no
# `x in y`), escapes are checked, `.?` and `[?` and `{?k: v}` are optional access, lists may end in a comma, and
# `!-x` is refused.
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
_ESCAPED_OR_RAW = "|".join(rf"{q}(?:{ESCAPE}|[^{q}\\\n\r])*{q}|[rR]{q}[^{q}\n\r]*{q}" for q in ('"', "'"))
# Which token wins where several match at one place.
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
def _parser() -> Any:  # a lark.Lark that answers what Builder makes
    package = importlib.util.find_spec("celpy")
    if package is None or package.origin is None:
        raise ModuleNotFoundError("cel-python is not installed", name="celpy")
    grammar = (Path(package.origin).parent / "cel.lark").read_text() + _AMENDMENTS
    grammar = grammar.replace("TRIPLE_QUOTED", _TRIPLE_QUOTED).replace("ESCAPED_OR_RAW", _ESCAPED_OR_RAW)
    for priority, terminal in enumerate(reversed(_PRIORITIES), start=1):
        grammar = re.sub(rf"^(%override )?{terminal} *:", rf"\1{terminal}.{priority} :", grammar, flags=re.MULTILINE)
    return lark.Lark(grammar, parser="lalr", start="expr", keep_all_tokens=True, maybe_placeholders=False,
                     transformer=Builder())  # fmt: skip


def _unexpected_token(error: lark.UnexpectedToken, text: str) -> CompileError:
    token = cast("lark.Token", error.token)
    if token.type == "$END":
        unclosed = _unclosed(text)
        if unclosed is not None:
            return CompileError(f"the {text[unclosed]} is never closed", unclosed)
        return CompileError("the selector ends too early", len(text.rstrip()), "complete the condition")
    at = token.start_pos or 0
    hint = {"=": "compare with ==", "and": "write &&", "or": "write ||", "not": "write !", "AND": "write &&"}.get(
        token, ""
    )
    return CompileError(f"syntax error at {token!s}", at, hint)


_INSTEAD = {"=": "compare with ==", "&": "write &&", "|": "write ||", "and": "write &&", "or": "write ||",
            "not": "write !", '"': "close the string", "'": "close the string"}  # fmt: skip


def _unexpected_character(text: str, at: int) -> CompileError:
    character = text[at]
    what = "a string that is never closed or has a wrong escape" if character in "\"'" else f"unexpected {character}"
    return CompileError(what, at, _INSTEAD.get(character, ""))


def _unclosed(text: str) -> int | None:
    opened: list[int] = []
    for token in re.finditer(rf"{_TRIPLE_QUOTED}|{_ESCAPED_OR_RAW}|//[^\n]*|[(\[{{]|[)\]}}]", text):
        if token[0] in "([{":
            opened.append(token.start())
        elif token[0] in ")]}" and opened:
            opened.pop()
    return opened[-1] if opened else None
