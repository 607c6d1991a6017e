"""A deployment: where its replicas are to be, which of them exist in what shape, and which of them are in rotation.

One that is paused, or that is being deleted and waits for somebody else's finalizer, is left as it is. Its replicas
leave clusters that are drained or deleted all the same: those belong to somebody else.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from functools import cached_property

from modelplane_operator.api import labels
from modelplane_operator.api.conditions import Condition, Ready
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import (
    ModelCacheResolved,
    ModelDeployment,
    ModelDeploymentStatus,
    PodTemplateAllowed,
    Progressing,
    ReplicaCount,
    ReplicasReady,
    ReplicasScheduled,
    Rollout,
)
from modelplane_operator.api.model_replica import ModelReady, ModelReplica, ModelReplicaSpec
from modelplane_operator.api.reasons import is_trouble, not_ready
from modelplane_operator.kube.conditions import condition
from modelplane_operator.kube.objects import Key, Manifest, annotations_of, is_terminating, key_of, labels_of
from modelplane_operator.planning.plan import Apply, Create, Plan, Replace, Step, delete
from modelplane_operator.planning.rollout import Budget, Live, Moves, moves
from modelplane_operator.planning.shortfall import unplaced
from modelplane_operator.rendering.model_deployment import not_allowed, render_endpoint, render_replica, replica_key
from modelplane_operator.scheduling.decision import Decision, Removal
from modelplane_operator.scheduling.placement import charges, held_nodes, read
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    NoClusters,
    Overdrawn,
    Problem,
)
from modelplane_operator.scheduling.prose import problem, stuck, summary
from modelplane_operator.scheduling.reasons import ClusterGone, Forced, Going, ScaledDown, Tainted
from modelplane_operator.scheduling.requirement import Ask, NoCache, ask
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.scheduling.survey import Fleet

KIND, REPLICA = ModelDeployment.definition.kind, ModelReplica.definition.kind
DEFAULT_ROLLOUT = Rollout()
FOLLOWING = timedelta(minutes=5)  # until routes lead to a replica that answers: Traefik takes minutes for thousands
TOLD = 3  # replicas whose trouble a condition tells


@dataclass(frozen=True)
class Observed:
    """A deployment, the fleet, and what exists of the deployment."""

    deployment: ModelDeployment
    cache: ModelCache | NoCache
    fleet: Fleet
    clusters: Mapping[str, InferenceCluster]
    """Its clusters as their platform teams have written them."""
    replicas: tuple[Manifest, ...]
    """Its ModelReplicas, those on their way out among them."""
    endpoints: tuple[Manifest, ...]
    """Its ModelEndpoints."""
    routed: frozenset[Key]
    """Of those, the ones that a gateway may send requests to."""
    reached: frozenset[Key]
    """Of those, the ones that a gateway is known to send requests to."""
    grace: timedelta
    """How long a replica is out of rotation before it is disturbed."""
    now: datetime

    @property
    def terminating(self) -> bool:
        """Whether it is being deleted. What belongs to it goes once it is gone, for which others may let it wait."""
        return self.deployment.metadata.deletion_timestamp is not None

    @property
    def frozen(self) -> bool:
        """Whether nothing of it is to change, but that no cluster that is to be empty waits for that."""
        return self.terminating or self.deployment.metadata.annotations.get(labels.PAUSED) == "true"

    @cached_property
    def live(self) -> Mapping[Key, Manifest]:
        """The replicas that exist and are to stay as far as anybody has said."""
        return {key_of(one): one for one in self.replicas if not is_terminating(one)}

    @cached_property
    def endpoint(self) -> Mapping[Key, Manifest]:
        """The endpoints, by key: that of their replica."""
        return {key_of(one): one for one in self.endpoints}

    @cached_property
    def standing(self) -> Mapping[Key, Live]:
        """The same as a rollout sees them.

        One serves when it answers and, if any route leads to the deployment, when one leads to it: but a service that
        does not follow for long holds nothing up.
        """
        return {
            key: Live(
                key,
                serving=self.answers(one) and (self.awaited(key) or self.now) <= self.now,
                draining_since=_since(one),
                routed=key in self.endpoint or key in self.routed,
            )
            for key, one in self.live.items()
        }

    def awaited(self, key: Key) -> datetime | None:
        """Until when a replica that answers is waited for, to be led to; None when there is nothing to wait for."""
        replica = self.live[key]
        if not self.answers(replica) or key in self.reached or not self.routed:
            return None
        return datetime.fromisoformat(condition(replica, ModelReady.__name__).last_transition_time) + FOLLOWING

    def answers(self, replica: Manifest) -> bool:
        """Whether a replica is known to answer in its present shape."""
        found = condition(replica, ModelReady.__name__)
        return found.current and found.is_true


@dataclass(frozen=True)
class _Course:
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


def plan(seen: Observed) -> Plan:
    course = _course(seen)
    awaited = [at for at in map(seen.awaited, seen.live) if at is not None and at > seen.now]
    again = [at for at in (course.decision.again_at, course.moves.again_at, *awaited) if at is not None]
    wait = max((min(again) - seen.now).total_seconds(), 0.1) if again else None
    status = None if seen.terminating else _status(seen, course)
    return Plan(tuple(_steps(seen, course)), status, requeue_after=wait)


def _course(seen: Observed) -> _Course:
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
    paced = moves(dict.fromkeys(disturbed), forced, seen.standing, budget, now=seen.now, returning=returning)
    return _Course(decision, target, wanted, changed, surge, paced)


def _asked(seen: Observed) -> Ask:
    asked = ask(seen.deployment, seen.cache, seen.fleet.devices)
    return replace(asked, replicas=min(asked.replicas, _count(seen))) if seen.frozen else asked


def _count(seen: Observed) -> int:
    """How many replicas there are to be while nothing else changes: those that there were before."""
    known = seen.deployment.status.replicas if seen.deployment.status else None
    return 0 if seen.terminating or known is None else known.total or 0


def _emptying(decision: Decision, seen: Observed) -> Decision:
    """Of a decision what empties clusters that are to be empty, with another place for what leaves them."""
    leaving = tuple(removal for removal in decision.removed if isinstance(removal.why, _EMPTYING))
    room = max(decision.desired - len(seen.live) + len(leaving), 0)
    new = decision.new[:room]
    placements = tuple(one for one in decision.placements if one in new or one not in decision.new)
    return replace(decision, placements=placements, new=new, removed=leaving)


_EMPTYING = (ClusterGone, Going, Tainted, Forced)


def _with_more(asked: Ask, more: int) -> Ask:
    return replace(asked, replicas=asked.replicas + more)


def _must_go(removal: Removal) -> bool:
    """Whether it does not wait for another to serve in its place."""
    return isinstance(removal.why, ClusterGone | Forced)


def _wanted(seen: Observed, decision: Decision) -> Mapping[Key, Manifest]:
    deployment = seen.deployment
    return {
        replica_key(deployment, each): render_replica(deployment, each, seen.clusters.get(each.cluster))
        for each in (decision.new if seen.frozen else decision.placements)
    }


def _changed(seen: Observed, decision: Decision, wanted: Mapping[Key, Manifest]) -> tuple[Key, ...]:
    """Replicas that stay and have another shape than they are to have; while something is amiss, none is changed."""
    if decision.problems:
        return ()
    return tuple(key for key in sorted(wanted) if key in seen.live and not _same_shape(seen.live[key], wanted[key]))


def _same_shape(live: Manifest, wanted: Manifest) -> bool:
    """Whether both specs mean the same: the server has filled in defaults, and lists by name have no order.

    What is requested by default is left out: nodes that are seen anew restart no engine.
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
    return spec.model_copy(update={"engines": ()}), engines


