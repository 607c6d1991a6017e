"""Where a replica runs. The scheduler decides on such values, and a ModelReplica is written from them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Claim:
    """Devices that every pod of a member claims on its node."""

    name: str
    device_class: str
    count: int
    selectors: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class MemberPlacement:
    """One kind of pod of an engine: the pool it runs on, and how many of its nodes it takes."""

    role: str
    pool: str
    nodes: int
    claims: tuple[Claim, ...]
    amounts: tuple[int | None, int | None, int | None] = (None, None, None)
    """CPU, memory and disk that each pod requests by its template, in thousandths of a processor and in bytes."""


@dataclass(frozen=True, slots=True)
class EnginePlacement:
    name: str
    members: tuple[MemberPlacement, ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """One replica on one cluster. The index tells a deployment's replicas on a cluster apart and implies no order."""

    cluster: str
    index: int
    engines: tuple[EnginePlacement, ...]
