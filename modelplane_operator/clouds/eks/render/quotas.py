"""The quotas of AWS that a cluster takes of, by the code that AWS has for each."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

VPCS: Final = "L-F678F1CE"
ADDRESSES: Final = "L-0263D0A3"
CLUSTERS: Final = "L-1194D53C"
STANDARD: Final = "L-1216C47A"
GRAPHICS: Final = "L-DB2E81BA"
PARALLEL: Final = "L-417A185B"
SERVICES: Final[Mapping[str, str]] = {
    VPCS: "vpc",
    ADDRESSES: "ec2",
    CLUSTERS: "eks",
    STANDARD: "ec2",
    GRAPHICS: "ec2",
    PARALLEL: "ec2",
}
"""Whose quota it is."""


@dataclass(frozen=True, slots=True)
class Family:
    """Machines that share a quota, which counts their vCPUs; machines of a Capacity Block are in none."""

    quota: str
    letters: tuple[str, ...]
    """That their names begin with, up to the generation."""


FAMILIES: Final = (
    Family(STANDARD, ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")),
    Family(GRAPHICS, ("g", "gr", "vt")),
    Family(PARALLEL, ("p",)),
)


def quota_of(machine: str) -> str:
    """The quota of an instance type; empty for a family of which none is known."""
    letters = re.match("[a-z]*", machine)
    return next((one.quota for one in FAMILIES if letters and letters[0] in one.letters), "")
