"""The state of each Helm release against its spec, and the one step that advances it.

    no record                      install once its dependencies are deployed; after a failure, retry with backoff
    pending                        another Helm process may be running; after its timeout, mark the revision failed
    failed by being interrupted    continue with an install
    failed                         roll back to the deployed revision if there is one; else retry with backoff
    deployed, as in the spec       done
    deployed, differs              upgrade, one release at a time; after a failure, with a longer backoff

No step here uninstalls a release that the spec has.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime, timedelta
from typing import Any, cast

from kubeloop.backoff import Backoff
from kubeloop.helm.release import PENDING, UNDECIDED, Component, Release, Revision, RevisionContent, Run
from kubeloop.objects import Key
from kubeloop.plan import Install, MarkFailed, RollBack, Step, Uninstall
from kubeloop.words import count_of
from modelplane_operator.api.serving_stack import ComponentState

REQUEUE_AFTER = 5.0  # while Helm runs: its work before the first record triggers no event
INSTALLS = Backoff(first=20.0, longest=1800.0)
"""Delays between failed installs."""
UPGRADES = Backoff(first=600.0, longest=4 * 3600.0)  # each attempt restarts pods twice: upgrade and rollback
"""Delays between failed upgrades."""

_EXACT = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
# Helm uses the operator's clock, but writes its record some moments before its process ends.
_SLACK = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Workload:
    """A workload with pods that a release has created."""

    release: Key
    """Release that has created the workload."""
    kind: str
    """Kind of the workload, such as Deployment."""
    name: str
    desired: int
    """The number of desired pods."""
    ready: int
    """The number of ready pods."""

    @property
    def down(self) -> bool:
        """True if none of its pods is ready. A lost node or a moving pod must not take a cluster out of service."""
        return self.ready == 0 < self.desired

    def __str__(self) -> str:
        """Return the number of ready pods as a phrase, for messages."""
        return f"{self.ready} of {count_of(self.desired, 'pod')} of {self.kind} {self.name} ready"


@dataclass(frozen=True, slots=True)
class ObservedCharts:
    """The observed Helm releases of a cluster."""

    cluster: str
    """The connection of the cluster, for the steps."""
    now: datetime
    patience: float
    """Seconds after its last record for which a Helm process may still be running."""
    history: Mapping[Key, tuple[Revision, ...]] = field(default_factory=dict[Key, tuple[Revision, ...]])
    """Revisions by release, newest first."""
    contents: Mapping[tuple[Key, int], RevisionContent] = field(default_factory=dict[tuple[Key, int], RevisionContent])
    """The stored content of the revisions that matter, by release and number."""
    runs: Mapping[Key, Run] = field(default_factory=dict[Key, Run])
    """The latest Helm run of this process, by release."""
    workloads: tuple[Workload, ...] = ()
    """The workloads that the releases have created."""

    @property
    def releases(self) -> frozenset[Key]:
        """The existing releases, and those that a running Helm process may create."""
        return frozenset(self.history) | {key for key, run in self.runs.items() if run.ended is None}

    def newest(self, release: Key) -> Revision | None:
        """Return the newest revision; None if there is none."""
        return next(iter(self.history.get(release, ())), None)

    def find_deployed(self, release: Key) -> Revision | None:
        """Return the revision that is deployed; None if there is none."""
        return next((revision for revision in self.history.get(release, ()) if revision.status == "deployed"), None)


@dataclass(frozen=True, slots=True)
class ChartStatus:
    """The state of one component."""

    part: Component
    """The component."""
    state: ComponentState
    message: str = ""
    """Details for the status; empty if there are none."""
    step: Step | None = None
    """The next step; None while the component waits or is done."""
    requeue_after: float | None = None
    """Seconds until the next reconcile, if no event comes earlier."""
    runs: bool = False
    """True if a revision of it is deployed."""


@dataclass(frozen=True, slots=True)
class Hold:
    """What a rollout over several clusters lets this one do with the charts that are installed and work."""

    message: str = ""
    """Why none of them may change; empty if they may."""
    is_refused: bool = False
    """True if they must not change even to repair them, because the change failed here."""
    back: Mapping[str, int] = field(default_factory=dict[str, int])
    """The components that go back to an earlier revision, with its number."""
    since: datetime | None = None
    """The time before which failures do not count: the attempt began then."""


FREE = Hold()
"""The hold of charts that change whenever they are asked to."""


def compute_chart_status(
    parts: Sequence[Component], observed: ObservedCharts, hold: Hold = FREE
) -> tuple[ChartStatus, ...]:
    """Return the state of each component. First installs and repairs do not respect the hold.

    At most one of the steps is an upgrade, and none is while another component is being upgraded or rolled back.
    """
    # A component waits for its dependencies only until their first deployment.
    deployed = {part.name for part in parts if observed.find_deployed(part.release.key)}
    statuses = [
        _build_status(part, observed, [name for name in part.after if name not in deployed], hold) for part in parts
    ]
    current = {status.part.name for status in statuses if status.state in {"Deployed", "Starting"}}
    in_progress = (
        status for status in statuses if status.state in {"Upgrading", "RollingBack"} and not _starts_upgrade(status)
    )
    busy = next((status.part.name for status in in_progress), "")
    results: list[ChartStatus] = []
    for status in statuses:
        if _starts_upgrade(status):
            blockers = busy or ", ".join(name for name in status.part.after if name not in current)
            if blockers:
                status = replace(status, step=None, state="Waiting", message=f"to be upgraded after {blockers}")  # noqa: PLW2901
            busy = busy or status.part.name
        results.append(status)
    return tuple(results)


def _starts_upgrade(status: ChartStatus) -> bool:
    """True if the step starts an upgrade."""
    return status.runs and isinstance(status.step, Install)


def describe_missing(statuses: Iterable[ChartStatus]) -> Iterator[str]:
    """Yield a message for each chart that is not installed or whose pods are down.

    A waiting or failed upgrade yields none.
    """
    for status in statuses:
        if not status.runs:
            yield f"chart {status.part.name} is not installed" + (f": {status.message}" if status.message else "")
        elif status.state == "Starting":
            yield f"chart {status.part.name}: {status.message}"


def remove(release: Key, observed: ObservedCharts) -> tuple[str, Step | None]:
    """Return the message about uninstalling a release, and the step that does it, if it may start."""
    run, newest = observed.runs.get(release), observed.newest(release)
    if run is not None and run.ended is None:
        return f"Helm is at work on {release}", None
    if newest is not None and _is_foreign_helm_running(newest, run, observed):
        return f"Helm may still be at work on {release}", None
    if run is not None and run.verb == "uninstall" and run.error:
        wait = _compute_retry_delay(run.ended, INSTALLS, run.failures, observed.now)
        message = f"Helm could not uninstall {release}: {run.error}"
        return message, Uninstall(release, observed.cluster) if wait <= 0 else None
    return f"release {release} is being uninstalled", Uninstall(release, observed.cluster)


def _build_status(part: Component, observed: ObservedCharts, missing: Sequence[str], hold: Hold) -> ChartStatus:
    """Return the state and next step of a component; `missing`: dependencies that are not deployed."""
    key, cluster = part.release.key, observed.cluster
    run, newest, deployed = observed.runs.get(key), observed.newest(key), observed.find_deployed(key)
    runs = deployed is not None
    install = Install(part.release, cluster, wait=runs, definitions=runs and part.definitions)
    if run is not None and run.ended is None:
        return ChartStatus(
            part, _get_running_state(run, observed.history.get(key, ())), requeue_after=REQUEUE_AFTER, runs=runs
        )
    if newest is not None and _is_foreign_helm_running(newest, run, observed):
        delay = max(newest.modified + observed.patience - observed.now.timestamp(), REQUEUE_AFTER)
        message = f"Helm may still be at work on revision {newest.number}, which is {newest.status}"
        return ChartStatus(part, "Upgrading" if runs else "Installing", message, requeue_after=delay, runs=runs)
    if newest is not None and newest.status in PENDING:
        # The Helm process is dead, and Helm refuses to continue while a revision is pending.
        step = MarkFailed(key, newest.secret, newest.uid, newest.version, cluster)
        return ChartStatus(
            part, "Upgrading" if runs else "Installing", step=step, requeue_after=REQUEUE_AFTER, runs=runs
        )
    if newest is not None and newest.status == "uninstalling":
        return ChartStatus(part, "Uninstalling", step=Uninstall(key, cluster), requeue_after=REQUEUE_AFTER)
    # From here on no Helm process is running for the release.
    failure = _find_latest_failure(part.release, run, observed)
    if failure is not None and hold.since is not None and failure.when < hold.since:
        failure = None
    if newest is not None and deployed is not None:
        if newest.status == "failed" and (hold.is_refused or not newest.interrupted):
            return _roll_back(part, deployed.number, failure, run, observed)
        back = hold.back.get(part.name)
        down_workloads = _describe_down(key, observed)
        if newest.status == "deployed" and _matches_spec(newest, part.release, run, observed):
            earlier = {revision.number for revision in observed.history[key] if revision.status == "superseded"}
            if back is not None and back in earlier:
                return _roll_back(part, back, failure, run, observed)
            return ChartStatus(part, "Starting" if down_workloads else "Deployed", "; ".join(down_workloads), runs=True)
        if hold.is_refused or (hold.message and is_change(part, observed)):
            return ChartStatus(part, "RolledBack" if back is not None else "Waiting", hold.message, runs=True)
    if failure is not None:
        delay = _compute_retry_delay(failure.when, UPGRADES if runs else INSTALLS, failure.count, observed.now)
        state: ComponentState = "RolledBack" if runs and failure.recorded else "Failed"
        return ChartStatus(
            part,
            state,
            failure.message,
            step=install if delay <= 0 else None,
            requeue_after=max(delay, REQUEUE_AFTER),
            runs=runs,
        )
    if missing and not runs:
        return ChartStatus(part, "Waiting", f"for {', '.join(missing)}")
    return ChartStatus(
        part, "Upgrading" if runs else "Installing", step=install, requeue_after=REQUEUE_AFTER, runs=runs
    )


def _describe_down(release: Key, observed: ObservedCharts) -> Sequence[str]:
    """Return the workloads of a release that have no ready pod, as messages."""
    return [str(workload) for workload in observed.workloads if workload.release == release and workload.down]


def is_change(part: Component, observed: ObservedCharts) -> bool:
    """True if an installed chart that works is to get another version or other values.

    A release that failed, was changed by another client or has no ready pod is repaired instead.
    """
    newest = observed.newest(part.release.key)
    return (
        newest is not None
        and newest.status == "deployed"
        and newest.digest != part.release.digest
        and not _describe_down(part.release.key, observed)
    )


def is_helm_running(parts: Iterable[Component], observed: ObservedCharts) -> bool:
    """True if Helm works on one of the components, or was interrupted on it."""
    for part in parts:
        run, newest = observed.runs.get(part.release.key), observed.newest(part.release.key)
        if (run is not None and run.ended is None) or (newest is not None and newest.status in UNDECIDED):
            return True
    return False


def _get_running_state(run: Run, history: Iterable[Revision]) -> ComponentState:
    """Return the state while a Helm process runs, by its verb and by an earlier deployment."""
    match run.verb:
        case "install":
            started_at = int(run.began.timestamp())  # Helm records whole seconds
            was_deployed = any(
                revision.status in {"deployed", "superseded"} and revision.modified < started_at for revision in history
            )
            return "Upgrading" if was_deployed else "Installing"
        case "rollback":
            return "RollingBack"
        case "uninstall":
            return "Uninstalling"


def _is_foreign_helm_running(newest: Revision, run: Run | None, observed: ObservedCharts) -> bool:
    """True if a foreign Helm process may be running: another operator's, or this one's from before a restart."""
    if newest.status not in UNDECIDED:
        return False
    started_at = datetime.fromtimestamp(newest.modified, observed.now.tzinfo)
    if run is not None and run.ended is not None and run.began - _SLACK <= started_at <= run.ended + _SLACK:
        return False  # it was this process's own run, which has finished
    return observed.now.timestamp() < newest.modified + observed.patience


@dataclass(frozen=True, slots=True)
class _Failure:
    """The latest failed attempt to bring a release in line with the spec."""

    count: int
    """The number of failed attempts."""
    when: datetime
    """The time of the last one."""
    message: str
    """Helm's message."""
    recorded: bool
    """True if the attempt has left a revision of its own."""


