"""Why a replica has no manifests. Such a replica keeps what it has, and says this in a condition."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import Final


class Cause(StrEnum):
    NO_PICKER = "PickerNotServed"
    NO_LEADER_WORKER_SET = "LeaderWorkerSetNotServed"
    NO_POD = "PodMissing"
    DECODE_PORT = "DecodePortUnusable"
    TOO_MUCH_TO_COPY = "TooMuchToCopy"


NOT_SERVED: Final = frozenset({Cause.NO_PICKER, Cause.NO_LEADER_WORKER_SET})
"""What the cluster lacks, and no change of the engines mends."""


@dataclass(frozen=True, slots=True)
class CannotRender:
    """Nothing can be rendered: a reason for programs, and a sentence for people."""

    cause: Cause
    message: str
