"""Compute the status of a ModelDeployment: its conditions and replica counts.

`status` reports the scheduler's decision for the requested replicas, not the rollout's target, which has surge
replicas for a while. Each condition has one subject; Ready has the cause that matters most, and what mends it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kubeloop.condition_types import Condition, Ready, Synced
from kubeloop.conditions import condition
from kubeloop.objects import Manifest, key_of
from kubeloop.words import count_of, list_names
from modelplane_operator.api import labels
from modelplane_operator.api.maintenance import MaintenanceWindow
from modelplane_operator.api.model_deployment import (
    ModelCacheResolved,
    ModelDeployment,
    ModelDeploymentStatus,
    PodTemplateAllowed,
    Progressing,
    ReplicaCount,
    ReplicasReady,
    ReplicasScheduled,
    UpToDate,
)
from modelplane_operator.api.model_replica import ModelReady, ModelReplica
from modelplane_operator.api.reasons import is_warning, not_ready
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rollout_plan import RolloutPlan
from modelplane_operator.models.deployment.plan.shortfall import explain_unplaced, headline
from modelplane_operator.models.deployment.render import not_allowed, replica_key
from modelplane_operator.models.replica.plan.symptoms import describe_starting
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.maintenance import describe_windows, find_problem, local_time
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    NoClusters,
    Overdrawn,
)
from modelplane_operator.scheduling.prose import describe_blocked, problem, summary
from modelplane_operator.scheduling.requirement import NoCache

KIND, REPLICA = ModelDeployment.definition.kind, ModelReplica.definition.kind

MAX_ITEMS = 3  # the message says how many more there are
"""Number of items that a condition's message lists, such as failing replicas."""


def status(observed: Observed, rollout_plan: RolloutPlan) -> ModelDeploymentStatus:
    """Return the status for an observed deployment and its rollout plan.

    Ready is Available when enough replicas are ready in their final shape and no condition is False. Otherwise it has
    the reason and the cause of the worst condition, or of the replica that fails.
    """
    ready = [item for item in observed.live.values() if condition(item, Ready.__name__).is_true]
    removed_keys = {removal.replica.key for removal in rollout_plan.target.removed}
    finished = [
        item for item in ready if key_of(item) not in {*removed_keys, *rollout_plan.changed} and observed.answers(item)
    ]
    needed = [
        _report_scheduled(observed, rollout_plan.decision),
        _report_replicas_ready(observed, rollout_plan, len(ready)),
        *_report_cache(observed),
    ]
    failing = next(filter(_is_failing, observed.live.values()), None)
    progressing = _report_progressing(observed, rollout_plan)
    desired = rollout_plan.decision.desired
    needs_help = {ReplicasReady.REPLICAS_FAILING.reason}
    not_true = sorted(
        (item for item in needed if item.status != "True"),
        key=lambda item: not is_warning(KIND, item) and item.reason not in needs_help,
    )
    if len(finished) >= desired and not not_true and not rollout_plan.changed and not observed.missing:
        ready_condition = Ready.AVAILABLE.condition(
            observed.now, message=f"{len(finished)} of {count_of(desired, 'replica')} ready"
        )
    else:
        cause = next(iter(not_true), progressing)
        ready_condition = not_ready(
            KIND,
            cause,
            headline(rollout_plan.decision) if cause.type == ReplicasScheduled.__name__ else None,
            reason=condition(failing, Ready.__name__).reason
            if failing is not None and cause.type == ReplicasReady.__name__
            else "",
        )
    return ModelDeploymentStatus(
        conditions=(
            *needed,
            progressing,
            *_report_allowed(observed, rollout_plan.target),
            *_report_outdated(observed, rollout_plan),
            ready_condition,
        ),
        replicas=ReplicaCount(
            total=observed.replica_count if observed.frozen else len(observed.live), ready=len(ready)
        ),
        selector=f"{labels.DEPLOYMENT}={observed.deployment.metadata.name}",
    )


