"""Whatever is asked of a deployment that serves, no request is lost, and in the end all is as it was asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from kubeloop.condition_types import Condition
from kubeloop.objects import Key, annotations_of
from kubeloop.plan import Apply, Create, Delete, Replace
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, ModelReplica, labels
from modelplane_operator.models.deployment.plan import FOLLOWING, plan
from modelplane_operator.models.deployment.plan.moves import PATIENCE, Budget, LiveReplica, Moves, moves
from tests.models.deployment.simulation import (
    DRAIN,
    GRACE,
    PAUSED,
    TERMINATING,
    Hub,
    frozen,
    images,
    places,
    settled,
    wanting,
    watched,
)
from tests.support import builders as b
from tests.support.builders import EPOCH, cluster, deployment, engine, request
from tests.support.manifests import change

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def test_a_new_template_comes_in_beside_the_old_one() -> None:
    hub = settled(wanting(2), a=2, b=2)
    hub.deployment = wanting(2, image="vllm:2")

    watched(hub, least=2, most=3)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == 2


def test_a_new_template_on_a_full_fleet_takes_one_out_at_a_time_and_says_so() -> None:
    hub = settled(wanting(2), a=1, b=1)
    hub.deployment = wanting(2, image="vllm:2")
    status = plan(hub.observed).status
    assert status is not None
    said = {one.type: (one.status, one.reason) for one in status.conditions}

    served = watched(hub, least=1, most=2)

    assert said["Progressing"] == ("True", "MovingWithoutSurge")
    assert min(served) == 1
    assert images(hub) == {"vllm:2"}


def test_a_cluster_is_drained_after_the_replacement_serves() -> None:
    hub = settled(wanting(2), a=1, b=1)
    hub.clusters |= {"a": cluster("a", nodes=1, taints=DRAIN), "c": cluster("c", nodes=2)}

    watched(hub, least=2, most=3)

    assert {one["spec"]["clusterName"] for one in hub.replicas.values()} == {"b", "c"}


def test_a_cluster_is_drained_as_the_surge_allows_though_there_is_room_for_all_at_once() -> None:
    hub = settled(wanting(4), a=4)
    hub.clusters |= {"a": cluster("a", nodes=4, taints=DRAIN), "b": cluster("b", nodes=9)}

    watched(hub, least=4, most=5)

    assert {one["spec"]["clusterName"] for one in hub.replicas.values()} == {"b"}


def test_a_drain_that_is_called_off_brings_the_replica_back_into_rotation() -> None:
    hub = settled(wanting(1), a=1, b=1)
    (key,) = hub.replicas
    at = hub.replicas[key]["spec"]["clusterName"]
    hub.clusters[at] = cluster(at, nodes=1, taints=DRAIN)
    while labels.DRAINING_SINCE not in annotations_of(hub.replicas[key]):
        hub.decide()
        hub.tick()
    hub.clusters[at] = cluster(at, nodes=1)

    watched(hub, least=1, most=2)

    assert len(hub.replicas) == 1
    assert not any(labels.DRAINING_SINCE in annotations_of(one) for one in hub.replicas.values())


def test_scaling_down_lets_answers_finish() -> None:
    hub = settled(wanting(3), a=2, b=2)
    hub.deployment = wanting(1)

    watched(hub, least=1, most=3)

    assert len(hub.replicas) == 1


def test_scaling_to_nothing_and_back() -> None:
    hub = settled(wanting(2), a=2)
    hub.deployment = wanting(0)
    watched(hub, least=0, most=2)
    assert not hub.replicas

    hub.deployment = wanting(2)
    hub.settle()
    assert len(hub.serving) == 2


LEFT = {"a cluster that is being deleted": {"terminating": True}, "a drained cluster": {"taints": DRAIN}}


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_what_has_no_place_elsewhere_goes_on_serving_and_it_is_said(left: Manifest) -> None:
    hub = settled(wanting(2), a=2)
    hub.clusters["a"] = cluster("a", nodes=2, **left)

    watched(hub, least=2, most=2)

    said = progressing(hub)
    assert (said.status, said.reason) == ("False", "NoOtherPlace")
    assert (said.message or "").startswith("Cluster a is being d")
    assert "or force it: kubectl annotate ic a modelplane.ai/force-drain=true" in (said.message or "")


@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_a_drain_by_force_ends_what_has_no_place_elsewhere(left: Manifest) -> None:
    hub = settled(wanting(2), a=2, b=1)
    hub.clusters["a"] = cluster("a", nodes=2, forced=True, **left)

    watched(hub, least=0, most=3)

    assert [one["spec"]["clusterName"] for one in hub.replicas.values()] == ["b"]


def test_an_endpoint_that_cannot_be_written_holds_up_nothing_that_leaves() -> None:
    """Endpoints are their tenant's to edit: what deletes replicas comes before any of them is written."""
    hub = settled(wanting(2), a=2, b=2)
    hub.clusters["a"] = cluster("a", nodes=2, taints=DRAIN)
    met = False
    while len(places(hub)) > 2 or "a" in places(hub):
        steps = plan(hub.observed).steps
        leaving = [at for at, step in enumerate(steps) if isinstance(step, Delete) and step.type == of(ModelReplica)]
        entering = [at for at, step in enumerate(steps) if isinstance(step, Apply)]
        met |= bool(leaving and entering)
        assert max(leaving, default=-1) < min(entering, default=len(steps))
        hub.decide()
        hub.tick()
    assert met


