"""The webhook and Questions: each is refused, and the refusal is the answer."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.errors import Unreachable
from kubeloop.resource import of
from modelplane_operator.api import ModelDeployment, ModelReplica
from modelplane_operator.ask.admission.answer_questions import read_stored
from modelplane_operator.ask.admission.webhook import ANSWERED, Webhook, is_question
from modelplane_operator.ask.answers.questions import FORBIDDEN, QuestionAnswer, QuestionError, parse_question
from modelplane_operator.models.deployment.fleet_view import FleetView
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.informers import holding
from tests.support.observed import placed

RESOURCE = {"group": "modelplane.ai", "version": "v1alpha1", "resource": "questions"}
REVIEW = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "request": {"uid": "u", "resource": RESOURCE}}


def webhook(said: QuestionAnswer | Exception) -> Webhook:
    async def answers(_: object, __: object) -> QuestionAnswer:
        if isinstance(said, Exception):
            raise said
        return said

    return Webhook(("", 0), "localhost", cast("Any", None), cast("Any", (SimpleNamespace(answers=answers),)))


async def test_the_refusal_has_a_sentence_and_the_document() -> None:
    found = await webhook(QuestionAnswer({"kind": "Why"}, "it waits")).answer(REVIEW)
    response = found["response"]
    assert (response["uid"], response["allowed"]) == ("u", False)
    assert (response["status"]["code"], response["status"]["message"]) == (ANSWERED, "it waits")
    (cause,) = response["status"]["details"]["causes"]
    assert json.loads(cause["message"]) == {"kind": "Why"}


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (QuestionError("you may not", FORBIDDEN), 403, "you may not"),
        (QuestionError("say which"), 422, "say which"),
        (Unreachable("https://10.0.0.1 does not answer"), 500, "the operator failed to answer this question"),
        (KeyError("token-of-somebody"), 500, "the operator failed to answer this question"),
    ],
)
async def test_what_is_not_answered_is_refused_without_what_the_operator_knows(
    error: Exception, code: int, words: str
) -> None:
    response = (await webhook(error).answer(REVIEW))["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, code)
    assert response["status"]["message"].startswith(words)
    assert "details" not in response["status"]
    assert "somebody" not in str(response)


def test_what_is_no_question_is_for_the_reviews() -> None:
    assert is_question(REVIEW)
    other = {**RESOURCE, "resource": "modelservices"}
    assert not any(map(is_question, ({"request": {"resource": other}}, {}, [], None)))


@pytest.mark.parametrize(("named", "told"), [(frozenset(("mine",)), set()), (None, {"theirs/waits"})])
def test_of_other_namespaces_a_plan_looks_at_what_waits_for_whoever_may_list_it(
    named: frozenset[str] | None, told: set[str]
) -> None:
    names = {"mine": ("asked", "waits"), "theirs": ("waits", "asked")}
    objects = [
        deployment(name=name, namespace=namespace, uid=f"{namespace}-{name}", replicas=1 if name == "waits" else 0)
        for namespace, all_ in names.items()
        for name in all_
    ]
    manifests = [
        {**one.to_manifest(), "metadata": {**one.to_manifest()["metadata"], "resourceVersion": "1"}} for one in objects
    ]
    informer = holding(of(ModelDeployment), manifests)
    hub = SimpleNamespace(find=lambda kind: informer if kind == of(ModelDeployment) else None)
    clients = cast("Any", SimpleNamespace(hub=hub, now=lambda: EPOCH))
    question = parse_question(
        {"metadata": {"namespace": "mine"}, "spec": {"ask": "Plan", "modelDeployment": "asked", "replicas": 1}}
    )
    found = read_stored(question, FleetView(lambda: EPOCH), clients, named)
    seen = {f"{one['metadata']['namespace']}/{one['metadata']['name']}" for one in found.deployments}
    assert seen == {"mine/asked", "mine/waits"} | told
    why = parse_question({"metadata": {"namespace": "mine"}, "spec": {"ask": "Why", "modelDeployment": "asked"}})
    assert len(read_stored(why, FleetView(lambda: EPOCH), clients, frozenset(("mine",))).deployments) == 1

    fleet = FleetView(lambda: EPOCH)
    for one in placed(next(each for each in objects if each.metadata.uid == "theirs-waits"), cluster("berlin")):
        fleet.model.observe_replica(ModelReplica.parse(one))
    drain = parse_question({"metadata": {"namespace": "mine"}, "spec": {"ask": "Plan", "drain": "berlin"}})
    concerned = read_stored(drain, fleet, clients, frozenset(("mine",))).deployments
    assert {one["metadata"]["uid"] for one in concerned} == {"theirs-waits", "mine-waits"}
