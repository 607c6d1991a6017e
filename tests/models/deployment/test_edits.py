"""An edit costs no request while the fleet has room for what is to serve in the meantime."""

from __future__ import annotations

from typing import Any

import pytest

from kubeloop.objects import is_terminating
from modelplane_operator.models.deployment.plan import plan
from tests.models.deployment.lives import image_of
from tests.models.deployment.simulation import DRAIN, PAUSED, Hub, frozen, images, places, settled, wanting, watched
from tests.support import builders as b
from tests.support.builders import cluster

Manifest = dict[str, Any]


# Replicas that the same plan creates ---------------------------------------------------------------------------------


@pytest.mark.parametrize("nodes", [2, 3, 4])
def test_an_edit_of_image_and_replicas_waits_for_the_replicas_that_it_creates(nodes: int) -> None:
    hub = settled(wanting(1), a=nodes)
    hub.deployment = wanting(3, image="vllm:2")

    watched(hub, least=1, most=nodes)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == min(nodes, 3)


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_cluster_that_joins_during_an_edit_takes_a_replica_before_one_leaves(nodes: int) -> None:
    """Two of four replicas have a place, so that one after the other would be changed where it is."""
    hub = settled(wanting(2), a=2)
    hub.deployment = wanting(4, image="vllm:2")
    hub.clusters["b"] = cluster("b", nodes=nodes)

    watched(hub, least=2, most=2 + nodes)

    assert images(hub) == {"vllm:2"}
    assert len(hub.serving) == 2 + nodes


# Replicas that cannot serve ------------------------------------------------------------------------------------------


def silence(hub: Hub, cluster: str) -> None:
    """The cluster and its gateway answer no more, and its replicas leave rotation."""
    hub.silent[cluster] = hub.now
    hub.settle()


@pytest.mark.parametrize("free", [0, 1])
def test_a_rollout_does_not_wait_for_a_surplus_replica_on_a_cluster_that_is_lost(free: int) -> None:
    hub = settled(wanting(2), a=1, b=1)
    silence(hub, "b")
    hub.clusters["c"] = cluster("c", nodes=free)
    hub.deployment = wanting(1, image="vllm:2")

    watched(hub, least=free, most=3)

    live = [one for one in hub.replicas.values() if not is_terminating(one)]
    assert [image_of(one) for one in live] == ["vllm:2"]
    assert len(hub.serving) == 1


@pytest.mark.parametrize("free", [0, 1])
def test_a_rollout_does_not_wait_for_a_surge_replica_whose_cluster_is_lost(free: int) -> None:
    hub = settled(wanting(1), a=1)
    hub.clusters["b"] = cluster("b", nodes=1)
    hub.deployment = wanting(1, image="vllm:2")
    hub.decide()
    assert places(hub) == ["a", "b"]
    hub.silent["b"] = hub.now
    hub.tick()
    hub.clusters["c"] = cluster("c", nodes=free)

    watched(hub, least=free, most=3)

    live = [one for one in hub.replicas.values() if not is_terminating(one)]
    assert [image_of(one) for one in live] == ["vllm:2"]


def test_a_rollout_gives_up_a_replica_on_a_lost_cluster_for_the_surge_replica() -> None:
    """Two are wanted and one is lost: the surge replica serves in its place, and the last old one is changed."""
    hub = settled(wanting(2), a=1, b=1)
    silence(hub, "b")
    hub.clusters["c"] = cluster("c", nodes=2)
    hub.deployment = wanting(2, image="vllm:2")

    watched(hub, least=1, most=4)

    live = [one for one in hub.replicas.values() if not is_terminating(one)]
    assert [image_of(one) for one in live] == ["vllm:2"] * 2
    assert len(hub.serving) == 2


# Replicas that leave their cluster -----------------------------------------------------------------------------------

LEFT = {"a cluster that is being deleted": {"terminating": True}, "a drained cluster": {"taints": DRAIN}}


