"""A replica from its first object on a cluster to its last."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kubeloop import strands
from kubeloop.errors import ClientError, KubeconfigError, Unreachable
from kubeloop.ownership import add_content_hash
from kubeloop.plan import LET_GO, Apply, Delete, Failure, Plan
from kubeloop.types import DEPLOYMENT, HTTP_ROUTE, type_of
from modelplane_operator.api import ModelReplica, labels, names
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.model_replica import HeldNodes, ModelReplicaStatus, PodsOnNode
from modelplane_operator.clusters.cluster.cluster_gateway import STEERING
from modelplane_operator.models.replica.plan import ClusterState, Observed, plan
from modelplane_operator.models.replica.plan.nodes import Unfit
from modelplane_operator.models.replica.plan.observed import Awaited
from modelplane_operator.models.replica.render import (
    EXTENSION_POLICIES,
    LEADER_WORKER_SETS,
    REVISION,
    Context,
    Lifecycle,
)
from modelplane_operator.routing.service.hops import NO_REQUEST
from tests.support.builders import EPOCH, NAMESPACE, replica, terminating
from tests.support.kept import of_cluster
from tests.support.manifests import ABSENT, change
from tests.support.plans import told

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

Condition = tuple[str, str, str]

SILENT = Unreachable("no answer")
UID = "uid-of-the-replica"
HELD = (labels.FINALIZER,)
PICKED = frozenset({EXTENSION_POLICIES})
AROUND = {"Namespace", "NetworkPolicy", "LimitRange"}
"""What is no replica's own, but its namespace's."""

NEITHER = "Neither cluster a nor its gateway answers: see ClusterReady of that InferenceCluster"


def subject(**said: Any) -> ModelReplica:
    """A replica on cluster `a` that is stored."""
    made = replica("a", **said)
    return made.model_copy(
        update={"metadata": made.metadata.model_copy(update={"uid": UID, "generation": 1, "finalizers": HELD})}
    )


def copies_of(number: int) -> ModelReplica:
    """Return a replica of the present revision with that many pods."""
    one = subject(copies=number)
    return one.model_copy(update={"spec": one.spec.model_copy(update={"pod_revision": REVISION})})


def split(*, prefill: Sequence[str] = (), decode: Sequence[str] = ()) -> ModelReplica:
    """One engine that reads prompts and one that writes answers, with these arguments."""
    one = subject().to_manifest()
    [engine] = one["spec"]["engines"]
    parts = {"Prefill": prefill, "Decode": decode}
    engines = [
        change({**engine, "name": phase.lower(), "phase": phase}, "members[0].template", template(args))
        for phase, args in parts.items()
    ]
    spec = {**one["spec"], "serving": {"mode": "PrefillDecode"}, "engines": engines}
    return ModelReplica.parse({**one, "spec": spec})


def template(args: Sequence[str]) -> Manifest:
    return {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.11.0", "args": list(args)}]}}


def seen(one: ModelReplica | None = None, *children: Manifest, pods: Iterable[Manifest] = (), **said: Any) -> Observed:
    isolation = Isolation.model_validate(said.pop("isolation", {}))
    around = Context("uid-of-the-namespace", said.pop("serves", frozenset()), said.pop("referenced", ()), isolation)
    cluster, fences = said.pop("cluster", ClusterState()), tuple(said.pop("fences", ()))
    return Observed(one or subject(), cluster, around, children, tuple(pods), None, fences, Lifecycle(), EPOCH)


def applied(decided: Plan) -> list[Manifest]:
    return [step.manifest for step in decided.steps if isinstance(step, Apply)]


def stored(manifest: Manifest) -> Manifest:
    """An applied object as it is kept of a cluster once its controllers are content."""
    found = change(add_content_hash(manifest), "metadata.uid", f"uid-of-{manifest['metadata']['name']}")
    found = change(found, "metadata.generation", 1)
    [kept] = of_cluster([{**found, **_status(found)}])
    return kept


def _status(manifest: Manifest) -> Manifest:
    match type_of(manifest):
        case kind if kind == DEPLOYMENT:
            copies = manifest["spec"]["replicas"]
            counts = dict.fromkeys(("replicas", "readyReplicas", "updatedReplicas"), copies)
            return {"status": {"observedGeneration": 1, **counts}}
        case kind if kind == HTTP_ROUTE:
            fine = [{"type": t, "status": "True", "observedGeneration": 1} for t in ("Accepted", "ResolvedRefs")]
            return {"status": {"parents": [{"parentRef": at(manifest), "conditions": fine}]}}
        case _:
            return {}


def at(route: Manifest) -> Manifest:
    """The gateway that a route names."""
    return route["spec"]["parentRefs"][0]


def children(one: ModelReplica, **said: Any) -> tuple[Manifest, ...]:
    """All that a replica is on its cluster, in good order."""
    return tuple(stored(made) for made in applied(plan(seen(one, **said))) if made["kind"] not in AROUND)


def pod(one: ModelReplica, *, ready: bool = True, engine: str = "main") -> Manifest:
    named = {labels.WORKLOAD: names.workload(one.metadata.name, engine), labels.SERVING: one.metadata.name}
    return {
        "metadata": {"name": "pod", "labels": named},
        "spec": {"nodeName": "n"},
        "status": {"conditions": [{"type": "Ready", "status": str(ready)}]},
    }


def serving(one: ModelReplica | None = None) -> Observed:
    one = one or subject()
    return seen(one, *children(one), pods=[pod(one)])


def test_at_first_all_is_applied_and_nothing_is_claimed() -> None:
    decided = plan(seen())

    assert [made["kind"] for made in applied(decided)] == [
        "Namespace",
        "NetworkPolicy",
        "NetworkPolicy",
        "LimitRange",
        "ResourceClaimTemplate",
        "Deployment",
        "Service",
        "HTTPRoute",
    ]
    assert {step.cluster for step in decided.steps if isinstance(step, Apply)} == {"a"}
    assert told(decided) == {
        "ModelAccepted": ("False", "Deploying", "Engine main: starting (waiting for: workload)"),
        "ModelReady": ("False", "WaitingForModel", ""),
        "Ready": ("False", "Creating", "Engine main: starting (waiting for: workload)"),
    }


def test_a_replica_is_ready_when_every_copy_is_and_the_route_leads_there() -> None:
    assert told(plan(serving())) == {
        "ModelAccepted": ("True", "Accepted", ""),
        "ModelReady": ("True", "Serving", ""),
        "Ready": ("True", "Available", ""),
    }


def test_it_answers_with_some_of_its_copies_and_is_ready_with_all() -> None:
    one = subject(copies=4)
    found = [
        {**child, "status": {**child["status"], "readyReplicas": 3}} if child["kind"] == "Deployment" else child
        for child in children(one)
    ]
    decided = told(plan(seen(one, *found, pods=[pod(one)])))

    assert decided["ModelReady"] == ("True", "Serving", "")
    assert decided["Ready"] == ("False", "Creating", "Engine main: 3 of 4 copies ready")


def test_no_pod_that_answers_is_told_with_its_cause() -> None:
    one = subject()
    decided = told(plan(seen(one, *children(one), pods=[pod(one, ready=False)])))

    assert decided["ModelReady"] == ("False", "ModelStarting", "No pod of engine main answers; pod pod is starting")


def test_a_pod_on_a_node_that_is_not_ready_does_not_count_whatever_it_last_said() -> None:
    one, condition = subject(), {"type": "Ready", "status": "Unknown", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    silent = Unfit(({"metadata": {"name": "n"}, "status": {"conditions": [condition]}},))

    decided = told(plan(replace(serving(one), nodes=silent)))

    down = "pod pod is on node n, which is not ready since 2026-01-01T00:00:00Z"
    assert decided["ModelReady"] == ("False", "NotAnswering", f"No pod of engine main answers; {down}")
    assert decided["Ready"] == (
        "False",
        "NotAnswering",
        f"P{down[1:]}; engine main: 1 pod on nodes that are not ready",
    )


def test_a_cordoned_node_is_named_whether_its_pods_serve_or_not() -> None:
    said = {"conditions": [{"type": "Ready", "status": "True"}]}
    nodes = ({"metadata": {"name": name}, "spec": {"unschedulable": True}, "status": said} for name in ("n", "other"))
    cordoned, there = Unfit(tuple(nodes)), serving()
    words = "Pods of the replica are on node n, which is cordoned"

    serves = told(plan(replace(there, nodes=cordoned)))
    assert serves["Ready"] == ("True", "Available", words)
    mute = tuple({**each, "status": {}} for each in there.pods)
    assert told(plan(replace(there, nodes=cordoned, pods=mute)))["Ready"][2].endswith(words)


def test_right_after_a_change_the_pods_of_before_do_not_count() -> None:
    before = subject()
    after = replace(serving(before), replica=subject(copies=2))

    decided = told(plan(after))

    assert decided["ModelReady"][1] == "ModelStarting"
    assert decided["Ready"] == (
        "False",
        "Creating",
        "Engine main: its workload is being changed",
    )


def test_a_workload_that_its_controller_has_not_looked_at_again_answers_for_what_it_was() -> None:
    one = subject()
    changed = [
        change(child, "metadata.generation", 2) if child["kind"] == "Deployment" else child for child in children(one)
    ]

    assert told(plan(seen(one, *changed, pods=[pod(one)])))["ModelReady"][1] == "ModelStarting"


def test_a_gang_on_a_cluster_without_leader_worker_sets_says_so_and_keeps_what_it_has() -> None:
    one = subject(stages=2)
    decided = plan(seen(one))

    assert decided.steps == ()
    assert LEADER_WORKER_SETS in told(decided)["Ready"][2]


HANDED = "--kv-transfer-config={}"


@pytest.mark.parametrize(
    ("prefill", "decode", "said"),
    [
        ([], [], ("False", "NotConfigured", "Engine prefill needs `--kv-transfer-config`; "
         "engine decode needs `--kv-transfer-config`")),
        ([HANDED], ["--port=8001"], ("False", "NotConfigured", "Engine decode needs `--kv-transfer-config`")),
        (["--kv_transfer_config", "{}"], [HANDED], ("True", "Configured", "")),
        (["--kv-transfer-config.kv_connector=NixlConnector"], ["--config=f"], ("True", "Configured", "")),
        (["$(KV_FLAGS)"], ["$(KV_FLAGS)"], ("True", "Configured", "")),
        (["sglang", "$(FLAGS)"], ["sglang", "--disaggregation-mode=$(MODE)"], ("True", "Configured", "")),
        (["sglang", "--disaggregation-mode=prefill"], ["sglang", "--disaggregation-mode=prefill"],
         ("False", "NotConfigured", "Engine decode needs `--disaggregation-mode=decode`")),
    ],
)  # fmt: skip
def test_engines_that_hand_over_nothing_are_told(prefill: list[str], decode: list[str], said: Condition) -> None:
    one = split(prefill=prefill, decode=decode)

    assert told(plan(seen(one, serves=PICKED)))["CacheTransfer"] == said
    assert "CacheTransfer" not in told(plan(seen()))


@pytest.mark.parametrize(
    ("decode", "why"),
    [
        ([], "engine decode has no `--port=8001`: add it, as vLLM otherwise listens on 8000, which the sidecar uses"),
        (["--port=8001"], ""),
        (["$(FLAGS)"], ""),
        (["sglang", "$(FLAGS)"], ""),
        (["sglang"], "engine decode is SGLang, which listens on 30000: add `--port=8001`"),
    ],
)  # fmt: skip
def test_an_engine_that_is_silent_where_it_is_asked_is_told_why_it_may_be(decode: list[str], why: str) -> None:
    one = split(prefill=["--port=9000"], decode=decode)

    said = told(plan(seen(one, *children(one, serves=PICKED), serves=PICKED)))["ModelReady"][2]

    wrong = "engine prefill listens on --port 9000 but is probed on 8000: remove the flag"
    assert said == "; ".join(filter(None, ["No pod of engine prefill, decode answers", wrong, why]))


def picker_pod(one: ModelReplica, *, ready: bool = True) -> Manifest:
    crashed = {"name": "epp", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}
    return {
        "metadata": {
            "name": "picker-pod",
            "labels": {labels.PICKER_APP: names.picker(one.metadata.name), labels.PICKER: one.metadata.name},
        },
        "spec": {"nodeName": "n"},
        "status": {
            "conditions": [{"type": "Ready", "status": str(ready)}],
            "containerStatuses": [] if ready else [crashed],
        },
    }


def is_picked(decided: Plan) -> bool | None:
    """Return whether the route of a plan has the picker asked; None where it has no rule for that."""
    routes = [each for each in applied(decided) if each["kind"] == "HTTPRoute"]
    [rule] = [rule for each in routes for rule in each["spec"]["rules"] if rule.get("name") == "picked"] or [None]
    return None if rule is None else "headers" not in rule["matches"][0]


def test_requests_pass_a_picker_by_while_none_answers_and_come_back() -> None:
    one = copies_of(2)
    behind = children(one, serves=PICKED)
    one = after(one, seen(one, *behind, pods=[pod(one), picker_pod(one)], serves=PICKED))

    decided = plan(seen(one, *behind, pods=[pod(one), picker_pod(one, ready=False)], serves=PICKED))
    dead, well = told(decided), plan(seen(one, *behind, pods=[pod(one), picker_pod(one)], serves=PICKED))

    why = "No pod of the endpoint picker is ready"
    assert is_picked(decided) is False
    assert dead["ModelReady"] == ("True", "Serving", "")
    assert dead["PickerReady"] == (
        "False",
        "Away",
        f"{why}; until it is, the gateway spreads requests evenly over the pods",
    )
    spread = "until it is, the gateway spreads requests evenly over the pods"
    assert dead["Ready"] == ("True", "Available", f"{why}; {spread}; pod picker-pod epp: crash loop, exit code unknown")
    assert is_picked(well) is True
    assert told(well)["PickerReady"] == ("True", "Picking", "")
    assert told(well)["Ready"] == ("True", "Available", "")


def after(one: ModelReplica, observed: Observed) -> ModelReplica:
    """Return the replica with the status that a plan reports for it."""
    status = plan(observed).status
    assert isinstance(status, ModelReplicaStatus)
    told_of = [each.model_copy(update={"observed_generation": one.metadata.generation}) for each in status.conditions]
    return one.model_copy(update={"status": status.model_copy(update={"conditions": tuple(told_of)})})


def test_the_way_past_a_picker_changes_no_listener_of_the_gateway() -> None:
    """The policy stays, and so does the rule that it is about, for a header that no request has."""
    one = copies_of(2)
    for ready in (True, False):
        decided = plan(seen(one, *children(one, serves=PICKED), pods=[picker_pod(one, ready=ready)], serves=PICKED))
        assert is_picked(decided) is ready
        assert "EnvoyExtensionPolicy" in {each["kind"] for each in applied(decided)}
    assert NO_REQUEST in STEERING


def test_a_picker_that_answers_for_the_first_time_is_starting_before_and_not_away() -> None:
    one = copies_of(2)

    decided = plan(seen(one, *children(one, serves=PICKED), pods=[pod(one)], serves=PICKED))

    assert told(decided)["PickerReady"][:2] == ("False", "Starting")


def test_a_replica_goes_on_to_serve_while_its_gateway_takes_the_way_past_a_picker() -> None:
    one = copies_of(2)
    behind = children(one, serves=PICKED)
    one = after(one, seen(one, *behind, pods=[pod(one), picker_pod(one)], serves=PICKED))
    changed = [change(each, "metadata.generation", 2) if each["kind"] == "HTTPRoute" else each for each in behind]

    decided = plan(seen(one, *changed, pods=[pod(one), picker_pod(one, ready=False)], serves=PICKED))

    assert told(decided)["ModelReady"] == ("True", "Serving", "")
    edited = one.model_copy(update={"metadata": one.metadata.model_copy(update={"generation": 2})})
    first = plan(seen(edited, *changed, pods=[pod(one), picker_pod(one)], serves=PICKED))
    assert told(first)["ModelReady"][:2] == ("False", "ModelStarting"), "it has been asked for something else"


def test_a_split_replica_without_its_picker_answers_nobody() -> None:
    one = split()
    pods = [pod(one)]

    decided = plan(seen(one, *children(one, serves=PICKED), pods=pods, serves=PICKED))

    assert is_picked(decided) is True
    assert told(decided)["PickerReady"] == ("False", "Starting", "No pod of the endpoint picker is ready")


def test_a_new_replica_is_reached_before_its_picker_answers() -> None:
    decided = plan(seen(copies_of(2), pods=[], serves=PICKED))

    assert is_picked(decided) is False


def test_a_picker_of_an_earlier_version_is_not_asked() -> None:
    """It speaks TLS, and stays until the new ones are ready."""
    one = copies_of(2)
    old = change(picker_pod(one), "metadata.labels", {labels.PICKER_APP: names.picker(one.metadata.name)})

    assert is_picked(plan(seen(one, *children(one, serves=PICKED), pods=[pod(one), old], serves=PICKED))) is False


def test_a_replica_with_one_pod_has_nothing_to_pick_from() -> None:
    decided = plan(seen(copies_of(1), pods=[], serves=PICKED))

    assert is_picked(decided) is None
    assert "EnvoyExtensionPolicy" not in {each["kind"] for each in applied(decided)}


def test_a_replica_that_does_without_its_picker_says_so() -> None:
    one = copies_of(2)
    one = after(one, seen(one, *children(one, serves=PICKED), pods=[pod(one), picker_pod(one)], serves=PICKED))

    decided = plan(seen(one, *children(one), pods=[pod(one)]))
    assert told(decided)["PickerReady"] == ("True", "NotNeeded", "")


@pytest.mark.parametrize("one", [copies_of(2), split()], ids=["copies", "split"])
def test_a_gateway_that_refuses_to_ask_a_picker_is_passed_on_by_its_reason(one: ModelReplica) -> None:
    refused = {"type": "Accepted", "status": "False", "reason": "Invalid", "message": "no", "observedGeneration": 1}
    behind = [
        {**each, "status": {"ancestors": [{"conditions": [refused]}]}}
        if each["kind"] == "EnvoyExtensionPolicy"
        else each
        for each in children(one, serves=PICKED)
    ]

    decided = plan(seen(one, *behind, pods=[pod(one), picker_pod(one)], serves=PICKED))

    state, reason, words = told(decided)["PickerReady"]
    assert (state, reason) == ("False", "NotAsked")
    assert "does not use the endpoint picker: Invalid" in words
    assert "Invalid: no" not in words
    assert is_picked(decided) is one.spec.is_split
    # One without pods it refuses to ask, too.
    podless = told(plan(seen(one, *behind, pods=[pod(one)], serves=PICKED)))
    assert podless["PickerReady"][:2] == ("False", "Starting")


def test_the_picker_goes_when_the_last_engine_has_ended() -> None:
    one = copies_of(2)
    all_of_it = children(one, serves=PICKED)
    (picker,) = (
        child
        for child in all_of_it
        if child["metadata"]["name"] == names.picker(one.metadata.name) and child["kind"] == "Deployment"
    )
    rest = [child for child in all_of_it if child["kind"] != "Deployment" or child is picker]

    first = leaving(*all_of_it, pods=[pod(one), picker_pod(one)])
    second = leaving(*rest, pods=[pod(one), picker_pod(one)])
    third = leaving(*rest, pods=[picker_pod(one)])
    last = leaving(pods=[picker_pod(one)])
    ending = leaving(pods=[pod(one), picker_pod(one)])

    assert [step.key.name for step in first.steps if isinstance(step, Delete)] == [
        names.workload(one.metadata.name, "main")
    ]
    assert deleted(second) == []
    assert "Deployment" in deleted(third)
    assert (ending.steps, told(ending)["Ready"][2]) == ((), "Waiting for 1 pod to end")
    assert last.steps == (LET_GO,), "it has minutes to end, and holds no devices"


def test_a_missing_secret_is_told_and_a_copy_of_one_that_vanished_stays() -> None:
    made = subject().to_manifest()
    container = made["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]
    container["env"] = [{"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}]
    one = ModelReplica.parse(made)
    secret = {"kind": "Secret", "metadata": {"name": "hf"}, "data": {"token": "aHVudGVyMg=="}}

    assert told(plan(seen(one)))["Ready"][2].startswith("Namespace ml-team has no Secret hf")
    there = children(one, referenced=(secret,))
    assert there[0]["kind"] == "Secret"
    vanished = plan(seen(one, *there, pods=[pod(one)]))
    assert not [step for step in vanished.steps if isinstance(step, Delete)]
    assert told(vanished)["Ready"][0] == "True"
    assert told(vanished)["ModelAccepted"][2] == "Namespace ml-team has no Secret hf; the previous copy stays in use"


def test_a_key_that_is_missing_is_told_and_a_copy_that_has_it_stays() -> None:
    made = subject().to_manifest()
    container = made["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]
    refs = [{"name": "hf", "key": "token"}, {"name": "hf", "key": "more", "optional": True}]
    container["env"] = [{"name": one["key"], "valueFrom": {"secretKeyRef": one}} for one in refs]
    one = ModelReplica.parse(made)
    whole = {"kind": "Secret", "metadata": {"name": "hf"}, "data": {"token": "YQ==", "more": "Yg=="}}
    [cut, less] = [change(whole, f"data.{key}", ABSENT) for key in ("token", "more")]

    waiting, there = plan(seen(one, referenced=(cut,))), children(one, referenced=(whole,))
    kept = plan(seen(one, *there, pods=[pod(one)], referenced=(cut,)))
    shorter = plan(seen(one, *there, pods=[pod(one)], referenced=(less,)))

    assert told(waiting)["Ready"][2].startswith("Namespace ml-team has no key token in Secret hf")
    assert "Secret" not in {each["kind"] for each in applied(waiting)}, "it would be taken for one of before"
    assert "Secret" not in {each["kind"] for each in applied(kept)}
    assert not [step for step in kept.steps if isinstance(step, Delete)]
    assert told(kept)["Ready"][0] == "True"
    said = "Namespace ml-team has no key token in Secret hf; the previous copy stays in use"
    assert told(kept)["ModelAccepted"][2] == said
    [copy] = [each for each in applied(shorter) if each["kind"] == "Secret"]
    assert set(copy["data"]) == {"token"}, "what is optional may go"


def test_more_than_a_replica_may_copy_is_told_and_nothing_of_it_is_made() -> None:
    made = subject().to_manifest()
    container = made["spec"]["engines"][0]["members"][0]["template"]["spec"]["containers"][0]
    names_of = [f"map-{number}" for number in range(5)]
    container["env"] = [
        {"name": f"E{at}", "valueFrom": {"configMapKeyRef": {"name": name, "key": "key"}}}
        for at, name in enumerate(names_of)
    ]
    maps = [
        {"kind": "ConfigMap", "metadata": {"name": name}, "data": {"key": "x" * 2**20, "other": "x" * 2**20}}
        for name in names_of
    ]
    decided = plan(seen(ModelReplica.parse(made), referenced=tuple(maps)))

    assert decided.steps == ()
    words = "The Secrets and ConfigMaps that its engines name have 5.0 MiB, and 4 MiB are allowed: name fewer keys"
    assert words in told(decided)["Ready"][2]
    assert plan(seen(ModelReplica.parse(made), referenced=tuple(maps[:3]))).steps != ()


def test_a_claim_template_of_before_stays_until_no_pod_can_need_it() -> None:
    one = subject()
    old = change(children(one)[0], "metadata.name", "of-before")
    assert old["kind"] == "ResourceClaimTemplate"
    rolling = [
        change(child, "status.readyReplicas", 0) if child["kind"] == "Deployment" else child for child in children(one)
    ]

    during = plan(seen(one, old, *rolling, pods=[pod(one, ready=False)]))
    after = plan(seen(one, old, *children(one), pods=[pod(one)]))

    assert not [step for step in during.steps if isinstance(step, Delete)]
    assert [step.key.name for step in after.steps if isinstance(step, Delete)] == ["of-before"]


def test_fences_that_a_cluster_is_to_have_no_more_are_deleted() -> None:
    one, no_more = subject(), {"networkPolicy": {"mode": "Disabled"}, "limitRange": {"mode": "Disabled"}}
    fences = [stored(made) for made in applied(plan(seen(one))) if made["kind"] in {"NetworkPolicy", "LimitRange"}]

    kept = plan(seen(one, *children(one), pods=[pod(one)], fences=fences))
    gone = plan(seen(one, *children(one), pods=[pod(one)], fences=fences, isolation=no_more))

    assert not deleted(kept)
    assert deleted(gone) == ["NetworkPolicy", "NetworkPolicy", "LimitRange"]


# A cluster that cannot be seen ----------------------------------------------------------------------------------------


def judged(one: ModelReplica) -> ModelReplica:
    """The replica with the status that it has while it serves."""
    return one.model_copy(update={"status": plan(serving(one)).status})


def test_a_cluster_whose_lists_are_not_in_yet_is_waited_for_without_a_word() -> None:
    decided = plan(seen(cluster=ClusterState(connected=False)))

    assert (decided.steps, decided.status) == ((), None)
    assert decided.requeue_after is not None


def test_a_cluster_that_nobody_knows_is_told_to_a_new_replica_and_changes_nothing_for_one_that_ran() -> None:
    unknown = ClusterState(exists=False, connected=False)

    assert told(plan(seen(cluster=unknown)))["ModelAccepted"][1] == "WaitingForCluster"
    assert plan(seen(judged(subject()), cluster=unknown)) == Plan()


def test_a_silent_api_server_changes_nothing_while_the_gateway_answers() -> None:
    decided = plan(seen(judged(subject()), cluster=ClusterState(connected=False, error=SILENT)))

    assert (decided.steps, decided.status, type(decided.failure)) == ((), None, type(SILENT))
    assert str(SILENT) not in str(decided.failure)


@pytest.mark.parametrize("error", [SILENT, KubeconfigError("context of-the-platform: no such file")])
def test_a_replica_that_leaves_a_cluster_that_does_not_answer_has_none_of_its_words(error: ClientError) -> None:
    decided = plan(seen(terminating(subject()), cluster=ClusterState(connected=False, error=error)))

    assert decided.failure is not None
    assert type(decided.failure) is type(error)
    assert str(error) not in strands.summarize([Failure(None, decided.failure, planned=True)], to_tenants=True)
    assert "see ClusterReady" in str(decided.failure)


def test_with_the_gateway_silent_too_nobody_knows_whether_the_model_answers() -> None:
    decided = plan(seen(judged(subject()), cluster=ClusterState(connected=False, error=SILENT, serving=False)))

    assert decided.steps == ()
    assert told(decided) == {
        "ModelReady": ("Unknown", "ClusterUnreachable", NEITHER),
        "Ready": ("Unknown", "Unreachable", NEITHER),
    }


# Its end --------------------------------------------------------------------------------------------------------------


def leaving(*found: Manifest, pods: Iterable[Manifest] = (), **said: Any) -> Plan:
    return plan(seen(terminating(subject()), *found, pods=pods, **said))


def deleted(decided: Plan) -> list[str]:
    return [step.type.kind for step in decided.steps if isinstance(step, Delete)]


def test_the_pods_end_first_then_the_rest_goes_then_the_replica() -> None:
    one = subject()
    all_of_it = children(one)
    rest = [child for child in all_of_it if child["kind"] != "Deployment"]

    first = leaving(*all_of_it, pods=[pod(one)])
    second = leaving(*rest, pods=[pod(one)])
    third = leaving(*rest)
    last = leaving()

    assert deleted(first) == ["Deployment"]
    assert told(second) == {"Ready": ("False", "Deleting", "Waiting for 1 pod to end")}
    assert deleted(second) == []
    assert deleted(third) == ["ResourceClaimTemplate", "Service", "HTTPRoute"]
    assert last.steps == (LET_GO,)


def test_the_pods_of_a_gang_are_told_at_once_that_they_end() -> None:
    (workload,) = (child for child in children(subject()) if child["kind"] == "Deployment")
    gang = {**workload, "apiVersion": "leaderworkerset.x-k8s.io/v1", "kind": "LeaderWorkerSet"}

    (step,) = (step for step in leaving(gang).steps if isinstance(step, Delete))

    assert (step.type.kind, step.propagation) == ("LeaderWorkerSet", "Foreground")


def test_the_namespace_goes_with_the_last_replica() -> None:
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"modelplane-{NAMESPACE}", "uid": "u"}}
    observed = replace(seen(terminating(subject())), namespace=home)

    assert [str(step) for step in plan(observed).steps] == [
        f"delete Namespace modelplane-{NAMESPACE} on cluster a",
        "remove our finalizer from the object",
    ]


def test_the_namespace_stays_as_long_as_others_have_something_in_it() -> None:
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": f"modelplane-{NAMESPACE}", "uid": "u"}}
    observed = replace(seen(terminating(subject())), namespace=home, of_others=("PersistentVolumeClaim weights",))

    assert plan(observed).steps == (LET_GO,)


@pytest.mark.parametrize(
    ("cluster", "released"),
    [
        (ClusterState(exists=False, connected=False), True),
        (ClusterState(connected=False, error=SILENT), False),
        (ClusterState(connected=False), False),
    ],
    ids=["gone for good", "silent", "not seen yet"],
)
def test_a_replica_waits_for_its_cluster_unless_there_is_none(
    cluster: ClusterState,
    released: bool,  # noqa: FBT001
) -> None:
    assert (leaving(cluster=cluster).steps == (LET_GO,)) is released


def test_a_replica_that_was_never_held_is_kubernetes_to_remove() -> None:
    bare = terminating(replica("a"))

    assert plan(seen(bare)) == Plan()


def test_nodes_that_pods_of_an_earlier_shape_are_on_are_told_until_they_have_ended() -> None:
    def pod(node: str | None, phase: str = "Running") -> Manifest:
        spec = {"nodeSelector": {labels.POOL: "default"}, "resourceClaims": [{"name": "devices"}]}
        return {"metadata": {"name": f"on-{node}"}, "spec": {**spec, "nodeName": node}, "status": {"phase": phase}}

    two = plan(seen(pods=[pod("one"), pod("two"), pod(None), pod("three", "Failed")])).status
    one = plan(seen(pods=[pod("one")])).status

    assert isinstance(two, ModelReplicaStatus)
    assert isinstance(one, ModelReplicaStatus)
    assert (two.held_nodes, one.held_nodes) == ((HeldNodes(pool="default", nodes=2),), ())


def test_the_status_names_the_nodes_of_pods_that_claim_devices() -> None:
    def pod(node: str | None, pool: str = "default", **labelled: str) -> Manifest:
        spec = {"nodeSelector": {labels.POOL: pool}, "resourceClaims": [{"name": "devices"}], "nodeName": node}
        workload = names.workload(subject().metadata.name, "main")
        return {"metadata": {"name": f"on-{node}", "labels": {labels.WORKLOAD: workload, **labelled}}, "spec": spec}

    pods = [pod("one"), pod("one"), pod(None), pod("two"), pod("of-another-pool", "before")]
    status = plan(seen(pods=[*pods, {"metadata": {"name": "picker"}, "spec": {"nodeName": "one"}}])).status

    assert isinstance(status, ModelReplicaStatus)
    assert status.pod_nodes == (
        PodsOnNode(engine="main", node="one", pods=2),
        PodsOnNode(engine="main", node="two", pods=1),
    )


def test_a_replica_tells_since_when_a_pod_of_its_has_found_no_node() -> None:
    def pod(status: str, **metadata: str) -> Manifest:
        spec = {"resourceClaims": [{"name": "devices"}]}
        condition = {"type": "PodScheduled", "status": status, "reason": "Unschedulable"}
        return {"metadata": {"name": "one", **metadata}, "spec": spec, "status": {"conditions": [condition]}}

    def since(*pods: Manifest, known: datetime | None = None) -> datetime | None:
        before = subject().model_copy(update={"status": ModelReplicaStatus(unschedulable_since=known)})
        status = plan(seen(before, pods=pods)).status
        assert isinstance(status, ModelReplicaStatus)
        return status.unschedulable_since

    earlier = EPOCH - timedelta(minutes=3)
    assert since(pod("False")) == EPOCH
    assert since(pod("True"), pod("False"), known=earlier) == earlier
    assert since(pod("True"), known=earlier) is None
    assert since(pod("False", deletionTimestamp="2026-01-01T00:00:00Z"), known=earlier) is None


# Reasons --------------------------------------------------------------------------------------------------------------


def ill(state: str, one: ModelReplica) -> Manifest:
    """A pod of the engine whose container waits for that."""
    waiting = {"name": "engine", "state": {"waiting": {"reason": state}}}
    return change(pod(one, ready=False), "status.containerStatuses", [waiting])


@pytest.mark.parametrize(
    ("state", "answers", "ready"),
    [
        ("ContainerCreating", "ModelStarting", "Creating"),
        ("CrashLoopBackOff", "CrashLoop", "CrashLoop"),
        ("ErrImagePull", "ImagePullFailed", "ImagePullFailed"),
        ("CreateContainerError", "CannotStart", "CannotStart"),
    ],
)
def test_ready_says_what_ails_the_engine_and_creating_while_it_starts(state: str, answers: str, ready: str) -> None:
    one = subject()
    workloads = tuple(
        change(child, "status.readyReplicas", 0) if child["kind"] == "Deployment" else child for child in children(one)
    )
    decided = told(plan(seen(one, *workloads, pods=[ill(state, one)])))

    assert (decided["ModelReady"][1], decided["Ready"][1]) == (answers, ready)


def test_a_route_that_the_gateway_refuses_has_a_reason_of_its_own() -> None:
    one = subject()
    refused = {"type": "Accepted", "status": "False", "observedGeneration": 1, "reason": "NotAllowedByListeners"}
    there = tuple(
        change(child, "status.parents", [{"parentRef": at(child), "conditions": [refused]}])
        if child["kind"] == "HTTPRoute"
        else child
        for child in children(one)
    )
    decided = told(plan(seen(one, *there, pods=[pod(one)])))

    assert (decided["ModelReady"][1], decided["Ready"][1]) == ("RouteRefused", "RouteRefused")


def test_a_secret_that_is_missing_has_a_reason_of_its_own() -> None:
    reference = {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "hf", "key": "token"}}}
    named = change(
        subject().to_manifest(),
        "spec.engines[].members[].template",
        {"spec": {"containers": [{"name": "engine", "image": "vllm/vllm-openai:v0.11.0", "env": [reference]}]}},
    )
    decided = told(plan(seen(ModelReplica.parse(named))))

    assert decided["Ready"][1] == "SourceNotFound"
    assert decided["Ready"][2].startswith("Namespace ml-team has no Secret hf")


@pytest.mark.parametrize(
    ("one", "kind"), [(split(), EXTENSION_POLICIES), (subject(stages=2), LEADER_WORKER_SETS)], ids=["split", "gang"]
)
def test_what_a_cluster_does_not_serve_is_no_mistake_of_the_engines(one: ModelReplica, kind: str) -> None:
    decided = told(plan(seen(one)))

    assert decided["ModelAccepted"][1] == decided["Ready"][1] == "NotServed"
    assert kind in decided["ModelAccepted"][2]


def test_workloads_wait_for_weights_that_are_on_their_way() -> None:
    waiting = plan(replace(seen(), awaited=Awaited("The weights of ModelCache qwen are not on cluster a yet")))

    assert "Deployment" not in [made["kind"] for made in applied(waiting)]
    assert told(waiting)["ModelAccepted"] == (
        "False",
        "ModelCacheHydrating",
        "The weights of ModelCache qwen are not on cluster a yet",
    )


def test_weights_that_do_not_come_are_the_reason_of_the_replica() -> None:
    waiting = told(plan(replace(seen(), awaited=Awaited("the volume is not bound", "VolumeNotBound"))))

    assert waiting["ModelAccepted"] == ("False", "ModelCacheFailed", "The volume is not bound")
    assert waiting["Ready"] == ("False", "VolumeNotBound", "The volume is not bound")


def test_a_quota_is_the_reason_of_the_replica_and_not_that_it_starts() -> None:
    one = serving()
    quota = {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota: few"}
    full = tuple(
        {**child, "status": {"observedGeneration": 1, "conditions": [quota]}}
        if child["kind"] == "Deployment"
        else child
        for child in one.children
    )
    decided = told(plan(replace(one, children=full, pods=())))

    assert decided["ModelReady"][:2] == decided["Ready"][:2] == ("False", "PodsRejected")
    assert "exceeded quota: few" in decided["ModelReady"][2]
    assert decided["Ready"][2].startswith("Engine main: 0 of 1 copy ready, and no more pods can be made: FailedCreate")


def test_what_runs_is_left_alone_while_its_cache_is_filled_anew() -> None:
    running = serving()

    assert plan(replace(running, awaited=Awaited("not yet"))) == plan(running)
