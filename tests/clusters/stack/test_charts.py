"""How a release stands, and what is done about it: a table of what Helm's records and our own runs can say."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta

import pytest

from kubeloop.helm.driver import Helm
from kubeloop.helm.release import Component, Release, Revision, RevisionContent, Run
from kubeloop.objects import Key
from kubeloop.plan import Install, MarkFailed, RollBack, Step, Uninstall
from modelplane_operator.clusters.stack.chart_states import (
    REQUEUE_AFTER,
    ObservedCharts,
    Workload,
    compute_chart_status,
    remove,
)

pytestmark = pytest.mark.usefixtures("well_worded")

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
KEY = Key("cert-manager", "mp-cert-manager")
WANTED = Release(KEY, "cert-manager", "https://charts.example", "v1.1.0", {"a": 1, "none": None})
BEFORE = replace(WANTED, version="v1.0.0")
PART = Component("cert-manager", WANTED)
PATIENCE = 420.0
HELD = RevisionContent("cert-manager", "v1.1.0", {"a": 1}, "said by Helm")


def revision(
    number: int, status: str, release: Release = WANTED, *, ago: float = 3600, given_up: bool = False
) -> Revision:
    secret = Key(KEY.namespace, f"sh.helm.release.v1.{KEY.name}.v{number}")
    modified = NOW.timestamp() - ago
    return Revision(
        KEY, number, status, secret, f"uid-{number}", f"{number}00", modified, release.digest, "us", given_up
    )


def run(verb: str = "install", release: Release = WANTED, *, ended: float | None = 3600, **more: object) -> Run:
    ago = 60.0 if ended is None else ended + 60
    digest = release.digest if verb == "install" else ""
    over = None if ended is None else NOW - timedelta(seconds=ended)
    return Run(verb, NOW - timedelta(seconds=ago), digest, over, **more)  # pyright: ignore[reportArgumentType]


INSTALL, UPGRADE = Install(WANTED, "east"), Install(WANTED, "east", wait=True)
BACK = RollBack(KEY, 1, "east")


@dataclass(frozen=True)
class Case:
    name: str
    history: tuple[Revision, ...]
    state: str
    step: Step | None
    said: str = ""
    run: Run | None = None
    held: dict[int, RevisionContent] = field(default_factory=dict)
    requeue_after: float | None = REQUEUE_AFTER
    workloads: tuple[Workload, ...] = ()


DEPLOYED = revision(1, "deployed", BEFORE)
FAILED = revision(2, "failed", ago=60)
BACK_AGAIN = (revision(3, "deployed", BEFORE, ago=50), FAILED, revision(1, "superseded", BEFORE))
CASES = (
    Case("nothing is there yet", (), "Installing", INSTALL),
    Case("the first run is under way", (), "Installing", None, run=run(ended=None)),
    Case(
        "the first run has deployed, and is about to end",
        (revision(1, "deployed", ago=1),),
        "Installing",
        None,
        run=run(ended=None),
    ),
    Case(
        "the first run failed before Helm wrote",
        (),
        "Failed",
        None,
        "no chart",
        run(ended=5, error="no chart", failures=1),
        requeue_after=15,
    ),
    Case(
        "it is time for another attempt", (), "Failed", INSTALL, "no chart", run(ended=21, error="no chart", failures=1)
    ),
    Case(
        "the chart that failed is no longer what is asked",
        (),
        "Installing",
        INSTALL,
        run=run(release=BEFORE, ended=5, error="e", failures=9),
    ),
    Case(
        "the first revision failed",
        (revision(1, "failed", ago=5),),
        "Failed",
        None,
        "said by Helm",
        held={1: HELD},
        requeue_after=15,
    ),
    Case(
        "the first revision failed a while ago",
        (revision(1, "failed"),),
        "Failed",
        INSTALL,
        "said by Helm",
        held={1: HELD},
    ),
    Case(
        "another operator installs",
        (revision(1, "pending-install", ago=20),),
        "Installing",
        None,
        "Helm may still be at work on revision 1, which is pending-install",
        requeue_after=400,
    ),
    Case(
        "whoever installed has gone",
        (revision(1, "pending-install", ago=421),),
        "Installing",
        MarkFailed(KEY, revision(1, "x").secret, "uid-1", "100", "east"),
    ),
    Case(
        "our own Helm was killed",
        (revision(1, "pending-install", ago=20),),
        "Installing",
        MarkFailed(KEY, revision(1, "x").secret, "uid-1", "100", "east"),
        run=run(ended=10, error="helm ended with -9", failures=1),
    ),
    Case(
        "a run that ended before the revision began was not its",
        (revision(1, "pending-install", ago=20),),
        "Installing",
        None,
        "Helm may still be at work on revision 1, which is pending-install",
        run=run(ended=100),
        requeue_after=400,
    ),
    Case("what was given up goes on at once", (revision(1, "failed", ago=1, given_up=True),), "Installing", INSTALL),
    Case(
        "an upgrade that was given up goes on at once",
        (revision(2, "failed", ago=1, given_up=True), DEPLOYED),
        "Upgrading",
        UPGRADE,
    ),
    Case("it is as asked", (revision(1, "deployed"),), "Deployed", None, held={1: HELD}, requeue_after=None),
    Case("it is as asked, in content unknown", (revision(1, "deployed"),), "Deployed", None, requeue_after=None),
    Case(
        "none of its pods is ready",
        (revision(1, "deployed"),),
        "Starting",
        None,
        "0 of 2 pods of Deployment d ready",
        requeue_after=None,
        workloads=(Workload(KEY, "Deployment", "d", 2, 0),),
    ),
    Case(
        "some of its pods are ready",
        (revision(1, "deployed"),),
        "Deployed",
        None,
        requeue_after=None,
        workloads=(Workload(KEY, "Deployment", "d", 2, 1), Workload(KEY, "DaemonSet", "n", 0, 0)),
    ),
    Case(
        "another's pods are not ready",
        (revision(1, "deployed"),),
        "Deployed",
        None,
        requeue_after=None,
        workloads=(Workload(Key("a", "b"), "Deployment", "d", 2, 0),),
    ),
    Case(
        "somebody changed its values by hand",
        (revision(1, "deployed"),),
        "Upgrading",
        UPGRADE,
        held={1: replace(HELD, values={"a": 2})},
    ),
    Case(
        "somebody changed its version by hand",
        (revision(1, "deployed"),),
        "Upgrading",
        UPGRADE,
        held={1: replace(HELD, version="1.2.0")},
    ),
    Case(
        "Helm writes values otherwise than we do",
        (revision(1, "deployed", ago=3600),),
        "Deployed",
        None,
        run=run(),
        held={1: replace(HELD, values={"a": "1"})},
        requeue_after=None,
    ),
    Case("an upgrade is asked", (DEPLOYED,), "Upgrading", UPGRADE),
    Case(
        "an upgrade is under way",
        (revision(2, "pending-upgrade", ago=5), DEPLOYED),
        "Upgrading",
        None,
        run=run(ended=None),
    ),
    Case(
        "an upgrade failed before Helm wrote",
        (DEPLOYED,),
        "Failed",
        None,
        "no chart",
        run(ended=5, error="no chart", failures=1),
        requeue_after=595,
    ),
    Case("an upgrade failed", (FAILED, DEPLOYED), "RollingBack", BACK, "said by Helm", held={2: HELD}),
    Case("the way back is under way", (FAILED, DEPLOYED), "RollingBack", None, run=run("rollback", ended=None)),
    Case(
        "the way back failed too",
        (revision(3, "failed", BEFORE, ago=5), FAILED, DEPLOYED),
        "RollingBack",
        None,
        "Helm failed without an error message; going back to revision 1 failed: e",
        run("rollback", ended=5, error="e", failures=1),
        requeue_after=15,
    ),
    Case(
        "the way back is tried again",
        (revision(3, "failed", BEFORE, ago=25), FAILED, DEPLOYED),
        "RollingBack",
        BACK,
        "Helm failed without an error message; going back to revision 1 failed: e",
        run("rollback", ended=25, error="e", failures=1),
    ),
    Case(
        "what failed is not tried again at once",
        BACK_AGAIN,
        "RolledBack",
        None,
        "said by Helm",
        held={2: HELD},
        requeue_after=540,
    ),
    Case(
        "what failed is tried again after a while",
        (BACK_AGAIN[0], replace(FAILED, modified=NOW.timestamp() - 601), BACK_AGAIN[2]),
        "RolledBack",
        UPGRADE,
        "said by Helm",
        held={2: HELD},
    ),
    Case(
        "it is being uninstalled by somebody",
        (revision(1, "uninstalling", ago=5),),
        "Installing",
        None,
        "Helm may still be at work on revision 1, which is uninstalling",
        requeue_after=415,
    ),
    Case("it was left half uninstalled", (revision(1, "uninstalling"),), "Uninstalling", Uninstall(KEY, "east")),
)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_how_a_release_stands(case: Case) -> None:
    seen = ObservedCharts(
        "east",
        NOW,
        PATIENCE,
        history={KEY: case.history} if case.history else {},
        contents={(KEY, number): held for number, held in case.held.items()},
        runs={KEY: case.run} if case.run else {},
        workloads=case.workloads,
    )
    (status,) = compute_chart_status([PART], seen)

    assert (status.state, status.step, status.message) == (case.state, case.step, case.said)
    assert status.requeue_after == (pytest.approx(case.requeue_after) if case.requeue_after else None)
    assert status.runs == any(one.status == "deployed" for one in case.history)


def test_what_failed_on_a_cluster_that_was_away_is_tried_again_as_soon_as_it_is_back() -> None:
    helm = Helm(lambda: NOW)
    key, failed = WANTED.key, run(ended=1, error="the cluster is unreachable", failures=6)
    helm._runs |= {("a", key): failed, ("b", key): failed}
    assert [one.step for one in compute_chart_status([Component("gateway", WANTED)], seen(helm))] == [None]
    helm.forgive("a")

    assert [type(one.step) for one in compute_chart_status([Component("gateway", WANTED)], seen(helm))] == [Install]
    assert helm.runs("b")[key].failures == 6


def seen(helm: Helm) -> ObservedCharts:
    return ObservedCharts("a", NOW, 300.0, runs=helm.runs("a"))


def part(name: str, *after: str, version: str = "v1.1.0") -> Component:
    return Component(name, replace(WANTED, key=Key(name, name), version=version), after)


def deployed(*parts: Component, was: str = "v1.1.0") -> dict[Key, tuple[Revision, ...]]:
    return {
        one.release.key: (replace(revision(1, "deployed", replace(one.release, version=was)), release=one.release.key),)
        for one in parts
    }


def test_a_part_waits_for_those_it_needs() -> None:
    first, second = part("first"), part("second", "first")
    alone = compute_chart_status([first, second], ObservedCharts("east", NOW, PATIENCE))
    then = compute_chart_status([first, second], ObservedCharts("east", NOW, PATIENCE, history=deployed(first)))

    assert [(one.state, one.message, one.step is not None) for one in alone] == [
        ("Installing", "", True),
        ("Waiting", "for first", False),
    ]
    assert [(one.state, one.step is not None) for one in then] == [("Deployed", False), ("Installing", True)]


def test_one_part_is_upgraded_at_a_time_and_installs_do_not_wait_for_it() -> None:
    first, second, third = part("first"), part("second"), part("third")
    found = compute_chart_status(
        [first, second, third], ObservedCharts("east", NOW, PATIENCE, history=deployed(first, second, was="v1.0.0"))
    )

    assert [(one.state, one.message, one.step is not None) for one in found] == [
        ("Upgrading", "", True),
        ("Waiting", "to be upgraded after first", False),
        ("Installing", "", True),
    ]


def test_no_part_is_upgraded_while_another_is_on_its_way_whichever_comes_first() -> None:
    first, second = part("first"), part("second")
    under_way = {second.release.key: Run("install", NOW, second.release.digest)}
    seen = ObservedCharts("east", NOW, PATIENCE, history=deployed(first, second, was="v1.0.0"), runs=under_way)

    assert [(one.state, one.step) for one in compute_chart_status([first, second], seen)] == [
        ("Waiting", None),
        ("Upgrading", None),
    ]


def test_a_part_is_not_upgraded_over_one_that_it_needs_and_that_failed() -> None:
    first, second = part("first"), part("second", "first")
    error = Run("install", NOW - timedelta(seconds=9), first.release.digest, NOW, "no chart", 1)
    seen = ObservedCharts(
        "east", NOW, PATIENCE, history=deployed(first, second, was="v1.0.0"), runs={first.release.key: error}
    )
    found = compute_chart_status([first, second], seen)

    assert [(one.state, one.message) for one in found] == [
        ("Failed", "no chart"),
        ("Waiting", "to be upgraded after first"),
    ]


@pytest.mark.parametrize(
    ("known", "ran", "said", "goes"),
    [
        ("deployed", None, "is being uninstalled", True),
        ("failed", None, "is being uninstalled", True),
        ("deployed", run("uninstall", ended=None), "Helm is at work on", False),
        ("pending-upgrade", None, "Helm may still be at work on", False),
        ("deployed", run("uninstall", ended=5, error="e", failures=1), "Helm could not uninstall", False),
        ("deployed", run("uninstall", ended=25, error="e", failures=1), "Helm could not uninstall", True),
    ],
)
def test_what_is_no_longer_wanted_goes_when_nobody_works_on_it(
    known: str, ran: Run | None, said: str, *, goes: bool
) -> None:
    seen = ObservedCharts(
        "east", NOW, PATIENCE, history={KEY: (revision(1, known, ago=5),)}, runs={KEY: ran} if ran else {}
    )
    words, step = remove(KEY, seen)

    assert said in words
    assert step == (Uninstall(KEY, "east") if goes else None)
