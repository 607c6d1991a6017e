"""Changed charts go over the fleet in waves: the order, the limit, the gate, what stops it, and how it goes back."""

from __future__ import annotations

from datetime import UTC, datetime
from random import Random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kubeloop.plan import Install
from modelplane_operator.clusters.stack.fleet_view import describe_closed_windows
from modelplane_operator.clusters.stack.rollout import GATE, LONGEST, PATIENCE
from modelplane_operator.clusters.stack.waves import CHANGED_OF, TURNS, FleetMember, find_obstacle, keeps_turn
from tests.support.manifests import ROOT
from tests.support.stack_fleet import StackFleet

pytestmark = pytest.mark.usefixtures("well_worded")

OLD, NEW = "v1.8.1", "v1.9.1"
CHANGE = frozenset({("envoy-gateway", NEW)})


def members(count: int, **changed: FleetMember) -> list[FleetMember]:
    """So many waiting clusters, but for those that are named."""
    names = [f"c{number:03}" for number in range(count)]
    return [changed.get(name) or FleetMember(name, "Waiting", changes=CHANGE) for name in names]


def beginning(fleet: list[FleetMember]) -> list[str]:
    return [one.cluster for one in fleet if one.phase == "Waiting" and not find_obstacle(one.cluster, fleet)]


