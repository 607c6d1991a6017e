"""The rate limit for statuses that summarize other objects: once a second while only counts and messages change.

A deployment whose hundred replicas become ready one by one gets one write a second, not a hundred. A change between
true and false is written at once. A delayed write follows within a second, with the latest state.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeloop.objects import Manifest, entries

PRUNED_AT = 2_000  # objects above which old entries are removed


@dataclass(slots=True)
class StatusPace:
    """The time of the last status write by uid."""

    seconds: float = 1.0
    _written: dict[str, float] = field(default_factory=dict[str, float], init=False)
    _prune_at: int = field(default=PRUNED_AT, init=False)

    def wait(self, live: Manifest, status: Manifest, now: float) -> float:
        """Return the seconds to wait before a changed status may be written; 0 if anything significant has changed."""
        if _significant_fields(live.get("status") or {}) != _significant_fields(status):
            return 0.0
        return max(0.0, self._written.get(live["metadata"]["uid"], -self.seconds) + self.seconds - now)

    def on_write(self, uid: str, now: float) -> None:
        """Note a write of an object's status."""
        self._written[uid] = now
        if len(self._written) > self._prune_at:
            self._written = {key: at for key, at in self._written.items() if at > now - self.seconds}
            self._prune_at = max(PRUNED_AT, 2 * len(self._written))


def _significant_fields(status: Manifest) -> dict[object, object]:
    """Return the significant fields: statuses, reasons and generations of conditions, and which counts are zero.

    A count that becomes zero matters, because deletions wait for it.
    """
    conditions = {
        item.get("type"): (item.get("status"), item.get("reason"), item.get("observedGeneration"))
        for item in entries({"status": status}, "status", "conditions")
    }
    return {**conditions, **{name: value > 0 for name, value in status.items() if isinstance(value, int)}}
