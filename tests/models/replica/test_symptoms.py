"""What pods, workloads and routes say of their health, in words that stay the same while nothing changes."""

from __future__ import annotations

from typing import Any

import orjson
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kubeloop.ownership import add_content_hash, was_applied
from modelplane_operator.api.labels import POOL
from modelplane_operator.clusters.cluster.plan.hardware import prune_node
from modelplane_operator.models.replica.plan.nodes import Unfit
from modelplane_operator.models.replica.plan.symptoms import (
    describe_unfinished,
    describe_unrouted,
    is_ready,
    is_refused,
    is_unseen,
    prune_pod,
    prune_policy,
    prune_route,
    prune_workload,
    refusal,
    summarize,
    symptoms,
)

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]
MOMENT = "2026-01-03T00:00:00Z"


KILLED = {"exitCode": 137, "reason": "OOMKilled"}
IMAGE = "correct the image of the container, or name the Secret with the registry's credentials in imagePullSecrets"
LIVENESS = {"httpGet": {}, "periodSeconds": 30, "timeoutSeconds": 20, "failureThreshold": 10}  # as engines have it
NO_COMMAND = 'exec: "vlm": executable file not found in $PATH'
QUOTA = {
    "type": "ReplicaFailure",
    "status": "True",
    "reason": "FailedCreate",
    "message": 'pods "a-5d007d0c1d-x2x9k" is forbidden: exceeded quota: team',
}
OUT_OF_MEMORY = "OOMKilled: it used more memory than its limit or its node has: raise the limit, or make it use less"


def pod(name: str = "a", *, ready: bool = False, node: str = "", terminating: bool = False, **status: Any) -> Manifest:
    conditions = [{"type": "Ready", "status": str(ready)}, *status.pop("conditions", [])]
    return {
        "metadata": {"name": name, **({"deletionTimestamp": "2026-01-01T00:00:00Z"} if terminating else {})},
        "spec": {"nodeName": node} if node else {},
        "status": {"conditions": conditions, **status},
    }


def waiting(reason: str, message: str = "", *, name: str = "engine", last: Manifest | None = None) -> Manifest:
    state = {"waiting": {"reason": reason, **({"message": message} if message else {})}}
    return {"name": name, "state": state, **({"lastState": {"terminated": last}} if last else {})}


def engine(*containers: Manifest) -> Manifest:
    made = pod(node="n", containerStatuses=list(containers))
    made["metadata"]["namespace"] = "ns"
    return made


