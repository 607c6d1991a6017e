"""What was seen of clusters on their clouds, so that nothing is listed again that cannot have changed."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.errors import ClientError
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.resources import Found, Inventory, Owner

AT_REST = timedelta(minutes=5) - timedelta(seconds=1)  # a look that comes when the last one is as old asks again


@dataclass(slots=True)
class _Listed:
    found: tuple[Found, ...]
    at: datetime
    error: ClientError | None = None


@dataclass(slots=True)
class View:
    """The lists of each cluster, by kind."""

    slow: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """The kinds that are looked at less often while nothing goes on."""
    _known: dict[str, dict[str, _Listed]] = field(default_factory=dict[str, dict[str, _Listed]], init=False)

    async def look(
        self, cloud: Cloud, owner: Owner, kinds: Collection[str], unsettled: Collection[str], now: datetime
    ) -> Inventory:
        """These kinds; those of which something is under way are listed anew, and what could not be listed is, too."""
        known = self._known.setdefault(owner.uid, {})
        due = {kind for kind in kinds if kind in unsettled or self._is_old(known.get(kind), kind, now)}
        if due:
            seen = await cloud.observe(owner, due, now)
            for kind in due:
                found = tuple(one for one in seen.found if one.kind == kind)
                known[kind] = _Listed(found, now, seen.unseen.get(kind))
        lists = {kind: known[kind] for kind in kinds}
        return Inventory(
            tuple(one for listed in lists.values() for one in listed.found),
            min(listed.at for listed in lists.values()),
            {kind: listed.error for kind, listed in lists.items() if listed.error is not None},
            {kind: listed.at for kind, listed in lists.items()},
        )

    def forget(self, uid: str) -> None:
        self._known.pop(uid, None)

    def _is_old(self, listed: _Listed | None, kind: str, now: datetime) -> bool:
        return listed is None or listed.error is not None or now - listed.at >= self.slow.get(kind, AT_REST)
