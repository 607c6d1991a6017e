"""Hostile objects: what a tenant, or an admin in a hurry, can have an API server store.

Each stands for an attack or a mistake that once held up others, or might. Append yours: `test_hostile.py` applies it
beside an ordinary deployment, which must be served meanwhile by an operator that stays up and keeps its lease. An API
server may refuse it; what it stores has to be looked at, and has to say in its own conditions what is wrong with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from tests.integration.kinds import deployment, engine, service
from tests.support.manifests import Manifest

SPACE = "hostile"


@dataclass(frozen=True, slots=True)
class Hostile:
    """Objects that belong together, in the order in which they are applied. Their names are nobody else's."""

    title: str
    manifests: tuple[Manifest, ...]
    tells: str = ""
    """What the conditions of the last of them say, as a regular expression over `TYPE=STATUS REASON MESSAGE; ...`."""


HOSTILE: list[Hostile] = [
    Hostile(
        "a selector that nobody can read",
        (deployment(SPACE, "unreadable", engines=[engine("device.driver ==")]),),
        "ReplicasScheduled=False InvalidNodeSelector",
    ),
    Hostile(
        "annotations of 200 KB",
        (
            {
                **(plain := deployment(SPACE, "annotated", replicas=0)),
                "metadata": {**plain["metadata"], "annotations": {f"n{n}": "x" * 2000 for n in range(100)}},
            },
        ),
        "Synced=True",
    ),
    Hostile(
        "a service over a thousand entries",
        (service(SPACE, "entries", *((1, {f"label-{n}": "x"}) for n in range(1000))),),
        "EndpointsResolved=False NoEndpoints",
    ),
]