def test_what_was_kept_for_want_of_a_place_moves_when_there_is_one() -> None:
    hub = settled(wanting(2), a=2)
    hub.clusters["a"] = cluster("a", nodes=2, taints=DRAIN)
    hub.settle()
    hub.clusters["b"] = cluster("b", nodes=2)

    watched(hub, least=2, most=3)

    assert {one["spec"]["clusterName"] for one in hub.replicas.values()} == {"b"}


@pytest.mark.parametrize(("surge", "unavailable"), [(1, 0), (2, 0), (0, 1), (0, 2), (1, 1), (2, 2), (9, 0)])
def test_a_rollout_keeps_to_its_numbers(surge: int, unavailable: int) -> None:
    rollout = {"maxSurge": surge, "maxUnavailable": unavailable}
    hub = settled(wanting(4, rollout=rollout), a=4, b=4)
    hub.deployment = wanting(4, image="vllm:2", rollout=rollout)

    watched(hub, least=4 - unavailable, most=4 + surge)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == 4


def test_a_template_reaches_all_replicas_of_a_deployment_that_the_fleet_has_not_room_for() -> None:
    hub = Hub(wanting(3), {"b": cluster("b", nodes=2)})
    hub.settle()

    hub.deployment = wanting(3, image="vllm:2")

    watched(hub, least=1, most=2)
    assert images(hub) == {"vllm:2"}


# What others write holds no drain up --------------------------------------------------------------------------------


def test_a_pause_holds_up_no_drain_and_all_else() -> None:
    hub = settled(wanting(2), a=1, b=1)
    hub.clusters["c"] = cluster("c", nodes=4)
    frozen(hub, wanting(4, image="vllm:2"), **PAUSED)
    before = dict(hub.replicas)
    watched(hub, least=2, most=2)
    assert hub.replicas == before, "neither more nor changed"

    hub.clusters["a"] = cluster("a", nodes=1, taints=DRAIN)

    watched(hub, least=2, most=3)
    assert places(hub) == ["b", "c"]


def test_a_paused_deployment_that_fits_no_cluster_but_one_leaves_the_drained_one_for_that() -> None:
    hub = settled(wanting(2), a=1, b=1)
    frozen(hub, wanting(2, size="200Gi"), **PAUSED)
    hub.clusters["c"] = b.cluster("c", b.pool("p", b.gpu("200Gi"), nodes=1))

    hub.clusters["a"] = cluster("a", nodes=1, taints=DRAIN)

    watched(hub, least=2, most=3)
    assert places(hub) == ["b", "c"]


def test_a_paused_deployment_without_another_place_stays_on_a_drained_cluster_and_says_so() -> None:
    hub = settled(wanting(1), a=1)
    frozen(hub, wanting(1), **PAUSED)

    hub.clusters["a"] = cluster("a", nodes=1, taints=DRAIN)

    watched(hub, least=1, most=1)
    assert progressing(hub).reason == "NoOtherPlace"

    hub.clusters["a"] = cluster("a", nodes=1, taints=DRAIN, forced=True)

    watched(hub, least=0, most=1)
    assert places(hub) == []


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_as_many_replicas_leave_a_cluster_that_is_deleted_as_there_were_when_it_was_paused(wanted: int) -> None:
    hub = settled(wanting(2), a=2)
    hub.clusters["b"] = cluster("b", nodes=4)
    frozen(hub, wanting(wanted), **PAUSED)

    hub.clusters["a"] = cluster("a", nodes=2, terminating=True)

    watched(hub, least=min(wanted, 1), most=3)
    assert places(hub) == ["b"] * min(wanted, 2)


