"""What is to become of a deployment's replicas: where each is to be, and which may be moved, changed or removed now."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from kubeloop.objects import Key, Manifest
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import Rollout
from modelplane_operator.api.model_replica import ModelReplica, ModelReplicaSpec
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rollout import Budget, Moves, moves
from modelplane_operator.models.deployment.render import render_replica, replica_key
from modelplane_operator.scheduling.decision import Decision, Removal
from modelplane_operator.scheduling.reasons import ClusterGone, ClusterTerminating, Forced, Tainted
from modelplane_operator.scheduling.requirement import PlacementRequest, placement_request
from modelplane_operator.scheduling.schedule import schedule

DEFAULT_ROLLOUT = Rollout()


@dataclass(frozen=True)
class Course:
    """What is to become of the replicas."""

    decision: Decision
    """With as many replicas as are asked for: what is told."""
    target: Decision
    """With one more, perhaps, for as long as others change: what is done."""
    wanted: Mapping[Key, Manifest]
    """Every placement of the target as the ModelReplica that it is to be."""
    changed: tuple[Key, ...]
    """Replicas that stay and are to have another shape."""
    surge: bool
    """Whether there is room for more replicas than are asked for."""
    moves: Moves


def decide(seen: Observed) -> Course:
    asked = _asked(seen)
    rollout = seen.deployment.replica.rollout or DEFAULT_ROLLOUT
    decision = schedule(asked, seen.fleet, now=seen.now)
    if seen.frozen:
        decision = _emptying(decision, seen)
    target, surge, wanted = decision, not decision.missing, _wanted(seen, decision)
    changed = _changed(seen, decision, wanted)
    if changed and rollout.max_surge and surge:
        more = min(rollout.max_surge, len(changed))
        wider = schedule(_with_more(asked, more), seen.fleet, now=seen.now)
        if 0 < wider.missing < more:  # there is room for some of them
            wider = schedule(_with_more(asked, more - wider.missing), seen.fleet, now=seen.now)
        surge = not wider.missing
        if surge:
            target, wanted = wider, _wanted(seen, wider)
            changed = _changed(seen, wider, wanted)
    disturbed = [*(removal.replica.key for removal in target.removed), *changed]
    forced = frozenset(removal.replica.key for removal in target.removed if _must_go(removal))
    budget = Budget(
        desired=decision.desired,
        surge=rollout.max_surge if surge else 0,
        unavailable=rollout.max_unavailable if surge else max(rollout.max_unavailable, 1),
        grace=seen.grace,
    )
    returning = frozenset(changed) if decision.missing else frozenset[Key]()
    paced = moves(dict.fromkeys(disturbed), forced, seen.live_replicas, budget, now=seen.now, returning=returning)
    return Course(decision, target, wanted, changed, surge, paced)


def _asked(seen: Observed) -> PlacementRequest:
    asked = placement_request(seen.deployment, seen.cache, seen.fleet.devices)
    return replace(asked, replicas=min(asked.replicas, seen.replica_count)) if seen.frozen else asked


def _emptying(decision: Decision, seen: Observed) -> Decision:
    """Of a decision what empties clusters that are to be empty, with another place for what leaves them."""
    leaving = tuple(removal for removal in decision.removed if isinstance(removal.why, _EMPTYING))
    room = max(decision.desired - len(seen.live) + len(leaving), 0)
    new = decision.new[:room]
    placements = tuple(one for one in decision.placements if one in new or one not in decision.new)
    return replace(decision, placements=placements, new=new, removed=leaving)


_EMPTYING = (ClusterGone, ClusterTerminating, Tainted, Forced)


def _with_more(asked: PlacementRequest, more: int) -> PlacementRequest:
    return replace(asked, replicas=asked.replicas + more)


def _must_go(removal: Removal) -> bool:
    """Whether it does not wait for another to serve in its place."""
    return isinstance(removal.why, ClusterGone | Forced)


def _wanted(seen: Observed, decision: Decision) -> Mapping[Key, Manifest]:
    deployment, cache = seen.deployment, seen.cache if isinstance(seen.cache, ModelCache) else None
    return {
        replica_key(deployment, each): render_replica(deployment, each, seen.clusters.get(each.cluster), cache)
        for each in (decision.new if seen.frozen else decision.placements)
    }


def _changed(seen: Observed, decision: Decision, wanted: Mapping[Key, Manifest]) -> tuple[Key, ...]:
    """Replicas that stay and have another shape than they are to have; while something is amiss, none is changed."""
    if decision.problems:
        return ()
    return tuple(key for key in sorted(wanted) if key in seen.live and not _same_shape(seen.live[key], wanted[key]))


def _same_shape(live: Manifest, wanted: Manifest) -> bool:
    """Whether both specs mean the same: the server has filled in defaults, and lists by name have no order.

    What is requested by default is left out, and how large the cache is: neither restarts an engine.
    """
    return _unordered(ModelReplica.parse(live).spec) == _unordered(ModelReplica.parse(wanted).spec)


def _unordered(spec: ModelReplicaSpec) -> tuple[ModelReplicaSpec, Mapping[str, object]]:
    engines = {
        engine.name: (
            engine.model_copy(update={"members": ()}),
            [
                (
                    member.model_copy(update={"device_requests": (), "default_requests": None}),
                    {one.name: one for one in member.device_requests},
                )
                for member in engine.members
            ],
        )
        for engine in spec.engines
    }
    cache = spec.model_cache_ref and spec.model_cache_ref.model_copy(update={"size_gib": None})
    return spec.model_copy(update={"engines": (), "model_cache_ref": cache}), engines