def _since(replica: Manifest) -> datetime | None:
    text = annotations_of(replica).get(labels.DRAINING_SINCE)
    try:
        since = datetime.fromisoformat(text) if text else None
    except ValueError:
        return datetime.min.replace(tzinfo=UTC)  # somebody wrote it: it drains, and has for long enough
    return since if since is None or since.tzinfo else since.replace(tzinfo=UTC)


# Steps ---------------------------------------------------------------------------------------------------------------


def _steps(seen: Observed, course: _Course) -> Iterable[Step]:
    """Out of rotation first, then what is new, what may go now, and last into rotation.

    Endpoints are tenants' to edit: one that cannot be written holds up no replica that leaves its cluster.
    """
    out = course.moves.drain | course.moves.go
    in_rotation = {key for key, one in seen.live.items() if key not in out and seen.answers(one)}
    for key, endpoint in seen.endpoint.items():
        if key not in in_rotation and not is_terminating(endpoint):
            yield delete(endpoint)
    changing = [key for key in course.changed if key in course.moves.go]
    # With a replica too many, the last that would have to change can go instead; unless it is the other that must go.
    leaving = [removal for removal in course.decision.removed if not isinstance(removal.why, ScaledDown)]
    spare = len(seen.live) - len(leaving) - course.decision.desired
    instead = set(course.changed) if 0 < len(course.changed) <= spare else set[Key]()
    removed = {removal.replica.key for removal in course.target.removed} | (instead & set(changing))
    for key, live in seen.live.items():
        if wanted := _rewritten(seen, course, key, live, removed):
            yield Replace(wanted)
    missing = [key for key in course.wanted if key not in seen.live]
    taken = {key_of(one) for one in seen.replicas}
    for key in [key for key in missing if key not in taken][: course.moves.create]:
        yield Create(course.wanted[key])
    for key in sorted(removed & course.moves.go):
        if key in seen.live:
            yield delete(seen.live[key])
    yield from _entering(seen, in_rotation)


