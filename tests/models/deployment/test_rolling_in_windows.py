"""Rolls wait for maintenance windows, and spare the last replica that answers unless somebody has chosen the time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.objects import Manifest, annotations_of
from kubeloop.plan import Create, Plan, Replace
from kubeloop.reading import Cluster
from modelplane_operator.api import InferenceCluster, ModelDeployment, labels
from modelplane_operator.models.deployment.controller import DEPLOYMENTS, INDEXES, REPLICAS, DisruptionReader
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.models.deployment.plan import Observed, plan
from modelplane_operator.scheduling.disruptions import FLEET, DisruptionBudget, DisruptionScope
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.informers import holding
from tests.support.manifests import change
from tests.support.observed import placed, seen
from tests.support.plans import told

pytestmark = pytest.mark.usefixtures("well_worded")

# EPOCH is a Thursday at midnight in UTC, one o'clock in Berlin.
TONIGHT: Manifest = {"schedule": "0 2 * * *", "duration": "2h", "timeZone": "Europe/Berlin"}
OPENING = EPOCH + timedelta(hours=1)
MORNING: Manifest = {"schedule": "0 5 * * *", "duration": "1h"}


def as_reported(replica: Manifest, *, security: bool = False) -> Manifest:
    outdated = {"version": "0.3.0", "rendering": "4-abc", "security": security, "changes": ["main is removed"]}
    return change(change(replica, "spec.podRevision", 0), "status.outdated", outdated)


def rolling(
    roll: str = "4-abc",
    *,
    replicas: int = 1,
    nodes: int = 2,
    windows: Sequence[Manifest] = (),
    of_cluster: Sequence[Manifest] = (),
    security: bool = False,
    **more: Any,
) -> Observed:
    """Return a deployment whose pods are all outdated, and which is annotated to roll."""
    made = change(deployment(replicas=replicas).to_manifest(), "metadata.annotations", {labels.ROLL: roll})
    subject = ModelDeployment.parse(change(made, "spec.maintenance", list(windows)))
    on = InferenceCluster.parse(change(cluster("a", nodes=nodes).to_manifest(), "spec.maintenance", list(of_cluster)))
    before = [as_reported(one, security=security) for one in placed(subject, on)]
    return replace(seen(subject, on, replicas=before), **more)


def begins(decided: Plan) -> bool:
    """True if the plan begins to change a replica: it creates another first, or writes the annotation."""
    written = [step.manifest for step in decided.steps if isinstance(step, Replace)]
    return any(isinstance(step, Create) for step in decided.steps) or any(map(annotations_of, written))


def test_a_roll_waits_for_its_window_and_is_looked_at_when_it_opens() -> None:
    before = rolling(windows=[TONIGHT])

    decided = plan(before)

    assert not begins(decided)
    assert decided.requeue_after == 3600
    assert told(decided)["UpToDate"][1:] == (
        "WaitingForWindow",
        "Pods of 1 replica would change, as operator 0.3.0 rendered them: main is removed; 1 replica waits for the "
        "windows of the deployment (at 02:00 every day for 2h, Europe/Berlin), open from 2026-01-01 02:00 "
        "Europe/Berlin. To change them in turn before that: modelplane roll my-model -n ml-team --now",
    )
    assert told(plan(replace(before, now=OPENING - timedelta(minutes=1))))["UpToDate"] == told(decided)["UpToDate"], (
        "the message stays while it waits"
    )
    assert begins(plan(replace(before, now=OPENING)))
    assert told(plan(replace(before, now=OPENING)))["UpToDate"][1] == "Rolling"


def test_a_cluster_may_have_windows_too_and_both_must_be_open() -> None:
    later = {"schedule": "30 2 * * *", "duration": "1h", "timeZone": "Europe/Berlin"}
    before = rolling(windows=[TONIGHT], of_cluster=[later])

    decided = plan(before)

    assert decided.requeue_after == 5400
    message = told(decided)["UpToDate"][2]
    assert "the windows of the deployment (at 02:00 every day for 2h, Europe/Berlin)" in message
    assert "and the windows of cluster a (at 02:30 every day for 1h, Europe/Berlin), open from" in message
    assert not begins(plan(replace(before, now=OPENING)))
    assert begins(plan(replace(before, now=OPENING + timedelta(minutes=30))))


def test_windows_that_never_meet_are_reported() -> None:
    decided = plan(rolling(windows=[TONIGHT], of_cluster=[MORNING]))

    assert decided.requeue_after is None
    assert "which are never open at the same time" in told(decided)["UpToDate"][2]


@pytest.mark.parametrize("roll", ["4-abc,now", "always,now", "security,now"])
def test_an_owner_can_roll_outside_the_windows(roll: str) -> None:
    decided = plan(rolling(roll, windows=[TONIGHT], of_cluster=[MORNING], security=True))

    assert begins(decided)
    assert told(decided)["UpToDate"][1] == "Rolling"


def test_a_roll_that_has_begun_is_finished_after_its_window() -> None:
    before = rolling(windows=[TONIGHT])
    (replica,) = before.replicas
    begun = change(replica, "metadata.annotations", {labels.ROLLING: EPOCH.isoformat()})

    assert begins(plan(replace(before, replicas=(begun,))))


def test_a_replica_that_does_not_answer_does_not_wait() -> None:
    before = rolling(windows=[TONIGHT])
    (replica,) = before.replicas
    silent = change(replica, "status.conditions", [])

    assert any(
        isinstance(step, Replace) and step.manifest["spec"]["podRevision"]
        for step in plan(replace(before, replicas=(silent,))).steps
    )


def test_an_edit_does_not_wait() -> None:
    before = rolling("", windows=[TONIGHT], of_cluster=[MORNING])
    image = "spec.template.spec.engines[].members[].template.spec.containers[].image"
    edited = ModelDeployment.parse(change(before.deployment.to_manifest(), image, "vllm:2"))

    assert begins(plan(replace(before, deployment=edited)))


@pytest.mark.parametrize(
    ("bad", "problem"),
    [
        ({**TONIGHT, "timeZone": "Europe/Atlantis"}, "there is no time zone Europe/Atlantis"),
        ({**TONIGHT, "schedule": "0 2 30 2 *"}, "the schedule '0 2 30 2 *'"),
        ({**TONIGHT, "duration": "ever"}, "the duration 'ever'"),
    ],
)
def test_a_stored_window_that_cannot_be_read_is_ignored_and_named(bad: Manifest, problem: str) -> None:
    alone, beside = plan(rolling(windows=[bad])), plan(rolling(windows=[TONIGHT], of_cluster=[bad]))

    assert begins(alone)
    assert f"a window of the deployment is ignored: {problem}" in told(alone)["UpToDate"][2]
    assert not begins(beside)
    assert f"a window of cluster a is ignored: {problem}" in told(beside)["UpToDate"][2]


# The budget -----------------------------------------------------------------------------------------------------------


def test_a_roll_that_waits_for_others_says_which_limit_is_reached() -> None:
    full = DisruptionBudget(clusters={"a": "0"}, replicas={DisruptionScope("a"): 1})

    decided = plan(rolling(disruptions=full))

    assert not begins(decided)
    assert decided.requeue_after == 60
    reason, message = told(decided)["UpToDate"][1:]
    assert reason == "Rolling"
    assert message.endswith("; 1 replica waits: 0 of 0 allowed disruptions on a")


# The last replica that answers ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("roll", ["always", "security", "always,now"])
def test_the_last_replica_that_answers_waits_for_room_if_nobody_has_chosen_the_time(roll: str) -> None:
    full = rolling(roll, nodes=1, security=True)

    decided = plan(full)

    assert not begins(decided)
    assert told(decided)["UpToDate"][1] == "WaitingForRoom"
    assert told(decided)["Ready"][0] == "True"
    assert told(decided)["UpToDate"][2].endswith(
        "no other replica answers, and the fleet has no room for one. To restart the only one all the same: "
        "modelplane roll my-model -n ml-team"
    )
    assert begins(plan(rolling(roll, nodes=2, security=True))), "with room it rolls"


@pytest.mark.parametrize("roll", ["4-abc", "4-abc,now"])
def test_somebody_who_chooses_the_time_can_restart_the_only_replica(roll: str) -> None:
    assert begins(plan(rolling(roll, nodes=1)))


def test_of_two_replicas_without_room_one_rolls_and_the_other_answers() -> None:
    full = rolling("always", replicas=2, nodes=2, disruptions=DisruptionBudget(fleet="2", clusters={"a": "2"}))

    written = [step.manifest for step in plan(full).steps if isinstance(step, Replace)]

    assert len(written) == 1, "both may roll, and one at a time does"


def test_a_paused_deployment_does_not_roll() -> None:
    before = rolling("always")
    paused = change(
        before.deployment.to_manifest(), "metadata.annotations", {labels.ROLL: "always", labels.PAUSED: "true"}
    )

    decided = plan(replace(before, deployment=ModelDeployment.parse(paused)))

    assert not begins(decided)
    assert told(decided)["UpToDate"][1] == "Outdated"


# What the controller reads --------------------------------------------------------------------------------------------


def test_the_controller_reads_the_budget_from_the_hub() -> None:
    """One replica rolls, one waits, and one waits for a window: the limits count all, and only two draw on them."""
    now, rolls = EPOCH, {labels.ROLL: "always"}
    rolling_now = {"type": "UpToDate", "status": "False", "reason": "Rolling", "lastTransitionTime": now.isoformat()}
    windows = {"active": [], "waiting": [], "closed": [MORNING]}
    deployments, replicas = list[Manifest](), list[Manifest]()
    on = cluster("a", nodes=3)
    for name, of in windows.items():
        subject = deployment(name=name, uid=f"uid-{name}")
        (replica,) = placed(subject, on)
        since = {labels.ROLLING: now.isoformat()} if name == "active" else {}
        replicas.append(change(as_reported(replica), "metadata.annotations", since))
        made = change(change(subject.to_manifest(), "metadata.annotations", rolls), "spec.maintenance", of)
        made = change(change(made, "metadata.resourceVersion", "1"), "metadata.generation", 1)
        deployments.append({**made, "status": {"conditions": [rolling_now]}})
    informers = {
        DEPLOYMENTS: holding(DEPLOYMENTS, deployments, **INDEXES[DEPLOYMENTS]),
        REPLICAS: holding(REPLICAS, replicas, **INDEXES[REPLICAS]),
    }
    hub, fleet = SimpleNamespace(find=informers.get), SimpleNamespace(clusters={"a": on})
    reader = DisruptionReader(cast("FleetView", fleet), "5%")
    subject = ModelDeployment.parse(deployments[1])

    budget = reader.find(subject, cast("Cluster", hub), now)

    assert [one.key.name for one in budget.active] == [replicas[0]["metadata"]["name"]]
    assert [one.key.name for one in budget.waiting] == [replicas[1]["metadata"]["name"]]
    assert budget.replicas == {FLEET: 3, DisruptionScope("a"): 3, DisruptionScope("a", "default"): 3}
    assert (budget.fleet, budget.clusters) == ("5%", {"a": "10%"})
    later = reader.find(subject, cast("Cluster", hub), now + timedelta(hours=1))
    assert later.active == (), "after an hour it keeps nobody waiting"
