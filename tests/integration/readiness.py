"""Ready of ModelServices against requests, whatever a scenario does: what a service says is what its clients meet with.

Never `True` for longer than a while in which all requests fail, and never `False` while they succeed. The requests are
the scenario's own. A service that has not been Ready yet may lack a part of what it asks for, and say so.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise

from localfleet.kubeclient import Key, entries
from tests.support.manifests import Manifest

TRUE_SECONDS = 15.0  # Ready may stay True for so long while requests fail
FALSE_SECONDS = 5.0  # and False while they succeed: a condition is written once a second, machines are busy
LEAST = 3  # requests in a row, or chance would decide
FAULTS = range(500, 600)


@dataclass(slots=True)
class Readiness:
    """What services said, and what requests met with, from the beginning of a test."""

    said: dict[Key, list[tuple[float, str]]] = field(default_factory=dict[Key, list[tuple[float, str]]])
    """Times at which Ready of a service changed, with its status; empty where it says nothing."""
    asked: dict[Key, list[tuple[float, float, bool]]] = field(
        default_factory=dict[Key, list[tuple[float, float, bool]]]
    )
    """When requests began and ended, and whether they succeeded."""

    def observe(self, key: Key, service: Manifest | None) -> None:
        """Note what a service says now."""
        ready = next((one for one in entries(service or {}, "status", "conditions") if one["type"] == "Ready"), {})
        # Degraded says itself that requests fail, or what of the service is away.
        status = "" if ready.get("reason") in {"Deleting", "Partial", "Degraded"} else ready.get("status", "")
        said = self.said.setdefault(key, [])
        if not said or said[-1][1] != status:
            said.append((time.monotonic(), status))

    def answered(self, namespace: str, service: str, began: float, status: int) -> None:
        """Note a request that has ended; 0 where it had no answer. What a client did wrong says nothing."""
        if status == 200 or not status or status in FAULTS:
            self.asked.setdefault((namespace, service), []).append((began, time.monotonic(), status == 200))

    def problems(self) -> Iterator[str]:
        """What services said while requests met with something else."""
        for key, said in self.said.items():
            been_ready = False
            for (since, status), (until, _) in pairwise([*said, (time.monotonic(), "")]):
                been_ready = been_ready or status == "True"
                asked = [one for one in self.asked.get(key, []) if one[0] >= since and one[1] <= until]
                if status == "True" and (seconds := longest(asked, succeeded=False)) > TRUE_SECONDS:
                    yield f"I13: service {key} said for {seconds:.0f} s that it is Ready, and all requests failed"
                if status == "False" and been_ready and (seconds := longest(asked, succeeded=True)) > FALSE_SECONDS:
                    yield f"I13: service {key} said for {seconds:.0f} s that it is not Ready, and requests succeeded"


def longest(asked: list[tuple[float, float, bool]], *, succeeded: bool) -> float:
    """The seconds of the longest row of requests that all ended in this way."""
    best, row = 0.0, list[tuple[float, float, bool]]()
    for one in sorted(asked, key=lambda one: one[1]):
        row = [*row, one] if one[2] == succeeded else []
        if len(row) >= LEAST:
            best = max(best, row[-1][1] - row[0][0])
    return best
