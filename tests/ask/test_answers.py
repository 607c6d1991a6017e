"""Why a model is as it is, what would help, and what would come of a change: always the scheduler's own decision."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica, ModelService
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.remedies import REMEDIES
from modelplane_operator.ask.admission.rules import model_deployment as admission
from modelplane_operator.ask.answers.fixes import fixes
from modelplane_operator.ask.answers.forecast import apply_edits, forecast, scale, with_drained, without
from modelplane_operator.ask.answers.hardware import describe_hardware, hardware
from modelplane_operator.ask.answers.overview import clusters
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import explain
from modelplane_operator.models.deployment.plan import plan
from modelplane_operator.selectors import cel
from tests.support.builders import EPOCH, cluster, deployment, engine, gpu, memory, model_cache, pool, request, taint
from tests.support.observed import placed, seen

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def hub(
    *clusters: InferenceCluster, deployments: Sequence[ModelDeployment] = (), replicas: Sequence[Manifest] = ()
) -> Snapshot:
    return Snapshot(clusters, tuple(map(ModelReplica.parse, replicas)), tuple(deployments), (), EPOCH)


def helped(subject: ModelDeployment, *clusters: InferenceCluster) -> list[str]:
    """What would give its replicas a place."""
    found = hub(*clusters, deployments=[subject])
    fleet = found.fleet()
    return [*map(str, fixes(found.placement_request(subject, fleet), found.decide(subject, fleet), fleet, found))]


# One decision ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "clusters",
    [
        (cluster("berlin", nodes=1), cluster("oslo", nodes=1)),
        (cluster("berlin", pool("l4", gpu("23Gi"))),),
        (cluster("berlin", taints=[taint("maintenance")]), cluster("oslo", nodes=1)),
        (cluster("berlin", ready=False, message="its gateway is down"),),
        (),
    ],
)
def test_condition_warning_why_and_plan_say_one_decision(clusters: tuple[InferenceCluster, ...]) -> None:
    subject = deployment(replicas=3)
    status = plan(seen(subject, *clusters)).status
    assert status is not None
    condition = next(one for one in status.conditions if one.type == "ReplicasScheduled").message or ""
    (warning,) = admission.check(seen(subject, *clusters), None).warnings
    found = hub(*clusters, deployments=[subject])
    (planned,) = forecast(found, found, changed=[subject.key])

    assert explain(subject, (), found).cause == condition
    assert planned.decision == condition
    assert warning.partition("; placed on ")[0] == f"Decided now: {condition}"


# What would help ------------------------------------------------------------------------------------------------------


def test_a_toleration_is_told_where_it_would_do() -> None:
    told = helped(deployment(), cluster("berlin", taints=[taint("maintenance", "now")]))
    assert told == ["tolerate the taint maintenance:NoSchedule, which berlin carries"]


def test_more_nodes_are_told_with_their_number_and_fewer_replicas_too() -> None:
    told = helped(deployment(replicas=3), cluster("berlin", nodes=1))
    assert told == ["raise nodeCount of pool default of berlin by 2", "ask for 1 replica and not 3"]


def test_a_label_is_told_where_clusters_without_it_would_do() -> None:
    told = helped(deployment(labels={"region": "eu"}), cluster("iowa", region="us"))
    assert told == ["do not ask for clusters with region=eu"]


def test_what_would_not_help_is_not_told() -> None:
    tainted = cluster("berlin", pool("l4", gpu("23Gi")), taints=[taint("maintenance")])
    assert helped(deployment(), tainted) == []
    assert helped(deployment(), cluster("berlin")) == []


# A plan ---------------------------------------------------------------------------------------------------------------


def running(subject: ModelDeployment, *clusters: InferenceCluster) -> Snapshot:
    return hub(*clusters, deployments=[subject], replicas=placed(subject, *clusters))


def test_without_a_cluster_its_replicas_go_elsewhere_or_find_no_place() -> None:
    subject = deployment(replicas=2)
    before = running(subject, cluster("berlin"), cluster("oslo"))
    (moved,) = forecast(before, without(before, "oslo"), clusters=frozenset({"oslo"}))
    assert (moved.settled, moved.added, [one.cluster for one in moved.removed]) == (True, ("berlin/default",), ["oslo"])

    small = running(subject, cluster("berlin", nodes=1), cluster("oslo", nodes=1))
    (lost,) = forecast(small, without(small, "oslo"), clusters=frozenset({"oslo"}))
    assert (lost.settled, lost.waiting, lost.added) == (False, 1, ())
    assert lost.help == ("Raise nodeCount of pool default of berlin by 1", "Ask for 1 replica and not 2")


def test_a_drain_keeps_what_has_no_other_place_and_says_so() -> None:
    subject = deployment(replicas=2)
    before = running(subject, cluster("berlin", nodes=1), cluster("oslo", nodes=1))
    (outcome,) = forecast(before, with_drained(before, "oslo"), clusters=frozenset({"oslo"}))
    assert [one.cluster for one in outcome.stuck] == ["oslo"]
    assert (outcome.settled, outcome.removed) == (False, ())


def test_a_plan_of_a_drain_advises_nobody_to_tolerate_it() -> None:
    """The drain would move nothing then."""
    before = running(deployment(replicas=3), cluster("berlin", nodes=2), cluster("oslo", nodes=1))
    short = replace(before, deployments=(scale(before.deployments[0], 4),))
    (outcome,) = forecast(short, with_drained(short, "oslo"), clusters=frozenset({"oslo"}))
    assert outcome.waiting, "nothing is asked for that would help"
    assert "olerate" not in str(outcome), outcome


def test_two_deployments_do_not_both_take_the_last_node() -> None:
    one = deployment(name="one", uid="1")
    two = deployment(name="two", uid="2")
    before = hub(cluster("berlin", nodes=1))
    after = apply_edits(before, [one, two])
    outcomes = forecast(before, after, changed=[one.key, two.key])
    assert [(outcome.name, outcome.settled) for outcome in outcomes] == [("one", True), ("two", False)]


def test_an_edit_says_which_replicas_it_restarts() -> None:
    subject = deployment()
    before = running(subject, cluster("berlin", nodes=3))
    (container,) = [{"name": "engine", "image": "vllm", "args": ["--max-model-len=1"]}]
    other = engine()
    other["members"][0] = {**other["members"][0], "template": {"spec": {"containers": [container]}}}
    after = apply_edits(before, [deployment(other, uid="")])
    (outcome,) = forecast(before, after, changed=[subject.key])
    assert outcome.restarted == (before.replicas[0].metadata.name,)


def test_a_deployment_that_no_server_has_seen_is_placed() -> None:
    new = deployment()
    new = new.model_copy(update={"metadata": new.metadata.model_copy(update={"uid": None})})
    before = hub(cluster("berlin"))
    (outcome,) = forecast(before, apply_edits(before, [new]), changed=[new.key])
    assert (outcome.settled, outcome.added) == (True, ("berlin/default",))


def test_more_replicas_are_placed_beside_those_that_run() -> None:
    subject = deployment()
    before = running(subject, cluster("berlin"), cluster("oslo"))
    after = apply_edits(before, [scale(subject, 2)])
    (outcome,) = forecast(before, after, changed=[subject.key])
    assert (outcome.settled, outcome.added) == (True, ("oslo/default",))


# Hardware -------------------------------------------------------------------------------------------------------------


def test_hardware_is_counted_over_clusters_and_its_selector_finds_it() -> None:
    h100 = {**gpu("80Gi", 8), "attributes": {"architecture": {"string": "Hopper"}}}
    fleet = hub(cluster("berlin", pool("dgx", h100, nodes=2)), cluster("oslo", pool("dgx", h100, nodes=1)))
    (found,) = hardware(fleet)
    assert (found.nodes, found.free, found.per_node, found.clusters) == (3, 3, 8, ("berlin", "oslo"))
    info = fleet.fleet().info("berlin")
    assert info is not None
    device = info.cluster.pools.profile.offers[0].devices[0].device
    assert cel.evaluate(cel.compile(found.selector), device).matched
    assert found.selector == f'device.driver == "gpu.nvidia.com" && {memory("80Gi")} && ' + (
        'device.attributes["gpu.nvidia.com"].architecture == "Hopper"'
    )


def test_hardware_is_said_to_whoever_asks_by_kubectl() -> None:
    h100 = {**gpu("80Gi", 8), "attributes": {"architecture": {"string": "Hopper"}}}
    said = describe_hardware(hardware(hub(cluster("berlin", pool("dgx", h100, nodes=2)))))
    assert said.startswith("1 kind of devices may be requested; 8 x gpu of InferenceClass ")
    assert "on each of 2 nodes, 2 free (memory 80Gi, architecture Hopper), selected by device.driver ==" in said
    assert describe_hardware(()).startswith("No cluster publishes devices")


def failing(namespace: str, *conditions: Manifest) -> ModelService:
    """A service of the deployment, with these conditions."""
    entry = {"selector": {"matchLabels": {"modelplane.ai/deployment": "my-model"}}}
    conditions = tuple({"lastTransitionTime": EPOCH, **item} for item in conditions)
    return ModelService.parse(
        {
            "metadata": {"name": "front", "namespace": namespace},
            "spec": {"endpoints": [entry]},
            "status": {"conditions": [*conditions]},
        }
    )


FAILING = {"type": "Answering", "status": "False", "reason": "NotAnswered", "message": "Requests fail with 502"}
DEGRADED = {"type": "Ready", "status": "True", "reason": "Degraded", "message": "40 of 40 requests failed"}


def test_the_fleet_notes_what_only_services_know_of_a_cluster() -> None:
    fleet = running(deployment(replicas=1), cluster("berlin"))
    for condition, message in ((FAILING, "Requests fail with 502"), (DEGRADED, "40 of 40 requests failed")):
        (summary,) = clusters(fleet, [failing("ml-team", condition)])
        assert (summary.ready, summary.note) == (True, f"ModelService ml-team/front: {message}")
    (summary,) = clusters(fleet, [failing("other", FAILING)])
    assert summary.note == "", "a service of another namespace selects nothing there"
    (summary,) = clusters(fleet, [failing("ml-team", {**FAILING, "status": "True"})])
    assert summary.note == ""
    (summary,) = clusters(fleet, [failing("ml-team", FAILING)] * 5000)
    assert summary.note.count("ModelService") == 3
    assert summary.note.endswith("; and 4997 more"), "a tenant cannot fill the screen of others"


def test_why_says_of_a_paused_deployment_that_it_is_and_what_ends_that() -> None:
    paused = {"type": "Synced", "status": "False", "reason": "ReconcilePaused", "lastTransitionTime": EPOCH}
    subject = ModelDeployment.parse({**deployment().to_manifest(), "status": {"conditions": [paused]}})
    assert "it is paused" in explain(subject, (), hub(cluster("berlin"))).cause


def test_what_would_help_on_a_cluster_begins_with_no_name() -> None:
    """The first letter of a message is a capital: a cluster's name would be another one with it."""
    far = explain(deployment(engine(request(memory("200Gi")))), (), hub(cluster("berlin")))
    assert far.help == ("List what exists: modelplane hardware",)