def _rewritten(seen: Observed, course: _Course, key: Key, live: Manifest, removed: set[Key]) -> Manifest | None:
    """The replica as it is to be stored now: its mark, its labels, and its shape when its turn has come."""
    if key in removed and key in course.moves.go:
        return None
    metadata: Manifest = live["metadata"]
    kept = {name: text for name, text in annotations_of(live).items() if name not in _MARKS}
    wanted = course.wanted.get(key)
    reshaped = wanted is not None and key in course.changed and key in course.moves.go
    marks = {
        labels.DRAINING_SINCE: (annotations_of(live).get(labels.DRAINING_SINCE) or seen.now.isoformat())
        if key in course.moves.drain
        else "",
        labels.HELD_NODES: _held(live, wanted if wanted and reshaped else live),
    }
    annotations = {**kept, **{name: text for name, text in marks.items() if text}}
    named = labels_of(wanted or live)
    rewritten = {
        **live,
        "metadata": {**metadata, "labels": named, "annotations": annotations},
        **({"spec": wanted["spec"]} if wanted and reshaped else {}),
    }
    same = named == labels_of(live) and annotations == annotations_of(live)
    return None if same and not reshaped else rewritten


_MARKS = frozenset({labels.DRAINING_SINCE, labels.HELD_NODES})


def _held(live: Manifest, next_: Manifest) -> str:
    """The nodes that its pods may still be on although its next shape needs fewer; until it is Ready in its shape."""
    if next_ is live and (not annotations_of(live).get(labels.HELD_NODES) or _has_its_shape(live)):
        return ""
    was, is_to_be = (read(ModelReplica.parse(one)) for one in (live, next_))
    return held_nodes(was.charges, charges(is_to_be.engines))


def _has_its_shape(replica: Manifest) -> bool:
    """Whether all of its pods have the shape that its spec says; those before it that still end are in its status."""
    found = condition(replica, Ready.__name__)
    return found.current and found.is_true


