"""Cache the lists of clusters' resources on their clouds, so that unchanged kinds are not listed again."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.errors import ClientError
from modelplane_operator.clouds.cloud import Cloud
from modelplane_operator.clouds.resources import ExistingResource, Inventory, Owner

LIST_INTERVAL = timedelta(minutes=5) - timedelta(seconds=1)  # so that a poll after five minutes lists again


@dataclass(slots=True)
class _CachedList:
    """The result of listing one kind."""

    existing: tuple[ExistingResource, ...]
    at: datetime
    error: ClientError | None = None


@dataclass(slots=True)
class View:
    """The cached lists of each cluster, by kind."""

    slow: Mapping[str, timedelta] = field(default_factory=dict[str, timedelta])
    """Maximum age of the lists of kinds that are polled less often while nothing changes."""
    _lists: dict[str, dict[str, _CachedList]] = field(default_factory=dict[str, dict[str, _CachedList]], init=False)
    """Cached lists by the owner's uid, then by kind."""

    async def refresh(
        self, cloud: Cloud, owner: Owner, kinds: Collection[str], unsettled: Collection[str], now: datetime
    ) -> Inventory:
        """Return the resources of these kinds. Kinds in `unsettled`, old lists and failed lists are listed again."""
        cached = self._lists.setdefault(owner.uid, {})
        due = {
            kind
            for kind in kinds
            if kind in unsettled
            or (cached_list := cached.get(kind)) is None
            or cached_list.error is not None
            or now - cached_list.at >= self.slow.get(kind, LIST_INTERVAL)
        }
        if due:
            inventory = await cloud.observe(owner, due, now)
            for kind in due:
                resources = tuple(resource for resource in inventory.existing if resource.kind == kind)
                cached[kind] = _CachedList(resources, now, inventory.unseen.get(kind))
        current = {kind: cached[kind] for kind in kinds}
        return Inventory(
            tuple(resource for cached_list in current.values() for resource in cached_list.existing),
            min(cached_list.at for cached_list in current.values()),
            {kind: cached_list.error for kind, cached_list in current.items() if cached_list.error is not None},
            {kind: cached_list.at for kind, cached_list in current.items()},
        )

    def forget(self, uid: str) -> None:
        """Drop the lists of a deleted cluster."""
        self._lists.pop(uid, None)