@pytest.mark.parametrize(
    ("reason", "help_"),
    [
        (ModelReady.IMAGE_PULL_FAILED, REMEDIES[ModelReady.IMAGE_PULL_FAILED].do),
        (None, "See what becomes of it: kubectl describe modelreplica {name} -n ml-team"),
    ],
)
def test_why_names_the_replica_that_does_not_start_and_what_to_do(reason: ModelReady | None, help_: str) -> None:
    subject = deployment()
    fleet = (cluster("berlin"),)
    (manifest,) = placed(subject, *fleet, ready=False)
    if reason:
        manifest["status"]["conditions"] = [not_ready("ModelReplica", reason.condition(EPOCH)).to_manifest()]
    found = hub(*fleet, deployments=[subject], replicas=[manifest])
    answer = explain(subject, (), found)
    (replica,) = answer.replicas
    assert (replica.ready, replica.cluster, replica.pool) == (False, "berlin", "default")
    assert answer.help == (help_.format(name=replica.name),)
    assert answer.ready is False


def test_a_replica_on_a_cluster_that_is_not_ready_says_so() -> None:
    subject, berlin = deployment(), cluster("berlin")
    found = hub(cluster("berlin", ready=False), deployments=[subject], replicas=placed(subject, berlin))
    assert [one.says for one in explain(subject, (), found).replicas] == ["Its cluster is not Ready (Creating)"]