def _find_latest_failure(release: Release, run: Run | None, observed: ObservedCharts) -> _Failure | None:
    """Return the latest failure of the release as specified; None if there was none."""
    records = [
        revision
        for revision in observed.history.get(release.key, ())
        if revision.status == "failed" and revision.digest == release.digest and not revision.interrupted
    ]
    failed_run = (
        run if run is not None and run.error and (run.verb, run.digest) == ("install", release.digest) else None
    )
    if failed_run is None and not records:
        return None
    content = observed.contents.get((release.key, records[0].number)) if records else None
    recorded_at = datetime.fromtimestamp(records[0].modified, observed.now.tzinfo) if records else None
    finished_at = failed_run.ended if failed_run else None
    return _Failure(
        count=max(len(records), failed_run.failures if failed_run else 0),
        when=max(time for time in (recorded_at, finished_at) if time),
        message=(
            failed_run.error
            if failed_run
            else content.description
            if content
            else "Helm failed without an error message"
        ),
        recorded=bool(records),
    )


def _roll_back(
    part: Component, revision: int, failure: _Failure | None, run: Run | None, observed: ObservedCharts
) -> ChartStatus:
    """Return the state of a release that is being rolled back, with the step when it is due."""
    message = failure.message if failure else "an earlier change failed"
    step, delay = RollBack(part.release.key, revision, observed.cluster), REQUEUE_AFTER
    if run is not None and run.verb == "rollback" and run.error:
        message = f"{message}; going back to revision {revision} failed: {run.error}"
        delay = max(_compute_retry_delay(run.ended, INSTALLS, run.failures, observed.now), REQUEUE_AFTER)
        step = step if delay <= REQUEUE_AFTER else None
    return ChartStatus(part, "RollingBack", message, step=step, requeue_after=delay, runs=True)


