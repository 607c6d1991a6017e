"""Giving up on lost clusters: only when asked for, not too soon, and not too many at once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import pytest

from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.scheduling.decision import Decision, Removal
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import read
from modelplane_operator.scheduling.reasons import Displaced, Lost, Tainted
from modelplane_operator.scheduling.requirement import placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b

FIVE_MINUTES = {"after": "5m"}
DUE = b.EPOCH + timedelta(minutes=5)


def decide(
    deployment: ModelDeployment, replicas: Sequence[b.ModelReplica], *, now: datetime, lost: str = "a", down: str = ""
) -> Decision:
    """Clusters a, b and c; those of `lost` have been unreachable, those of `down` not Ready, since the epoch."""
    fleet = FleetModel()
    for name in "abc":
        since = b.EPOCH if name in lost else None
        fleet.observe_cluster(b.cluster(name, ready=name not in down), unreachable_since=since)
    for replica in replicas:
        fleet.observe_replica(replica)
    return schedule(placement_request(deployment), fleet, now=now)


@dataclass(frozen=True)
class Case:
    name: str
    deployment: ModelDeployment
    replicas: Sequence[b.ModelReplica]
    placed: Sequence[tuple[str, int]]
    removed: Sequence[str] = ()
    now: datetime = DUE
    lost: str = "a"
    down: str = ""


CASES = [
    Case("never, unless asked for", b.deployment(), [b.replica("a")], [("a", 0)], now=DUE + timedelta(days=365)),
    Case(
        "not before its time",
        b.deployment(failover=FIVE_MINUTES),
        [b.replica("a")],
        [("a", 0)],
        now=DUE - timedelta(seconds=1),
    ),
    Case("at its time", b.deployment(failover=FIVE_MINUTES), [b.replica("a")], [("b", 0)], ["my-model-a-0"]),
    Case(
        "whatever was last heard of the replica",
        b.deployment(failover=FIVE_MINUTES),
        [b.replica("a", ready=True)],
        [("b", 0)],
        ["my-model-a-0"],
    ),
    Case(
        "from a cluster that is not Ready too",
        b.deployment(failover=FIVE_MINUTES),
        [b.replica("a", ready=False)],
        [("b", 0)],
        ["my-model-a-0"],
        lost="",
        down="a",
    ),
    Case(
        "but not a replica that works there",
        b.deployment(failover=FIVE_MINUTES),
        [b.replica("a", ready=True)],
        [("a", 0)],
        lost="",
        down="a",
    ),
    Case(
        "not when there is nowhere to go",
        b.deployment(failover=FIVE_MINUTES),
        [b.replica("a")],
        [("a", 0)],
        lost="abc",
    ),
    Case(
        "at most half of the replicas at once",
        b.deployment(replicas=4, failover=FIVE_MINUTES),
        [b.replica("a", index=index) for index in range(4)],
        [("a", 0), ("a", 1), ("b", 0), ("c", 0)],
        ["my-model-a-3", "my-model-a-2"],
    ),
    Case(
        "at most the share that is asked for, rounded up",
        b.deployment(replicas=4, failover={"after": "5m", "maxShare": "30%"}),
        [b.replica("a", index=index) for index in range(4)],
        [("a", 0), ("a", 1), ("b", 0), ("c", 0)],
        ["my-model-a-3", "my-model-a-2"],
    ),
    Case(
        "those given up before count until they are gone",
        b.deployment(replicas=4, failover=FIVE_MINUTES),
        [
            b.replica("a", terminating=True),
            b.replica("a", index=1),
            b.replica("a", index=2),
            b.replica("a", index=3),
            b.replica("b"),
        ],
        [("a", 1), ("a", 2), ("b", 0), ("c", 0)],
        ["my-model-a-3"],
    ),
    Case(
        "what is missing comes first",
        b.deployment(replicas=5, failover={"after": "5m", "maxShare": "100%"}),
        [b.replica("a")],
        [("a", 0), ("b", 0), ("b", 1), ("c", 0), ("c", 1)],
    ),
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_replica_is_given_up(case: Case) -> None:
    decision = decide(case.deployment, case.replicas, now=case.now, lost=case.lost, down=case.down)

    found = [(placement.cluster, placement.index) for placement in decision.placements]
    assert found == list(case.placed)
    assert [removal.replica.key.name for removal in decision.removed] == list(case.removed)
    assert all(removal.reason == Lost(b.EPOCH) for removal in decision.removed)


def test_what_is_drained_leaves_as_such_whether_or_not_its_cluster_is_lost() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", taints=[b.taint("old", effect="NoExecute")]), unreachable_since=b.EPOCH)
    fleet.observe_cluster(b.cluster("b"))
    replicas = [b.replica("a", index=index) for index in range(2)]
    for replica in replicas:
        fleet.observe_replica(replica)
    decision = schedule(placement_request(b.deployment(replicas=2, failover=FIVE_MINUTES)), fleet, now=DUE)

    assert [type(removal.reason) for removal in decision.removed] == [Tainted, Tainted]


# Nodes that are gone -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Shrunk:
    """Two replicas on cluster a, of which the second has found no node since the epoch; cluster b is empty."""

    name: str
    moves: bool
    nodes: int = 1
    now: datetime = DUE
    serves: bool = False
    unreachable: bool = False


@pytest.mark.parametrize(
    "case",
    [
        Shrunk("after five minutes", moves=True),
        Shrunk("when all nodes are gone", moves=True, nodes=0),
        Shrunk("not before", moves=False, now=DUE - timedelta(seconds=1)),
        Shrunk("not while its pool has nodes for all", moves=False, nodes=2),
        Shrunk("not while it serves", moves=False, serves=True),
        Shrunk("not while nobody sees the nodes", moves=False, unreachable=True),
    ],
    ids=lambda case: case.name,
)
def test_a_replica_that_finds_no_node_in_a_pool_that_has_lost_some_moves(case: Shrunk) -> None:
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a", nodes=case.nodes), unreachable_since=b.EPOCH if case.unreachable else None)
    fleet.observe_cluster(b.cluster("b"))
    waiting = b.unschedulable(b.replica("a", index=1))
    if case.serves and waiting.status:
        serving = (ModelReady.SERVING.condition(b.EPOCH),)
        waiting = waiting.model_copy(update={"status": waiting.status.model_copy(update={"conditions": serving})})
    for replica in (b.replica("a", ready=True), waiting):
        fleet.observe_replica(replica)

    decision = schedule(placement_request(b.deployment(replicas=2)), fleet, now=case.now)

    moved = [Removal(read(waiting), Displaced("default", 2 - case.nodes))] if case.moves else []
    assert list(decision.removed) == moved
    assert decision.requeue_at == (DUE if case.now < DUE else None)


def test_the_decision_says_when_to_look_again() -> None:
    waiting = decide(b.deployment(failover=FIVE_MINUTES), [b.replica("a")], now=b.EPOCH)
    done = decide(b.deployment(failover=FIVE_MINUTES), [b.replica("a")], now=DUE)

    assert (waiting.requeue_at, done.requeue_at) == (DUE, None)


def test_a_cluster_that_returns_keeps_the_new_place() -> None:
    replicas = [b.replica("a", terminating=True), b.replica("b")]
    decision = decide(b.deployment(failover=FIVE_MINUTES), replicas, now=DUE, lost="")

    assert [(placement.cluster, placement.index) for placement in decision.placements] == [("b", 0)]


@pytest.mark.parametrize(
    ("text", "seconds"), [("30s", 30), ("5m", 300), ("1h30m", 5400), ("1h1m1s", 3661), ("168h", 604800)]
)
def test_times_are_read(text: str, seconds: int) -> None:
    failover = placement_request(b.deployment(failover={"after": text})).failover

    assert failover is not None
    assert failover.after == timedelta(seconds=seconds)


@pytest.mark.parametrize("wrong", [{"after": ""}, {"after": "soon"}, {"after": "5m", "maxShare": "ten"}])
def test_what_cannot_be_read_means_never(wrong: b.Manifest) -> None:
    wanted = {"maxShare": "50%", **wrong}
    replica = b.deployment(failover=FIVE_MINUTES).replica
    assert replica.failover is not None
    broken = replica.failover.model_copy(update={"after": wanted["after"], "max_share": wanted["maxShare"]})
    deployment = b.deployment(failover=FIVE_MINUTES)
    assert deployment.spec.template is not None
    spec = replica.model_copy(update={"failover": broken})
    template = deployment.spec.template.model_copy(update={"spec": spec})
    unreadable = deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"template": template})})

    assert placement_request(unreadable).failover is None
