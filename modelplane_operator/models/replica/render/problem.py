"""Reasons why a replica cannot be rendered.

Such a replica keeps its objects and reports the reason in a condition.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    """A reason why a replica cannot be rendered, for programs."""

    NO_PICKER = "PickerNotServed"
    """A split replica needs an endpoint picker, which the cluster does not support."""
    NO_LEADER_WORKER_SET = "LeaderWorkerSetNotServed"
    """A gang needs LeaderWorkerSets, which the cluster does not serve."""
    NO_POD = "PodMissing"
    """A member has no pod template."""
    DECODE_PORT = "DecodePortUnusable"
    """A decode engine listens on a port that it may not use."""
    TOO_MUCH_TO_COPY = "TooMuchToCopy"
    """Secrets and ConfigMaps exceed the size limit."""


NOT_SERVED: Final = frozenset({Cause.NO_PICKER, Cause.NO_LEADER_WORKER_SET})
"""Causes that lie with the cluster: no change of the engines resolves them."""


@dataclass(frozen=True, slots=True)
class CannotRender:
    """A reason for programs, and a message for users."""

    cause: Cause
    """Kind of the problem."""
    message: str
    """Problem and remedy, for the replica's condition."""