def test_a_deployment_that_waits_for_its_end_holds_up_no_drain() -> None:
    hub = settled(wanting(2), a=1, b=1)
    hub.clusters["c"] = cluster("c", nodes=2)
    frozen(hub, wanting(2), **TERMINATING)

    hub.clusters["a"] = cluster("a", nodes=1, terminating=True)

    watched(hub, least=1, most=2)
    assert places(hub) == ["b"], "what goes gets no other place"


def test_a_service_that_does_not_follow_holds_a_drain_up_for_some_minutes() -> None:
    """It is paused, for one: its route goes on leading to the replica that is to leave, and to no other."""
    hub = settled(wanting(2), a=1, b=1)
    led_to, other = sorted(hub.replicas)
    seen = replace(hub.observed, routed=frozenset({led_to}), reached=frozenset({led_to}))
    since = seen.waits_until(other)
    assert since is not None
    late = replace(seen, now=since)

    assert (seen.live_replicas[other].serving, late.live_replicas[other].serving) == (False, True)
    assert seen.now < since <= seen.now + FOLLOWING
    assert (plan(seen).requeue_after, plan(late).requeue_after) == ((since - seen.now).total_seconds(), None)


def test_a_route_that_stays_holds_a_drain_up_for_a_minute() -> None:
    now = EPOCH + GRACE
    live = LiveReplica(Key("team", "one"), serving=True, draining_since=EPOCH, routed=True)
    budget = Budget(desired=1, surge=1, unavailable=0, grace=GRACE)

    def at(when: datetime) -> Moves:
        return moves([live.key], frozenset(), {live.key: live}, budget, now=when)

    assert (at(now).go, at(now).requeue_at) == (frozenset(), now + PATIENCE)
    assert at(now + PATIENCE).go == {live.key}


# Other hardware ------------------------------------------------------------------------------------------------------

LARGE = b.pool("p", b.gpu("200Gi"), nodes=2)


def test_a_move_to_other_hardware_ends() -> None:
    hub = settled(wanting(1), a=1)
    hub.clusters["b"] = b.cluster("b", LARGE)
    hub.deployment = wanting(1, size="200Gi")

    watched(hub, least=1, most=2)

    assert [one["spec"]["clusterName"] for one in hub.replicas.values()] == ["b"]
    assert hub.created == 2


def test_a_move_to_a_larger_pool_ends() -> None:
    hub = settled(wanting(1), a=1)
    hub.clusters["b"] = cluster("b", nodes=3)
    hub.deployment = wanting(1, copies=3)

    watched(hub, least=1, most=2)

    assert [one["spec"]["clusterName"] for one in hub.replicas.values()] == ["b"]
    assert hub.created == 2


def test_a_pool_of_another_name_takes_over_what_ran_on_its_nodes() -> None:
    hub = settled(wanting(2), a=2)
    hub.clusters["a"] = b.cluster("a", b.pool("other", nodes=2))
    hub.rename("a", "default", "other")

    hub.settle()

    pools = {one["spec"]["engines"][0]["members"][0]["nodePoolName"] for one in hub.replicas.values()}
    assert pools == {"other"}
    assert len(hub.serving) == 2


@pytest.mark.parametrize("more", [{}, {"copies": 2}], ids=["one pod", "several"])
def test_a_replica_that_finds_no_nodes_since_its_pool_has_lost_them_moves(more: Manifest) -> None:
    in_place = {"maxSurge": 0, "maxUnavailable": 1}
    nodes = more.get("copies", 1)
    hub = settled(wanting(2, rollout=in_place, **more), a=2 * nodes)
    hub.clusters["a"] = cluster("a", nodes=nodes)
    hub.deployment = wanting(2, image="vllm:2", rollout=in_place, **more)
    watched(hub, least=1, most=2)
    assert (len(hub.serving), progressing(hub).reason) == (1, "NoOtherPlace")

    hub.clusters["b"] = cluster("b", nodes=nodes)

    watched(hub, least=1, most=2)
    assert (len(hub.serving), places(hub), images(hub)) == (2, ["a", "b"], {"vllm:2"})


def test_an_edit_that_scales_down_and_asks_for_other_hardware_keeps_the_replica_that_fits() -> None:
    hub = Hub(wanting(2), {"a": cluster("a", nodes=1), "b": b.cluster("b", b.pool("p", b.gpu("200Gi"), nodes=1))})
    hub.settle()
    hub.deployment = wanting(1, size="200Gi")

    watched(hub, least=1, most=2)

    assert [one["spec"]["clusterName"] for one in hub.replicas.values()] == ["b"]
    assert hub.created == 2