def _entering(seen: Observed, in_rotation: Iterable[Key]) -> Iterable[Step]:
    for key in sorted(in_rotation):
        if seen.endpoint.get(key, {}).get("metadata", {}).get("deletionTimestamp"):
            continue  # the one before has to go first
        if seen.terminating and key not in seen.endpoint:
            continue
        live = seen.live[key]
        site = seen.fleet.site(live["spec"]["clusterName"])
        if site is None or not site.cluster.gateway:  # it keeps the endpoint that it has
            continue
        place, cluster = read(ModelReplica.parse(live)).placement, site.cluster
        endpoint = render_endpoint(seen.deployment, place, cluster.gateway, cluster.server_name, cluster.gateway_port)
        # A pause keeps what the user's edits would make of it, and not what somebody has made of an endpoint.
        if not (seen.frozen and seen.endpoint.get(key, {}).get("spec") == endpoint["spec"]):
            yield Apply(endpoint)


# Status --------------------------------------------------------------------------------------------------------------


def _status(seen: Observed, course: _Course) -> ModelDeploymentStatus:
    ready = [one for one in seen.live.values() if condition(one, Ready.__name__).is_true]
    leaving = {removal.replica.key for removal in course.target.removed}
    finished = [one for one in ready if key_of(one) not in {*leaving, *course.changed} and seen.answers(one)]
    needed = [_scheduled(seen, course.decision), _replicas_ready(seen, course, len(ready)), *_cache(seen)]
    progressing = _progressing(seen, course)
    desired = course.decision.desired
    faults = sorted((one for one in needed if one.status != "True"), key=lambda one: not is_trouble(KIND, one))
    if len(finished) >= desired and not faults and not course.changed:
        whole = Ready.AVAILABLE.condition(seen.now, message=f"{len(finished)} of {desired} ready")
    else:
        moving = [progressing] if progressing.status == "True" else []
        told = "; ".join(one.message for one in (*faults, *moving) if one.message)
        whole = not_ready(KIND, next(iter(faults), progressing), told)
    return ModelDeploymentStatus(
        conditions=(*needed, progressing, *_allowed(seen, course.target), whole),
        replicas=ReplicaCount(total=_count(seen) if seen.frozen else len(seen.live), ready=len(ready)),
        selector=f"{labels.DEPLOYMENT}={seen.deployment.metadata.name}",
    )


def _scheduled(seen: Observed, decision: Decision) -> Condition:
    kinds = {type(found): found for found in decision.problems}
    elsewhere = tuple(found for found in decision.problems if not isinstance(found, CacheNotFound | CacheNotRead))
    now, message = seen.now, summary(replace(decision, problems=elsewhere))  # ModelCacheResolved tells of the cache
    if InvalidSelector in kinds or Overdrawn in kinds:
        return ReplicasScheduled.INVALID_NODE_SELECTOR.condition(now, message=message)
    if NoClusters in kinds:
        return ReplicasScheduled.NO_CLUSTERS.condition(now, message=message)
    if (decision.missing and not _only_cache(decision.problems)) or any(held.why for held in decision.held):
        return unplaced(decision).condition(now, message=message)
    placed = {replica_key(seen.deployment, placement) for placement in decision.placements}
    if decision.missing or not placed <= seen.live.keys():
        return ReplicasScheduled.SCHEDULING.condition(now, message=message)
    return ReplicasScheduled.REPLICAS_CREATED.condition(now, message=message)


def _only_cache(problems: Sequence[Problem]) -> bool:
    return bool(problems) and all(isinstance(found, CacheNotFound | CacheNotRead) for found in problems)


def _replicas_ready(seen: Observed, course: _Course, ready: int) -> Condition:
    desired = course.decision.desired
    counted = f"{ready} of {desired} ready"
    if ready >= desired:
        return ReplicasReady.ALL_REPLICAS_READY.condition(seen.now, message=counted)
    if not seen.live and not course.target.placements:
        return ReplicasReady.NO_REPLICAS_SCHEDULED.condition(seen.now, message=counted)
    waiting = [one for one in seen.live.values() if not condition(one, Ready.__name__).is_true]
    waiting.sort(key=lambda one: not _fails(one))
    told = [f"{_where(one)}: {_said(one)}" for one in waiting[:TOLD]]
    more = [f"and {len(waiting) - TOLD} more"] if len(waiting) > TOLD else []
    reason = ReplicasReady.REPLICAS_FAILING if any(map(_fails, waiting)) else ReplicasReady.MODEL_STARTING
    return reason.condition(seen.now, message="; ".join([counted, *told, *more]))


