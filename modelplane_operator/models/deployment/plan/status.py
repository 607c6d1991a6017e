"""What is told of a deployment: its conditions and counts."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubeloop.condition_types import Condition, Ready
from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.words import counted, listed
from modelplane_operator.api import labels
from modelplane_operator.api.model_deployment import (
    ModelCacheResolved,
    ModelDeployment,
    ModelDeploymentStatus,
    PodTemplateAllowed,
    Progressing,
    ReplicaCount,
    ReplicasReady,
    ReplicasScheduled,
)
from modelplane_operator.api.model_replica import ModelReady, ModelReplica
from modelplane_operator.api.reasons import is_trouble, not_ready
from modelplane_operator.models.deployment.plan.course import Course
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.shortfall import unplaced
from modelplane_operator.models.deployment.render import not_allowed, replica_key
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    NoClusters,
    Overdrawn,
    Problem,
)
from modelplane_operator.scheduling.prose import problem, stuck, summary
from modelplane_operator.scheduling.requirement import NoCache

KIND, REPLICA = ModelDeployment.definition.kind, ModelReplica.definition.kind

TOLD = 3  # replicas whose trouble a condition tells


def status(seen: Observed, course: Course) -> ModelDeploymentStatus:
    ready = [one for one in seen.live.values() if condition(one, Ready.__name__).is_true]
    leaving = {removal.replica.key for removal in course.target.removed}
    finished = [one for one in ready if key_of(one) not in {*leaving, *course.changed} and seen.answers(one)]
    needed = [_scheduled(seen, course.decision), _replicas_ready(seen, course, len(ready)), *_cache(seen)]
    progressing = _progressing(seen, course)
    desired = course.decision.desired
    faults = sorted((one for one in needed if one.status != "True"), key=lambda one: not is_trouble(KIND, one))
    if len(finished) >= desired and not faults and not course.changed:
        whole = Ready.AVAILABLE.condition(seen.now, message=f"{len(finished)} of {counted(desired, 'replica')} ready")
    else:
        moving = [progressing] if progressing.status == "True" else []
        more = [one for one in faults[1:] if one.reason != ReplicasReady.NO_REPLICAS_SCHEDULED.reason]
        told = "; ".join(one.message for one in (*faults[:1], *more, *moving) if one.message)
        whole = not_ready(KIND, next(iter(faults), progressing), told)
    return ModelDeploymentStatus(
        conditions=(*needed, progressing, *_allowed(seen, course.target), whole),
        replicas=ReplicaCount(total=seen.replica_count if seen.frozen else len(seen.live), ready=len(ready)),
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


def _replicas_ready(seen: Observed, course: Course, ready: int) -> Condition:
    desired = course.decision.desired
    figures = f"{ready} of {counted(desired, 'replica')} ready"
    if ready >= desired:
        return ReplicasReady.ALL_REPLICAS_READY.condition(seen.now, message=figures)
    if not seen.live and not course.target.placements:
        return ReplicasReady.NO_REPLICAS_SCHEDULED.condition(seen.now, message=figures)
    waiting = [one for one in seen.live.values() if not condition(one, Ready.__name__).is_true]
    waiting.sort(key=lambda one: not _fails(one))
    told = [f"{_where(one)}: {_said(one)}" for one in waiting[:TOLD]]
    more = [f"and {len(waiting) - TOLD} more"] if len(waiting) > TOLD else []
    reason = ReplicasReady.REPLICAS_FAILING if any(map(_fails, waiting)) else ReplicasReady.MODEL_STARTING
    return reason.condition(seen.now, message="; ".join([figures, *told, *more]))


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


def _progressing(seen: Observed, course: Course) -> Condition:
    paced, now = course.moves, seen.now
    moving = {*paced.go, *paced.drain, *paced.wait}
    serving = sum(each.serving for each in seen.live_replicas.values())
    waits = f"{counted(len(paced.wait), 'replica')} to wait until more than {course.decision.desired} serve"
    waiting = [f"{waits}, {serving} so far"]
    if course.decision.stuck and not paced.go and not paced.drain:
        parts = [stuck(course.decision), *(waiting if paced.wait else [])]
        return Progressing.NO_OTHER_PLACE.condition(now, message="; ".join(parts))
    if not moving:
        return _starting(seen, course)
    parts = [f"{counted(len(moving), 'replica')} to be moved, changed or removed"]
    if paced.drain:
        parts.append(f"out of rotation and finishing their answers: {_names(paced.drain)}")
    parts += waiting if paced.wait else []
    reason = Progressing.MOVING if course.surge else Progressing.MOVING_WITHOUT_SURGE
    return reason.condition(now, message="; ".join(parts))


def _starting(seen: Observed, course: Course) -> Condition:
    """While nothing moves: whether replicas are on their way to answer."""
    waiting = [one for one in seen.live.values() if not condition(one, Ready.__name__).is_true]
    failing = sum(map(_fails, waiting))
    if len(waiting) > failing or course.wanted.keys() - seen.live.keys():
        return Progressing.STARTING.condition(seen.now)
    return (Progressing.STALLED if failing else Progressing.SETTLED).condition(seen.now)


def _names(keys: Iterable[Key]) -> str:
    return listed(sorted(key.name for key in keys), TOLD)


def _allowed(seen: Observed, decision: Decision) -> Sequence[Condition]:
    """What clusters leave out of the pods. It is told, and holds up nothing."""
    used = sorted({placement.cluster for placement in decision.placements})
    found = {name: left for name in used if (left := not_allowed(seen.deployment, seen.clusters.get(name)))}
    if not found:
        known = any(one.type == PodTemplateAllowed.__name__ for one in seen.deployment.conditions)
        return [PodTemplateAllowed.ALLOWED.condition(seen.now)] if known else []
    told = [f"{name}: {listed(map(str, left), TOLD)}" for name, left in found.items()][:TOLD]
    more = [f"and {len(found) - TOLD} more"] if len(found) > TOLD else []
    message = (
        f"pods do without what is not allowed on cluster {'; '.join([*told, *more])}. To allow it, the platform team "
        "adds it to spec.isolation.pods of the InferenceCluster, in the field named beside it"
    )
    return [PodTemplateAllowed.LEFT_OUT.condition(seen.now, message=message)]


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
