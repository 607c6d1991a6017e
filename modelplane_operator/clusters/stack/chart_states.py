"""Charts: how each release stands against what is asked of it, and the one step that takes it further.

    no record            install, once what it needs is there; again after a while when that failed
    pending              somebody's Helm is at work; nobody's any more after its longest time: give that revision up
    failed, given up     go on where it was
    failed               bring back the revision that works, where there is one; else try again after a while
    deployed, as asked   done
    deployed, otherwise  upgrade, one at a time; one that failed before only after a longer while

Nothing here uninstalls a release that is wanted.
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
from kubeloop.words import counted
from modelplane_operator.api.serving_stack import ComponentState

REQUEUE_AFTER = 5.0  # while Helm runs: what it does before it writes anything, no event tells of
INSTALLS = Backoff(first=20.0, longest=1800.0)
UPGRADES = Backoff(first=600.0, longest=4 * 3600.0)  # each attempt restarts pods twice: forth, and back

_EXACT = re.compile(r"v?\d+\.\d+\.\d+([-+].*)?")
# Helm's own clock is ours, but its record is written some moments before its run ends.
_SLACK = timedelta(seconds=2)


@dataclass(frozen=True, slots=True)
class Workload:
    """Pods that a release brings."""

    release: Key
    kind: str
    name: str
    wanted: int
    ready: int

    @property
    def down(self) -> bool:
        """Whether nothing of it works. A node that is lost, or a pod that moves, takes no cluster out of service."""
        return self.ready == 0 < self.wanted

    def __str__(self) -> str:
        return f"{self.ready} of {counted(self.wanted, 'pod')} of {self.kind} {self.name} ready"


@dataclass(frozen=True, slots=True)
class ObservedCharts:
    """What was seen of a cluster's releases."""

    cluster: str
    now: datetime
    patience: float
    """The seconds after which no Helm can be at work any more on what it last wrote then."""
    history: Mapping[Key, tuple[Revision, ...]] = field(default_factory=dict[Key, tuple[Revision, ...]])
    """Revisions by release, the newest first."""
    contents: Mapping[tuple[Key, int], RevisionContent] = field(default_factory=dict[tuple[Key, int], RevisionContent])
    runs: Mapping[Key, Run] = field(default_factory=dict[Key, Run])
    workloads: tuple[Workload, ...] = ()

    @property
    def releases(self) -> frozenset[Key]:
        """Those that are there, and those that Helm may be about to make."""
        return frozenset(self.history) | {key for key, run in self.runs.items() if run.ended is None}

    def newest(self, release: Key) -> Revision | None:
        return next(iter(self.history.get(release, ())), None)

    def deployed(self, release: Key) -> Revision | None:
        """The revision that runs."""
        return next((one for one in self.history.get(release, ()) if one.status == "deployed"), None)


@dataclass(frozen=True, slots=True)
class ChartStatus:
    """How one part stands."""

    part: Component
    state: ComponentState
    message: str = ""
    step: Step | None = None
    requeue_after: float | None = None
    """The seconds after which to look again, if no event comes."""
    runs: bool = False
    """Whether a revision of it is deployed."""


def judge(parts: Sequence[Component], seen: ObservedCharts) -> tuple[ChartStatus, ...]:
    """How the parts stand. Of the steps at most one upgrades something, and none while another part is on its way."""
    deployed = {part.name for part in parts if seen.deployed(part.release.key)}
    statuses = [_judge(part, seen, [name for name in part.after if name not in deployed]) for part in parts]
    current = {one.part.name for one in statuses if one.state in {"Deployed", "Starting"}}
    on_its_way = (one for one in statuses if one.state in {"Upgrading", "RollingBack"} and not _upgrades(one))
    busy = next((one.part.name for one in on_its_way), "")
    turns: list[ChartStatus] = []
    for one in statuses:
        if _upgrades(one):
            before = busy or ", ".join(name for name in one.part.after if name not in current)
            if before:
                one = replace(one, step=None, state="Waiting", message=f"to be upgraded after {before}")  # noqa: PLW2901
            busy = busy or one.part.name
        turns.append(one)
    return tuple(turns)


