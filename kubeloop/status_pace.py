"""How often a status is written that sums up other objects: at once when something of it becomes true or false, and
once a second at most while only counts and messages move.

A deployment whose hundred replicas become ready one after the other is one write a second and not a hundred. What is
held back is written a second later at the latest, with whatever has moved until then.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeloop.objects import Manifest, entries

PRUNED_AT = 2_000


@dataclass(slots=True)
class StatusPace:
    """When each object's status was written last, by its UID."""

    seconds: float = 1.0
    _written: dict[str, float] = field(default_factory=dict[str, float], init=False)
    _prune_at: int = field(default=PRUNED_AT, init=False)

    def wait(self, live: Manifest, status: Manifest, now: float) -> float:
        """For how many seconds a status that differs from the one that is there is held back."""
        if _verdicts(live.get("status") or {}) != _verdicts(status):
            return 0.0
        return max(0.0, self._written.get(live["metadata"]["uid"], -self.seconds) + self.seconds - now)

    def written(self, uid: str, now: float) -> None:
        self._written[uid] = now
        if len(self._written) > self._prune_at:
            self._written = {one: when for one, when in self._written.items() if when > now - self.seconds}
            self._prune_at = max(PRUNED_AT, 2 * len(self._written))


def _verdicts(status: Manifest) -> dict[object, object]:
    """What is true and what is false, why, and of which generation; and which counts are zero, as a deletion is refused
    by what is in use."""
    conditions = {
        one.get("type"): (one.get("status"), one.get("reason"), one.get("observedGeneration"))
        for one in entries({"status": status}, "status", "conditions")
    }
    return {**conditions, **{name: value > 0 for name, value in status.items() if isinstance(value, int)}}
