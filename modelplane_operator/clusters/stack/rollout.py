"""The rollout of changed charts on one cluster: its turn, the watch over its health, and the way back.

    Waiting      for a turn (`waves`); installed charts that work stay as they are
    Upgrading    the turn was stored before the first chart changes, so a killed operator leaves no doubt
    Watching     all charts have changed; the cluster has to be healthy for GATE, within PATIENCE
    Done         nothing is to change
    Failed       the charts go back to the revisions that `changes` names, and no cluster of the fleet begins
    Aborted      the cluster keeps its charts until the stack asks for others

First installs and repairs never wait. A phase is about one target, a digest of all that the stack asks for: with
another target the cluster waits for its turn again.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Final, assert_never

from kubeloop.condition_types import Condition, Ready
from kubeloop.conditions import condition
from kubeloop.helm.release import DIGEST, Component
from kubeloop.objects import Manifest
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import BackendReady
from modelplane_operator.api.serving_stack import ChartChange, ServingStack, ServingStackRollout, StackRollout
from modelplane_operator.clusters.stack.chart_states import (
    FREE,
    ChartStatus,
    Hold,
    ObservedCharts,
    is_change,
    is_helm_running,
)
from modelplane_operator.clusters.stack.charts import STACK
from modelplane_operator.clusters.stack.render import ClusterSoftware, parts
from modelplane_operator.clusters.stack.waves import TURNS, FleetMember, find_obstacle, keeps_turn

GATE: Final = timedelta(minutes=5)
"""Time for which a changed cluster has to be healthy. Failed requests are counted over the same time."""
PATIENCE: Final = timedelta(minutes=15)
"""Time after which a changed cluster that was not healthy for GATE goes back."""
LONGEST: Final = timedelta(hours=1)
"""Time after which charts that have not all changed go back."""
MAX_FAILING: Final = 32
"""Number of services in the status that failed before the change."""
POLL: Final = 15.0
"""Seconds between two looks at a cluster that changes or is watched."""
UNTIL_TURN: Final = 60.0
"""Seconds between two looks at a cluster that waits; the end of a turn wakes it, too."""


@dataclass(frozen=True, slots=True)
class RolloutFleet:
    """What a stack knows of the others when it decides about its turn."""

    cluster: str
    """The cluster of the stack itself."""
    members: Sequence[FleetMember]
    """All clusters with installed charts."""
    is_fresh: bool = field(default=False)
    """True if the members were listed after the turn of this stack was written."""

    def complete(self, rollout: StackRollout) -> Sequence[FleetMember]:
        """Return the members, with the stack itself as it is now."""
        own = next(
            (member for member in self.members if member.cluster == self.cluster), FleetMember(self.cluster, "Waiting")
        )
        changes = frozenset((item.name, item.version) for item in rollout.changes)
        others = [member for member in self.members if member.cluster != self.cluster]
        return [*others, replace(own, phase=rollout.phase, changes=changes)]


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What a stack's rollout depends on besides the cluster itself."""

    fleet: RolloutFleet | None = None
    """The other clusters; None if they were not read."""
    hub_cluster: Manifest | None = None
    """The InferenceCluster; None for a stack of its own."""
    failing: tuple[str, ...] = ()
    """The ModelServices with endpoints on the cluster whose requests fail."""


@dataclass(frozen=True, slots=True)
class RolloutStep:
    """A rollout before its charts are looked at, and what it lets them do."""

    rollout: StackRollout
    hold: Hold
    waits_for: str = ""
    """What it waits for, as a message; empty if it does not wait."""


def compute_target(components: Iterable[Component]) -> str:
    """Return a digest of all charts, versions and values that a stack asks for."""
    text = "\n".join(sorted(f"{part.name} {part.release.digest}" for part in components))
    return hashlib.sha256(text.encode()).hexdigest()[:DIGEST]


def read_software(stack: ServingStack) -> ClusterSoftware:
    """Return the software that a cluster has, as the status of its stack says."""
    components = stack.status.components if stack.status else ()
    releases = {chart.name: chart.release for chart in STACK}
    return ClusterSoftware(
        frozenset(releases[item.name] for item in components if item.name in releases and item.version),
        {item.name: item.message or "" for item in components if item.state == "Present"},
    )