def running(*, restarts: int = 0, last: Manifest | None = None, started: bool = False) -> Manifest:
    """A pod whose engine runs and is not heard."""
    state = {"running": {"startedAt": "2026-01-01T00:00:00Z"}, "waiting": None, "terminated": None}
    ended = {"lastState": {"terminated": last}} if last else {}
    counts = {"restartCount": restarts, "started": started, "ready": False}
    made = engine({"name": "engine", "state": state, **counts, **ended})
    made["spec"]["containers"] = [{"name": "engine", "readinessProbe": {"httpGet": {"path": "/health", "port": 8000}}}]
    made["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T00:00:00Z"
    return made


def about_to_answer() -> Manifest:
    """Its startup probe has passed, and its readiness probe is yet to come: so is every engine for some seconds."""
    made = running(started=True)
    made["status"]["conditions"][0]["lastTransitionTime"] = "2025-12-31T23:59:59Z"
    return made


def crashed(*, restarts: int) -> Manifest:
    made = engine({**waiting("CrashLoopBackOff", last=KILLED), "restartCount": restarts})
    made["status"]["conditions"][0]["lastTransitionTime"] = "2026-01-02T00:00:00Z"
    return made


def silenced() -> Manifest:
    made = running(started=True)
    made["status"]["containerStatuses"][0]["ready"] = True
    return made


def node(name: str, *, ready: str = "True", cordoned: bool = False) -> Manifest:
    said = {"type": "Ready", "status": ready, "reason": "NodeStatusUnknown", "lastTransitionTime": MOMENT}
    return prune_node(
        {
            "metadata": {"name": name, "uid": name, "resourceVersion": "1", "labels": {POOL: "h100"}},
            "spec": {"unschedulable": True} if cordoned else {},
            "status": {"conditions": [said]},
        }
    )


LOG = "its log says more: kubectl logs -n ns a -c engine"
PREVIOUS = f"{LOG} --previous"


FULL = "Unschedulable: not enough nvidia.com/gpu on 1 node, taint team on 3 nodes"
NO_NODE = {
    "type": "PodScheduled",
    "status": "False",
    "reason": "Unschedulable",
    "message": "0/4 nodes are available: 3 node(s) had untolerated taint {team: red}, 1 Insufficient nvidia.com/gpu.",
}


@pytest.mark.parametrize(
    ("ill", "words"),
    [
        (pod(), "pod a is starting"),
        (pod(node="n"), "pod a is starting"),
        (pod(ready=True, terminating=True), "pod a is ending"),
        (pod(conditions=[NO_NODE]), f"pod a has no node: {FULL}"),
        (engine(waiting("ContainerCreating")), "pod a is starting"),
        (
            engine(waiting("ImagePullBackOff", "rpc error: 401 Unauthorized at 10.0.0.1")),
            f"pod a engine: ImagePullBackOff: the registry refuses it without other credentials; {IMAGE}",
        ),
        (engine(waiting("ErrImagePull")), f"pod a engine: ErrImagePull; {IMAGE}"),
        (
            engine(waiting("CreateContainerConfigError", 'secret "hf" not found')),
            "pod a engine: CreateContainerConfigError: Secret hf is not there",
        ),
        # the kubelet's own message counts the seconds of the back-off
        (
            engine(waiting("CrashLoopBackOff", "back-off 40s", last=KILLED)),
            f"pod a engine: crash loop, exit code 137 ({OUT_OF_MEMORY}); {PREVIOUS}",
        ),
        (
            engine(waiting("CrashLoopBackOff", last={"exitCode": 1, "reason": "Error"})),
            f"pod a engine: crash loop, exit code 1; {PREVIOUS}",
        ),
        (
            crashed(restarts=5),
            f"pod a engine: crash loop, exit code 137 ({OUT_OF_MEMORY}), 5 restarts so far, not ready since "
            f"2026-01-02T00:00:00Z; {PREVIOUS}",
        ),
        (
            engine({"name": "engine", "state": {"terminated": {"exitCode": 2, "reason": "Error"}}}),
            f"pod a engine: exit code 2; {LOG}",
        ),
        # what serves is not to end, and the back-off may be minutes away
        (
            engine({"name": "engine", "state": {"terminated": {"exitCode": 0, "reason": "Completed"}}}),
            f"pod a engine: exit code 0 (Completed); {LOG}",
        ),
        (
            pod(node="n", initContainerStatuses=[{"name": "warm-up", "state": {"terminated": {"exitCode": 0}}}]),
            "pod a is starting",
        ),
        (
            pod(node="n", initContainerStatuses=[waiting("ImagePullBackOff", name="warm-up")]),
            f"pod a warm-up: ImagePullBackOff; {IMAGE}",
        ),
        (
            pod(phase="Failed", reason="Evicted", message="The node was low on resource: memory. Threshold 10Mi"),
            "pod a failed: Evicted: its node was low on memory",
        ),
        # kubelet 1.36 leaves the containers' own states beside the reason for which it ended the pod
        (
            pod(
                phase="Failed",
                reason="Evicted",
                message="The node was low on resource: memory. Threshold 10Mi",
                containerStatuses=[{"name": "engine", "state": {"terminated": {"exitCode": 137, "reason": "Error"}}}],
            ),
            "pod a failed: Evicted: its node was low on memory",
        ),
        (
            pod(
                phase="Failed",
                reason="Terminated",
                message="Pod was terminated in response to imminent node shutdown.",
                containerStatuses=[{"name": "engine", "state": {"terminated": {"exitCode": 143, "reason": "Error"}}}],
            ),
            "pod a failed: Terminated: its node was shut down",
        ),
        (pod(phase="Failed"), "pod a failed: no reason given"),
        # containerd's status of a command that the image does not have: there is no log
        (
            engine(waiting("CrashLoopBackOff", last={"exitCode": 128, "reason": "StartError", "message": NO_COMMAND})),
            f"pod a engine: crash loop, exit code 128 (StartError: its image does not have the command); {PREVIOUS}",
        ),
        (engine(waiting("SignatureValidationFailed")), f"pod a engine: SignatureValidationFailed; {IMAGE}"),
        (running(), f"pod a engine: no answer on port 8000 at /health since 2026-01-01T00:00:00Z; {LOG}"),
        (
            running(restarts=5, last={"exitCode": 137, "reason": "OOMKilled"}),
            "pod a engine: no answer on port 8000 at /health since 2026-01-01T00:00:00Z, after 5 restarts, the last: "
            f"exit code 137 ({OUT_OF_MEMORY}); {LOG}",
        ),
        (
            engine({"name": "engine", "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}, "ready": False}),
            f"pod a engine: not ready since 2026-01-01T00:00:00Z; {LOG}",
        ),
        (
            pod(node="n", conditions=[{"type": "PodScheduled", "status": "True", "lastTransitionTime": MOMENT}]),
            f"pod a is starting, on its node since {MOMENT}",
        ),
        # a node that falls silent takes the pod's word and not its containers'
        (silenced(), "pod a is not ready since 2026-01-02T00:00:00Z, though its containers are"),
        # it served for a day
        (running(started=True), f"pod a engine: no answer on port 8000 at /health since 2026-01-02T00:00:00Z; {LOG}"),
        (about_to_answer(), f"pod a engine: no answer on port 8000 at /health since 2026-01-01T00:00:00Z; {LOG}"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_pod_that_is_not_ready_says_what_is_the_matter(ill: Manifest, words: str) -> None:
    assert summarize(symptoms([prune_pod(ill)])) == summarize(symptoms([ill]))
    assert summarize(symptoms([ill])) == words


def test_a_node_that_is_not_ready_or_cordoned_is_named() -> None:
    nodes = Unfit((node("n", ready="Unknown"), node("m", cordoned=True), node("fine")))
    ready, terminating, homeless = pod(ready=True, node="n"), pod(node="n", terminating=True), pod(conditions=[NO_NODE])
    homeless["spec"]["nodeSelector"] = {POOL: "h100"}
    down = f"node n, which is not ready since {MOMENT} (NodeStatusUnknown)"

    assert [summarize(symptoms([one], nodes)) for one in (ready, terminating, homeless, pod(ready=True, node="m"))] == [
        f"pod a is on {down}",
        f"pod a is ending on {down}",
        f"pod a has no node: {FULL}; node m is cordoned, node n is not ready since {MOMENT} (NodeStatusUnknown)",
        "",
    ]


def test_a_pod_that_is_ready_has_no_symptom_and_takes_requests() -> None:
    assert summarize(symptoms([pod(ready=True)])) == ""
    assert is_ready(pod(ready=True))
    assert not is_ready(pod(ready=True, terminating=True))


def test_of_a_pod_no_more_is_kept_than_is_needed() -> None:
    """Its arguments are a tenant's, and there are as many copies of them as pods."""
    whole = pod(ready=True, node="n", message="m" * 100_000)
    claims = [{"name": "gpu", "resourceClaimTemplateName": "x" * 200}] * 16
    containers = [{"name": "engine", "args": ["x" * 1000] * 1000}]
    whole["metadata"] |= {
        "annotations": {"a": "x" * 100_000},
        "labels": {"app": "a"},
        "uid": "u",
        "resourceVersion": "1",
    }
    whole["spec"] |= {"containers": containers, "resourceClaims": claims, "nodeSelector": {POOL: "l4", "other": "x"}}
    cut = prune_pod(whole)

    assert len(orjson.dumps(cut)) < 1500
    assert cut["spec"]["nodeSelector"] == {POOL: "l4"}
    assert bool(cut["spec"]["resourceClaims"])
    assert (is_ready(cut), cut["metadata"]["labels"]) == (True, {"app": "a"})


def test_of_a_workload_nothing_of_its_pods_is_kept() -> None:
    """Two arguments of control characters have 1.5 MB as JSON, and of 43 such workloads a cluster may have no more."""
    arguments = ["\1" * 131_072] * 2
    whole: Manifest = {
        "metadata": {"name": "a", "generation": 2},
        "spec": {"replicas": 1, "template": {"spec": {"containers": [{"name": "engine", "args": arguments}]}}},
        "status": {"observedGeneration": 2, "replicas": 1, "readyReplicas": 0, "conditions": [{"message": "m" * 9000}]},
    }
    wanted, whole = whole, add_content_hash(whole)
    cut = prune_workload(whole)

    assert len(orjson.dumps(whole)) > 1_500_000
    assert len(orjson.dumps(cut)) < 500
    assert describe_unfinished(cut, 1) == describe_unfinished(whole, 1) == "0 of 1 copy ready"
    assert describe_unfinished(cut | {"metadata": {**cut["metadata"], "generation": 3}}, 1) != describe_unfinished(
        cut, 1
    )
    assert was_applied(cut, wanted)


def test_the_gravest_comes_first_and_the_others_are_counted() -> None:
    stuck = engine(waiting("ImagePullBackOff"))
    stuck["metadata"]["name"] = "z"

    assert summarize(symptoms([pod("b"), pod("c", conditions=[NO_NODE]), stuck, pod("d", ready=True)])) == (
        f"pod z engine: ImagePullBackOff; {IMAGE} (and 2 more)"
    )


def test_what_a_scheduler_says_of_a_thousand_nodes_is_cut() -> None:
    endless = {**NO_NODE, "message": "x" * 5000}

    assert len(summarize(symptoms([pod(conditions=[endless])]))) < 500


@pytest.mark.parametrize(
    ("status", "lacks"),
    [
        ({}, "0 of 2 copies ready"),
        ({"readyReplicas": 1, "updatedReplicas": 2, "replicas": 2}, "1 of 2 copies ready"),
        ({"readyReplicas": 2, "updatedReplicas": 1, "replicas": 2}, "1 of 2 copies updated"),
        ({"readyReplicas": 3, "updatedReplicas": 2, "replicas": 3}, "2 of 2 copies updated"),
        ({"readyReplicas": 2, "updatedReplicas": 2, "replicas": 2}, ""),
        (
            {"readyReplicas": 2, "updatedReplicas": 2, "replicas": 2, "observedGeneration": 6},
            "its controller has not seen the latest change",
        ),
        (
            {"readyReplicas": 1, "updatedReplicas": 2, "replicas": 2, "conditions": [QUOTA]},
            "1 of 2 copies ready, and no more pods can be made: FailedCreate: exceeded quota: team",
        ),
    ],
)
def test_a_workload_lacks_copies_that_are_ready_and_of_its_present_content(status: Manifest, lacks: str) -> None:
    workload = prune_workload({"metadata": {"generation": 7}, "status": {"observedGeneration": 7, **status}})
    assert describe_unfinished(workload, 2) == lacks


def test_a_leader_worker_set_does_not_say_which_generation_it_has_seen() -> None:
    counts = {"readyReplicas": 1, "updatedReplicas": 1, "replicas": 1}

    assert describe_unfinished({"metadata": {"generation": 7}, "status": counts}, 1) == ""


OURS = {"name": "inference-gateway", "namespace": "modelplane-system"}


def route(*conditions: tuple[str, str, int], generation: int = 2, gateway: Manifest = OURS) -> Manifest:
    told = [
        {"type": kind, "status": status, "observedGeneration": seen, "reason": "NoMatchingParent"}
        for kind, status, seen in conditions
    ]
    parents = [{"parentRef": gateway, "conditions": told}] if told else []
    asked = {"group": "gateway.networking.k8s.io", "kind": "Gateway", **OURS}
    return {
        "metadata": {"generation": generation, "namespace": "ns"},
        "spec": {"parentRefs": [asked]},
        "status": {"parents": parents},
    }


FINE = (("Accepted", "True", 2), ("ResolvedRefs", "True", 2))


def beside(*routes: Manifest) -> Manifest:
    """One route with all that is said of these."""
    return {**routes[0], "status": {"parents": [one for each in routes for one in each["status"]["parents"]]}}


@pytest.mark.parametrize(
    ("observed", "why"),
    [
        (route(), "starting (waiting for: route)"),
        (route(("Accepted", "True", 1)), "the gateway has not seen the latest change of the route"),
        (
            route(("Accepted", "False", 2), ("ResolvedRefs", "True", 2)),
            "the gateway does not accept the route: NoMatchingParent",
        ),
        (route(("Accepted", "True", 2)), "the gateway has not seen the latest change of the route"),
        (
            route(("Accepted", "True", 2), ("ResolvedRefs", "False", 2)),
            "the gateway does not accept the route: NoMatchingParent",
        ),
        (route(*FINE), ""),
        # what others say, whose gateways the route does not name
        (route(*FINE, gateway={"name": "inference-gateway"}), "starting (waiting for: route)"),
        (route(*FINE, gateway={**OURS, "kind": "Service"}), "starting (waiting for: route)"),
        (beside(route(("Accepted", "False", 2), gateway={"name": "theirs"}), route(*FINE)), ""),
        # what a controller has left that had the gateway before
        (beside(route(("Accepted", "False", 2)), route(*FINE)), ""),
        (
            beside(route(("Accepted", "True", 1)), route(("Accepted", "False", 2))),
            "the gateway does not accept the route: NoMatchingParent",
        ),
    ],
)
def test_a_route_leads_somewhere_when_its_gateway_has_accepted_its_latest_form(observed: Manifest, why: str) -> None:
    assert describe_unrouted(observed) == describe_unrouted(prune_route(observed)) == why


ODD = st.recursive(
    st.none() | st.booleans() | st.integers(0, 2) | st.sampled_from(["", "Gateway", "Accepted"]),
    lambda part: st.lists(part, max_size=2) | st.dictionaries(st.sampled_from(["name", "type", "kind"]), part),
    max_leaves=4,
)
"""What a cluster may answer in place of anything."""
CONDITIONS = st.lists(st.fixed_dictionaries({"type": st.just("Accepted") | ODD, "reason": ODD, "message": ODD}) | ODD)
REFERENCE = st.fixed_dictionaries({"name": st.just(OURS["name"]) | ODD}, optional={"kind": ODD, "namespace": ODD}) | ODD
RULE = st.fixed_dictionaries({"backendRefs": st.lists(REFERENCE) | ODD}) | ODD
SAID = st.fixed_dictionaries({"parentRef": REFERENCE, "conditions": CONDITIONS | ODD}) | ODD
SPECS = (
    st.fixed_dictionaries({}, optional={"parentRefs": st.lists(REFERENCE) | ODD, "rules": st.lists(RULE) | ODD}) | ODD
)
STATUSES = st.fixed_dictionaries({}, optional={"parents": st.lists(SAID) | ODD}) | ODD
NAMED: Manifest = {"parentRefs": [OURS]}
TOLD: Manifest = {"parents": [{"parentRef": OURS, "conditions": [{"type": "Accepted", "status": "True"}]}]}


@given(spec=SPECS, status=STATUSES)
@example(spec={}, status=TOLD)
@example(spec={"parentRefs": None}, status=TOLD)
@example(spec={"parentRefs": 7}, status=TOLD)
@example(spec={"parentRefs": "gateway"}, status=TOLD)
@example(spec={"parentRefs": [None, "gateway", ["gateway"]]}, status=TOLD)
@example(spec={"parentRefs": [{"name": {"a": []}, "kind": []}]}, status=TOLD)
@example(spec=NAMED, status={"parents": [{"parentRef": "gateway", "conditions": [7]}]})
@example(spec=NAMED, status={"parents": {"parentRef": OURS}})
@example(spec={"rules": [{"backendRefs": "x"}, {"backendRefs": ["x"]}, 7]}, status=[])
def test_a_route_of_any_shape_is_read_and_judged(spec: Any, status: Any) -> None:
    """A hostile cluster holds its routes to no schema."""
    kept = prune_route({"metadata": {"name": "a", "namespace": "ns"}, "spec": spec, "status": status})

    assert isinstance(describe_unrouted(kept), str)
    assert isinstance(refusal(prune_policy({"metadata": {"name": "a"}, "status": status})), str)
    assert {type(judge(kept)) for judge in (is_unseen, is_refused)} == {bool}
    assert all(isinstance(said, str) for ref in kept["spec"]["parentRefs"] for said in ref.values())


STATE = st.fixed_dictionaries(
    {}, optional={kind: st.fixed_dictionaries({"reason": ODD}) | ODD for kind in ("waiting", "running", "terminated")}
)
CONTAINER = st.fixed_dictionaries({"name": ODD}, optional={"ready": ODD, "restartCount": ODD, "state": STATE | ODD})
CONTAINERS = st.lists(CONTAINER | ODD, max_size=2) | ODD
POD = st.fixed_dictionaries(
    {"phase": st.just("Failed") | ODD},
    optional={"reason": ODD, "conditions": CONDITIONS | ODD, "containerStatuses": CONTAINERS},
)


@given(spec=st.fixed_dictionaries({}, optional={"nodeName": ODD, "containers": CONTAINERS}) | ODD, status=POD | ODD)
@example(spec={}, status={"containerStatuses": [{"name": "a", "state": {"waiting": {"reason": {}}}}]})
@example(spec={}, status={"phase": "Failed", "reason": 7})
@example(spec={}, status={"conditions": ["x", {"type": {}}], "containerStatuses": [7]})
def test_a_pod_of_any_shape_is_read_and_judged(spec: Any, status: Any) -> None:
    kept = prune_pod({"metadata": {"name": "a", "namespace": "ns"}, "spec": spec, "status": status})

    assert isinstance(summarize(symptoms([kept])), str)


COUNTED = ("observedGeneration", "readyReplicas", "updatedReplicas", "replicas")


@given(status=st.fixed_dictionaries({"conditions": CONDITIONS | ODD}, optional=dict.fromkeys(COUNTED, ODD)) | ODD)
@example(status={"readyReplicas": "x"})
@example(status={"observedGeneration": "x"})
@example(status={"conditions": [{"type": "ReplicaFailure", "message": 7}]})
def test_a_workload_of_any_shape_is_read_and_judged(status: Any) -> None:
    kept = prune_workload({"metadata": {"name": "a", "namespace": "ns", "generation": 2}, "status": status})

    assert isinstance(describe_unfinished(kept, 1), str)


def test_of_what_is_no_reference_the_rest_of_a_route_is_kept() -> None:
    spec = {"parentRefs": ["x", OURS], "rules": [7]}
    kept = prune_route({"metadata": {"namespace": "ns"}, "spec": spec, "status": {"parents": ["x", *TOLD["parents"]]}})

    assert kept["spec"] == NAMED
    assert kept["status"] == TOLD


@pytest.mark.parametrize(
    ("observed", "unseen"),
    [(route(), True), (route(("Accepted", "True", 1)), True), (route(("Accepted", "False", 2)), False)],
)
def test_a_route_is_seen_when_its_gateway_has_judged_its_latest_form(
    observed: Manifest,
    unseen: bool,  # noqa: FBT001
) -> None:
    assert is_unseen(observed) is unseen


@pytest.mark.parametrize(
    ("ill", "reason"),
    [
        (pod(), "ModelStarting"),
        (pod(ready=True, terminating=True), "ModelStarting"),
        (running(), "ModelStarting"),
        (running(restarts=1), "NotAnswering"),
        (running(started=True), "NotAnswering"),
        (about_to_answer(), "ModelStarting"),
        (engine(waiting("ContainerCreating")), "ModelStarting"),
        (engine(waiting("CrashLoopBackOff", last=KILLED)), "CrashLoop"),
        (engine({"name": "engine", "state": {"terminated": KILLED}}), "CrashLoop"),
        (engine(waiting("ImagePullBackOff")), "ImagePullFailed"),
        (engine(waiting("InvalidImageName")), "ImagePullFailed"),
        (engine(waiting("CreateContainerConfigError")), "CannotStart"),
        (pod(phase="Failed"), "CannotStart"),
        (pod(conditions=[NO_NODE]), "Unschedulable"),
    ],
)
def test_what_is_the_matter_has_a_reason_of_its_own(ill: Manifest, reason: str) -> None:
    (found,) = symptoms([ill])

    assert found.reason.reason == reason


@pytest.mark.parametrize(
    ("code", "ran", "probe", "words"),
    [
        (
            137,
            "00:06:05",
            {"periodSeconds": 5, "failureThreshold": 72},
            "SIGKILL: failed its startup probe for 6 minutes",
        ),
        (
            143,
            "00:06:00",
            {"periodSeconds": 5, "failureThreshold": 72},
            "SIGTERM: failed its startup probe for 6 minutes",
        ),
        (
            137,
            "00:00:09",
            {"periodSeconds": 5, "failureThreshold": 72},
            "SIGKILL: probably its node ran out of memory",
        ),
        (
            137,
            "00:20:00",
            {"periodSeconds": 5, "failureThreshold": 720},
            "SIGKILL: failed its liveness probe, or its node ran out of memory",
        ),
        (
            137,
            "09:00:00",
            {"periodSeconds": 5, "failureThreshold": 72},
            "SIGKILL: failed its liveness probe, or its node ran out of memory",
        ),
        (137, "00:00:09", {}, "SIGKILL: its node ran out of memory, or a probe failed"),
        (
            137,
            "x",
            {"periodSeconds": 5, "failureThreshold": 6},
            "SIGKILL: its node ran out of memory, or a probe failed",
        ),
    ],
)
def test_an_engine_that_was_killed_says_what_killed_it(code: int, ran: str, probe: Manifest, words: str) -> None:
    times = {"startedAt": "2026-01-01T00:00:00Z", "finishedAt": f"2026-01-01T{ran}Z"}
    killed = engine(
        {**waiting("CrashLoopBackOff", last={"exitCode": code, "reason": "Error", **times}), "restartCount": 4}
    )
    killed["spec"]["containers"] = [
        {"name": "engine", "startupProbe": {"httpGet": {}, **probe}, "livenessProbe": LIVENESS}
    ]

    (symptom,) = symptoms([prune_pod(killed)])
    assert symptom.message.startswith(f"engine: crash loop, killed by {words}, 4 restarts so far")
    assert symptom.reason.reason == "CrashLoop"