def test_why_and_plan_say_which_new_replica_waits_for_weights_and_until_when() -> None:
    cache = model_cache().to_manifest()
    coming = {"bytes": 41, "totalBytes": 100, "estimatedCompletion": "2026-01-01T12:30:00Z"}
    on = [{"name": "a", "phase": "Hydrating", "progress": coming}, {"name": "b", "phase": "Ready", "volume": "weights"}]
    cache["status"] = {"clusters": on}

    def told(replicas: int) -> tuple[str, ...]:
        subject = deployment(replicas=replicas, cache="qwen")
        clusters = (cluster("a"), cluster("b", nodes=1))
        found = replace(hub(*clusters, deployments=[subject]), caches=(ModelCache.parse(cache),))
        (planned,) = forecast(found, found, changed=[subject.key])
        assert planned.weights == explain(subject, (), found).weights
        return planned.weights

    assert told(1) == ()
    assert told(2) == ("The weights of ModelCache qwen are not on cluster a yet: 41%, until about 12:30 UTC",)


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_cluster_is_told_with_what_it_says_to_one_replica_more(replicas: int) -> None:
    far = [cluster(f"far-{number}", nodes=0) for number in range(3)]
    clusters = (cluster("a"), cluster("b", nodes=1), *far)
    subject = deployment(replicas=replicas)
    found = hub(*clusters, deployments=[subject], replicas=placed(subject, clusters[0])[:1])

    answers = explain(subject, (), found, with_clusters=True).clusters
    assert explain(subject, (), found).clusters == ()
    assert [one.name for one in answers] == ["a", "b", "far-0", "far-1", "far-2"]
    assert (answers[0].replicas, answers[0].room) == (1, True)
    assert (answers[1].replicas, answers[1].room, answers[1].remedy) == (
        (0, True, ""),
        (1, False, "free nodes of that pool, or enlarge it"),
    )[replicas - 1]
