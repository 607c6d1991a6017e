"""Replicas that an older operator rendered: they stay as they are, until their deployment changes or is rolled."""

from __future__ import annotations

from dataclasses import replace
from datetime import timedelta

import pytest

from kubeloop.objects import Manifest, annotations_of
from kubeloop.plan import Apply, Create, Replace
from modelplane_operator.api import ModelDeployment, labels
from modelplane_operator.images import TESTED
from modelplane_operator.models.deployment.plan import plan
from modelplane_operator.models.replica.render import REVISION, Lifecycle, operator_settings
from tests.models.deployment.simulation import Hub
from tests.support.builders import cluster, deployment, engine
from tests.support.manifests import change
from tests.support.observed import placed, seen
from tests.support.plans import told

OPERATOR = operator_settings(TESTED, Lifecycle())

pytestmark = pytest.mark.usefixtures("well_worded")


def as_reported(replica: Manifest, *, security: bool = False) -> Manifest:
    """Return a replica of an older revision, with what its controller reports of its pods."""
    changes = ["default: image changes from a to b"]
    outdated = {"version": "0.3.0", "rendering": "4-abc", "security": security, "changes": changes}
    return change(change(replica, "spec.podRevision", 0), "status.outdated", outdated)


def asking(roll: str, *, replicas: int) -> ModelDeployment:
    """Return a deployment with the annotation that rolls outdated pods."""
    return ModelDeployment.parse(
        change(deployment(replicas=replicas).to_manifest(), "metadata.annotations", {labels.ROLL: roll})
    )


def test_an_upgrade_of_the_operator_changes_no_replica_and_the_status_says_what_it_would_change() -> None:
    subject, full = deployment(replicas=2), cluster("a", nodes=2)
    before = [as_reported(one) for one in placed(subject, full)]

    decided = plan(seen(subject, full, replicas=before))

    assert [type(step) for step in decided.steps] == [Apply, Apply], "their endpoints, and nothing else"
    assert told(decided)["Ready"][0] == "True"
    assert told(decided)["UpToDate"] == (
        "False",
        "Outdated",
        "Pods of 2 replicas would change, as operator 0.3.0 rendered them: default: image changes from a to b. "
        f"Change them in turn: modelplane roll {subject.key.name} -n {subject.key.namespace}",
    )


@pytest.mark.parametrize(
    ("roll", "security", "rolls"),
    [
        ("4-abc", False, True),
        ("always", False, True),
        ("security", True, True),
        ("security", False, False),
        ("3-abc", True, False),
        ("", True, False),
    ],
)
def test_outdated_pods_change_in_turn_where_the_deployment_asks_for_it(roll: str, security: bool, rolls: bool) -> None:  # noqa: FBT001
    subject, three = asking(roll, replicas=2), cluster("a", nodes=3)
    before = [as_reported(one, security=security) for one in placed(subject, three)]

    decided = plan(seen(subject, three, replicas=before))

    assert any(isinstance(step, Create) for step in decided.steps) is rolls, (
        "another serves before the first one changes"
    )
    assert told(decided)["UpToDate"][1] == ("Rolling" if rolls else "Outdated")


def test_replicas_that_are_up_to_date_do_not_roll_whatever_the_deployment_asks_for() -> None:
    subject, three = asking("always", replicas=2), cluster("a", nodes=3)

    decided = plan(seen(subject, three, replicas=placed(subject, three)))

    assert [type(step) for step in decided.steps] == [Apply, Apply]
    assert "UpToDate" not in told(decided)


def test_a_replica_that_changes_for_another_reason_gets_the_current_revision_and_settings() -> None:
    settings = operator_settings(TESTED, Lifecycle())
    subject, one_node = deployment(), cluster("a")
    before = [as_reported(one) for one in placed(subject, one_node, ready=False)]
    newer = deployment(change(engine(), "members[].template.spec.containers[].image", "vllm:2"))

    decided = plan(replace(seen(newer, one_node, replicas=before), operator=settings))

    (written,) = (step.manifest for step in decided.steps if isinstance(step, Replace))
    assert written["spec"]["podRevision"] == REVISION
    assert written["spec"]["operator"] == settings.to_manifest()


