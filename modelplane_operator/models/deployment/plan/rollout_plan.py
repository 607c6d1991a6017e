"""Decide where the replicas of a deployment run, and which may be moved, changed or removed now."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from kubeloop.objects import Key, Manifest
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import Rollout
from modelplane_operator.api.model_replica import ModelReplica, ModelReplicaSpec, PlacedEngine
from modelplane_operator.api.placement import EnginePlacement, Placement
from modelplane_operator.models.deployment.plan.moves import Budget, Moves, moves
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rolling import disruption_of, is_standing
from modelplane_operator.models.deployment.render import render_replica, replica_key
from modelplane_operator.scheduling.cluster import ClusterPhase
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.load import load_of
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
    instead: frozenset[Key]
    """Keys of changed replicas that are removed instead, because as many others have the new spec."""
    surge: bool
    """True if the fleet has room for more replicas than requested."""
    moves: Moves
    """Replicas to create, drain, change or remove now."""
    rolling: frozenset[Key]
    """Keys of replicas whose outdated pods change."""
    spared: frozenset[Key] = frozenset()
    """Keys of replicas whose outdated pods wait until the fleet has room for another replica."""


def decide(observed: Observed) -> RolloutPlan:
    """Return the rollout plan for an observed deployment.

    A roll that follows an upgrade by itself does not take the last replica that answers, if there is no room for
    another.
    """
    rolling = observed.rolls.rolling
    rollout_plan = _decide(observed, rolling)
    if rollout_plan.surge or not is_standing(observed.roll):
        return rollout_plan
    spared = _find_last(observed, rolling)
    return replace(_decide(observed, rolling - spared), spared=spared) if spared else rollout_plan


def _find_last(observed: Observed, rolling: frozenset[Key]) -> frozenset[Key]:
    """Return the newest of the replicas that answer, if all of them roll; otherwise none."""
    answering = [
        key
        for key, replica in observed.live_replicas.items()
        if observed.answers(observed.live[key]) and replica.draining_since is None
    ]
    if not answering or not rolling.issuperset(answering):
        return frozenset()
    return frozenset([max(answering, key=lambda key: disruption_of(observed.live[key]))])


def _decide(observed: Observed, rolling: frozenset[Key]) -> RolloutPlan:
    """Return the rollout plan in which the outdated pods of these replicas change.

    If replicas change and the fleet has room, up to `maxSurge` replicas more than requested exist meanwhile. Without
    that room, one replica may be out of service at a time, or the rollout would never finish.
    """
    request = placement_request(observed.deployment, observed.cache, observed.fleet.devices)
    if observed.frozen:  # at most the existing replicas
        request = replace(request, replicas=min(request.replicas, observed.replica_count))
    rollout = observed.deployment.replica.rollout or DEFAULT_ROLLOUT
    decision = schedule(request, observed.fleet, now=observed.now)
    if observed.frozen:
        decision = _only_evictions(decision, observed)
    target, surge, desired = decision, not decision.missing, _render_replicas(observed, decision)
    if decision.problems:
        rolling = frozenset()
    changed = _find_changed(observed, decision, desired, rolling)
    replaced: tuple[Key, ...] = ()
    if changed and rollout.max_surge and surge:
        wider, replaced = _find_surge(observed, request, decision, changed, rollout.max_surge)
        surge = wider is not None
        if wider is not None:
            target, desired = wider, _render_replicas(observed, wider)
            changed = (*_find_changed(observed, wider, desired, rolling), *replaced)
    # Changed replicas are removed instead, once as many others are in the new shape and stay.
    leaving = {removal.replica.key for removal in decision.removed if not isinstance(removal.reason, ScaledDown)}
    leaving |= {removal.replica.key for removal in target.removed}
    surplus = len(observed.live) - len(leaving) - decision.desired
    instead = changed if 0 < len(changed) <= surplus else replaced
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
        returning=frozenset() if surge or _frees_nodes(observed) else frozenset(changed),
    )
    return RolloutPlan(decision, target, desired, changed, frozenset(instead), surge, allowed_moves, rolling)


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


def _find_surge(
    observed: Observed, request: PlacementRequest, decision: Decision, changed: Sequence[Key], most: int
) -> tuple[Decision | None, tuple[Key, ...]]:
    """Return a decision with up to `most` replicas more than `decision` has, None if the fleet has no room for any;
    and the replicas that new ones replace in it.
    """
    # Other surplus replicas may serve until the change is done.
    leaving = {
        removal.replica.key: removal
        for removal in decision.removed
        if not (isinstance(removal.reason, ScaledDown | Outdated) and _works(removal.replica.cluster, observed))
    }
    replaced: tuple[Key, ...] = ()
    wider = _place_more(observed, request, min(most, len(changed)), leaving)
    if wider is None and (growing := tuple(_find_growing(observed, decision))):
        # The free nodes may be those that replicas would get where they are: new replicas take them instead.
        others = replace(request, replicas=request.replicas - len(growing))
        wider = _place_more(observed, others, min(most, len(growing)), {*leaving, *growing})
        replaced = growing[: wider.desired - others.replicas] if wider else ()
    return wider and replace(wider, removed=(*leaving.values(), *wider.removed)), replaced


def _place_more(observed: Observed, request: PlacementRequest, extra: int, leaving: Container[Key]) -> Decision | None:
    """Return a decision with up to `extra` replicas more than requested; None if the fleet has no room for any."""
    while extra > 0:
        more = replace(request, replicas=request.replicas + extra)
        decision = schedule(more, observed.fleet, now=observed.now, leaving=leaving)
        if not decision.missing:
            return decision
        extra -= decision.missing
    return None


def _find_growing(observed: Observed, decision: Decision) -> Iterator[Key]:
    """Yield the keys of live replicas whose new shape needs nodes that they do not have."""
    yield from (entry.replica.key for entry in decision.retained)
    live = {replica.key: replica.load for replica in observed.fleet.replicas(*observed.deployment.key)}
    for placement in decision.placements:
        key, info = replica_key(observed.deployment, placement), observed.fleet.info(placement.cluster)
        if key in live and info and info.needs_more(live[key], load_of(placement.engines)):
            yield key


def _frees_nodes(observed: Observed) -> bool:
    """True if a replica is being deleted on a cluster that works: its nodes will have room for another."""
    return any(
        replica.terminating and _works(replica.cluster, observed)
        for replica in observed.fleet.replicas(*observed.deployment.key)
    )


def _works(cluster: str, observed: Observed) -> bool:
    """True if the cluster is ready."""
    info = observed.fleet.info(cluster)
    return info is not None and info.cluster.phase is ClusterPhase.READY


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
            observed.operator,
            engines=engines.get(placement, ()),
        )
        for placement in placements
    }


def _pods(engines: Sequence[EnginePlacement]) -> Sequence[tuple[str, str, int]]:
    """Return which pods the engines have, and on how many nodes."""
    return [(engine.name, member.role, member.nodes) for engine in engines for member in engine.members]


def _find_changed(
    observed: Observed, decision: Decision, desired: Mapping[Key, Manifest], rolling: Container[Key]
) -> tuple[Key, ...]:
    """Return the keys of replicas that stay and need another spec; none while the decision has problems, or while the
    template names objects that do not exist.
    """
    if decision.problems or observed.missing:
        return ()
    return tuple(
        key
        for key in sorted(desired)
        if key in observed.live
        and (
            key in rolling
            or _normalize(ModelReplica.parse(observed.live[key]).spec)
            != _normalize(ModelReplica.parse(desired[key]).spec)
        )
    )


def _normalize(spec: ModelReplicaSpec) -> tuple[ModelReplicaSpec, Mapping[str, object]]:
    """Return a spec in a form that compares equal whatever the order of its engines' members and device requests.

    Default requests, the size of the cache, and the operator's revision and settings are left out: a change of those
    alone does not restart an engine.
    """
    engines = {
        engine.name: (
            engine.model_copy(update={"members": ()}),
            [
                (
                    member.model_copy(update={"device_requests": (), "default_requests": None, "sharing": None}),
                    {request.name: request for request in member.device_requests},
                )
                for member in engine.members
            ],
        )
        for engine in spec.engines
    }
    cache = spec.model_cache_ref and spec.model_cache_ref.model_copy(update={"size_gib": None})
    without = {"engines": (), "model_cache_ref": cache, "pod_revision": 0, "operator": None}
    return spec.model_copy(update=without), engines
