"""Why a cluster cannot be made as it is asked for."""

from __future__ import annotations


class CannotMake(Exception):  # noqa: N818 - a finding is named for what was found
    """The object asks for what no such cluster can be; the message says what to change."""
