"""The error of a cluster that cannot be created as its spec says."""

from __future__ import annotations


class CannotMake(Exception):  # noqa: N818 - named after the problem, not as an error
    """The spec asks for something that the cloud cannot provide. The message says what to change."""