def test_a_smaller_shape_on_a_full_pool_is_taken_one_replica_after_the_other() -> None:
    hub = Hub(wanting(2, copies=2), {"a": cluster("a", nodes=4)}, ending=3)
    hub.settle()
    hub.deployment = wanting(2, copies=1)

    watched(hub, least=1, most=3)

    assert [one["spec"]["engines"][0]["copies"] for one in hub.replicas.values()] == [1, 1]
    assert sum(hub.booked.values()) == 2


@pytest.mark.parametrize("what", ["engines", "requests"])
def test_another_order_of_what_has_names_changes_nothing(what: str) -> None:
    one, two = (engine(request(name="x"), request(name="y"), name=name) for name in ("main", "side"))
    gpus = b.pool("p", b.gpu("141Gi", 8), nodes=2)
    hub = Hub(deployment(one, two), {"a": b.cluster("a", gpus)})
    hub.settle()
    if what == "requests":
        one["members"][0]["nodeSelector"]["devices"].reverse()
    hub.deployment = deployment(*([two, one] if what == "engines" else [one, two]))

    assert not _replacing(hub)


def test_a_label_that_somebody_has_edited_is_not_believed_against_the_name() -> None:
    hub = settled(wanting(2), a=2)
    key = max(hub.replicas)
    before = hub.replicas[key]["metadata"]["labels"][labels.REPLICA_INDEX]
    named = {**hub.replicas[key]["metadata"]["labels"], labels.REPLICA_INDEX: "7"}
    hub.replicas[key] = change(hub.replicas[key], "metadata.labels", named)

    watched(hub, least=2, most=2)

    assert hub.replicas[key]["metadata"]["labels"][labels.REPLICA_INDEX] == before
    assert hub.created == 2


def _replacing(hub: Hub) -> list[Any]:
    return [step for step in plan(hub.observed).steps if isinstance(step, Replace | Create | Delete)]


def progressing(hub: Hub) -> Condition:
    status = plan(hub.observed).status
    assert status is not None
    return next(one for one in status.conditions if one.type == "Progressing")


# Whatever happens ----------------------------------------------------------------------------------------------------


def hardware(name: str, pools: Mapping[str, tuple[str, int]], **more: Any) -> InferenceCluster:
    """A cluster with these pools: their GPUs' memory, and nodes."""
    return b.cluster(name, *(b.pool(pool, b.gpu(size), nodes=nodes) for pool, (size, nodes) in pools.items()), **more)


SIZES = st.sampled_from(["80Gi", "141Gi", "200Gi"])
POOLS = st.dictionaries(st.sampled_from(["p", "q"]), st.tuples(SIZES, st.integers(0, 4)), min_size=1)
NAMES = st.sampled_from(["a", "b", "c"])
EVENTS = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 4)),
        st.tuples(st.just("size"), SIZES),
        st.tuples(st.just("copies"), st.integers(1, 3)),
        st.tuples(st.just("image"), st.sampled_from(["vllm:1", "vllm:2"])),
        st.tuples(st.just("hardware"), st.tuples(NAMES, POOLS)),
        st.tuples(st.just("rename"), NAMES),
        st.tuples(st.just("taint"), NAMES),
        st.tuples(st.just("untaint"), NAMES),
        st.tuples(st.just("delete"), NAMES),
        st.tuples(st.just("force"), NAMES),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=10,
)
WANTED = {"scale": "replicas", "size": "size", "copies": "copies", "image": "image"}
STATE = {
    "taint": {"taints": DRAIN},
    "untaint": {"taints": []},
    "delete": {"terminating": True},
    "force": {"forced": True},
}


