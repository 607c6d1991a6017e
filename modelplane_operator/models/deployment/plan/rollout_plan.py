"""Decide where the replicas of a deployment run, and which may be moved, changed or removed now."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from kubeloop.objects import Key, Manifest
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import Rollout
from modelplane_operator.api.model_replica import ModelReplica, ModelReplicaSpec, PlacedEngine
from modelplane_operator.api.placement import EnginePlacement, Placement
from modelplane_operator.models.deployment.plan.moves import Budget, Moves, moves
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.render import render_replica, replica_key
from modelplane_operator.scheduling.cluster import ClusterPhase
from modelplane_operator.scheduling.decision import Decision, Removal
from modelplane_operator.scheduling.reasons import (
    ClusterDeleted,
    ClusterTerminating,
    Forced,
    Outdated,
    ScaledDown,
    Tainted,
)
from modelplane_operator.scheduling.requirement import PlacementRequest, placement_request
from modelplane_operator.scheduling.schedule import schedule

DEFAULT_ROLLOUT = Rollout()
"""Rollout settings of deployments that have none."""


@dataclass(frozen=True)
class RolloutPlan:
    """The rollout plan of a deployment: placements, desired replicas, and the moves that are allowed now."""

    decision: Decision
    """Placements for the requested number of replicas, which the status reports."""
    target: Decision
    """Placements that the steps work towards; may have surge replicas while others change."""
    desired: Mapping[Key, Manifest]
    """The desired ModelReplica of every placement of the target, by key."""
    changed: tuple[Key, ...]
    """Keys of replicas that stay on their cluster and need another spec."""
    surge: bool
    """True if the fleet has room for more replicas than requested."""
    moves: Moves
    """Replicas to create, drain, change or remove now."""


def decide(observed: Observed) -> RolloutPlan:
    """Return the rollout plan for an observed deployment.

    If replicas change and the fleet has room, the target has up to `maxSurge` replicas more than requested. Without
    that room, at least one replica may be out of service at a time, or the rollout would never finish.
    """
    request = placement_request(observed.deployment, observed.cache, observed.fleet.devices)
    if observed.frozen:  # at most the existing replicas
        request = replace(request, replicas=min(request.replicas, observed.replica_count))
    rollout = observed.deployment.replica.rollout or DEFAULT_ROLLOUT
    decision = schedule(request, observed.fleet, now=observed.now)
    if observed.frozen:
        decision = _only_evictions(decision, observed)
    target, surge, desired = decision, not decision.missing, _render_replicas(observed, decision)
    changed = _find_changed(observed, decision, desired)
    if changed and rollout.max_surge and surge:
        extra = min(rollout.max_surge, len(changed))
        leaving = {removal.replica.key: removal for removal in decision.removed if not _may_stand_in(removal, observed)}
        surged = schedule(_add_replicas(request, extra), observed.fleet, now=observed.now, leaving=leaving)
        if 0 < surged.missing < extra:  # there is room for some of them
            fewer = _add_replicas(request, extra - surged.missing)
            surged = schedule(fewer, observed.fleet, now=observed.now, leaving=leaving)
        surge = not surged.missing
        if surge:
            target = replace(surged, removed=(*leaving.values(), *surged.removed))
            desired = _render_replicas(observed, surged)
            changed = _find_changed(observed, surged, desired)
    disrupted = [*(removal.replica.key for removal in target.removed), *changed]
    forced = frozenset(  # these do not wait until another replica serves in their place
        removal.replica.key for removal in target.removed if isinstance(removal.reason, ClusterDeleted | Forced)
    )
    budget = Budget(
        desired=decision.desired,
        surge=rollout.max_surge,
        # Pods that cannot start must not take the place of those that answer.
        unavailable=0 if observed.missing else rollout.max_unavailable,
        grace=observed.grace,
    )
    allowed_moves = moves(
        dict.fromkeys(disrupted),
        forced,
        observed.live_replicas,
        budget,
        now=observed.now,
        new=len(desired.keys() - observed.live.keys()),
        returning=frozenset() if surge else frozenset(changed),
    )
    return RolloutPlan(decision, target, desired, changed, surge, allowed_moves)


def _only_evictions(decision: Decision, observed: Observed) -> Decision:
    """Keep only the removals from drained or deleted clusters, and the placements that replace them.

    A replica that somebody deletes is created again after the pause.
    """
    evicted = tuple(removal for removal in decision.removed if isinstance(removal.reason, _EVICTIONS))
    room = max(decision.desired - len(observed.live) + len(evicted), 0)
    new = decision.new[: min(room, len(evicted))]
    placements = tuple(
        placement for placement in decision.placements if placement in new or placement not in decision.new
    )
    return replace(decision, placements=placements, new=new, removed=evicted)


_EVICTIONS = (ClusterDeleted, ClusterTerminating, Tainted, Forced)
"""Reasons of removals that must not wait for a pause to end."""


def _may_stand_in(removal: Removal, observed: Observed) -> bool:
    """True if a replica that is to go may stay as a surge replica: it has no other reason to go than the change, and
    its cluster works.
    """
    info = observed.fleet.info(removal.replica.cluster)
    works = info is not None and info.cluster.phase is ClusterPhase.READY
    return works and isinstance(removal.reason, ScaledDown | Outdated)


def _add_replicas(request: PlacementRequest, extra: int) -> PlacementRequest:
    """Return the request for so many more replicas."""
    return replace(request, replicas=request.replicas + extra)


def _render_replicas(observed: Observed, decision: Decision) -> Mapping[Key, Manifest]:
    """Return the desired ModelReplica of each placement, by key.

    A frozen deployment renders only new placements, each with the engines of the replica that it replaces.
    """
    deployment, cache = observed.deployment, observed.cache if isinstance(observed.cache, ModelCache) else None
    placements, engines = decision.placements, dict[Placement, Sequence[PlacedEngine]]()
    if observed.frozen:
        placements = decision.new
        engines = {
            placement: ModelReplica.parse(observed.live[removal.replica.key]).spec.engines
            for placement, removal in zip(decision.new, decision.removed, strict=False)
            if _pods(placement.engines) == _pods(removal.replica.engines)
        }
    return {
        replica_key(deployment, placement): render_replica(
            deployment,
            placement,
            observed.clusters.get(placement.cluster),
            cache,
            engines=engines.get(placement, ()),
        )
        for placement in placements
    }


def _pods(engines: Sequence[EnginePlacement]) -> Sequence[tuple[str, str, int]]:
    """Return which pods the engines have, and on how many nodes."""
    return [(engine.name, member.role, member.nodes) for engine in engines for member in engine.members]


def _find_changed(observed: Observed, decision: Decision, desired: Mapping[Key, Manifest]) -> tuple[Key, ...]:
    """Return the keys of replicas that stay and need another spec; none while the decision has problems, or while the
    template names objects that do not exist.
    """
    if decision.problems or observed.missing:
        return ()
    return tuple(
        key
        for key in sorted(desired)
        if key in observed.live
        and _normalize(ModelReplica.parse(observed.live[key]).spec) != _normalize(ModelReplica.parse(desired[key]).spec)
    )


def _normalize(spec: ModelReplicaSpec) -> tuple[ModelReplicaSpec, Mapping[str, object]]:
    """Return a spec in a form that compares equal whatever the order of its engines' members and device requests.

    Default requests and the size of the cache are left out: a change of those does not restart an engine.
    """
    engines = {
        engine.name: (
            engine.model_copy(update={"members": ()}),
            [
                (
                    member.model_copy(update={"device_requests": (), "default_requests": None}),
                    {request.name: request for request in member.device_requests},
                )
                for member in engine.members
            ],
        )
        for engine in spec.engines
    }
    cache = spec.model_cache_ref and spec.model_cache_ref.model_copy(update={"size_gib": None})
    return spec.model_copy(update={"engines": (), "model_cache_ref": cache}), engines