def find_changes(components: Iterable[Component], charts: ObservedCharts) -> tuple[ChartChange, ...]:
    """Return the installed charts that work and are to change."""
    changes: list[ChartChange] = []
    for part in components:
        newest = charts.newest(part.release.key)
        if newest is not None and is_change(part, charts):
            content = charts.contents.get((part.release.key, newest.number))
            changes.append(
                ChartChange(
                    name=part.name,
                    previous=content.version[:128] if content else None,
                    version=part.release.version,
                    revision=newest.number,
                )
            )
    return tuple(changes)


def build_member(cluster: str, stack: ServingStack) -> FleetMember | None:
    """Return a stack as a member of the fleet; None if it is being deleted, or has no installed chart yet."""
    status = stack.status
    if stack.metadata.deletion_timestamp or status is None or not any(item.version for item in status.components):
        return None
    rollout = status.rollout
    ready = next((item.status == "True" for item in status.conditions if item.type == Ready.__name__), False)
    phase = rollout.phase if rollout else "Waiting"
    if rollout and phase not in TURNS:  # a turn lasts until the stack itself gives it back
        target = compute_target(parts(stack, read_software(stack)))
        if rollout.target != target or not _is_current(rollout, stack):
            phase = "Waiting"
        if stack.metadata.annotations.get(labels.KEEP_CHARTS) == target and phase in {"Waiting", "Failed"}:
            phase = "Aborted"
    return FleetMember(
        cluster,
        phase,
        canary=stack.metadata.labels.get(labels.CANARY) == "true",
        ready=ready,
        changes=frozenset((item.name, item.version) for item in rollout.changes) if rollout else frozenset(),
    )


def needs_fleet(stack: ServingStack, components: Sequence[Component], charts: ObservedCharts) -> bool:
    """True if the next decision about the stack's rollout depends on the other clusters."""
    return bool(find_changes(components, charts)) and not has_begun(stack, components, charts)


def has_begun(stack: ServingStack, components: Sequence[Component], charts: ObservedCharts) -> bool:
    """True if the stack has its turn and a chart has changed in it, or is changing."""
    rollout = stack.status.rollout if stack.status else None
    if rollout is None or rollout.phase not in TURNS:
        return False
    releases = {part.name: part.release.key for part in components}
    newest = {item.name: charts.newest(releases[item.name]) for item in rollout.changes if item.name in releases}
    return is_helm_running(components, charts) or any(
        (revision := newest.get(item.name)) is not None and revision.number > item.revision for item in rollout.changes
    )


def begin(
    stack: ServingStack,
    components: Sequence[Component],
    charts: ObservedCharts,
    around: Surroundings,
    now: datetime,
) -> RolloutStep:
    """Return the rollout, and what it lets the charts do now."""
    target, changes = compute_target(components), find_changes(components, charts)
    rollout = stack.status.rollout if stack.status else None
    if rollout and rollout.phase in TURNS and rollout.target != target and is_helm_running(components, charts):
        message = "the change that is in progress ends first"
        return RolloutStep(rollout, Hold(message), message)
    if rollout is None or rollout.target != target or not _is_current(rollout, stack):
        rollout = _restart(stack, target, changes, now)
    if stack.metadata.annotations.get(labels.KEEP_CHARTS) == target and rollout.phase in {"Waiting", "Failed"}:
        rollout = rollout.model_copy(update={"phase": "Aborted", "since": now})
    if rollout.phase == "Done" and changes:  # another client has taken the release back
        rollout = _restart(stack, target, changes, now)
    match rollout.phase:
        case "Waiting":
            return _take_turn(rollout, changes, around, now)
        case "Upgrading" if changes and not has_begun(stack, components, charts):
            return _confirm_turn(rollout, around.fleet, now)
        case "Upgrading":
            return RolloutStep(rollout, Hold(since=rollout.since))
        case "Watching" | "Done":
            return RolloutStep(rollout, FREE)
        case "Failed" | "Aborted":
            message = f"the cluster keeps its charts: {rollout.message or 'modelplane stack abort was called'}"
            # An aborted rollout that has not failed has changed nothing.
            back = {item.name: item.revision for item in rollout.changes} if rollout.message else {}
            return RolloutStep(rollout, Hold(message, is_refused=True, back=back))
        case _:
            assert_never(rollout.phase)


