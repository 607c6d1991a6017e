"""Quotas of AWS that a cluster uses, by AWS's code for each."""

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
"""Service that each quota belongs to."""


@dataclass(frozen=True, slots=True)
class Family:
    """Machine types that share a quota, which counts vCPUs. Machines of a Capacity Block count towards none."""

    quota: str
    """AWS's code of the quota."""
    letters: tuple[str, ...]
    """Prefixes of the types' names, up to the generation."""


FAMILIES: Final = (
    Family(STANDARD, ("a", "c", "d", "h", "i", "im", "is", "m", "r", "t", "z")),
    Family(GRAPHICS, ("g", "gr", "vt")),
    Family(PARALLEL, ("p",)),
)


def quota_of(machine: str) -> str:
    """Return the quota of an instance type; empty for an unknown family."""
    letters = re.match("[a-z]*", machine)
    return next((family.quota for family in FAMILIES if letters and letters[0] in family.letters), "")