def _report_scheduled(observed: Observed, decision: Decision) -> Condition:
    """Return the ReplicasScheduled condition. Problems with the cache are left to ModelCacheResolved."""
    kinds = {type(issue): issue for issue in decision.problems}
    other_problems = tuple(issue for issue in decision.problems if not isinstance(issue, CacheNotFound | CacheNotRead))
    now, message = observed.now, summary(replace(decision, problems=other_problems))
    if InvalidSelector in kinds or Overdrawn in kinds:
        return ReplicasScheduled.INVALID_NODE_SELECTOR.condition(now, message=message)
    if NoClusters in kinds:
        return ReplicasScheduled.NO_CLUSTERS.condition(now, message=message)
    if observed.frozen and decision.missing:
        return ReplicasScheduled.SCHEDULING.condition(now, message=f"{message}; {_wait_for_pause(decision.missing)}")
    only_cache_problems = decision.problems and not other_problems
    if (decision.missing and not only_cache_problems) or any(retained.reason for retained in decision.retained):
        return explain_unplaced(decision).condition(now, message=message)
    placement_keys = {replica_key(observed.deployment, placement) for placement in decision.placements}
    if decision.missing or not placement_keys <= observed.live.keys():
        return ReplicasScheduled.SCHEDULING.condition(now, message=message)
    return ReplicasScheduled.REPLICAS_CREATED.condition(now, message=message)


def _wait_for_pause(missing: int) -> str:
    """Return that so many replicas are not created while the deployment is paused."""
    verb = "is" if missing == 1 else "are"
    return f"{count_of(missing, 'replica')} {verb} created when the pause ends"


def _report_replicas_ready(observed: Observed, rollout_plan: RolloutPlan, ready: int) -> Condition:
    """Return the ReplicasReady condition, with the messages of up to MAX_ITEMS replicas, failing ones first."""
    desired = rollout_plan.decision.desired
    figures = f"{ready} of {count_of(desired, 'replica')} ready"
    if ready >= desired:
        return ReplicasReady.ALL_REPLICAS_READY.condition(observed.now, message=figures)
    if not observed.live and not rollout_plan.target.placements:
        return ReplicasReady.NO_REPLICAS_SCHEDULED.condition(observed.now, message=figures)
    waiting = [replica for replica in observed.live.values() if not condition(replica, Ready.__name__).is_true]
    waiting.sort(key=lambda replica: not _is_failing(replica))
    messages = [
        f"{replica['metadata']['name']} on {replica['spec']['clusterName']}: {_find_message(replica)}"
        for replica in waiting[:MAX_ITEMS]
    ]
    omitted = [f"and {len(waiting) - MAX_ITEMS} more"] if len(waiting) > MAX_ITEMS else []
    reason = ReplicasReady.REPLICAS_FAILING if any(map(_is_failing, waiting)) else ReplicasReady.MODEL_STARTING
    return reason.condition(observed.now, message="; ".join([figures, *messages, *omitted]))


def _is_failing(replica: Manifest) -> bool:
    """True if a replica is not Ready for a reason that does not resolve by itself."""
    ready = condition(replica, Ready.__name__)
    return ready.status not in {"", "True"} and is_warning(REPLICA, ready)


def _find_message(replica: Manifest) -> str:
    """Return the message of the first condition of a replica that is False or Unknown."""
    for type_name in (Ready.__name__, ModelReady.__name__, Synced.__name__):
        current = condition(replica, type_name)
        if current.status not in {"", "True"} and current.message:
            return current.message
    return describe_starting("operator")