# The decision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("count", [1, 5, 40, 100])
def test_one_cluster_is_first_then_one_in_twenty(count: int) -> None:
    fleet = members(count)
    assert beginning(fleet) == ["c000"]

    fleet[0] = FleetMember("c000", "Watching", changes=CHANGE)
    assert beginning(fleet) == []

    fleet[0] = FleetMember("c000", "Done", changes=CHANGE)
    assert beginning(fleet) == [one.cluster for one in fleet[1 : 1 + max(1, count // CHANGED_OF)]]


def test_a_cluster_waits_for_its_maintenance_window_and_others_go_on() -> None:
    fleet = members(3, c000=FleetMember("c000", "Waiting", changes=CHANGE, window="at 02:00 for 4h, Etc/UTC"))

    assert find_obstacle("c000", fleet) == "its maintenance window opens: at 02:00 for 4h, Etc/UTC"
    assert beginning(fleet) == ["c001"]


def test_a_canary_that_waits_for_its_window_is_not_passed_over() -> None:
    canary = FleetMember("c000", "Waiting", canary=True, changes=CHANGE, window="at 02:00 for 4h, Etc/UTC")

    assert beginning(members(3, c000=canary)) == []


@pytest.mark.parametrize(("hour", "is_open"), [(1, False), (2, True), (5, True), (6, False)])
def test_windows_of_the_cluster_count(hour: int, is_open: bool) -> None:  # noqa: FBT001
    windows = [{"schedule": "0 2 * * *", "duration": "4h", "timeZone": "Etc/UTC"}]
    now = datetime(2026, 11, 28, hour, 0, 30, tzinfo=UTC)

    closed = "" if is_open else "at 02:00 every day for 4h, Etc/UTC"
    assert describe_closed_windows({"spec": {"maintenance": windows}}, now) == closed
    assert describe_closed_windows({"spec": {}}, now) == ""


def test_canaries_are_first_and_all_at_once() -> None:
    canaries = {name: FleetMember(name, "Waiting", canary=True, changes=CHANGE) for name in ("c007", "c050")}
    fleet = members(100, **canaries)
    assert beginning(fleet) == ["c007", "c050"]
    assert find_obstacle("c000", fleet) == "the canaries of the fleet change first"

    fleet[7] = FleetMember("c007", "Done", canary=True, changes=CHANGE)
    fleet[50] = FleetMember("c050", "Watching", canary=True, changes=CHANGE)
    assert beginning(fleet) == []
    fleet[50] = FleetMember("c050", "Done", canary=True, changes=CHANGE)
    assert len(beginning(fleet)) == 5


def test_a_chart_that_no_cluster_has_passed_goes_to_one_alone() -> None:
    other = frozenset({("prometheus", "73.0.0")})
    fleet = members(
        100, c000=FleetMember("c000", "Done", changes=CHANGE), c001=FleetMember("c001", "Waiting", changes=other)
    )
    fleet[2] = FleetMember("c002", "Upgrading", changes=CHANGE)
    assert "c001" not in beginning(fleet)
    assert find_obstacle("c001", fleet) == "another cluster changes first, alone"


def test_clusters_that_are_not_ready_are_last_and_those_that_may_not_be_disturbed_hold_up_nobody() -> None:
    away = FleetMember("c000", "Waiting", available=False, changes=CHANGE)
    fleet = members(3, c000=away, c001=FleetMember("c001", "Waiting", ready=False, changes=CHANGE))
    assert beginning(fleet) == ["c002"]
    assert "may not be disturbed" in find_obstacle("c000", fleet)


def test_a_failure_stops_everybody_and_an_aborted_cluster_nobody() -> None:
    fleet = members(3, c001=FleetMember("c001", "Failed", changes=CHANGE))
    assert beginning(fleet) == []
    assert find_obstacle("c000", fleet) == "the rollout stopped on c001"

    assert beginning(members(3, c001=FleetMember("c001", "Aborted", changes=CHANGE))) == ["c000"]


def test_of_two_turns_that_were_given_at_once_the_later_one_is_given_back() -> None:
    taken = {name: FleetMember(name, "Upgrading", changes=CHANGE) for name in ("c001", "c002")}
    fleet = members(5, **taken)
    assert keeps_turn("c001", fleet) is None, "it waits until the other one has given it back"
    assert keeps_turn("c002", fleet) is False
    fleet[2] = FleetMember("c002", "Waiting", changes=CHANGE)
    assert keeps_turn("c001", fleet) is True
    fleet[4] = FleetMember("c004", "Failed", changes=CHANGE)
    assert keeps_turn("c001", fleet) is False


# Whole rollouts -------------------------------------------------------------------------------------------------------


def test_a_rollout_passes_the_gate_on_each_cluster_and_writes_nothing_at_rest() -> None:
    fleet = StackFleet(["a", "b", "c"])
    assert fleet.phases() == {"a": "Done", "b": "Done", "c": "Done"}
    fleet.ask(NEW)
    for _ in range(3):
        fleet.step()
    assert [fleet.version(name) for name in fleet.names] == [NEW, OLD, OLD]
    assert fleet.phases() == {"a": "Watching", "b": "Waiting", "c": "Waiting"}

    fleet.step()
    fleet.step(GATE.total_seconds() - 60)
    fleet.step()
    assert fleet.upgraded == ["a"], "the first cluster has to be healthy for the whole time"
    fleet.step(60)
    for _ in range(3):
        fleet.step()
    assert fleet.upgraded == ["a", "b"]

    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {NEW}
    assert fleet.upgraded == ["a", "b", "c"]
    writes = fleet.writes
    fleet.step(3600)
    assert fleet.writes == writes


def test_a_first_install_does_not_wait_for_the_others() -> None:
    fleet = StackFleet(["a", "b"], bad_for_helm=frozenset({"a"}))
    fleet.ask(NEW)
    fleet.settle()
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    fleet.history["b"], fleet.stored["b"]["status"] = {}, {}
    fleet.step()
    assert fleet.version("b") == NEW
    assert fleet.upgraded == ["a"]


def test_a_turn_is_stored_before_a_chart_changes_after_its_definitions() -> None:
    fleet = StackFleet(["a"])
    fleet.ask(NEW)
    found = [step for step in fleet.reconcile("a").steps if isinstance(step, Install)]
    assert (fleet.phases(), found) == ({"a": "Upgrading"}, [])
    (install,) = [step for step in fleet.reconcile("a").steps if isinstance(step, Install)]
    assert (install.wait, install.definitions) == (True, True)


def test_a_chart_that_helm_cannot_upgrade_stops_at_the_first_cluster_and_is_not_tried_again() -> None:
    fleet = StackFleet(["a", "b"], bad_for_helm=frozenset({"a", "b"}))
    fleet.ask(NEW)
    fleet.settle()
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    assert fleet.upgraded == ["a"]
    assert fleet.version("a") == OLD
    assert "upgrade failed" in fleet.rollout("a")["message"]
    condition = next(one for one in fleet.stored["a"]["status"]["conditions"] if one["type"] == "ServingStackRollout")
    assert (condition["status"], condition["reason"]) == ("False", "Stopped")

    fleet.step(24 * 3600)
    fleet.settle()
    assert fleet.upgraded == ["a"], "what was refused is not tried again by itself"

    fleet.bad_for_helm = frozenset()
    fleet.annotate("a", retry="1")
    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {NEW}


def test_a_cluster_that_is_not_healthy_afterwards_goes_back_to_the_revision_before() -> None:
    fleet = StackFleet(["a", "b"], bad_for_requests=frozenset({"a"}))
    fleet.ask(NEW)
    for _ in range(4):
        fleet.step()
    assert fleet.version("a") == NEW
    fleet.step(PATIENCE.total_seconds() - 60)
    assert fleet.phases()["a"] == "Watching"
    fleet.settle()
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    assert fleet.version("a") == OLD
    assert "no address" in fleet.rollout("a")["message"]
    statuses = {one["name"]: one for one in fleet.stored["a"]["status"]["components"]}
    assert statuses["envoy-gateway"]["state"] == "RolledBack"

    writes, runs = fleet.writes, len(fleet.history["a"])
    fleet.step(24 * 3600)
    assert (fleet.writes, len(fleet.history["a"])) == (writes, runs), "the way back is not undone"

    fleet.bad_for_requests = frozenset()
    fleet.ask("v1.9.2")
    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {"v1.9.2"}, "a corrected chart is another rollout"


def test_an_aborted_rollout_keeps_the_rest_until_it_is_resumed() -> None:
    fleet = StackFleet(["a", "b", "c"])
    fleet.ask(NEW)
    for _ in range(3):
        fleet.step()
    for name in ("b", "c"):
        fleet.annotate(name, keep=fleet.rollout(name)["target"])
    fleet.settle()
    assert fleet.phases() == {"a": "Done", "b": "Aborted", "c": "Aborted"}
    assert [fleet.version(name) for name in fleet.names] == [NEW, OLD, OLD]

    fleet.annotate("b", keep="")
    fleet.annotate("c", keep="")
    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {NEW}


def test_a_failed_cluster_that_is_left_out_goes_back_and_lets_the_others_go_on() -> None:
    fleet = StackFleet(["a", "b"], bad_for_requests=frozenset({"a"}))
    fleet.ask(NEW)
    fleet.settle()
    fleet.annotate("a", keep=fleet.rollout("a")["target"])
    fleet.settle()
    assert fleet.phases() == {"a": "Aborted", "b": "Done"}
    assert [fleet.version(name) for name in fleet.names] == [OLD, NEW]


def change_first(fleet: StackFleet) -> None:
    """Let the first cluster change its chart, and be watched."""
    fleet.ask(NEW)
    for _ in range(4):
        fleet.step()
    assert fleet.phases()["a"] == "Watching"


def hub_cluster(**statuses: str) -> dict[str, Any]:
    """An InferenceCluster whose conditions are True, but for these."""
    conditions = {"Ready": "True", "BackendReady": "True", **statuses}
    listed = [
        {"type": kind, "status": status, "reason": "GatewaySilent" if status == "False" else "Fine"}
        for kind, status in conditions.items()
    ]
    return {"metadata": {"name": "a"}, "status": {"conditions": listed}}


@pytest.mark.parametrize("kind", ["Ready", "BackendReady"])
def test_a_cluster_does_not_pass_while_its_inference_cluster_is_not_ready(kind: str) -> None:
    fleet = StackFleet(["a", "b"], hub_clusters={"a": hub_cluster()})
    change_first(fleet)
    fleet.hub_clusters["a"] = hub_cluster(**{kind: "False"})
    fleet.step(PATIENCE.total_seconds())
    assert fleet.phases()["a"] == "Failed"
    assert f"{kind} of the InferenceCluster is not True: GatewaySilent" in fleet.rollout("a")["message"]


def test_failed_requests_count_unless_they_failed_before() -> None:
    fleet = StackFleet(["a", "b"], failing={"a": ("team/old",)})
    change_first(fleet)
    fleet.settle()
    assert fleet.phases() == {"a": "Done", "b": "Done"}

    fleet = StackFleet(["a", "b"], failing={"a": ("team/old",)})
    change_first(fleet)
    fleet.failing["a"] = ("team/old", "team/new")
    fleet.settle()
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    assert fleet.rollout("a")["message"] == "requests fail: team/new"


def test_a_break_of_health_begins_the_five_minutes_again() -> None:
    fleet = StackFleet(["a", "b"])
    change_first(fleet)
    fleet.step(240)
    fleet.failing["a"] = ("team/new",)
    fleet.step(15)
    fleet.failing.clear()
    fleet.step(15)
    fleet.step(240)
    assert fleet.phases()["a"] == "Watching"
    fleet.step(60)
    assert fleet.phases()["a"] == "Done"


def test_a_cluster_that_is_lost_in_its_turn_keeps_it_for_an_hour() -> None:
    fleet = StackFleet(["a", "b"])
    fleet.ask(NEW)
    fleet.step()
    fleet.lost = frozenset({"a"})
    fleet.step(LONGEST.total_seconds() - 60)
    assert fleet.phases() == {"a": "Upgrading", "b": "Waiting"}
    fleet.step(60)
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    fleet.step(3600)
    assert fleet.upgraded == []


def test_a_chart_that_cannot_be_fetched_fails_after_an_hour() -> None:
    fleet = StackFleet(["a", "b"])
    fleet.unfetched = frozenset({"a", "b"})
    fleet.ask(NEW)
    fleet.step()
    fleet.step()
    for _ in range(59):
        fleet.step(60)
    assert fleet.phases() == {"a": "Upgrading", "b": "Waiting"}
    assert len(fleet.runs) == 1
    fleet.step(120)
    assert fleet.phases() == {"a": "Failed", "b": "Waiting"}
    assert fleet.version("a") == OLD


def test_a_revision_that_helm_no_longer_has_is_not_gone_back_to() -> None:
    fleet = StackFleet(["a"], bad_for_requests=frozenset({"a"}))
    change_first(fleet)
    ((release, revisions),) = fleet.history["a"].items()
    fleet.history["a"][release] = revisions[:1]
    fleet.settle()
    assert (fleet.phases()["a"], fleet.version("a")) == ("Failed", NEW)


def test_a_chart_without_a_ready_pod_is_repaired_at_once() -> None:
    fleet = StackFleet(["a", "b"], down=frozenset({"b"}))
    fleet.ask(NEW)
    fleet.step()
    assert fleet.upgraded == ["b"], "all others wait for their turn"


def test_an_operator_that_is_killed_in_a_turn_is_followed_by_one_that_goes_on() -> None:
    fleet = StackFleet(["a", "b"])
    fleet.ask(NEW)
    fleet.reconcile("a", killed=True)
    fleet.reconcile("a")
    assert (fleet.phases()["a"], fleet.upgraded) == ("Upgrading", [])
    fleet.reconcile("a", killed=True)
    assert fleet.upgraded == ["a"]
    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {NEW}
    assert fleet.upgraded == ["a", "b"]


def test_a_turn_to_versions_that_changed_meanwhile_is_given_back() -> None:
    fleet = StackFleet(["a", "b"])
    fleet.ask(NEW)
    fleet.step()
    fleet.ask("v1.9.2")
    fleet.settle()
    assert {fleet.version(name) for name in fleet.names} == {"v1.9.2"}
    assert fleet.upgraded == ["a", "b"]


def test_the_page_names_the_times_and_the_share() -> None:
    page = (ROOT / "docs/day-2.md").read_text()
    gate, patience = GATE.total_seconds() / 60, PATIENCE.total_seconds() / 60
    assert (
        f"within {patience:g} minutes after its charts have changed, it has to be healthy for {gate:g} minutes" in page
    )
    assert LONGEST.total_seconds() == 3600
    assert "if its charts have not all changed after an hour" in page
    assert CHANGED_OF == 20
    assert "one cluster in twenty changes at a time; in a fleet of fewer than forty, one" in page


def test_a_lost_cluster_is_passed_over_and_follows_when_it_answers() -> None:
    fleet = StackFleet(["a", "b"])
    fleet.lost = frozenset({"a"})
    fleet.ask(NEW)
    fleet.settle()
    assert fleet.upgraded == ["b"]
    fleet.lost = frozenset()
    fleet.settle()
    assert fleet.upgraded == ["b", "a"]


def test_a_change_of_one_cluster_by_its_owner_waits_for_nobody_who_is_at_rest() -> None:
    fleet = StackFleet(["a", "b", "c"])
    fleet.ask(NEW, ["c"])
    for _ in range(3):
        fleet.step()
    assert fleet.upgraded == ["c"]


# Random fleets --------------------------------------------------------------------------------------------------------

SMALL = st.integers(1, 6)


@settings(deadline=None, max_examples=25)
@given(st.data())
def test_no_life_of_a_fleet_changes_more_clusters_than_its_wave(data: st.DataObject) -> None:
    """Two operators with caches of any age, killed at any instant, on clusters of which some refuse the chart."""
    names = [f"c{number}" for number in range(data.draw(SMALL, label="clusters"))]
    some = st.sets(st.sampled_from(names))
    canaries = data.draw(some, label="canaries")
    fleet = StackFleet(
        names,
        canaries=canaries,
        bad_for_helm=frozenset(data.draw(some, label="bad for Helm")),
        bad_for_requests=frozenset(data.draw(some, label="bad for requests")),
    )
    fleet.ask(NEW)
    limit = max(1, len(canaries), len(names) // CHANGED_OF)
    views = [fleet.view(), fleet.view()]
    for _ in range(data.draw(st.integers(1, 80), label="events")):
        operator = data.draw(st.integers(0, 1))
        match data.draw(st.sampled_from(["reconcile", "reconcile", "reconcile", "look", "wait", "killed"])):
            case "look":
                views[operator] = fleet.view()
            case "wait":
                fleet.step(data.draw(st.sampled_from([10, 120, 400, 1000])))
            case event:
                fleet.reconcile(data.draw(st.sampled_from(names)), views[operator], killed=event == "killed")
        changed = [name for name in names if fleet.version(name) == NEW and fleet.phases()[name] != "Done"]
        assert len(changed) <= limit
    bad = fleet.bad_for_helm | fleet.bad_for_requests
    assert len(bad & {*fleet.upgraded}) <= limit, "a bad chart stops with the wave that it has reached"

    fleet.bad_for_helm = fleet.bad_for_requests = frozenset()
    fleet.settle()
    for name in names:
        fleet.annotate(name, retry="resumed")
    fleet.settle()
    assert {fleet.version(name) for name in names} == {NEW}, "when all is healthy it ends"
    assert {*fleet.phases().values()} == {"Done"}


@settings(deadline=None, max_examples=200)
@given(
    st.integers(1, 130),
    st.sets(st.integers(0, 129), max_size=5),
    st.sets(st.integers(0, 129)),
    st.randoms(use_true_random=False),
)
def test_every_rollout_ends_within_its_limit(
    count: int, canary_numbers: set[int], bad_numbers: set[int], chance: Random
) -> None:
    """The decision alone, over fleets of any size: each step gives turns, or ends one."""
    fleet = {
        f"c{number:03}": FleetMember(f"c{number:03}", "Waiting", canary=number in canary_numbers, changes=CHANGE)
        for number in range(count)
    }
    bad = {f"c{number:03}" for number in bad_numbers}
    reached: set[str] = set()
    canaries = sum(one.canary for one in fleet.values())
    while True:
        before = dict(fleet)
        for name, one in before.items():
            if one.phase == "Waiting" and not find_obstacle(name, [*fleet.values()]):
                fleet[name] = FleetMember(name, "Upgrading", canary=one.canary, changes=CHANGE)
                reached.add(name)
        turns = [one for one in fleet.values() if one.phase in TURNS]
        proven = any(one.phase == "Done" for one in fleet.values())
        assert len(turns) <= (max(1, count // CHANGED_OF, canaries) if proven or canaries else 1)
        if not turns:
            break
        ended = chance.choice(turns)
        phase = "Failed" if ended.cluster in bad else "Done"
        fleet[ended.cluster] = FleetMember(ended.cluster, phase, canary=ended.canary, changes=CHANGE)
    assert len(reached & bad) <= max(1, canaries, count // CHANGED_OF)
    if not bad & fleet.keys():
        assert {one.phase for one in fleet.values()} == {"Done"}