@example([("hardware", ("a", {"p": ("200Gi", 1)})), ("size", "200Gi")], 1, 0, 1, 0)
@example([("size", "80Gi"), ("scale", 1), ("taint", "b"), ("hardware", ("a", {"p": ("80Gi", 0)}))], 1, 0, 5, 2)
@example([("size", "80Gi"), ("copies", 2)], 2, 0, 2, 0)
@example([("scale", 2), ("copies", 2), ("wait", 12), ("copies", 1)], 1, 0, 1, 3)
@given(EVENTS, st.integers(0, 2), st.integers(0, 2), st.integers(1, 5), st.integers(0, 4))
@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_becomes_of_the_hardware_it_comes_to_rest(
    events: list[tuple[str, Any]], surge: int, unavailable: int, starting: int, ending: int
) -> None:
    rollout = {"maxSurge": surge, "maxUnavailable": unavailable or (0 if surge else 1)}
    fleet: dict[str, dict[str, tuple[str, int]]] = {name: {"p": ("141Gi", 2)} for name in "abc"}
    state: dict[str, dict[str, Any]] = {name: {} for name in "abc"}
    wanted: dict[str, Any] = {"replicas": 2}
    hub = Hub(wanting(2, rollout=rollout), {name: hardware(name, fleet[name]) for name in fleet}, starting, ending)
    hub.settle()
    for what, value in events:
        match what:
            case "wait":
                for _ in range(value):
                    go_on(hub)
            case "hardware":
                fleet[value[0]] = dict(value[1])
            case "rename" if "q" not in fleet[value] and "p" in fleet[value]:
                fleet[value] = {"q": fleet[value]["p"]}
                hub.rename(value, "p", "q")
            case _ if what in WANTED:
                wanted[WANTED[what]] = value
            case _:
                state[value] |= STATE.get(what, {})
        hub.clusters = {name: hardware(name, fleet[name], **state[name]) for name in fleet}
        hub.deployment = wanting(**wanted, rollout=rollout)
        go_on(hub)
    made = hub.created
    for _ in range(400):
        go_on(hub)
        assert hub.created - made <= 2 * (wanted["replicas"] + surge), "replicas come and go"
        if hub.quiet:
            break

    assert hub.quiet, "it does not come to rest"
    # One too many stays only because it serves, and those that shall stay do not: their pool has lost its nodes.
    assert len(hub.replicas) <= wanted["replicas"] or len(hub.serving) <= wanted["replicas"]


def go_on(hub: Hub) -> None:
    """Decide until there is nothing to do at this moment, and let time pass."""
    before = bool(hub.serving)
    decided = hub.decide()
    for _ in range(4):
        if not any(isinstance(step, Replace | Create | Delete) for step in decided.steps):
            break
        decided = hub.decide()
    assert not any(isinstance(step, Replace | Create | Delete) for step in decided.steps), "deciding again changes it"
    assert decided.status is not None
    without_surge = any(one.reason == "MovingWithoutSurge" for one in decided.status.conditions)
    exempt = without_surge or not hub.deployment.spec.replicas
    assert not before or hub.serving or exempt, "nobody serves any more"
    hub.tick()
    assert not hub.dropped


CHANGES = st.lists(
    st.one_of(
        st.tuples(st.just("scale"), st.integers(0, 4)),
        st.tuples(st.just("image"), st.sampled_from(["vllm:1", "vllm:2", "vllm:3"])),
        st.tuples(st.just("drain"), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("undrain"), st.sampled_from(["a", "b", "c"])),
        st.tuples(st.just("wait"), st.integers(1, 12)),
    ),
    max_size=8,
)


@example(
    changes=[("scale", 3), ("image", "vllm:2"), ("drain", "a"), ("drain", "c")], surge=0, unavailable=0, starting=1
)
@example(
    changes=[("scale", 4), ("image", "vllm:2"), ("drain", "a"), ("drain", "b")], surge=0, unavailable=0, starting=1
)
@example(
    changes=[("scale", 0)] * 4 + [("scale", 1), ("wait", 1), ("scale", 2), ("scale", 0)],
    surge=0,
    unavailable=0,
    starting=1,
)
@given(changes=CHANGES, surge=st.integers(0, 2), unavailable=st.integers(0, 2), starting=st.integers(1, 5))
@settings(deadline=None, max_examples=30, suppress_health_check=[HealthCheck.too_slow])
def test_whatever_happens_no_request_is_lost_and_it_ends_well(
    changes: list[tuple[str, Any]], surge: int, unavailable: int, starting: int
) -> None:
    rollout = {"maxSurge": surge, "maxUnavailable": unavailable or (0 if surge else 1)}
    hub = Hub(wanting(2, rollout=rollout), {name: cluster(name, nodes=2) for name in "abc"}, starting=starting)
    hub.settle()
    replicas, image = 2, "vllm:1"
    for what, value in changes:
        match what:
            case "scale":
                replicas = value
            case "image":
                image = value
            case "drain":
                hub.clusters[value] = cluster(value, nodes=2, taints=DRAIN)
            case "undrain":
                hub.clusters[value] = cluster(value, nodes=2)
            case _:
                for _ in range(value):
                    hub.decide()
                    hub.tick()
                    assert not hub.dropped
        hub.deployment = wanting(replicas, image=image, rollout=rollout)
        hub.decide()
        hub.tick()
        assert not hub.dropped
    hub.settle()

    free = [name for name, one in hub.clusters.items() if not one.spec.taints]
    room = len(free) * 2
    assert len(hub.serving) >= min(replicas, room)
    assert images(hub) <= {image}
    if room >= replicas:
        assert len(hub.replicas) == replicas
        assert {one["spec"]["clusterName"] for one in hub.replicas.values()} <= set(free)
