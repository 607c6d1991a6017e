"""Decide which replicas may be created, changed or removed now without losing a request, and which must wait.

Scaling down, draining a cluster, moving elsewhere and changing the template are one case: some replicas are
disrupted. A serving replica is disrupted in four steps. Each step is visible on its objects, so that an operator
that crashes continues from there:

    wait      until enough others serve
    drain     it leaves rotation: an annotation has the time, its endpoint is deleted
    rest      until no route leads to it and the grace has passed, so that open responses are finished. A route that
              stays, because it is foreign or paused, delays this by at most PATIENCE
    go        it is removed, or changed in place

Two numbers bound this, as in a Deployment: how many replicas more than requested may exist, and how many of those
requested may be out of service.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta

from kubeloop.objects import Key

PATIENCE = timedelta(seconds=60)  # a route that is foreign or paused never changes
"""Longest time, from the end of the grace, that a drained replica waits for routes to stop leading to it."""


@dataclass(frozen=True, slots=True)
class LiveReplica:
    """A replica that exists and is not being deleted."""

    key: Key
    """Key of the ModelReplica, which is also that of its endpoint."""
    serving: bool
    """True if the replica answers requests."""
    draining_since: datetime | None = None
    """Time when the replica left rotation, or None while it is in rotation."""
    routed: bool = False
    """True if requests may still arrive: the replica has an endpoint, or a route leads to it."""


@dataclass(frozen=True, slots=True)
class Budget:
    """Limits on the replicas that may be extra or out of service at a time."""

    desired: int
    """Number of requested replicas."""
    surge: int
    """Number of replicas allowed beyond the desired ones."""
    unavailable: int
    """Number of desired replicas that may be out of service."""
    grace: timedelta
    """Time between a replica's leaving rotation and its change or removal."""


@dataclass(frozen=True, slots=True)
class Moves:
    """The moves that a rollout allows now."""

    create: int
    """Number of new replicas that may be created."""
    go: frozenset[Key] = frozenset()
    """Keys of replicas to remove or change now."""
    drain: frozenset[Key] = frozenset()
    """Keys of replicas that must be out of rotation, because they go soon."""
    wait: tuple[Key, ...] = ()
    """Keys of replicas that wait until enough others serve."""
    requeue_at: datetime | None = None
    """Time when the next grace ends."""


def moves(
    disturbed: Iterable[Key],
    forced: frozenset[Key],
    live: Mapping[Key, LiveReplica],
    budget: Budget,
    *,
    now: datetime,
    new: int = 0,
    returning: frozenset[Key] = frozenset(),
) -> Moves:
    """Return which of the `disturbed` replicas may drain or go now, and how many of `new` replicas may be created.

    `forced` replicas do not wait for others to serve. `returning` replicas are changed in place because the fleet
    has no room for more. One of them drains once all live ones serve and none is created, as no other will come to
    serve.
    """
    in_order = [live[key] for key in disturbed]
    create = min(new, max(budget.desired + budget.surge - len(live), 0))
    serving = sum(replica.serving and replica.draining_since is None for replica in live.values())
    min_serving = max(budget.desired - budget.unavailable, 0)
    go: set[Key] = set()
    drain: set[Key] = set()
    wait: list[Key] = []
    deadlines: list[datetime] = []
    # Draining replicas come first: they are already out of service, so the budget does not count them.
    for replica in sorted(in_order, key=lambda candidate: candidate.draining_since is None):
        if replica.draining_since is not None:
            end = replica.draining_since + budget.grace
            if end <= now and (not replica.routed or end + PATIENCE <= now):
                go.add(replica.key)
            else:
                drain.add(replica.key)
                deadlines.append(end if end > now else end + PATIENCE)
        elif not replica.serving and not replica.routed:
            go.add(replica.key)  # no client notices
        elif replica.serving and (
            replica.key in forced
            or serving > min_serving
            or (replica.key in returning and serving == len(live) and not create)
        ):
            serving -= 1
            drain.add(replica.key)
            deadlines.append(now + budget.grace)
        else:
            wait.append(replica.key)
    return Moves(create, frozenset(go), frozenset(drain), tuple(wait), min(deadlines, default=None))
