"""What a deployment is told and given, case by case; how its replicas take turns is in test_moves.py."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from kubeloop.objects import key_of
from kubeloop.plan import Apply, Create, Delete, Plan, Replace
from modelplane_operator.api import InferenceCluster, ModelDeployment, labels, names
from modelplane_operator.api.model_cache import CachedCluster, ModelCache, ModelCacheStatus
from modelplane_operator.models.deployment.plan import plan
from modelplane_operator.scheduling.requirement import NoCache
from tests.support.builders import EPOCH, NAMESPACE, cluster, deployment, engine, gpu, model_cache, pool, request, taint
from tests.support.manifests import change
from tests.support.observed import placed, seen, stored
from tests.support.plans import told

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]


def steps(decided: Plan) -> list[str]:
    return [str(step) for step in decided.steps]


def counts(decided: Plan) -> tuple[int | None, int | None]:
    replicas = getattr(decided.status, "replicas", None)
    assert replicas is not None
    return replicas.total, replicas.ready


def test_a_new_deployment_gets_its_replicas_and_no_endpoint() -> None:
    subject = deployment(replicas=2)
    decided = plan(seen(subject, cluster("a"), cluster("b")))

    assert all(isinstance(step, Create) for step in decided.steps)
    assert [step.manifest["spec"]["clusterName"] for step in decided.steps if isinstance(step, Create)] == ["a", "b"]
    assert counts(decided) == (0, 0)
    assert told(decided)["ReplicasScheduled"] == ("False", "Scheduling", "2 of 2 replicas placed on 2 clusters")
    assert told(decided)["ReplicasReady"] == ("False", "ModelStarting", "0 of 2 replicas ready")
    assert told(decided)["Ready"][0] == "False"


def test_a_replica_that_answers_gets_an_endpoint_behind_its_gateway() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    decided = plan(seen(subject, cluster("a"), replicas=[one]))

    (step,) = decided.steps
    assert isinstance(step, Apply)
    assert step.manifest["spec"]["url"] == f"http://10.0.0.1/ml-team/{one['metadata']['name']}/v1"
    assert counts(decided) == (1, 1)
    assert told(decided) == {
        "ReplicasScheduled": ("True", "ReplicasCreated", "1 of 1 replica placed on 1 cluster"),
        "ReplicasReady": ("True", "AllReplicasReady", "1 of 1 replica ready"),
        "Progressing": ("False", "Settled", ""),
        "Ready": ("True", "Available", "1 of 1 replica ready"),
    }


def test_a_replica_that_ceases_to_answer_loses_its_endpoint_and_says_why() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    before = plan(seen(subject, cluster("a"), replicas=[one])).steps[0]
    assert isinstance(before, Apply)
    endpoint = change(before.manifest, "metadata.uid", "u")
    ill = stored(one, ready=False, why="pod x engine: crash loop, exit code 1")

    decided = plan(seen(subject, cluster("a"), replicas=[ill], endpoints=[endpoint]))

    assert steps(decided) == [f"delete ModelEndpoint {key_of(one)}"]
    assert told(decided)["ReplicasReady"][2] == (
        f"0 of 1 replica ready; {one['metadata']['name']} on a: pod x engine: crash loop, exit code 1"
    )


def test_what_a_replica_said_before_its_last_change_does_not_count() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))

    assert plan(seen(subject, cluster("a"), replicas=[change(one, "metadata.generation", 2)])).steps == ()


def test_a_gateway_whose_address_is_not_told_any_more_takes_no_endpoint_away() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    endpoint = plan(seen(subject, cluster("a"), replicas=[one])).steps[0]
    assert isinstance(endpoint, Apply)

    mute = cluster("a", address=None)
    assert plan(seen(subject, mute, replicas=[one], endpoints=[endpoint.manifest])).steps == ()


def test_too_few_places_are_told_with_the_nearest() -> None:
    subject = deployment(replicas=3)
    decided = plan(seen(subject, cluster("a", nodes=2)))

    assert len(decided.steps) == 2
    reason, message = told(decided)["ReplicasScheduled"][1:]
    assert reason == "InsufficientCapacity"
    assert message == (
        "2 of 3 replicas placed on 1 cluster; 1 cluster checked: 1 with too few free nodes for engine main; "
        "nearest: a: engine main needs 1 node of pool default, 0 of 2 free (free nodes of that pool, or enlarge it)"
    )


# Bad or missing input never deletes -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("clusters", "reason"),
    [((), "NoClusters"), ((cluster("a", region="eu"),), "ReplicasCreated")],
    ids=["no cluster is known", "the cluster no longer matches"],
)
def test_replicas_stay_when_no_cluster_is_known_or_matches(clusters: tuple[InferenceCluster, ...], reason: str) -> None:
    subject = deployment(labels={"region": "us"})
    running = placed(subject, cluster("a", region="us"))

    decided = plan(seen(subject, *clusters, replicas=running))

    assert not [step for step in decided.steps if not isinstance(step, Apply)]
    assert told(decided)["ReplicasScheduled"][1] == reason


def test_an_invalid_selector_is_told_and_changes_nothing() -> None:
    running = placed(deployment(), cluster("a"))
    subject = deployment(engine(request("not ) valid (")))

    decided = plan(seen(subject, cluster("a"), replicas=running))

    assert not [step for step in decided.steps if not isinstance(step, Apply)]
    assert told(decided)["ReplicasScheduled"][1] == "InvalidNodeSelector"
    assert told(decided)["ReplicasReady"][0] == "True"
    assert told(decided)["Ready"][0] == "False"


@pytest.mark.parametrize(
    ("cache", "reason", "message"),
    [
        (NoCache.NOT_READ, "ModelCacheUnresolved", "Waiting for ModelCache qwen"),
        (
            NoCache.NOT_FOUND,
            "ModelCacheNotFound",
            "ModelCache qwen not found; no new replica is placed until you create it, or remove modelCacheRef",
        ),
    ],
)
def test_without_its_cache_a_deployment_places_nothing_and_keeps_what_it_has(
    cache: NoCache, reason: str, message: str
) -> None:
    subject = deployment(cache="qwen")
    running = placed(deployment(), cluster("a"))

    new = plan(seen(subject, cluster("a"), cache=cache))
    old = plan(seen(subject, cluster("a"), cache=cache, replicas=running))

    assert new.steps == ()
    assert told(new)["ModelCacheResolved"] == ("False", reason, message)
    assert told(new)["ReplicasScheduled"][1] == "Scheduling"
    assert told(new)["Ready"][2].count(message) == 1, "it is told once"
    assert not [step for step in old.steps if isinstance(step, Delete)]


def test_a_replica_is_not_changed_to_name_a_cache_that_does_not_exist() -> None:
    running = placed(deployment(), cluster("a"))

    decided = plan(
        seen(deployment(cache="lost"), cluster("a"), cluster("b"), replicas=running, cache=NoCache.NOT_FOUND)
    )

    assert [type(step) for step in decided.steps] == [Apply]
    assert told(decided)["Progressing"][1] == "Settled"
    assert told(decided)["Ready"][0] == "False"


def test_replicas_start_from_the_volume_that_is_complete_and_say_so_only_of_another_than_the_first() -> None:
    def volumes(volume: str) -> list[str | None]:
        status = ModelCacheStatus(clusters=(CachedCluster(name="a", phase="Ready", volume=volume),))
        cache = model_cache().model_copy(update={"status": status})
        decided = plan(seen(deployment(cache="qwen"), cluster("a"), cache=cache))
        made = [step.manifest for step in decided.steps if isinstance(step, Create)]
        return [one["spec"]["modelCacheRef"].get("volume") for one in made]

    first = names.cache_volume(NAMESPACE, "qwen")

    assert volumes(first) == [None], "a replica of before says nothing of a volume"
    assert volumes(f"{first}-other") == [f"{first}-other"]


def test_replicas_go_where_weights_are_to_come_before_they_go_where_none_ever_come() -> None:
    status = ModelCacheStatus(clusters=(CachedCluster(name="b", phase="Hydrating"),))
    cache = model_cache().model_copy(update={"status": status})

    decided = plan(seen(deployment(cache="qwen"), cluster("a"), cluster("b"), cache=cache))

    assert [one.manifest["spec"]["clusterName"] for one in decided.steps if isinstance(one, Create)] == ["b"]


def test_a_cache_that_grows_changes_no_replica_until_another_change_does() -> None:
    subject, there = deployment(cache="qwen"), cluster("a")
    first = [
        step.manifest for step in plan(seen(subject, there, cache=model_cache())).steps if isinstance(step, Create)
    ]
    grown = ModelCache.parse(change(model_cache().to_manifest(), "spec.huggingFace.sizeGiB", 500))

    decided = plan(seen(subject, there, replicas=[stored(one) for one in first], cache=grown))

    assert [one["spec"]["modelCacheRef"]["sizeGiB"] for one in first] == [20]
    assert told(decided)["Progressing"][1] == "Settled"


def test_a_cache_that_is_there_is_told() -> None:
    decided = plan(seen(deployment(cache="qwen"), cluster("a"), cache=model_cache()))

    assert told(decided)["ModelCacheResolved"][:2] == ("True", "ModelCacheResolved")


# What clusters allow --------------------------------------------------------------------------------------------------


def annotated(**annotations: str) -> ModelDeployment:
    """A deployment whose pods are to carry such annotations of example.com."""
    written = deployment().to_manifest()
    of_pods = "spec.template.spec.engines[].members[].template.metadata.annotations"
    return ModelDeployment.parse(change(written, of_pods, {f"example.com/{key}": v for key, v in annotations.items()}))


def on_pods(replica: Manifest) -> Manifest:
    return replica["spec"]["engines"][0]["members"][0]["template"]["metadata"]


def test_what_a_cluster_does_not_allow_is_left_out_of_the_pods_told_and_holds_up_nothing() -> None:
    subject = annotated(mesh="on", note="x")
    strict, lax = cluster("a"), cluster("a", isolation={"pods": {"allowedAnnotations": ["example.com/note"]}})
    (one,) = placed(subject, lax)

    decided = told(plan(seen(subject, lax, replicas=[one])))

    assert on_pods(one) == {"annotations": {"example.com/note": "x"}}
    assert decided["Ready"] == ("True", "Available", "1 of 1 replica ready")
    assert decided["PodTemplateAllowed"] == (
        "False",
        "LeftOut",
        (
            "Pods run without the fields that their cluster does not allow: a: annotation example.com/mesh"
            " (allowedAnnotations). To allow one, the platform team adds it to the field in brackets, below"
            " spec.isolation.pods of the InferenceCluster"
        ),
    )
    new = told(plan(seen(subject, strict)))["PodTemplateAllowed"][2]
    assert "annotation example.com/mesh (allowedAnnotations), annotation example.com/note (allowedAnnotations)" in new


def test_labels_that_others_select_pods_by_are_left_out_like_those_with_a_prefix() -> None:
    on_template = "spec.template.spec.engines[].members[].template.metadata.labels"
    given = {"app": "x", "aadpodidbinding": "vault", "team": "a"}
    subject = ModelDeployment.parse(change(deployment().to_manifest(), on_template, given))

    (one,) = placed(subject, cluster("a"))
    said = told(plan(seen(subject, cluster("a"))))["PodTemplateAllowed"][2]
    (other,) = placed(subject, cluster("a", isolation={"pods": {"allowedLabels": ["app"]}}))

    assert on_pods(one) == {"labels": {"team": "a"}}
    assert "label aadpodidbinding (allowedLabels), label app (allowedLabels)" in said
    assert on_pods(other) == {"labels": {"app": "x", "team": "a"}}


def test_what_a_cluster_begins_to_allow_reaches_the_pods_as_any_change_does() -> None:
    subject = annotated(note="x")
    (one,) = placed(subject, cluster("a"))
    allowing = cluster("a", isolation={"pods": {"allowedAnnotations": ["example.com/"]}})

    first, *_ = plan(seen(subject, allowing, replicas=[one])).steps
    starting = plan(seen(subject, allowing, replicas=[stored(one, ready=False)])).steps
    (changed,) = [step.manifest for step in starting if isinstance(step, Replace)]

    assert isinstance(first, Create), "another one serves before this one goes"
    assert on_pods(changed) == {"annotations": {"example.com/note": "x"}}


def test_that_nothing_is_left_out_any_more_is_told_and_otherwise_there_is_no_word_of_it() -> None:
    silent = told(plan(seen(deployment(), cluster("a"))))
    before = annotated(note="x")
    said = before.model_copy(update={"status": plan(seen(before, cluster("a"))).status})
    allowing = cluster("a", isolation={"pods": {"allowedAnnotations": ["example.com/"]}})

    assert "PodTemplateAllowed" not in silent
    assert told(plan(seen(said, allowing)))["PodTemplateAllowed"] == ("True", "Allowed", "")


# What engines request by default --------------------------------------------------------------------------------------


def offering(cpu: str, *, nodes: int = 2) -> InferenceCluster:
    """A cluster whose nodes have so many processors for pods, and two GPUs."""
    return cluster("a", {**pool("default", gpu(count=2), nodes=nodes), "allocatable": {"cpu": cpu, "memory": "64Gi"}})


def requested(replica: Manifest) -> Manifest | None:
    return replica["spec"]["engines"][0]["members"][0].get("defaultRequests")


def test_an_engine_requests_half_of_its_devices_share_of_the_node() -> None:
    (one,) = placed(deployment(), offering("16"))
    (unknown,) = placed(deployment(), cluster("a"))

    assert requested(one) == {"cpu": "4000m", "memory": "16384Mi"}
    assert requested(unknown) is None


def test_what_is_seen_anew_of_nodes_changes_no_replica_until_another_change_does() -> None:
    (one,) = placed(deployment(), offering("16"))
    member = "members[].template.spec.containers[].image"
    newer = deployment(change(engine(), member, "vllm:2"))

    same = plan(seen(deployment(), offering("8"), replicas=[one]))
    starting = plan(seen(newer, offering("8"), replicas=[stored(one, ready=False)])).steps

    (changed,) = [step.manifest for step in starting if isinstance(step, Replace)]
    assert not [step for step in same.steps if not isinstance(step, Apply)]
    assert told(same)["Progressing"][1] == "Settled"
    assert requested(changed) == {"cpu": "2000m", "memory": "16384Mi"}


def test_a_pool_that_becomes_shared_by_device_changes_no_replica() -> None:
    def shared(unit: str | None) -> InferenceCluster:
        return cluster("a", {**pool("default", gpu(count=2), nodes=2), **({"sharing": unit} if unit else {})})

    (one,) = placed(deployment(), shared(None))
    (other,) = placed(deployment(), shared("Device"))
    switched = plan(seen(deployment(), shared("Device"), replicas=[one]))

    assert not [step for step in switched.steps if not isinstance(step, Apply)]
    assert told(switched)["Progressing"][1] == "Settled"
    members = [replica["spec"]["engines"][0]["members"][0].get("sharing") for replica in (one, other)]
    assert members == [None, "Device"]


# Others ---------------------------------------------------------------------------------------------------------------


def test_a_label_that_somebody_took_off_is_put_back_and_a_strangers_annotation_stays() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    meddled = change(one, "metadata.labels", {"theirs": "1"})
    meddled = change(meddled, "metadata.annotations", {"theirs": "2"})

    rewritten = next(
        step.manifest
        for step in plan(seen(subject, cluster("a"), replicas=[meddled])).steps
        if isinstance(step, Replace)
    )

    assert rewritten["metadata"]["labels"] == one["metadata"]["labels"]
    assert rewritten["metadata"]["annotations"] == {"theirs": "2"}
    assert rewritten["spec"] == one["spec"]


def test_a_mark_that_cannot_be_read_is_taken_off() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    marked = change(one, "metadata.annotations", {labels.DRAINING_SINCE: "yesterday"})

    (rewritten, *_) = plan(seen(subject, cluster("a"), replicas=[marked])).steps

    assert isinstance(rewritten, Replace)
    assert rewritten.manifest["metadata"]["annotations"] == {}


def test_a_replica_on_its_way_out_does_not_count_and_its_name_is_waited_for() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a", nodes=2))
    leaving = change(one, "metadata.deletionTimestamp", EPOCH.isoformat())

    decided = plan(seen(subject, cluster("a", nodes=2), replicas=[leaving]))

    assert counts(decided) == (0, 0)
    assert [step for step in decided.steps if isinstance(step, Delete)] == []


def test_a_drain_says_who_waits_for_what() -> None:
    subject = deployment()
    (one,) = placed(subject, cluster("a"))
    drained = cluster("a", taints=[taint("maintenance", effect="NoExecute")])

    decided = plan(seen(subject, drained, cluster("b"), replicas=[one]))

    assert [type(step) for step in decided.steps] == [Create, Apply]
    assert told(decided)["Progressing"] == (
        "True",
        "Moving",
        "1 replica to be moved, changed or removed; 1 replica to wait until more than 1 serve, 1 so far",
    )


def test_a_deployment_that_is_deleted_is_kubernetes_to_clear_up() -> None:
    subject = deployment()
    running = placed(subject, cluster("a"))
    metadata = subject.metadata.model_copy(update={"deletion_timestamp": EPOCH})

    assert plan(seen(subject.model_copy(update={"metadata": metadata}), cluster("a"), replicas=running)) == Plan()


def test_a_deployment_that_somebody_holds_in_deletion_holds_up_no_cluster_that_goes_over_to_https() -> None:
    subject = deployment()
    (one,) = running = placed(subject, cluster("a"))
    terminating = subject.model_copy(
        update={"metadata": subject.metadata.model_copy(update={"deletion_timestamp": EPOCH, "finalizers": ("b/x",)})}
    )
    (before,) = plan(seen(subject, cluster("a"), replicas=running)).steps
    assert isinstance(before, Apply)
    moved = plan(seen(terminating, cluster("a", address="10.0.0.2"), replicas=running, endpoints=[before.manifest]))
    assert steps(moved) == [f"apply ModelEndpoint {key_of(one)}"]


def test_no_replicas_are_ready_when_none_are_asked_for() -> None:
    decided = plan(seen(deployment(replicas=0), cluster("a")))

    assert decided.steps == ()
    assert told(decided)["Ready"] == ("True", "Available", "0 of 0 replicas ready")


# Reasons --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("there", "reason"),
    [
        (cluster("a", nodes=0), "InsufficientCapacity"),
        (cluster("a", ready=False), "ClustersNotReady"),
        (cluster("a", address=None), "ClustersNotReady"),
        (cluster("a", region="eu"), "NoMatchingClusters"),
    ],
)
def test_what_keeps_a_replica_from_a_place_has_a_reason_of_its_own(there: InferenceCluster, reason: str) -> None:
    decided = told(plan(seen(deployment(labels={"region": "us"} if reason == "NoMatchingClusters" else {}), there)))

    assert decided["ReplicasScheduled"][:2] == ("False", reason)
    assert decided["Ready"][:2] == ("False", reason)


def failing(manifest: Manifest, reason: str) -> Manifest:
    ready = {"type": "Ready", "status": "False", "reason": reason, "message": "so it is", "observedGeneration": 1}
    return change(manifest, "status.conditions", [{**ready, "lastTransitionTime": EPOCH.isoformat()}])


@pytest.mark.parametrize(
    ("reasons", "ready", "progressing"),
    [
        (("Creating", "Creating"), "ModelStarting", ("True", "Starting", "")),
        (("Creating", "CrashLoop"), "ReplicasFailing", ("True", "Starting", "")),
        (("CrashLoop", "ImagePullFailed"), "ReplicasFailing", ("False", "Stalled", "")),
    ],
)
def test_it_progresses_while_replicas_start_and_says_when_they_cannot(
    reasons: tuple[str, str], ready: str, progressing: tuple[str, str, str]
) -> None:
    subject = deployment(replicas=2)
    there = (cluster("a"), cluster("b"))
    replicas = [failing(*each) for each in zip(placed(subject, *there, ready=False), reasons, strict=True)]
    decided = told(plan(seen(subject, *there, replicas=replicas)))

    assert decided["ReplicasReady"][1] == ready
    assert decided["Progressing"] == progressing
    assert decided["Ready"][1] == next((reason for reason in reasons if reason != "Creating"), "Creating")


def test_what_waits_for_nodes_is_not_settled_without_a_word_of_it() -> None:
    subject, there = deployment(replicas=30), cluster("a", pool(nodes=3))
    decided = told(plan(seen(subject, there, replicas=placed(subject, there))))

    assert decided["Progressing"] == (
        "False",
        "Settled",
        "Nothing more can be placed now: 27 replicas wait for a place",
    )
    assert decided["Ready"][:2] == ("False", "InsufficientCapacity")
    assert decided["Ready"][2].startswith("3 of 30 replicas placed; cluster a: engine main needs 1 node of pool")
    assert len(decided["Ready"][2]) <= 300
    assert decided["Ready"][2] not in decided["ReplicasScheduled"][2]


def test_a_shape_that_fits_nowhere_says_that_the_previous_one_runs() -> None:
    there = cluster("a", pool(nodes=2))
    running = placed(deployment(replicas=2), there)
    larger = deployment(change(engine(), "members[].nodeSelector.devices[].count", 99), replicas=2)

    decided = told(plan(seen(larger, there, replicas=running)))

    assert decided["Ready"][2].startswith("2 replicas keep running the previous spec; the new one fits no cluster: "), (
        decided["Ready"]
    )
    assert "needs 99 of device" in decided["Ready"][2]


@pytest.mark.parametrize("nodes", [1, 3], ids=["without-a-spare-node", "with-spare-nodes"])
def test_replicas_that_answer_stay_while_a_secret_of_the_new_template_does_not_exist(nodes: int) -> None:
    there = cluster("a", nodes=nodes)
    running = placed(deployment(), there)
    newer = deployment(change(engine(), "members[].template.spec.containers[].image", "vllm:2"))

    missing = plan(replace(seen(newer, there, replicas=running), missing="no Secret token"))
    created = plan(seen(newer, there, replicas=running))

    words = "Replicas keep running the previous spec: namespace ml-team has no Secret token, which the new one names"
    assert [type(step) for step in missing.steps] == [Apply], "it stays in rotation"
    assert told(missing)["Progressing"] == ("False", "SourceNotFound", f"{words}: create what is missing")
    assert told(missing)["Ready"] == ("False", "SourceNotFound", f"{words}: create what is missing")
    assert told(created)["Progressing"][1] == ("MovingWithoutSurge" if nodes == 1 else "Moving")


def test_a_replica_does_not_leave_its_cluster_while_a_secret_of_the_new_template_does_not_exist() -> None:
    berlin, oslo = cluster("a", site="berlin"), cluster("b", site="oslo")
    running = placed(deployment(labels={"site": "berlin"}), berlin)
    elsewhere = deployment(labels={"site": "oslo"})

    decided = plan(replace(seen(elsewhere, berlin, oslo, replicas=running), missing="no Secret token"))

    assert not [step for step in decided.steps if isinstance(step, Delete | Replace)]


def test_what_fails_is_told_before_what_starts() -> None:
    subject = deployment(replicas=2)
    there = (cluster("a"), cluster("b"))
    first, second = placed(subject, *there, ready=False)
    decided = told(plan(seen(subject, *there, replicas=[failing(first, "Creating"), failing(second, "CrashLoop")])))

    assert decided["ReplicasReady"][2].startswith(
        f"0 of 2 replicas ready; {second['metadata']['name']} on b: so it is; "
    )