def _upgrades(one: ChartStatus) -> bool:
    """Whether its step is the beginning of an upgrade."""
    return one.runs and isinstance(one.step, Install)


def lacking(statuses: Iterable[ChartStatus]) -> Iterator[str]:
    """Which charts are not there or do not work. An upgrade that waits or failed is no reason."""
    for one in statuses:
        if not one.runs:
            yield f"chart {one.part.name} is not installed" + (f": {one.message}" if one.message else "")
        elif one.state == "Starting":
            yield f"chart {one.part.name}: {one.message}"


def remove(release: Key, seen: ObservedCharts) -> tuple[str, Step | None]:
    """What a release that is no longer wanted waits for, and the step that takes it away."""
    run, newest = seen.runs.get(release), seen.newest(release)
    if run is not None and run.ended is None:
        return f"Helm is at work on {release}", None
    if newest is not None and _another_works(newest, run, seen):
        return f"Helm may still be at work on {release}", None
    if run is not None and run.verb == "uninstall" and run.error:
        wait = _until(run.ended, INSTALLS, run.failures, seen.now)
        said = f"Helm could not uninstall {release}: {run.error}"
        return said, Uninstall(release, seen.cluster) if wait <= 0 else None
    return f"release {release} is being uninstalled", Uninstall(release, seen.cluster)


def _judge(part: Component, seen: ObservedCharts, missing: Sequence[str]) -> ChartStatus:
    key, cluster = part.release.key, seen.cluster
    run, newest, deployed = seen.runs.get(key), seen.newest(key), seen.deployed(key)
    runs = deployed is not None
    install = Install(part.release, cluster, wait=runs)
    if run is not None and run.ended is None:
        return ChartStatus(part, _under_way(run, seen.history.get(key, ())), requeue_after=REQUEUE_AFTER, runs=runs)
    if newest is not None and _another_works(newest, run, seen):
        wait = max(newest.modified + seen.patience - seen.now.timestamp(), REQUEUE_AFTER)
        message = f"Helm may still be at work on revision {newest.number}, which is {newest.status}"
        return ChartStatus(part, "Upgrading" if runs else "Installing", message, requeue_after=wait, runs=runs)
    if newest is not None and newest.status in PENDING:
        step = MarkFailed(key, newest.secret, newest.uid, newest.version, cluster)
        return ChartStatus(
            part, "Upgrading" if runs else "Installing", step=step, requeue_after=REQUEUE_AFTER, runs=runs
        )
    if newest is not None and newest.status == "uninstalling":
        return ChartStatus(part, "Uninstalling", step=Uninstall(key, cluster), requeue_after=REQUEUE_AFTER)
    failure = _failure(part.release, run, seen)
    if newest is not None and deployed is not None:
        if newest.status == "failed" and not newest.interrupted:
            return _roll_back(part, deployed, failure, run, seen)
        if newest.status == "deployed" and _as_asked(newest, part.release, run, seen):
            down = [str(one) for one in seen.workloads if one.release == key and one.down]
            return ChartStatus(part, "Starting" if down else "Deployed", "; ".join(down), runs=True)
    if failure is not None:
        wait = _until(failure.when, UPGRADES if runs else INSTALLS, failure.count, seen.now)
        state: ComponentState = "RolledBack" if runs and failure.recorded else "Failed"
        return ChartStatus(
            part,
            state,
            failure.words,
            step=install if wait <= 0 else None,
            requeue_after=max(wait, REQUEUE_AFTER),
            runs=runs,
        )
    if missing and not runs:
        return ChartStatus(part, "Waiting", f"for {', '.join(missing)}")
    return ChartStatus(
        part, "Upgrading" if runs else "Installing", step=install, requeue_after=REQUEUE_AFTER, runs=runs
    )


