"""Moves without a lost request: which replicas may be made, changed or removed now, and which have to wait.

Scaling down, draining a cluster, placing elsewhere and changing the template are one thing: some replicas are to be
disturbed. One that serves is disturbed in four steps, each of which can be seen on its objects, so that whoever
continues after a crash continues there:

    wait      until enough others serve
    drain     it leaves rotation: an annotation says since when, its endpoint is withdrawn
    rest      until no route leads to it and the grace has passed: answers under way are finished. A route that stays
              all the same, since it is somebody else's or paused, holds nothing up for long
    go        it is removed, or changed in place

Two numbers bound this, as they do for a Deployment: so many replicas more than asked for may exist, and so many of
those asked for may be out of service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubeloop.objects import Key

PATIENCE = timedelta(seconds=60)  # with routes that do not change: from the end of the grace


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """A replica that exists and is not being deleted."""

    key: Key
    serving: bool
    """It answers requests."""
    draining_since: datetime | None = None
    routed: bool = False
    """Requests may still be sent to it: it has an endpoint, or a route leads to it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """How much may be out of the ordinary at a time."""

    desired: int
    surge: int
    unavailable: int
    grace: timedelta
    """From leaving rotation to being disturbed."""


@dataclass(frozen=True, slots=True)
class Moves:
    """What may happen now."""

    create: int
    """How many new replicas may be made."""
    go: frozenset[Key] = frozenset()
    """To be removed or changed now."""
    drain: frozenset[Key] = frozenset()
    """To be out of rotation, because they go soon."""
    wait: tuple[Key, ...] = ()
    """To be disturbed, once enough others serve."""
    requeue_at: datetime | None = None
    """When the next grace has passed."""


def moves(
    disturbed: Iterable[Key],
    forced: frozenset[Key],
    live: Mapping[Key, LiveReplica],
    budget: Budget,
    *,
    now: datetime,
    returning: frozenset[Key] = frozenset(),
) -> Moves:
    """Pace the disturbance of some of the live replicas. The forced do not wait for others to serve.

    The returning are changed in place where the fleet has no room for all that are asked for: as nothing more will
    come to serve, one of them goes when all that are there do.
    """
    in_order = [live[key] for key in disturbed]
    serving = sum(each.serving and each.draining_since is None for each in live.values())
    least = max(budget.desired - budget.unavailable, 0)
    go: set[Key] = set()
    drain: set[Key] = set()
    wait: list[Key] = []
    ends: list[datetime] = []
    # Those that drain already come first: they are out of service, and no place is kept for them.
    for each in sorted(in_order, key=lambda one: one.draining_since is None):
        if each.draining_since is not None:
            end = each.draining_since + budget.grace
            if end <= now and (not each.routed or end + PATIENCE <= now):
                go.add(each.key)
            else:
                drain.add(each.key)
                ends.append(end if end > now else end + PATIENCE)
        elif not each.serving and not each.routed:
            go.add(each.key)  # nobody will notice
        elif each.serving and (
            each.key in forced or serving > least or (each.key in returning and serving == len(live))
        ):
            serving -= 1
            drain.add(each.key)
            ends.append(now + budget.grace)
        else:
            wait.append(each.key)
    room = max(budget.desired + budget.surge - len(live), 0)
    return Moves(room, frozenset(go), frozenset(drain), tuple(wait), min(ends, default=None))
