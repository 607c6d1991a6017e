"""Questions of tenants: what may be asked, on which right, and that an answer reads back as what it was."""

from __future__ import annotations

import json
from typing import Any

import pytest

from modelplane_operator.api import ModelReplica
from modelplane_operator.planning.answers.forecast import forecast
from modelplane_operator.planning.answers.hardware import hardware
from modelplane_operator.planning.answers.questions import QuestionError, answer, asked
from modelplane_operator.planning.answers.schema import document, read
from modelplane_operator.planning.answers.snapshot import Snapshot
from modelplane_operator.planning.answers.why import Why, why
from tests.support.builders import EPOCH, cluster, deployment
from tests.support.observed import placed

OWN = deployment(replicas=2)
FLEET = (cluster("berlin", nodes=1),)


def question(namespace: str = OWN.key.namespace, **spec: Any) -> dict[str, Any]:
    return {"kind": "Question", "metadata": {"namespace": namespace}, "spec": spec}


def seen() -> Snapshot:
    return Snapshot(FLEET, tuple(map(ModelReplica.parse, placed(OWN, *FLEET))), (OWN,), (), EPOCH)


def test_an_answer_is_that_of_the_scheduler_and_reads_back() -> None:
    found = answer(asked(question(ask="Why", modelDeployment=OWN.key.name)), (), seen())
    assert read(Why, json.loads(json.dumps(found.document))) == why(OWN, (), seen())
    assert found.words.startswith(why(OWN, (), seen()).cause)


def test_a_plan_is_of_one_namespace_alone() -> None:
    text = json.dumps(deployment(name="new", uid="").to_manifest(), default=str)
    wanted = asked(question(ask="Plan", manifest=text))
    assert (wanted.verb, wanted.key.name) == ("create", "new")
    told = answer(wanted, (), seen()).document["items"]
    assert [(one["namespace"], one["name"], one["settled"]) for one in told] == [(OWN.key.namespace, "new", False)]


def test_a_plan_with_other_replicas_is_the_forecast() -> None:
    wanted = asked(question(ask="Plan", modelDeployment=OWN.key.name, replicas=2))
    assert wanted.verb == "update"
    assert answer(wanted, (), seen()).document == document("Plan", forecast(seen(), seen(), asked=[OWN.key]))


def test_hardware_takes_no_right_on_a_model() -> None:
    wanted = asked(question(ask="Hardware"))
    assert wanted.verb is None
    assert answer(wanted, (), seen()).document == document("Hardware", hardware(seen()))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"ask": "Why"}, "say of which ModelDeployment"),
        ({"ask": "Who"}, "spec.ask"),
        ({"ask": "Plan", "modelDeployment": "x"}, "say spec.manifest, or"),
        ({"ask": "Plan", "manifest": "[1]"}, "is no ModelDeployment"),
        ({"ask": "Plan", "manifest": '{"kind": "Secret"}'}, "is no ModelDeployment"),
        ({"ask": "Plan", "manifest": "[" * 10_000}, "is no ModelDeployment"),
        ({"ask": "Why", "modelDeployment": "../x"}, "spec.modelDeployment"),
    ],
)
def test_what_cannot_be_asked_says_what_to_ask(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(QuestionError, match=words):
        asked(question(**spec))


def test_a_manifest_is_always_one_of_the_namespace_in_which_it_is_asked() -> None:
    text = json.dumps(deployment(namespace="others", uid="").to_manifest(), default=str)
    assert asked(question(ask="Plan", manifest=text)).key.namespace == OWN.key.namespace