def _take_turn(
    rollout: StackRollout, changes: tuple[ChartChange, ...], around: Surroundings, now: datetime
) -> RolloutStep:
    """Return the rollout of a waiting cluster: with its turn if it is next, and done if nothing is to change.

    No chart changes in this reconcile: the turn has to be stored first.
    """
    if not changes:
        return RolloutStep(rollout.model_copy(update={"phase": "Done", "since": now, "changes": ()}), FREE)
    rollout = rollout.model_copy(update={"changes": changes})
    fleet = around.fleet
    message = (
        find_obstacle(fleet.cluster, fleet.complete(rollout)) if fleet else "the other clusters have not been read yet"
    )
    if message:
        return RolloutStep(rollout, Hold(message), message)
    turn = {"phase": "Upgrading", "since": now, "failing_before": around.failing[:MAX_FAILING]}
    return RolloutStep(rollout.model_copy(update=turn), Hold("the cluster takes its turn"))


def _confirm_turn(rollout: StackRollout, fleet: RolloutFleet | None, now: datetime) -> RolloutStep:
    """Return the rollout of a cluster whose turn is stored, and that has changed nothing yet."""
    is_stored = fleet is not None and any(
        member.cluster == fleet.cluster and member.phase in TURNS for member in fleet.members
    )
    may_begin = keeps_turn(fleet.cluster, fleet.members) if fleet and fleet.is_fresh and is_stored else None
    if may_begin:
        return RolloutStep(rollout, Hold(since=rollout.since))
    message = "another cluster took its turn at the same time"
    if may_begin is None:
        return RolloutStep(rollout, Hold(message))
    waiting = rollout.model_copy(update={"phase": "Waiting", "since": now})
    return RolloutStep(waiting, Hold(message), message)


def _restart(stack: ServingStack, target: str, changes: tuple[ChartChange, ...], now: datetime) -> StackRollout:
    """Return the rollout to a target at its beginning."""
    attempt = (stack.metadata.annotations.get(labels.RETRY) or "")[:256] or None
    return StackRollout(target=target, phase="Waiting", since=now, changes=changes, attempt=attempt)


def _is_current(rollout: StackRollout, stack: ServingStack) -> bool:
    """True if the user has not asked for another attempt since the rollout ended."""
    annotations = stack.metadata.annotations
    if rollout.phase == "Failed":
        return rollout.attempt == ((annotations.get(labels.RETRY) or "")[:256] or None)
    return rollout.phase != "Aborted" or annotations.get(labels.KEEP_CHARTS) == rollout.target


def conclude(
    step: RolloutStep,
    statuses: Sequence[ChartStatus],
    ready: Condition,
    around: Surroundings,
    now: datetime,
) -> StackRollout:
    """Return the rollout after a look at its charts and at the health of the cluster."""
    rollout = step.rollout
    if rollout.phase not in TURNS or step.hold.message:
        return rollout
    by_name = {status.part.name: status for status in statuses}
    changed = [by_name[item.name] for item in rollout.changes if item.name in by_name]
    if rollout.phase == "Upgrading":
        for status in changed:
            # While Helm runs, its error is not at hand.
            if status.state in {"RollingBack", "RolledBack"} and status.message:
                return _fail(rollout, f"chart {status.part.name}: {status.message}", now)
        if all(status.state in {"Deployed", "Starting"} for status in changed):
            return rollout.model_copy(update={"phase": "Watching", "since": now})
        return _expire(rollout, now)
    problem = _find_problem(rollout, changed, ready, around)
    healthy_since = None if problem else rollout.healthy_since or now
    rollout = rollout.model_copy(update={"healthy_since": healthy_since, "message": problem[:2048] or None})
    if healthy_since is not None and now - healthy_since >= GATE:
        return rollout.model_copy(update={"phase": "Done", "since": now, "failing_before": ()})
    if now - rollout.since >= PATIENCE:
        minutes = f"{PATIENCE / timedelta(minutes=1):g}"
        return _fail(rollout, problem or f"the cluster was not healthy for long enough in {minutes} minutes", now)
    return rollout


