"""Nodes are counted by pool, whoever takes them and in whatever order that is seen."""

from __future__ import annotations

from kubeloop.resource import OwnerReference
from modelplane_operator.scheduling import cluster as clusters
from modelplane_operator.scheduling import placement as placements
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.load import Load
from modelplane_operator.scheduling.placement import ReplicaOwner
from tests.support import builders as b

CLUSTER = b.cluster("a", b.pool("x", nodes=4), b.pool("y", nodes=2))


def test_what_is_charged_can_be_released() -> None:
    info = ClusterInfo.of(clusters.read(CLUSTER), Load({"x": 1}))

    assert info.free == (3, 2)
    assert info.charge(Load({"x": 2, "y": 3})).free == (1, -1)
    assert info.charge(Load({"x": 2, "y": 3})).release(Load({"x": 2, "y": 3})) == info


def test_a_pool_that_is_not_published_is_charged_nothing() -> None:
    info = ClusterInfo.of(clusters.read(CLUSTER), Load({"gone": 7}))

    assert info.charge(Load({"gone": 1})).free == (4, 2)


def test_members_without_claims_are_charged_nothing() -> None:
    gang = placements.read(b.replica("a", pool="x", stages=4, copies=2, claims=(False, True)))
    pod = placements.read(b.replica("a", pool="x", copies=5))

    assert (gang.charges, pod.charges) == ({"x": 6}, {"x": 5})


def test_a_replica_seen_before_its_cluster_is_charged() -> None:
    fleet = FleetModel()
    fleet.observe_replica(b.replica("a", pool="x"))
    fleet.observe_cluster(CLUSTER)

    info = fleet.info("a")
    assert info is not None
    assert info.free == (3, 2)


def test_a_pool_that_returns_is_charged_again() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(CLUSTER)
    fleet.observe_replica(b.replica("a", pool="x"))
    fleet.observe_cluster(b.cluster("a", b.pool("y", nodes=2)))
    without = fleet.info("a")
    fleet.observe_cluster(CLUSTER)
    returned = fleet.info("a")

    assert without is not None
    assert returned is not None
    assert (without.free, returned.free) == ((2,), (3, 2))


def test_an_unchanged_cluster_is_not_asked_again() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(CLUSTER)
    before = fleet.info("a")
    fleet.observe_cluster(b.cluster("a", b.pool("x", nodes=4), b.pool("y", nodes=2)))

    assert fleet.info("a") is before


def test_whose_a_replica_is_stands_in_its_owner_reference_or_its_labels() -> None:
    labelled = b.replica("a")
    reference = OwnerReference(api_version="modelplane.ai/v1alpha1", kind="ModelDeployment", name="x" * 100, uid="u")
    metadata = labelled.metadata.model_copy(update={"owner_references": (reference,)})
    referenced = labelled.model_copy(update={"metadata": metadata})

    assert placements.read(labelled).owner == b.OWNER
    assert placements.read(referenced).owner == ReplicaOwner(b.NAMESPACE, "x" * 100, "u")