@pytest.mark.parametrize("name", ["a", "b"])
@pytest.mark.parametrize("left", LEFT.values(), ids=LEFT)
def test_a_replica_that_has_a_place_elsewhere_is_not_changed_before_it_moves(left: Manifest, name: str) -> None:
    """The free node is for the replica that moves; a surge replica beside it has no place."""
    hub = settled(wanting(2), a=1, b=1)
    hub.clusters |= {name: cluster(name, nodes=1, **left), "c": cluster("c", nodes=1)}
    hub.deployment = wanting(2, image="vllm:2")
    images_there: set[str] = set()
    hub.decide()
    while not hub.quiet:
        hub.decide()
        hub.tick()
        images_there |= {image_of(one) for one in hub.replicas.values() if one["spec"]["clusterName"] == name}
        assert len(hub.serving) >= 1

    assert images_there == {"vllm:1"}
    assert (places(hub), images(hub)) == (sorted({"a", "b", "c"} - {name}), {"vllm:2"})


# Replicas of a paused deployment -------------------------------------------------------------------------------------


def paused(replicas: int, **edited: Any) -> Hub:
    """A deployment with its replicas on `a`, which is paused, and then edited."""
    hub = settled(wanting(replicas), a=replicas)
    hub.clusters["b"] = cluster("b", nodes=replicas)
    frozen(hub, wanting(replicas, **edited), **PAUSED)
    return hub


def test_a_replica_of_a_paused_deployment_that_somebody_deletes_is_created_after_the_pause() -> None:
    hub = paused(2, image="vllm:2")
    hub.end(min(hub.replicas))

    watched(hub, least=1, most=2)
    status = plan(hub.observed).status
    assert status is not None
    reported = {item.type: (item.reason, item.message) for item in status.conditions}

    assert (len(hub.replicas), images(hub)) == (1, {"vllm:1"})
    assert reported["Progressing"] == ("Settled", "1 replica is created when the pause ends")
    assert reported["ReplicasScheduled"][0] == "Scheduling"
    assert reported["Ready"][0] != "Available"

    hub.deployment = wanting(2, image="vllm:2")
    watched(hub, least=1, most=3)
    assert (len(hub.serving), images(hub)) == (2, {"vllm:2"})


@pytest.mark.parametrize("edited", [{"image": "vllm:2"}, {"image": "vllm:2", "size": "80Gi"}], ids=str)
def test_a_replica_that_leaves_a_drained_cluster_during_a_pause_keeps_its_engines(edited: Manifest) -> None:
    hub = paused(1, **edited)
    hub.clusters["a"] = cluster("a", nodes=1, taints=DRAIN)

    watched(hub, least=1, most=2)

    assert (places(hub), images(hub)) == (["b"], {"vllm:1"})


# Moves to other nodes of the same cluster ----------------------------------------------------------------------------


@pytest.mark.parametrize("replicas", [1, 2, 3])
@pytest.mark.parametrize("free", [1, 2])
def test_a_move_to_another_pool_of_the_same_cluster_has_its_replacement_first(replicas: int, free: int) -> None:
    hub = settled(wanting(replicas), a=replicas)
    pools = b.pool("default", nodes=replicas), b.pool("large", b.gpu("200Gi"), nodes=free)
    hub.clusters["a"] = b.cluster("a", *pools)
    hub.deployment = wanting(replicas, size="200Gi")

    watched(hub, least=replicas, most=replicas + 1)

    moved = [one for one in hub.replicas.values() if one["spec"]["engines"][0]["members"][0]["nodePoolName"] == "large"]
    assert len(moved) == min(replicas, free)
    assert len(hub.replicas) == replicas


def test_a_replica_that_grows_has_its_replacement_first() -> None:
    hub = settled(wanting(1), a=3)
    hub.deployment = wanting(1, copies=2)

    watched(hub, least=1, most=2)

    assert [one["spec"]["engines"][0]["copies"] for one in hub.replicas.values()] == [2]


def test_a_replica_that_grows_into_its_own_nodes_is_changed_where_it_is() -> None:
    hub = settled(wanting(1), a=2)
    hub.deployment = wanting(1, copies=2)

    watched(hub, least=0, most=1)

    assert [one["spec"]["engines"][0]["copies"] for one in hub.replicas.values()] == [2]
    assert (hub.created, len(hub.serving)) == (1, 1)


def test_the_last_serving_replica_waits_for_the_nodes_of_a_surge_replica_that_somebody_deletes() -> None:
    hub = settled(wanting(1), a=2)
    hub.ending = 2
    hub.deployment = wanting(1, image="vllm:2")
    hub.decide()
    for _ in range(3):
        hub.tick()
        hub.decide()
    hub.end(next(key for key, one in hub.replicas.items() if image_of(one) == "vllm:2"))

    watched(hub, least=1, most=2)

    assert images(hub) == {"vllm:2"}