def _report_progressing(observed: Observed, rollout: RolloutPlan) -> Condition:
    """Return the Progressing condition: what moves, what waits, and what is blocked for lack of another cluster."""
    allowed_moves, now = rollout.moves, observed.now
    if observed.missing:
        message = (
            f"replicas keep running the previous spec: namespace {observed.deployment.key.namespace} has "
            f"{observed.missing}, which the new one names: create what is missing"
        )
        return Progressing.SOURCE_MISSING.condition(now, message=message)
    moving = {*allowed_moves.go, *allowed_moves.drain, *allowed_moves.wait}
    serving = sum(replica.serving for replica in observed.live_replicas.values())
    waits = f"{count_of(len(allowed_moves.wait), 'replica')} to wait until more than {rollout.decision.desired} serve"
    waiting = [f"{waits}, {serving} so far"]
    if rollout.decision.blocked and not allowed_moves.go and not allowed_moves.drain:
        clauses = [describe_blocked(rollout.decision), *(waiting if allowed_moves.wait else [])]
        return Progressing.NO_OTHER_PLACE.condition(now, message="; ".join(clauses))
    if not moving:
        return _report_starting(observed, rollout)
    clauses = [f"{count_of(len(moving), 'replica')} to be moved, changed or removed"]
    if allowed_moves.drain:
        draining = list_names(sorted(key.name for key in allowed_moves.drain), MAX_ITEMS)
        clauses.append(f"taking no new requests and finishing old ones: {draining}")
    clauses += waiting if allowed_moves.wait else []
    reason = Progressing.MOVING if rollout.surge else Progressing.MOVING_WITHOUT_SURGE
    return reason.condition(now, message="; ".join(clauses))


def _report_starting(observed: Observed, rollout_plan: RolloutPlan) -> Condition:
    """Return the Progressing condition while nothing moves: Starting, Stalled or Settled."""
    waiting = [replica for replica in observed.live.values() if not condition(replica, Ready.__name__).is_true]
    failing = sum(map(_is_failing, waiting))
    if len(waiting) > failing or rollout_plan.desired.keys() - observed.live.keys():
        return Progressing.STARTING.condition(observed.now)
    if failing:
        return Progressing.STALLED.condition(observed.now)
    missing = rollout_plan.decision.missing
    if missing and observed.frozen:
        return Progressing.SETTLED.condition(observed.now, message=_wait_for_pause(missing))
    waits = (
        f"nothing more can be placed now: {count_of(missing, 'replica')} wait{'s' if missing == 1 else ''} for a place"
    )
    return Progressing.SETTLED.condition(observed.now, message=waits if missing else "")


def _report_allowed(observed: Observed, decision: Decision) -> Sequence[Condition]:
    """Return the PodTemplateAllowed condition, which lists what clusters leave out of the pods.

    It never blocks a rollout. Without anything left out, it is reported only if an earlier status has it.
    """
    used = sorted({placement.cluster for placement in decision.placements})
    by_cluster = {
        name: rejected for name in used if (rejected := not_allowed(observed.deployment, observed.clusters.get(name)))
    }
    if not by_cluster:
        reported_before = any(item.type == PodTemplateAllowed.__name__ for item in observed.deployment.conditions)
        return [PodTemplateAllowed.ALLOWED.condition(observed.now)] if reported_before else []
    items = [f"{name}: {list_names(map(str, rejected), MAX_ITEMS)}" for name, rejected in by_cluster.items()][
        :MAX_ITEMS
    ]
    more = [f"and {len(by_cluster) - MAX_ITEMS} more"] if len(by_cluster) > MAX_ITEMS else []
    message = (
        f"pods run without the fields that their cluster does not allow: {'; '.join([*items, *more])}. To allow one,"
        " the platform team adds it to the field in brackets, below spec.isolation.pods of the InferenceCluster"
    )
    return [PodTemplateAllowed.LEFT_OUT.condition(observed.now, message=message)]