def follow_unreachable(stack: ServingStack, rollout: StackRollout, now: datetime) -> StackRollout:
    """Return the rollout of a cluster that does not answer: it waits for a new target, and a turn ends."""
    if rollout.phase in TURNS:
        return _expire(rollout, now)
    target = compute_target(parts(stack, read_software(stack)))
    return rollout if rollout.target == target else _restart(stack, target, (), now)


def _expire(rollout: StackRollout, now: datetime) -> StackRollout:
    """Return the rollout, failed if its charts should have changed long ago."""
    if rollout.phase in TURNS and now - rollout.since >= LONGEST:
        return _fail(rollout, f"the change did not end within {LONGEST / timedelta(minutes=1):g} minutes", now)
    return rollout


def _fail(rollout: StackRollout, message: str, now: datetime) -> StackRollout:
    """Return a failed rollout."""
    return rollout.model_copy(
        update={"phase": "Failed", "since": now, "healthy_since": None, "message": message[:2048], "failing_before": ()}
    )


def _find_problem(rollout: StackRollout, changed: Sequence[ChartStatus], ready: Condition, around: Surroundings) -> str:
    """Return why a changed cluster is not healthy, as a message; empty if it is."""
    for status in changed:
        if status.state != "Deployed":
            return f"chart {status.part.name}: {status.message or status.state.lower()}"
    if ready.status != "True":
        return f"the stack is not Ready: {ready.message or ready.reason}"
    if around.hub_cluster is not None:
        for kind in (BackendReady.__name__, Ready.__name__):
            if not (state := condition(around.hub_cluster, kind)).is_true:
                return f"{kind} of the InferenceCluster is not True: {state.why or 'not reported'}"
    return next(
        (f"requests fail: {service}" for service in around.failing if service not in rollout.failing_before), ""
    )


def build_condition(rollout: StackRollout, waits_for: str, now: datetime) -> Condition:
    """Return the ServingStackRollout condition."""
    changes = ", ".join(
        f"{item.name} from {item.previous or 'an unknown version'} to {item.version}"
        if item.previous != item.version
        else f"values of {item.name}"
        for item in rollout.changes
    )
    match rollout.phase:
        case "Waiting":
            return ServingStackRollout.WAITING.condition(
                now, message=f"{waits_for}; then the cluster changes {changes or 'charts'}"
            )
        case "Upgrading":
            return ServingStackRollout.UPGRADING.condition(now, message=f"the cluster changes {changes}")
        case "Watching" if rollout.healthy_since:
            passes = (rollout.healthy_since + GATE).strftime("%H:%M:%S")
            message = f"the cluster is healthy with {changes}; at {passes} UTC the next one follows, if it stays so"
            return ServingStackRollout.WATCHING.condition(now, message=message)
        case "Watching":
            back = (rollout.since + PATIENCE).strftime("%H:%M:%S")
            problem = rollout.message or "the cluster is observed"
            message = f"{problem}; unless it is healthy in time, {changes} is taken back at {back} UTC"
            return ServingStackRollout.WATCHING.condition(now, message=message)
        case "Done":
            return ServingStackRollout.ROLLED_OUT.condition(now)
        case "Failed":
            message = f"the cluster refused a change ({changes}), and no further one begins: {rollout.message}"
            return ServingStackRollout.STOPPED.condition(now, message=message)
        case "Aborted":
            return ServingStackRollout.ABORTED.condition(
                now, message=f"the cluster keeps its charts, without a change ({changes})"
            )
        case _:
            assert_never(rollout.phase)
