"""Whatever is asked of a deployment that serves, no request is lost, and in the end all is as it was asked for."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from modelplane_operator.api import ModelDeployment, labels
from modelplane_operator.api.base import Key
from modelplane_operator.clients.resources import annotations_of
from modelplane_operator.planning.model_deployment import FOLLOWING, plan
from modelplane_operator.planning.rollout import PATIENCE, Budget, Live, Moves, moves
from tests.planning.simulation import GRACE, Hub
from tests.support.builders import EPOCH, cluster, deployment, engine, request, taint

Manifest = dict[str, Any]

DRAIN = [taint("maintenance", effect="NoExecute")]


def wanting(replicas: int, *, image: str = "vllm:1", rollout: Manifest | None = None) -> ModelDeployment:
    one = engine(request())
    one["members"][0]["template"] = {"spec": {"containers": [{"name": "engine", "image": image}]}}
    made = deployment(one, replicas=replicas).to_manifest()
    if rollout:
        made["spec"]["template"]["spec"]["rollout"] = rollout
    return ModelDeployment.parse(made)


def images(hub: Hub) -> set[str]:
    containers = (
        one["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"] for one in hub.replicas.values()
    )
    return {container[0]["image"] for container in containers}


def settled(deployment: ModelDeployment, **nodes: int) -> Hub:
    hub = Hub(deployment, {name: cluster(name, nodes=count) for name, count in nodes.items()})
    hub.settle()
    assert len(hub.serving) == deployment.spec.replicas
    return hub


def watched(hub: Hub, *, least: int, most: int) -> list[int]:
    """Let it settle; at every moment enough serve, and no more exist than may. How many served at each."""
    served: list[int] = []
    while True:
        hub.decide()
        served.append(len(hub.serving))
        assert served[-1] >= least, f"only {served[-1]} serve"
        assert len(hub.replicas) <= most
        hub.tick()
        assert not hub.dropped
        if hub.quiet:
            return served


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


def test_nothing_is_lost_when_a_cluster_is_deleted_that_there_is_no_other_for() -> None:
    hub = settled(wanting(1), a=1)
    hub.clusters["a"] = cluster("a", nodes=1, going=True)

    watched(hub, least=0, most=1)

    assert not hub.replicas


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


def frozen(hub: Hub, wanted: ModelDeployment, **metadata: Any) -> None:
    """The deployment as it is stored once somebody has paused it, or deleted it and has it wait; and has edited it."""
    status = plan(hub.observed).status
    manifest = wanted.to_manifest()
    paused = {**manifest, "metadata": {**manifest["metadata"], **metadata}}
    hub.deployment = ModelDeployment.parse(paused).model_copy(update={"status": status})


PAUSED = {"annotations": {labels.PAUSED: "true"}}
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": ["example.com/mine"]}


def places(hub: Hub) -> list[str]:
    return sorted(one["spec"]["clusterName"] for one in hub.replicas.values())


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


@pytest.mark.parametrize("wanted", [1, 2, 3])
def test_as_many_replicas_leave_a_cluster_that_is_deleted_as_there_were_when_it_was_paused(wanted: int) -> None:
    hub = settled(wanting(2), a=2)
    hub.clusters["b"] = cluster("b", nodes=4)
    frozen(hub, wanting(wanted), **PAUSED)

    hub.clusters["a"] = cluster("a", nodes=2, going=True)

    watched(hub, least=min(wanted, 1), most=3)
    assert places(hub) == ["b"] * min(wanted, 2)


def test_a_deployment_that_waits_for_its_end_holds_up_no_drain() -> None:
    hub = settled(wanting(2), a=1, b=1)
    hub.clusters["c"] = cluster("c", nodes=2)
    frozen(hub, wanting(2), **GOING)

    hub.clusters["a"] = cluster("a", nodes=1, going=True)

    watched(hub, least=1, most=2)
    assert places(hub) == ["b"], "what goes gets no other place"


def test_a_service_that_does_not_follow_holds_a_drain_up_for_some_minutes() -> None:
    """It is paused, for one: its route goes on leading to the replica that is to leave, and to no other."""
    hub = settled(wanting(2), a=1, b=1)
    led_to, other = sorted(hub.replicas)
    seen = replace(hub.observed, routed=frozenset({led_to}), reached=frozenset({led_to}))
    since = seen.awaited(other)
    assert since is not None
    late = replace(seen, now=since)

    assert (seen.standing[other].serving, late.standing[other].serving) == (False, True)
    assert seen.now < since <= seen.now + FOLLOWING
    assert (plan(seen).requeue_after, plan(late).requeue_after) == ((since - seen.now).total_seconds(), None)


def test_a_route_that_stays_holds_a_drain_up_for_a_minute() -> None:
    now = EPOCH + GRACE
    live = Live(Key("team", "one"), serving=True, draining_since=EPOCH, routed=True)
    budget = Budget(desired=1, surge=1, unavailable=0, grace=GRACE)

    def at(when: datetime) -> Moves:
        return moves([live.key], frozenset(), {live.key: live}, budget, now=when)

    assert (at(now).go, at(now).again_at) == (frozenset(), now + PATIENCE)
    assert at(now + PATIENCE).go == {live.key}


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