def _report_outdated(observed: Observed, rollout_plan: RolloutPlan) -> Sequence[Condition]:
    """Return the UpToDate condition. Without outdated pods, it is reported only if an earlier status has it."""
    if not observed.outdated:
        reported_before = any(item.type == UpToDate.__name__ for item in observed.deployment.conditions)
        return [UpToDate.AS_RENDERED.condition(observed.now)] if reported_before else []
    (namespace, name), (first, *_) = observed.deployment.key, observed.outdated.values()
    by = f"operator {first.version}" if first.version else "an older operator"
    count = count_of(len(observed.outdated), "replica")
    changes = [
        *first.changes[:MAX_ITEMS],
        *([f"and {more} more"] if (more := len(first.changes) - MAX_ITEMS) > 0 else []),
    ]
    fix = "; this includes a security fix" if any(item.security for item in observed.outdated.values()) else ""
    what = f"pods of {count} would change, as {by} rendered them: {'; '.join(changes)}{fix}"
    roll, rolls = f"modelplane roll {name} -n {namespace}", observed.rolls
    waits = (*_describe_waiting(observed), *_describe_ignored(observed))
    if rollout_plan.rolling or rolls.full:
        return [UpToDate.ROLLING.condition(observed.now, message="; ".join([what, *waits]))]
    if rolls.closed:
        message = f"{'; '.join([what, *waits])}. To change them in turn before that: {roll} --now"
        return [UpToDate.WAITING_FOR_WINDOW.condition(observed.now, message=message)]
    if rollout_plan.spared:
        what = f"{what}; no other replica answers, and the fleet has no room for one"
        message = f"{what}. To restart the only one all the same: {roll}"
        return [UpToDate.WAITING_FOR_ROOM.condition(observed.now, message=message)]
    return [UpToDate.OUTDATED.condition(observed.now, message=f"{what}. Change them in turn: {roll}")]


def _describe_waiting(observed: Observed) -> Sequence[str]:
    """Return what outdated replicas wait for that are to roll: others of the fleet, or their maintenance windows."""
    clauses: list[str] = []
    if full := observed.rolls.full:
        scope = min(full.values())
        limit = observed.disruptions.limit(scope)
        waits = "waits" if len(full) == 1 else "wait"
        clauses.append(f"{count_of(len(full), 'replica')} {waits}: {limit} of {limit} allowed disruptions {scope}")
    if closed := observed.rolls.closed:
        waits = "waits" if len(closed) == 1 else "wait"
        clauses.append(f"{count_of(len(closed), 'replica')} {waits} for {_describe_windows(observed)}")
    return clauses


def _describe_windows(observed: Observed) -> str:
    """Return the windows of the replica that waits the shortest time, and when they open."""
    key, opening = min(
        observed.rolls.closed.items(), key=lambda item: (item[1] is None, item[1] or observed.now, item[0])
    )
    cluster = observed.live[key]["spec"]["clusterName"]
    calendars = {
        "the windows of the deployment": observed.deployment.spec.maintenance,
        f"the windows of cluster {cluster}": _find_windows(observed, cluster),
    }
    described = {name: text for name, windows in calendars.items() if (text := describe_windows(windows))}
    names = " and ".join(f"{name} ({text})" for name, text in described.items())
    if opening is None:
        return f"{names}, which are never open at the same time"
    return f"{names}, open from {local_time(opening, calendars[next(iter(described))])}"


def _describe_ignored(observed: Observed) -> Sequence[str]:
    """Return the maintenance windows that are ignored, with what is wrong with them."""
    clusters = sorted({observed.live[key]["spec"]["clusterName"] for key in observed.outdated})
    owners = {
        "the deployment": observed.deployment.spec.maintenance,
        **{f"cluster {cluster}": _find_windows(observed, cluster) for cluster in clusters},
    }
    problems = [
        f"a window of {owner} is ignored: {trouble}"
        for owner, windows in owners.items()
        for window in windows
        if (trouble := find_problem(window))
    ]
    return problems[:MAX_ITEMS]


def _find_windows(observed: Observed, cluster: str) -> Sequence[MaintenanceWindow]:
    """Return the maintenance windows of a cluster."""
    return observed.clusters[cluster].spec.maintenance if cluster in observed.clusters else ()


def _report_cache(observed: Observed) -> Sequence[Condition]:
    """Return the ModelCacheResolved condition, or nothing if the deployment references no cache."""
    reference = observed.deployment.replica.model_cache_ref
    if reference is None:
        return ()
    match observed.cache:
        case NoCache.NOT_READ:
            message = problem(CacheNotRead(reference.name))
            return [ModelCacheResolved.UNRESOLVED.condition(observed.now, message=message)]
        case NoCache.NOT_FOUND:
            message = problem(CacheNotFound(reference.name))
            return [ModelCacheResolved.NOT_FOUND.condition(observed.now, message=message)]
        case _:
            return [ModelCacheResolved.RESOLVED.condition(observed.now)]
