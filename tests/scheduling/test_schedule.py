"""What the scheduler decides, case by case: the worked cases of the specification, then where we differ from them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import timedelta

import pytest

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.requirement import NoCache, placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b

NOW = b.EPOCH + timedelta(hours=1)

Place = tuple[str, int] | tuple[str, int, str]


@dataclass(frozen=True)
class Case:
    name: str
    deployment: ModelDeployment
    clusters: Sequence[InferenceCluster]
    placed: Sequence[Place]
    """Where the replicas shall be: cluster and index, and the pool of the first member where that matters."""
    replicas: Sequence[ModelReplica] = ()
    cache: NoCache = NoCache.NOT_READ
    held: Sequence[str] = field(default=())
    removed: Sequence[str] = field(default=())


def decide(case: Case) -> Decision:
    fleet = FleetModel()
    for cluster in case.clusters:
        fleet.observe_cluster(cluster)
    for replica in case.replicas:
        fleet.observe_replica(replica)
    return schedule(placement_request(case.deployment, case.cache), fleet, now=NOW)


def places(decision: Decision, like: Sequence[Place]) -> list[Place]:
    pools = any(len(place) == 3 for place in like)
    return [
        (p.cluster, p.index, p.engines[0].members[0].pool) if pools else (p.cluster, p.index)
        for p in decision.placements
    ]


@pytest.fixture
def decision(case: Case) -> Decision:
    return decide(case)


SPREAD = [
    Case("no clusters, no places", b.deployment(), [], []),
    Case("one replica goes to the one cluster", b.deployment(), [b.cluster("a")], [("a", 0)]),
    Case("a cluster that is not Ready gets nothing", b.deployment(), [b.cluster("a", ready=False)], []),
    Case("a cluster that says nothing of Ready gets nothing", b.deployment(), [b.cluster("a", ready=None)], []),
    Case("a cluster without a gateway address gets nothing", b.deployment(), [b.cluster("a", address=None)], []),
    Case("four nodes do not fit a pool of two", b.deployment(b.pipeline(4)), [b.cluster("a")], []),
    Case("four nodes fit a pool of four", b.deployment(b.pipeline(4)), [b.cluster("a", nodes=4)], [("a", 0)]),
    Case("the first cluster by name wins a tie", b.deployment(), [b.cluster("b"), b.cluster("a")], [("a", 0)]),
    Case(
        "a replica stays on a cluster that is not Ready and has no address",
        b.deployment(),
        [b.cluster("a", ready=False, address=None)],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "a second replica goes to the emptier cluster",
        b.deployment(replicas=2),
        [b.cluster("a"), b.cluster("b")],
        [("a", 0), ("b", 0)],
        [b.replica("a")],
    ),
    Case(
        "two replicas share the only cluster",
        b.deployment(replicas=2),
        [b.cluster("a")],
        [("a", 0), ("a", 1)],
    ),
    Case(
        "three replicas over two clusters of four nodes",
        b.deployment(replicas=3),
        [b.cluster("a", nodes=4), b.cluster("b", nodes=4)],
        [("a", 0), ("a", 1), ("b", 0)],
    ),
    Case(
        "four replicas spread evenly, however large the clusters are",
        b.deployment(replicas=4),
        [b.cluster("a", nodes=40), b.cluster("b", nodes=4)],
        [("a", 0), ("a", 1), ("b", 0), ("b", 1)],
    ),
    Case(
        "scaling up leaves the first replica where it is",
        b.deployment(replicas=2),
        [b.cluster("a", nodes=4), b.cluster("b", nodes=4)],
        [("a", 0), ("b", 0)],
        [b.replica("a")],
    ),
    Case(
        "scaling down takes from the fuller cluster",
        b.deployment(replicas=2),
        [b.cluster("a"), b.cluster("b")],
        [("a", 0), ("b", 0)],
        [b.replica("a"), b.replica("a", index=1), b.replica("b")],
        removed=["my-model-a-1"],
    ),
    Case(
        "scaling down looks at the cluster's load, not at the index",
        b.deployment(replicas=2),
        [b.cluster("a"), b.cluster("b")],
        [("a", 0), ("b", 3)],
        [b.replica("a"), b.replica("a", index=1), b.replica("b", index=3)],
        removed=["my-model-a-1"],
    ),
    Case(
        "of two equally loaded clusters the later by name loses",
        b.deployment(),
        [b.cluster("a"), b.cluster("b")],
        [("a", 0)],
        [b.replica("b"), b.replica("a")],
        removed=["my-model-b-0"],
    ),
    Case(
        "another model's replica has its node",
        b.deployment(),
        [b.cluster("a", nodes=1)],
        [],
        [b.replica("a", of="other-model")],
    ),
    Case(
        "a replica whose cluster is gone is placed anew",
        b.deployment(),
        [b.cluster("b")],
        [("b", 0)],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "of two replicas with one identity the first by name stays",
        b.deployment(),
        [b.cluster("a", b.pool("a"), b.pool("b"))],
        [("a", 0, "a")],
        [b.replica("a", name="my-model-a-0-dup", pool="b"), b.replica("a", pool="a")],
        removed=["my-model-a-0-dup"],
    ),
    Case(
        "while the cache is not read nothing new is placed",
        b.deployment(replicas=2, cache="qwen"),
        [b.cluster("a")],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "while the cache does not exist nothing new is placed",
        b.deployment(replicas=2, cache="qwen"),
        [b.cluster("a")],
        [("a", 0)],
        [b.replica("a")],
        cache=NoCache.NOT_FOUND,
    ),
    Case("scaling to zero removes all", b.deployment(replicas=0), [b.cluster("a")], [], [b.replica("a")],
         removed=["my-model-a-0"]),
]  # fmt: skip

HARDWARE = [
    Case("count 8 of 4", b.deployment(b.engine(b.request(count=8))), [b.cluster("a", b.pool("p", b.gpu(count=4)))], []),
    Case("a pool without nodes", b.deployment(), [b.cluster("a", nodes=0)], []),
    Case("a pool that does not say how many nodes", b.deployment(), [b.cluster("a", b.pool(nodes=None))], []),
    Case(
        "a request that no device of the pool meets",
        b.deployment(b.engine(b.request(), b.request(b.IB, name="nic"))),
        [b.cluster("a", b.pool("p", b.gpu()))],
        [],
    ),
    Case(
        "two requests of five do not share eight devices",
        b.deployment(b.engine(b.request(count=5), b.request(name="more", count=5))),
        [b.cluster("a", b.pool("p", b.gpu(count=8)))],
        [],
    ),
    Case(
        "the network card decides between pools",
        b.deployment(b.engine(b.request(), b.request(b.IB, name="nic"))),
        [b.cluster("a", b.pool("dev", b.gpu(), b.nic("tcpx")), b.pool("frontier", b.gpu(), b.nic("infiniband")))],
        [("a", 0, "frontier")],
    ),
    Case(
        "a pinned pool that still matches stays",
        b.deployment(),
        [b.cluster("a", b.pool("cheap"), b.pool("frontier"))],
        [("a", 0, "frontier")],
        [b.replica("a", pool="frontier")],
    ),
    Case(
        "an equal cluster moves nothing",
        b.deployment(b.engine(b.request(), b.request(b.IB, name="nic"))),
        [b.cluster(name, b.pool("p", b.gpu(), b.nic("infiniband"))) for name in "ab"],
        [("a", 0)],
        [b.replica("a", pool="p")],
    ),
    Case(
        "a replica whose pool is gone takes another of its cluster, and its name",
        b.deployment(),
        [b.cluster("a", b.pool("frontier"))],
        [("a", 0, "frontier")],
        [b.replica("a", pool="default")],
    ),
    Case(
        "the pool with enough devices on a node",
        b.deployment(b.engine(b.request(count=8))),
        [b.cluster("a", b.pool("a", b.gpu(count=4)), b.pool("b", b.gpu(count=8)))],
        [("a", 0, "b")],
    ),
    Case("the first pool as published, not by name", b.deployment(), [b.cluster("a", b.pool("z"), b.pool("b"))],
         [("a", 0, "z")]),
    Case(
        "a pool that has shrunk to nothing keeps what runs there",
        b.deployment(),
        [b.cluster("a", nodes=0)],
        [("a", 0)],
        [b.replica("a")],
    ),
]  # fmt: skip

GANGS = [
    Case(
        "leader and worker share the pool that does for both",
        b.deployment(b.gang([b.request(b.M141)], [b.request(b.M200)])),
        [b.cluster("a", b.pool("small", b.gpu("141Gi")), b.pool("big", b.gpu("200Gi")))],
        [("a", 0, "big")],
    ),
    Case(
        "a gang is not spread over pools to find nodes",
        b.deployment(b.gang([b.request()], [b.request()])),
        [b.cluster("a", b.pool("small", b.gpu("40Gi"), nodes=8), b.pool("big", nodes=1))],
        [],
    ),
    Case(
        "no member runs on a synthetic device where it could claim one",
        b.deployment(b.gang([b.request(b.M200)], [b.request(b.M141)])),
        [b.cluster("a", b.pool("a", b.gpu("141Gi"), b.synthetic("200Gi")), b.pool("b", b.gpu("200Gi")))],
        [("a", 0, "b")],
    ),
    Case(
        "a gang of which one member matches nothing",
        b.deployment(b.gang([b.request(b.M141)], [b.request(b.M200)])),
        [b.cluster("a")],
        [],
    ),
    Case(
        "a leader that claims nothing rides along for free",
        b.deployment(b.gang([], [b.request()])),
        [b.cluster("a", nodes=1)],
        [("a", 0)],
        [b.replica("a", stages=2, claims=(False, True))],
    ),
    Case(
        "a replica takes the new shape in place",
        b.deployment(b.pipeline(2)),
        [b.cluster("a", nodes=4)],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "copies count in nodes",
        b.deployment(b.engine(copies=3)),
        [b.cluster("a", nodes=2), b.cluster("b", nodes=3)],
        [("b", 0)],
    ),
]

MAINTENANCE = b.taint("modelplane.ai/maintenance", "on")
DECOMMISSION = b.taint("modelplane.ai/decommission", effect="NoExecute")
TAINTS = [
    Case("a taint keeps new replicas off", b.deployment(), [b.cluster("a", taints=[MAINTENANCE]), b.cluster("b")],
         [("b", 0)]),
    Case("NoSchedule leaves what runs", b.deployment(), [b.cluster("a", taints=[MAINTENANCE]), b.cluster("b")],
         [("a", 0)], [b.replica("a")]),
    Case(
        "a toleration for the key",
        b.deployment(tolerations=[b.toleration("modelplane.ai/maintenance")]),
        [b.cluster("a", taints=[MAINTENANCE])],
        [("a", 0)],
    ),
    Case(
        "NoExecute moves what runs",
        b.deployment(),
        [b.cluster("a", taints=[DECOMMISSION]), b.cluster("b")],
        [("b", 0)],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "NoExecute with nowhere to go keeps what runs",
        b.deployment(replicas=2),
        [b.cluster("a", taints=[DECOMMISSION])],
        [("a", 0), ("a", 1)],
        [b.replica("a"), b.replica("a", index=1)],
    ),
    Case(
        "NoExecute moves as many as have a place elsewhere, and keeps the others",
        b.deployment(replicas=3),
        [b.cluster("a", nodes=3, taints=[DECOMMISSION]), b.cluster("b", nodes=1)],
        [("a", 0), ("a", 1), ("b", 0)],
        [b.replica("a", index=index) for index in range(3)],
        removed=["my-model-a-2"],
    ),
    Case(
        "a drain by force ends those that have no place elsewhere",
        b.deployment(replicas=3),
        [b.cluster("a", nodes=3, taints=[DECOMMISSION], forced=True), b.cluster("b", nodes=1)],
        [("b", 0)],
        [b.replica("a", index=index) for index in range(3)],
        removed=["my-model-a-0", "my-model-a-1", "my-model-a-2"],
    ),
    Case(
        "force without a drain moves nobody",
        b.deployment(),
        [b.cluster("a", taints=[MAINTENANCE], forced=True), b.cluster("b")],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "while the cache does not exist nobody is drained",
        b.deployment(cache="qwen"),
        [b.cluster("a", taints=[DECOMMISSION]), b.cluster("b")],
        [("a", 0)],
        [b.replica("a")],
        cache=NoCache.NOT_FOUND,
    ),
    Case(
        "a tolerated NoExecute leaves what runs",
        b.deployment(tolerations=[b.toleration("modelplane.ai/decommission")]),
        [b.cluster("a", taints=[DECOMMISSION])],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "a toleration of NoSchedule does not cover NoExecute",
        b.deployment(tolerations=[b.toleration("modelplane.ai/decommission", effect="NoSchedule")]),
        [b.cluster("a", taints=[DECOMMISSION]), b.cluster("b")],
        [("b", 0)],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "an equal value is tolerated",
        b.deployment(tolerations=[b.toleration("modelplane.ai/maintenance", value="on")]),
        [b.cluster("a", taints=[MAINTENANCE])],
        [("a", 0)],
    ),
    Case(
        "another value is not",
        b.deployment(tolerations=[b.toleration("modelplane.ai/maintenance", value="off")]),
        [b.cluster("a", taints=[MAINTENANCE])],
        [],
    ),
]  # fmt: skip

TWO_SIZES = [b.pool("big", b.gpu("200Gi"), nodes=1), b.pool("small", b.gpu("141Gi"), nodes=1)]
DIFFERENT = [
    Case(
        "the deployment of that name in another namespace is another deployment",
        b.deployment(replicas=2),
        [b.cluster("a", nodes=2)],
        [("a", 0)],
        [b.replica("a", namespace="other-team")],
    ),
    Case(
        "the deployment that had the name before has its nodes and its index until it is gone",
        b.deployment(replicas=2),
        [b.cluster("a", nodes=2)],
        [("a", 1)],
        [b.replica("a", uid="another-uid")],
    ),
    Case(
        "a replica without our uid is not ours",
        b.deployment(replicas=0),
        [b.cluster("a")],
        [],
        [b.replica("a", uid=None)],
    ),
    Case(
        "an edited label selector moves nothing",
        b.deployment(labels={"region": "eu"}),
        [b.cluster("a", region="us"), b.cluster("b", region="eu")],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "labels decide where new replicas go",
        b.deployment(replicas=2, labels={"region": "eu"}),
        [b.cluster("a", region="us"), b.cluster("b", region="eu")],
        [("b", 0), ("b", 1)],
    ),
    Case(
        "a replica on its way out does not count, and keeps its node and index",
        b.deployment(),
        [b.cluster("a", nodes=2)],
        [("a", 1)],
        [b.replica("a", terminating=True)],
    ),
    Case(
        "a replica on its way out leaves no room before it is gone",
        b.deployment(),
        [b.cluster("a", nodes=1)],
        [],
        [b.replica("a", terminating=True)],
    ),
    Case(
        "a replica that must leave leaves no room before it is gone",
        b.deployment(tolerations=[b.toleration("modelplane.ai/maintenance")]),
        [b.cluster("a", nodes=1, taints=[DECOMMISSION], forced=True), b.cluster("b", nodes=1)],
        [],
        [b.replica("a"), b.replica("b", of="other-model")],
        removed=["my-model-a-0"],
    ),
    Case(
        "an engine makes room for one that has less choice",
        b.deployment(b.engine(name="easy"), b.engine(b.request(b.M200), name="hard")),
        [b.cluster("a", *TWO_SIZES)],
        [("a", 0, "small")],
    ),
    Case(
        "a request makes room for one that has less choice",
        b.deployment(b.engine(b.request(b.M141, name="easy"), b.request(b.M200, name="hard"))),
        [b.cluster("a", b.pool("p", b.gpu("200Gi", name="big"), b.gpu("141Gi", name="small")))],
        [("a", 0)],
    ),
    Case(
        "a device that can be claimed is preferred to a synthetic one published before it",
        b.deployment(),
        [b.cluster("a", b.pool("p", b.synthetic("141Gi"), b.gpu("141Gi")))],
        [("a", 0)],
    ),
    Case(
        "an enlarged replica stays where its pool has room for it",
        b.deployment(b.engine(copies=2)),
        [b.cluster("a", nodes=2), b.cluster("b", nodes=9)],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "an enlarged replica takes another pool of its cluster",
        b.deployment(b.engine(copies=3)),
        [b.cluster("a", b.pool("default", nodes=2), b.pool("more", nodes=3))],
        [("a", 0, "more")],
        [b.replica("a")],
    ),
    Case(
        "an enlarged replica moves when its cluster has no room",
        b.deployment(b.engine(copies=3)),
        [b.cluster("a", nodes=2), b.cluster("b", nodes=3)],
        [("b", 0)],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "an enlarged replica that fits nowhere stays as it is",
        b.deployment(b.engine(copies=3)),
        [b.cluster("a", nodes=2), b.cluster("b", nodes=2)],
        [],
        [b.replica("a")],
        held=["my-model-a-0"],
    ),
    Case(
        "a request that nothing meets any more stops nothing that runs",
        b.deployment(b.engine(b.request(b.M200))),
        [b.cluster("a")],
        [],
        [b.replica("a")],
        held=["my-model-a-0"],
    ),
    Case(
        "an invalid selector stops nothing that runs",
        b.deployment(b.engine(b.request("not ) valid ("))),
        [b.cluster("a")],
        [],
        [b.replica("a")],
        held=["my-model-a-0"],
    ),
    Case(
        "an invalid selector does not stop scaling down",
        b.deployment(b.engine(b.request("not ) valid (")), replicas=1),
        [b.cluster("a"), b.cluster("b")],
        [],
        [b.replica("a"), b.replica("b")],
        held=["my-model-a-0"],
        removed=["my-model-b-0"],
    ),
    Case(
        "a fleet of which no cluster is known is not yet read",
        b.deployment(),
        [],
        [],
        [b.replica("a")],
        held=["my-model-a-0"],
    ),
    Case(
        "a cluster that publishes no pools keeps what runs there",
        b.deployment(),
        [b.cluster("a", b.pool()).model_copy(update={"status": None}), b.cluster("b", nodes=0)],
        [],
        [b.replica("a")],
        held=["my-model-a-0"],
    ),
    Case(
        "a cluster that is being deleted is drained",
        b.deployment(),
        [b.cluster("a", terminating=True), b.cluster("b")],
        [("b", 0)],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "a cluster that is being deleted keeps what has no place elsewhere",
        b.deployment(),
        [b.cluster("a", terminating=True)],
        [("a", 0)],
        [b.replica("a")],
    ),
    Case(
        "a cluster that is being deleted by force keeps nothing",
        b.deployment(),
        [b.cluster("a", terminating=True, forced=True)],
        [],
        [b.replica("a")],
        removed=["my-model-a-0"],
    ),
    Case(
        "what takes the place of a replica stays though it does not answer yet",
        b.deployment(b.engine(b.request(b.M200))),
        [b.cluster("a"), b.cluster("b", b.pool("p", b.gpu("200Gi")))],
        [("b", 0, "p")],
        [b.replica("a", ready=True), b.replica("b", pool="p", ready=False)],
        removed=["my-model-a-0"],
    ),
    Case(
        "of too many the one goes first that cannot take the present shape",
        b.deployment(b.engine(b.request(b.M200)), replicas=1),
        [b.cluster("a"), b.cluster("b", b.pool("p", b.gpu("200Gi")))],
        [("b", 0, "p")],
        [b.replica("a", ready=True), b.replica("b", pool="p", ready=False)],
        removed=["my-model-a-0"],
    ),
    Case(
        "of too many the one on a cluster that is not Ready goes before one that cannot take the present shape",
        b.deployment(b.engine(b.request(b.M200)), replicas=2),
        [
            b.cluster("a"),
            b.cluster("b", b.pool("p", b.gpu("200Gi")), ready=False),
            b.cluster("c", b.pool("p", b.gpu("200Gi"), nodes=2)),
        ],
        [("c", 0, "p"), ("c", 1, "p")],
        [b.replica("a", ready=True), b.replica("b", pool="p", ready=False), b.replica("c", pool="p", ready=True)],
        removed=["my-model-a-0", "my-model-b-0"],
    ),
    Case(
        "what takes the place of a replica of a drained cluster does not end another that waits for its cluster",
        b.deployment(replicas=2),
        [b.cluster("a", ready=False), b.cluster("b", taints=[DECOMMISSION]), b.cluster("c")],
        [("a", 0), ("c", 0)],
        [b.replica("a", ready=False), b.replica("b", ready=True), b.replica("c", ready=False)],
        removed=["my-model-b-0"],
    ),
    Case(
        "a smaller replica has its nodes of before until its pods are gone",
        b.deployment(replicas=3),
        [b.cluster("a", nodes=4)],
        [("a", 0), ("a", 1)],
        [b.replica("a", copies=2), b.replica("a", index=1, copies=2)],
    ),
    Case(
        "replicas that do not answer go first",
        b.deployment(replicas=1),
        [b.cluster("a"), b.cluster("b")],
        [("b", 0)],
        [b.replica("a", ready=False), b.replica("b", ready=True)],
        removed=["my-model-a-0"],
    ),
    Case(
        "replicas on a cluster that is not Ready go before those that do not answer",
        b.deployment(replicas=1),
        [b.cluster("a", ready=False), b.cluster("b")],
        [("b", 0)],
        [b.replica("a", ready=True), b.replica("b", ready=False)],
        removed=["my-model-a-0"],
    ),
    Case(
        "of equally loaded clusters the least used comes first",
        b.deployment(),
        [b.cluster("a", nodes=4), b.cluster("b", nodes=4)],
        [("b", 0)],
        [b.replica("a", of="other-model")],
    ),
    Case(
        "only pools that match count for use",
        b.deployment(),
        [b.cluster("a", b.pool("p"), b.pool("toys", b.gpu("16Gi"))), b.cluster("b", b.pool("p"))],
        [("a", 0)],
        [b.replica("a", of="other-model", pool="toys")],
    ),
    Case(
        "an index that is no number reads as 0",
        b.deployment(),
        [b.cluster("a")],
        [("a", 0)],
        [b.replica("a", index="x")],
    ),
    Case(
        "a pool published twice counts once, as first published",
        b.deployment(replicas=3),
        [b.cluster("a", b.pool("p", nodes=1), b.pool("p", nodes=9))],
        [("a", 0)],
    ),
]  # fmt: skip

CASES = [*SPREAD, *HARDWARE, *GANGS, *TAINTS, *DIFFERENT]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_replicas_are_placed(case: Case) -> None:
    decision = decide(case)

    found = (
        places(decision, case.placed),
        [held.replica.key.name for held in decision.retained],
        sorted(removal.replica.key.name for removal in decision.removed),
    )
    assert found == (list(case.placed), list(case.held), list(case.removed))