def _matches_spec(newest: Revision, release: Release, run: Run | None, observed: ObservedCharts) -> bool:
    """True if the release matches the spec.

    A user who changes it with Helm keeps the operator's labels on it, so chart, version and values are compared too.
    """
    if newest.digest != release.digest:
        return False
    content = observed.contents.get((release.key, newest.number))
    finished_at = run.ended if run is not None and run.digest == release.digest and not run.error else None
    if content is None or (finished_at is not None and newest.modified <= (finished_at + _SLACK).timestamp()):
        return True
    same_version = not _EXACT.fullmatch(release.version) or _strip_v(content.version) == _strip_v(release.version)
    return (
        same_version and content.chart == release.chart and _drop_nulls(content.values) == _drop_nulls(release.values)
    )


def _strip_v(version: str) -> str:
    """Return a version without the leading `v`, which charts write or omit."""
    return version.removeprefix("v")


def _drop_nulls(value: Any) -> Any:
    """Return values without nulls, which Helm does not store."""
    if isinstance(value, Mapping):
        return {name: _drop_nulls(item) for name, item in cast(Mapping[str, Any], value).items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_drop_nulls(item) for item in cast(Iterable[Any], value)]
    return value


def _compute_retry_delay(last_attempt: datetime | None, backoff: Backoff, failures: int, now: datetime) -> float:
    """Return the seconds until the next attempt after so many failures; zero or less if it is due."""
    if last_attempt is None:
        return 0.0
    return backoff.delay(failures, 1.0) - (now - last_attempt).total_seconds()