def _fails(replica: Manifest) -> bool:
    """Whether a replica says that it is not Ready for something that does not mend by itself."""
    found = condition(replica, Ready.__name__)
    return found.status not in {"", "True"} and is_trouble(REPLICA, found)


def _where(replica: Manifest) -> str:
    return f"{replica['metadata']['name']} on {replica['spec']['clusterName']}"


def _said(replica: Manifest) -> str:
    for kind in (Ready.__name__, ModelReady.__name__, "Synced"):
        found = condition(replica, kind)
        if found.status not in {"", "True"} and found.message:
            return found.message
    return "not looked at yet"


def _progressing(seen: Observed, course: _Course) -> Condition:
    paced, now = course.moves, seen.now
    moving = {*paced.go, *paced.drain, *paced.wait}
    serving = sum(each.serving for each in seen.standing.values())
    waiting = [f"{len(paced.wait)} wait until more than {course.decision.desired} serve, {serving} do"]
    if course.decision.stuck and not paced.go and not paced.drain:
        parts = [stuck(course.decision), *(waiting if paced.wait else [])]
        return Progressing.NO_OTHER_PLACE.condition(now, message="; ".join(parts))
    if not moving:
        return _starting(seen, course)
    parts = [f"{len(moving)} to be moved, changed or removed"]
    if paced.drain:
        parts.append(f"out of rotation and finishing their answers: {_names(paced.drain)}")
    parts += waiting if paced.wait else []
    reason = Progressing.MOVING if course.surge else Progressing.MOVING_WITHOUT_SURGE
    return reason.condition(now, message="; ".join(parts))


def _starting(seen: Observed, course: _Course) -> Condition:
    """While nothing moves: whether replicas are on their way to answer."""
    waiting = [one for one in seen.live.values() if not condition(one, Ready.__name__).is_true]
    failing = sum(map(_fails, waiting))
    if len(waiting) > failing or course.wanted.keys() - seen.live.keys():
        return Progressing.STARTING.condition(seen.now)
    return (Progressing.STALLED if failing else Progressing.SETTLED).condition(seen.now)


def _names(keys: Iterable[Key]) -> str:
    return _listed(sorted(key.name for key in keys))


def _allowed(seen: Observed, decision: Decision) -> Sequence[Condition]:
    """What clusters leave out of the pods. It is told, and holds up nothing."""
    used = sorted({placement.cluster for placement in decision.placements})
    found = {name: left for name in used if (left := not_allowed(seen.deployment, seen.clusters.get(name)))}
    if not found:
        known = any(one.type == PodTemplateAllowed.__name__ for one in seen.deployment.conditions)
        return [PodTemplateAllowed.ALLOWED.condition(seen.now)] if known else []
    told = [f"{name}: {_listed(left)}" for name, left in found.items()][:TOLD]
    more = [f"and {len(found) - TOLD} more"] if len(found) > TOLD else []
    message = (
        f"left out of the pods on cluster {'; '.join([*told, *more])}. To allow it, the platform team adds it to "
        "spec.isolation.pods of the InferenceCluster, in the field named beside it"
    )
    return [PodTemplateAllowed.LEFT_OUT.condition(seen.now, message=message)]


def _listed(found: Sequence[object]) -> str:
    more = f" and {len(found) - TOLD} more" if len(found) > TOLD else ""
    return ", ".join(map(str, found[:TOLD])) + more


def _cache(seen: Observed) -> Sequence[Condition]:
    reference = seen.deployment.replica.model_cache_ref
    if reference is None:
        return ()
    match seen.cache:
        case NoCache.NOT_READ:
            message = problem(CacheNotRead(reference.name))
            return [ModelCacheResolved.UNRESOLVED.condition(seen.now, message=message)]
        case NoCache.NOT_FOUND:
            message = problem(CacheNotFound(reference.name))
            return [ModelCacheResolved.NOT_FOUND.condition(seen.now, message=message)]
        case _:
            return [ModelCacheResolved.RESOLVED.condition(seen.now)]