# A whole fleet --------------------------------------------------------------------------------------------------------


def rolling_fleet(models: int, *, nodes: int) -> list[Hub]:
    """Return models of one replica each, on one cluster, that are all asked to roll."""
    clusters = {"a": cluster("a", nodes=nodes)}
    old, new = (OPERATOR.model_copy(update={"version": version}) for version in ("1", "2"))
    fleet = [Hub(deployment(name=f"model-{n}", uid=f"uid-{n}"), clusters, operator=old) for n in range(models)]
    for hub in fleet:
        hub.neighbours = [other for other in fleet if other is not hub]
    pass_time(fleet, 10)
    for hub in fleet:
        hub.operator = new
        annotated = change(hub.deployment.to_manifest(), "metadata.annotations", {labels.ROLL: "2"})
        hub.deployment = ModelDeployment.parse(annotated)
    assert all(hub.serving for hub in fleet)
    return fleet


def pass_time(fleet: list[Hub], ticks: int) -> int:
    """Let the operator plan each deployment in turn, and return how many models were out of rotation at most."""
    away = 0
    for _ in range(ticks):
        for hub in fleet:
            hub.decide()
        for hub in fleet:
            hub.tick()
        away = max(away, sum(not hub.serving for hub in fleet))
    return away


@pytest.mark.parametrize(
    ("models", "nodes", "most"),
    [
        (6, 6, 1),
        (6, 7, 0),
        pytest.param(20, 21, 0, marks=pytest.mark.slow),
        pytest.param(40, 40, 2, marks=pytest.mark.slow),
    ],
)
def test_a_roll_of_all_models_takes_no_more_out_of_rotation_than_the_fleet_allows(
    models: int, nodes: int, most: int
) -> None:
    fleet = rolling_fleet(models, nodes=nodes)

    away = pass_time(fleet, 14 * models)

    assert away == most
    versions = {replica["spec"]["operator"]["version"] for hub in fleet for replica in hub.replicas.values()}
    assert versions == {"2"}
    assert all(hub.serving for hub in fleet)
    assert not any(labels.ROLLING in annotations_of(one) for hub in fleet for one in hub.replicas.values())


def test_a_rendering_that_does_not_answer_stops_the_roll_at_its_first_model() -> None:
    fleet = rolling_fleet(6, nodes=6)
    break_once_rolled(fleet, min(fleet, key=lambda hub: hub.deployment.key))

    away = pass_time(fleet, 100)

    assert away == 1
    assert sum(version(hub) == "2" for hub in fleet) == 1
    assert sum(not hub.serving for hub in fleet) == 1


def test_a_model_that_never_answers_holds_up_the_others_for_an_hour_and_no_longer() -> None:
    fleet = rolling_fleet(3, nodes=3)
    break_once_rolled(fleet, min(fleet, key=lambda hub: hub.deployment.key))

    pass_time(fleet, 40)
    assert sum(version(hub) == "2" for hub in fleet) == 1
    for hub in fleet:
        hub.now += timedelta(hours=1)
    pass_time(fleet, 60)

    assert {version(hub) for hub in fleet} == {"2"}


def test_a_model_that_did_not_answer_before_takes_nobodys_place() -> None:
    fleet = rolling_fleet(3, nodes=3)
    silent = max(fleet, key=lambda hub: hub.deployment.key)
    silent.starting = 10**6
    silent.tick()

    pass_time(fleet, 4)

    assert version(silent) == "2"
    assert not any(labels.ROLLING in annotations_of(one) for one in silent.replicas.values())
    pass_time(fleet, 60)
    assert {version(hub) for hub in fleet} == {"2"}


def break_once_rolled(fleet: list[Hub], hub: Hub) -> None:
    """Let time pass until a model has its new pods, which never answer."""
    while version(hub) != "2":
        pass_time(fleet, 1)
    hub.starting = 10**6


def version(hub: Hub) -> str:
    """Return the version of the operator that rendered a model's one replica."""
    (replica,) = hub.replicas.values()
    return replica["spec"]["operator"]["version"]
