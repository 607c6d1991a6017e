"""Pages of which a part is written by a program: a table, between two comments that name it."""

from __future__ import annotations


def placed(text: str, name: str, table: str) -> str:
    """The page with a table in its place."""
    begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->\n"
    if (text.count(begin), text.count(end)) != (1, 1):
        raise SystemExit(f"the page must have the place of the table {name!r} once: {begin}{end}")
    before, _, rest = text.partition(begin)
    return f"{before}{begin}{table}{end}{rest.partition(end)[2]}"
