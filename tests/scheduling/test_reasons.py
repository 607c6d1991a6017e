"""Why not: the reasons of decisions as values, and the sentences that they become."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import get_args

import pytest

from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.api.model_deployment import ModelDeployment, ReplicasScheduled
from modelplane_operator.models.deployment.plan.shortfall import explain_unplaced
from modelplane_operator.scheduling import prose
from modelplane_operator.scheduling.cluster import Usability
from modelplane_operator.scheduling.decision import Decision, Refusal
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.problems import (
    CacheNotFound,
    CacheNotRead,
    InvalidSelector,
    LabelConflict,
    NoClusters,
    Problem,
)
from modelplane_operator.scheduling.reasons import (
    ClusterTerminating,
    ClusterUnreachable,
    Contended,
    Crowded,
    Fragmented,
    Full,
    LabelDiffers,
    NoCacheStorage,
    NoGangs,
    NoGateway,
    NoMatch,
    NoPools,
    NothingToClaim,
    NotReady,
    Outdated,
    Reason,
    Refused,
    Scattered,
    Spare,
    Split,
    Tainted,
    TooFewDevices,
    TooSmall,
    TooSmallNode,
    UnknownPools,
    Unlike,
)
from modelplane_operator.scheduling.requirement import NoCache, placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support import builders as b

NOW = b.EPOCH + timedelta(hours=1)


def decide(
    deployment: ModelDeployment,
    clusters: Sequence[InferenceCluster],
    *replicas: b.ModelReplica,
    cache: ModelCache | NoCache = NoCache.NOT_READ,
) -> Decision:
    fleet = FleetModel()
    for cluster in clusters:
        fleet.observe_cluster(cluster)
    for replica in replicas:
        fleet.observe_replica(replica)
    return schedule(placement_request(deployment, cache), fleet, now=NOW)


def without_pools(cluster: InferenceCluster) -> InferenceCluster:
    manifest = cluster.to_manifest()
    return InferenceCluster.parse(manifest | {"status": {**manifest["status"], "gpuPools": []}})


@dataclass(frozen=True)
class Case:
    name: str
    deployment: ModelDeployment
    cluster: InferenceCluster
    reason: Reason
    sentence: str
    cache: ModelCache | NoCache = NoCache.NOT_READ


SMALL = "memory is 24Gi, needs >= 141Gi"
TWO_POOLS = [b.pool("big", b.gpu("200Gi"), nodes=1), b.pool("small", b.gpu("80Gi"), nodes=3)]
CASES = [
    Case(
        "too few free nodes",
        b.deployment(b.pipeline(2)),
        b.cluster("a", nodes=3),
        Full("main", "default", needs=2, free=1, nodes=3),
        "engine main needs 2 nodes of pool default, 1 of 3 free",
    ),
    Case(
        "a pool that is too small for ever",
        b.deployment(b.pipeline(4)),
        b.cluster("a", nodes=2),
        TooSmall("main", "default", needs=4, nodes=2),
        "engine main needs 4 nodes of one pool, default has 2 in all",
    ),
    Case(
        "a tainted pool that is too small for ever",
        b.deployment(b.pipeline(4)),
        b.cluster("a", nodes=2, taints=[b.taint("upkeep", "on")]),
        TooSmall("main", "default", needs=4, nodes=2),
        "engine main needs 4 nodes of one pool, default has 2 in all",
    ),
    Case(
        "the largest of two pools is the nearest, however full it is",
        b.deployment(b.pipeline(4)),
        b.cluster("a", b.pool("default", nodes=3), b.pool("more", nodes=2)),
        TooSmall("main", "default", needs=4, nodes=3),
        "engine main needs 4 nodes of one pool, default has 3 in all",
    ),
    Case(
        "a pool that has enough nodes is nearer",
        b.deployment(b.pipeline(3)),
        b.cluster("a", b.pool("default", nodes=3), b.pool("more", nodes=2)),
        Full("main", "default", needs=3, free=2, nodes=3),
        "engine main needs 3 nodes of pool default, 2 of 3 free",
    ),
    Case(
        "engines that fit one by one",
        b.deployment(b.engine(name="x"), b.engine(name="y")),
        b.cluster("a", b.pool("p", nodes=1)),
        Crowded((("x", 1), ("y", 1)), (("p", 1),)),
        "the engines do not fit together: nodes needed: x 1, y 1; nodes free: p 1",
    ),
    Case("no gateway", b.deployment(), b.cluster("a", address=None), NoGateway(), "its gateway has no address yet"),
    Case("not Ready", b.deployment(), b.cluster("a", ready=False), NotReady("Creating"), "it is not Ready (Creating)"),
    Case(
        "not Ready, and what its cluster says of it is for the platform team",
        b.deployment(),
        b.cluster("a", ready=False, message="the kubeconfig of bastion.corp.example is refused"),
        NotReady("Creating"),
        "it is not Ready (Creating)",
    ),
    Case(
        "a pool of which nothing is known may be the one",
        b.deployment(),
        b.cluster("a", b.pool("small", b.gpu("24Gi")), unknown=[("edge", "l4")]),
        UnknownPools(
            (("edge", "l4"),),
            NoMatch("main", "Standalone", "small", Unlike("gpu", "gpu", SMALL, (1, -0.5850212765957447))),
        ),
        "the devices of pool edge (InferenceClass l4) are not known, and no other pool has the requested ones: engine "
        "main: pool small: request gpu: device gpu: memory is 24Gi, needs >= 141Gi",
    ),
    Case(
        "a gang where nothing runs gangs",
        b.deployment(b.pipeline(2)),
        b.cluster("a", apis=["DRA", "GatewayAPI"]),
        NoGangs("main"),
        "it serves no LeaderWorkerSet, which engine main needs for its several nodes",
    ),
    Case(
        "a pool without a node that can be used",
        b.deployment(),
        b.cluster("a", nodes=0),
        TooSmall("main", "default", needs=1, nodes=0),
        "engine main fits pool default, which has no usable node",
    ),
    Case(
        "too few free nodes, as others are cordoned",
        b.deployment(b.pipeline(2)),
        b.cluster("a", nodes=3, observed=[{"name": "default", "nodes": 10, "usable": 3, "cordoned": 7}]),
        Full("main", "default", needs=2, free=1, nodes=3, unusable=Usability(10, 3, cordoned=7, not_ready=0)),
        "engine main needs 2 nodes of pool default, 1 of 3 free, 3 of 10 nodes usable (7 cordoned)",
    ),
    Case(
        "no node that can be used, and why",
        b.deployment(),
        b.cluster(
            "a", nodes=0, observed=[{"name": "default", "nodes": 6, "usable": 0, "cordoned": 2, "notReady": 1}]
        ),
        TooSmall("main", "default", needs=1, nodes=0, unusable=Usability(6, 0, cordoned=2, not_ready=1)),
        "engine main fits pool default, which has no usable node: 0 of 6 nodes usable (2 cordoned, 1 not ready, "
        "3 lacking devices)",
    ),
    Case(
        "a pool that is too small while nodes are cordoned",
        b.deployment(b.pipeline(4)),
        b.cluster("a", nodes=2, observed=[{"name": "default", "nodes": 4, "usable": 2, "cordoned": 2}]),
        TooSmall("main", "default", needs=4, nodes=2, unusable=Usability(4, 2, cordoned=2, not_ready=0)),
        "engine main needs 4 nodes of one pool, default has 2 in all, 2 of 4 nodes usable (2 cordoned)",
    ),
    Case("silent on Ready", b.deployment(), b.cluster("a", ready=None), NotReady(""), "it is not Ready"),
    Case(
        "a taint",
        b.deployment(),
        b.cluster("a", taints=[b.taint("upkeep", "on")]),
        Tainted("upkeep", "on", "NoSchedule"),
        "taint upkeep:NoSchedule is not tolerated",
    ),
    Case(
        "a taint without a value, of several",
        b.deployment(tolerations=[b.toleration("upkeep")]),
        b.cluster("a", taints=[b.taint("upkeep", "on"), b.taint("drain", effect="NoExecute")]),
        Tainted("drain", "", "NoExecute"),
        "taint drain:NoExecute is not tolerated",
    ),
    Case(
        "an engine that would be split",
        b.deployment(b.gang([b.request(b.M200)], [b.request(b.below("100Gi"))])),
        b.cluster("a", *TWO_POOLS),
        Split("main", "big", "Worker", Unlike("gpu", "gpu", "memory is 200Gi, needs < 100Gi", (1, -0.74975))),
        "no one pool has the devices for all members of engine main: pool big, Worker: request gpu: device gpu: "
        "memory is 200Gi, needs < 100Gi",
    ),
    Case(
        "only synthetic devices",
        b.deployment(),
        b.cluster("a", b.pool("p", b.synthetic("141Gi"))),
        NothingToClaim("main"),
        "engine main matches only devices that pods cannot claim",
    ),
    Case(
        "a gang that no fabric of any pool has the nodes for, though the pools have",
        b.deployment(b.gang([b.request()], [b.request()], nodes=3, copies=2)),
        b.cluster("a", b.pool("p", nodes=8, fabric=("east", 2)), b.pool("q", nodes=8, fabric=("west", 3))),
        Scattered("main", "q", needs=4, fabric="west", nodes=3),
        "engine main needs 4 nodes on one fabric of pool q, the largest has 3",
    ),
    Case(
        "a gang where no node says on which fabric it is",
        b.deployment(b.pipeline(2)),
        b.cluster("a", b.pool("p", nodes=8, fabric=("", 0))),
        Scattered("main", "p", needs=2, fabric="", nodes=0),
        "engine main needs 2 nodes on one fabric of pool p, no usable node has the label of its topologyKey",
    ),
    Case(
        "too few devices on a node",
        b.deployment(b.engine(b.request(count=8))),
        b.cluster("a", b.pool("p", b.gpu(count=4))),
        NoMatch("main", "Standalone", "p", TooFewDevices("gpu", "gpu", needs=8, has=4)),
        "engine main: pool p: request gpu needs 8 of device gpu, a node has 4",
    ),
    Case(
        "two requests for the same devices",
        b.deployment(b.engine(b.request(count=5), b.request(name="more", count=5))),
        b.cluster("a", b.pool("p", b.gpu(count=8))),
        NoMatch("main", "Standalone", "p", Contended(("gpu", "more"))),
        "engine main: pool p: a node can meet each of the requests gpu, more, but not all at once",
    ),
    Case("a cluster without pools", b.deployment(), without_pools(b.cluster("a")), NoPools(), "it publishes no pools"),
    Case(
        "a cluster without pools that says why",
        b.deployment(),
        without_pools(b.cluster("a", ready=False)),
        NoPools(NotReady("Creating")),
        "it is not Ready (Creating)",
    ),
    Case(
        "a terminating cluster",
        b.deployment(),
        b.cluster("a", terminating=True),
        ClusterTerminating(),
        "it is being deleted",
    ),
    Case(
        "another label",
        b.deployment(labels={"region": "eu"}),
        b.cluster("a", region="us"),
        LabelDiffers("region", "eu", "us"),
        "label region is another, must be eu",
    ),
    Case(
        "no such label",
        b.deployment(labels={"region": "eu"}),
        b.cluster("a"),
        LabelDiffers("region", "eu", None),
        "label region is absent, must be eu",
    ),
    Case(
        "no such label, which its cache asks for",
        b.deployment(cache="qwen"),
        b.cluster("a"),
        LabelDiffers("region", "eu", None, "qwen"),
        "label region is absent, must be eu by clusterSelector of ModelCache qwen",
        b.model_cache(region="eu"),
    ),
    Case(
        "no storage for its cache",
        b.deployment(cache="qwen"),
        b.cluster("a", storage=False),
        NoCacheStorage("qwen"),
        "it has no storage for ModelCache qwen",
        b.model_cache(),
    ),
    Case(
        "too few free nodes of a shared pool",
        b.deployment(b.engine(b.request(count=4))),
        b.cluster("a", b.pool("default", b.gpu(count=4), nodes=1, shared=True)),
        Fragmented("main", "default", ((4, 1),), ((2, 1),), 1, 2),
        "engine main needs 4 free devices on one node of pool default; free are 2 on 1 node",
    ),
    Case(
        "too small nodes of a shared pool",
        b.deployment(b.with_resources(b.engine(), {"requests": {"cpu": "9"}})),
        b.cluster("a", b.pool("default", shared=True, allocatable={"cpu": "8", "memory": "64Gi"})),
        TooSmallNode("main", "default", "CPU"),
        "engine main requests more CPU than a node of pool default has",
    ),
]  # fmt: skip


def test_each_refusal_has_a_case() -> None:
    """But for a cluster that does not answer, whose test is below."""
    assert {type(case.reason) for case in CASES} == {*get_args(Refused)} - {ClusterUnreachable}


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_a_cluster_says_why_not(case: Case) -> None:
    taken = [b.replica("a", of="other", copies=2)] if case.name.startswith("too few free nodes") else []
    taken += [b.replica("a", of="other")] * (case.name == "a pool that has enough nodes is nearer")
    taken += [b.replica("a", of="other", stages=2)] if case.name == "a pool that is too small for ever" else []
    decision = decide(case.deployment, [case.cluster], *taken, cache=case.cache)

    assert (decision.missing, decision.refusals) == (1, (Refusal(1, "a", case.reason),))
    assert prose.reason(case.reason) == case.sentence


def test_a_gang_goes_where_one_fabric_holds_each_copy_of_it_and_single_pods_anywhere() -> None:
    published = [b.pool("p", nodes=8, fabric=("east", 1)), b.pool("q", nodes=8, fabric=("west", 2))]
    gang = b.deployment(b.gang([b.request()], [b.request()], name="gang", copies=3), b.engine(name="one", copies=4))
    decision = decide(gang, [b.cluster("a", *published)])

    assert [engine.members[0].pool for engine in decision.placements[0].engines] == ["q", "p"]


def test_a_gang_that_runs_stays_when_nodes_of_its_fabric_go() -> None:
    shrunk = b.cluster("a", b.pool(nodes=2, fabric=("east", 1)))

    assert len(decide(b.deployment(b.pipeline(2)), [shrunk], b.replica("a", stages=2)).placements) == 1
    clusters = [b.cluster("a", b.pool(nodes=9, fabric=("east", 2)))]
    grown = decide(b.deployment(b.pipeline(3)), clusters, b.replica("a", stages=2))
    assert [held.reason for held in grown.retained] == [Outdated(Scattered("main", "default", 3, "east", 2))]


@pytest.mark.parametrize("apis", [["DRA"], ["DRA", "LeaderWorkerSet"], []])
def test_what_runs_gangs_is_needed_for_gangs_alone_and_holds_up_none_that_runs(apis: Sequence[str]) -> None:
    single, gang = b.deployment(), b.deployment(b.pipeline(2))

    assert len(decide(single, [b.cluster("a", apis=apis)]).placements) == 1
    assert len(decide(gang, [b.cluster("a", apis=apis)], b.replica("a", stages=2)).placements) == 1
    assert len(decide(gang, [b.cluster("a", apis=apis)]).placements) == (apis != ["DRA"])


def test_what_hardware_lacks_is_nearer_than_a_cluster_of_which_no_hardware_is_known() -> None:
    clusters = [without_pools(b.cluster("bad", ready=False)), b.cluster("good", b.pool("a10", b.gpu("24Gi")))]
    decision = decide(b.deployment(), clusters)

    assert [refusal.nearest for refusal in decision.refusals] == ["good", "bad"]
    assert explain_unplaced(decision) is ReplicasScheduled.NO_MATCHING_DEVICES


def test_the_nearest_device_is_named_with_its_own_value() -> None:
    clusters = [b.cluster("a", b.pool("old", b.gpu("16Gi")), b.pool("newer", b.gpu("80Gi")))]
    [refusal] = decide(b.deployment(), clusters).refusals

    assert isinstance(refusal.reason, NoMatch)
    assert prose.reason(refusal.reason).startswith("engine main: pool newer: request gpu: device gpu: ")
    assert "80Gi" in prose.reason(refusal.reason)
    assert "141Gi" in prose.reason(refusal.reason)


@pytest.mark.parametrize("reverse", [False, True])
def test_a_text_in_other_letters_is_nearer_than_another_text(*, reverse: bool) -> None:
    gpus = [
        {**b.gpu(name=name), "attributes": {"architecture": {"string": name}}}
        for name in ("Ampere", "Hopper", "Lovelace")
    ]
    selector = f'device.attributes["{b.GPU}"].architecture == "hopper"'
    devices = reversed(gpus) if reverse else gpus
    [refusal] = decide(b.deployment(b.engine(b.request(selector))), [b.cluster("a", b.pool("p", *devices))]).refusals

    assert 'architecture is "Hopper", needs "hopper"' in prose.reason(refusal.reason)


GPU_AND_NIC = b.pool("p", {**b.nic("ethernet")}, {**b.gpu(), "attributes": {"architecture": {"string": "Ampere"}}})
OF_THE_GPU = f'device.attributes["{b.GPU}"]'


@pytest.mark.parametrize(
    ("selector", "why"),
    [
        (f'{OF_THE_GPU}.architecture == "Hopper"', 'architecture is "Ampere", needs "Hopper"'),
        (
            f'{OF_THE_GPU}.driverVersion.isGreaterThan(semver("1.0.0"))',
            f"the device has no attribute {b.GPU}/driverVersion: it has architecture",
        ),
        (f"{OF_THE_GPU}.ecc", f"the device has no attribute {b.GPU}/ecc: it has architecture"),
    ],
)
def test_the_nearest_device_is_one_of_the_domain_that_is_asked_for(selector: str, why: str) -> None:
    [refusal] = decide(b.deployment(b.engine(b.request(selector))), [b.cluster("a", GPU_AND_NIC)]).refusals

    assert prose.reason(refusal.reason) == f"engine main: pool p: request gpu: device gpu: {why}"


def test_a_cluster_that_is_not_ready_is_no_nearer_than_one_that_is() -> None:
    broken = b.cluster("a", b.pool("p", b.gpu("80Gi")), ready=False)
    clusters = [broken, b.cluster("good", b.pool("p", b.gpu("24Gi")))]
    for order in (clusters, clusters[::-1]):
        [refusal] = decide(b.deployment(), order).refusals
        assert (refusal.clusters, refusal.nearest) == (2, "good")


def test_replicas_that_have_no_other_place_are_told_with_their_cluster_and_what_forces_them() -> None:
    drained = [b.taint("maintenance", effect="NoExecute")]
    running = [b.replica("a"), b.replica("b")]
    clusters = [b.cluster("a", taints=drained, nodes=1), b.cluster("b", terminating=True, nodes=1)]

    assert prose.describe_blocked(decide(b.deployment(replicas=2), clusters, *running)) == (
        "cluster b is being deleted, but 1 replica fits nowhere else, and 1 other on further clusters: add capacity, "
        "or force it: kubectl annotate ic b modelplane.ai/force-drain=true"
    )
    assert prose.describe_blocked(decide(b.deployment(), clusters[:1], running[0])) == (
        "cluster a is being drained (taint maintenance:NoExecute), but 1 replica fits nowhere else: add capacity, "
        "or force it: kubectl annotate ic a modelplane.ai/force-drain=true"
    )


def test_nobody_is_advised_to_tolerate_a_drain() -> None:
    [refusal] = decide(b.deployment(), [b.cluster("a", taints=[b.taint(labels.DRAIN, effect="NoExecute")])]).refusals

    assert prose.reason(refusal.reason) == "it is being drained"
    assert prose.remedy(refusal.reason) == "add capacity elsewhere, or end the drain"


def test_a_cluster_that_does_not_answer_says_so() -> None:
    fleet = FleetModel()
    fleet.observe_cluster(b.cluster("a"), unreachable_since=NOW)
    decision = schedule(placement_request(b.deployment()), fleet, now=NOW)

    assert decision.refusals == (Refusal(1, "a", ClusterUnreachable()),)


def test_the_summary_counts_groups_and_names_the_nearest_misses() -> None:
    fleet = [
        b.cluster("full", b.pool("h200", b.gpu("141Gi"), nodes=2)),
        b.cluster("fuller", b.pool("h200", b.gpu("141Gi"), nodes=3)),
        b.cluster("down", ready=False),
        *(b.cluster(f"old{number}", b.pool("a10", b.gpu("24Gi"))) for number in range(3)),
    ]
    decision = decide(
        b.deployment(b.pipeline(2)),
        fleet,
        b.replica("full", of="y", pool="h200"),
        b.replica("fuller", of="x", stages=3, pool="h200"),
    )

    assert prose.summary(decision) == (
        "0 of 1 replica placed; 6 clusters checked: 2 with too few free nodes for engine main, 1 not Ready, 3 without "
        "devices for engine main; nearest: full: engine main needs 2 nodes of pool h200, 1 of 2 free (free nodes of "
        "that pool, or enlarge it); down: it is not Ready (Creating) (see the conditions of that InferenceCluster)"
    )


def test_when_all_is_placed_the_others_had_room() -> None:
    decision = decide(b.deployment(), [b.cluster(name) for name in "abc"])

    assert decision.refusals == (Refusal(2, "b", Spare()),)
    assert prose.summary(decision) == "1 of 1 replica placed on 1 cluster"


def test_nothing_is_looked_for_when_nothing_is_missing() -> None:
    decision = decide(b.deployment(), [b.cluster(name) for name in "abc"], b.replica("a"))

    assert decision.refusals == ()


def test_what_is_left_as_it_was_is_told_with_the_reason() -> None:
    decision = decide(b.deployment(b.engine(copies=3)), [b.cluster("a")], b.replica("a"))

    assert prose.summary(decision) == (
        "1 replica keeps running the previous spec; the new one fits no cluster; "
        "1 cluster checked: 1 with too small pools for engine main; "
        "nearest: a: engine main needs 3 nodes of one pool, default has 2 in all "
        "(add a larger pool, or make the engine need fewer nodes; waiting does not help)"
    )


@dataclass(frozen=True)
class Trouble:
    name: str
    deployment: ModelDeployment
    problem: Problem
    sentence: str
    cache: ModelCache | NoCache = NoCache.NOT_READ
    clusters: Sequence[InferenceCluster] = (b.cluster("a"),)


NO_ENGINES = b.deployment().model_copy(
    update={"spec": b.deployment().spec.model_copy(update={"template": None, "engines": ()})}
)
WRONG = "device.driver = 'gpu'"
TROUBLES = [
    Trouble("no clusters", b.deployment(), NoClusters(), "No InferenceClusters found", clusters=()),
    Trouble("a cache not yet read", b.deployment(cache="qwen"), CacheNotRead("qwen"), "Waiting for ModelCache qwen"),
    Trouble(
        "a cache that does not exist",
        b.deployment(cache="qwen"),
        CacheNotFound("qwen"),
        "ModelCache qwen not found; no new replica is placed until you create it, or remove modelCacheRef",
        cache=NoCache.NOT_FOUND,
    ),
    Trouble(
        "labels that contradict each other",
        b.deployment(cache="qwen", labels={"tier": "gpu", "region": "eu"}),
        LabelConflict("region", "eu", "us"),
        "No cluster can match: label region is eu for the deployment and us for its ModelCache",
        cache=b.model_cache(region="us", tier="gpu"),
    ),
]


@pytest.mark.parametrize("trouble", TROUBLES, ids=lambda trouble: trouble.name)
def test_a_problem_places_nothing_and_says_why(trouble: Trouble) -> None:
    decision = decide(trouble.deployment, trouble.clusters, cache=trouble.cache)

    assert (decision.placements, decision.problems) == ((), (trouble.problem,))
    assert prose.summary(decision) == f"{trouble.sentence}; 0 of 1 replica placed"


def test_an_invalid_selector_names_its_request_and_the_position() -> None:
    [problem] = decide(b.deployment(b.engine(b.request(WRONG, name="fast"))), [b.cluster("a")]).problems

    assert isinstance(problem, InvalidSelector)
    assert (problem.engine, problem.role, problem.request) == ("main", "Standalone", "fast")
    assert prose.problem(problem).startswith(
        "Invalid nodeSelector CEL expression: engine main, Standalone, request fast: 1:"
    )


def test_labels_of_the_cache_and_the_deployment_both_count() -> None:
    clusters = [b.cluster("a", region="eu"), b.cluster("b", tier="gpu"), b.cluster("c", region="eu", tier="gpu")]
    decision = decide(b.deployment(cache="qwen", labels={"region": "eu"}), clusters, cache=b.model_cache(tier="gpu"))

    assert [placement.cluster for placement in decision.placements] == ["c"]