def _under_way(run: Run, history: Iterable[Revision]) -> ComponentState:
    match run.verb:
        case "install":
            began = int(run.began.timestamp())  # Helm notes whole seconds
            ran = any(one.status in {"deployed", "superseded"} and one.modified < began for one in history)
            return "Upgrading" if ran else "Installing"
        case "rollback":
            return "RollingBack"
        case "uninstall":
            return "Uninstalling"


def _another_works(newest: Revision, run: Run | None, seen: ObservedCharts) -> bool:
    """Whether somebody else's Helm may be at work: another operator's, or ours from before a restart."""
    if newest.status not in UNDECIDED:
        return False
    began = datetime.fromtimestamp(newest.modified, seen.now.tzinfo)
    if run is not None and run.ended is not None and run.began - _SLACK <= began <= run.ended + _SLACK:
        return False  # it was ours, and has ended
    return seen.now.timestamp() < newest.modified + seen.patience


@dataclass(frozen=True, slots=True)
class _Failure:
    """The latest failure to bring a release to what is asked."""

    count: int
    when: datetime
    words: str
    recorded: bool
    """Whether it came as far as a revision of its own."""


def _failure(release: Release, run: Run | None, seen: ObservedCharts) -> _Failure | None:
    records = [
        one
        for one in seen.history.get(release.key, ())
        if one.status == "failed" and one.digest == release.digest and not one.interrupted
    ]
    said = run if run is not None and run.error and (run.verb, run.digest) == ("install", release.digest) else None
    if said is None and not records:
        return None
    held = seen.contents.get((release.key, records[0].number)) if records else None
    recorded = datetime.fromtimestamp(records[0].modified, seen.now.tzinfo) if records else None
    ended = said.ended if said else None
    return _Failure(
        count=max(len(records), said.failures if said else 0),
        when=max(moment for moment in (recorded, ended) if moment),
        words=said.error if said else held.description if held else "Helm failed without a word",
        recorded=bool(records),
    )


def _roll_back(
    part: Component, deployed: Revision, failure: _Failure | None, run: Run | None, seen: ObservedCharts
) -> ChartStatus:
    words = failure.words if failure else "an earlier change failed"
    step, wait = RollBack(part.release.key, deployed.number, seen.cluster), REQUEUE_AFTER
    if run is not None and run.verb == "rollback" and run.error:
        words = f"{words}; going back to revision {deployed.number} failed: {run.error}"
        wait = max(_until(run.ended, INSTALLS, run.failures, seen.now), REQUEUE_AFTER)
        step = step if wait <= REQUEUE_AFTER else None
    return ChartStatus(part, "RollingBack", words, step=step, requeue_after=wait, runs=True)


def _as_asked(newest: Revision, release: Release, run: Run | None, seen: ObservedCharts) -> bool:
    """Whether the release is what is asked. Somebody who changes it by hand leaves our labels on it."""
    if newest.digest != release.digest:
        return False
    held = seen.contents.get((release.key, newest.number))
    ended = run.ended if run is not None and run.digest == release.digest and not run.error else None
    if held is None or (ended is not None and newest.modified <= (ended + _SLACK).timestamp()):
        return True
    same_version = not _EXACT.fullmatch(release.version) or _plain(held.version) == _plain(release.version)
    return same_version and held.chart == release.chart and _told(held.values) == _told(release.values)


def _plain(version: str) -> str:
    return version.removeprefix("v")


def _told(value: Any) -> Any:
    """Values without nulls: Helm leaves them out of what it keeps."""
    if isinstance(value, Mapping):
        return {name: _told(item) for name, item in cast(Mapping[str, Any], value).items() if item is not None}
    if isinstance(value, (list, tuple)):
        return [_told(item) for item in cast(Iterable[Any], value)]
    return value


def _until(since: datetime | None, backoff: Backoff, failures: int, now: datetime) -> float:
    """The seconds until something that failed so often is tried again; not above 0 when it is time."""
    if since is None:
        return 0.0
    return backoff.delay(failures, 1.0) - (now - since).total_seconds()
