"""Questions of tenants: what may be asked, on which permission, and that an answer reads back as what it was."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica
from modelplane_operator.ask.answers.documents import Others, Outcomes
from modelplane_operator.ask.answers.forecast import DRAINED, forecast, with_drained, without
from modelplane_operator.ask.answers.hardware import hardware
from modelplane_operator.ask.answers.questions import AT_ONCE, Question, QuestionError, answer, parse_question
from modelplane_operator.ask.answers.schema import document, read
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import Explanation, explain
from modelplane_operator.scheduling import budget
from tests.support.builders import EPOCH, cluster, deployment, engine, model_cache, request
from tests.support.observed import placed

pytestmark = pytest.mark.usefixtures("well_worded")

OWN = deployment(replicas=2)
FLEET = (cluster("berlin", nodes=1),)


def question(namespace: str = OWN.key.namespace, **spec: Any) -> dict[str, Any]:
    return {"kind": "Question", "metadata": {"namespace": namespace}, "spec": spec}


def permissions(wanted: Question) -> list[tuple[str, str, str]]:
    return [(verb, kind.kind, key.name) for verb, kind, key in wanted.permissions]


def seen() -> Snapshot:
    return Snapshot(FLEET, tuple(map(ModelReplica.parse, placed(OWN, *FLEET))), (OWN,), (), EPOCH)


def test_an_answer_is_that_of_the_scheduler_and_reads_back() -> None:
    found = answer(parse_question(question(ask="Why", modelDeployment=OWN.key.name)), (), seen())
    assert read(Explanation, json.loads(json.dumps(found.document))) == explain(OWN, (), seen())
    assert found.words.startswith(explain(OWN, (), seen()).cause)


def test_a_plan_is_of_one_namespace_alone() -> None:
    text = json.dumps(deployment(name="new", uid="").to_manifest(), default=str)
    wanted = parse_question(question(ask="Plan", manifest=text))
    assert permissions(wanted) == [("create", "ModelDeployment", "new")]
    told = answer(wanted, (), seen()).document["items"]
    assert [(one["namespace"], one["name"], one["settled"]) for one in told] == [(OWN.key.namespace, "new", False)]


def test_a_plan_with_other_replicas_is_the_forecast() -> None:
    wanted = parse_question(question(ask="Plan", modelDeployment=OWN.key.name, replicas=2))
    assert permissions(wanted) == [("update", "ModelDeployment", OWN.key.name)]
    foreseen = Outcomes(forecast(seen(), seen(), changed=[OWN.key]))
    assert answer(wanted, (), seen()).document == document("Plan", foreseen)


def two(*engines: Any, replicas: int = 1) -> str:
    """Two new deployments, and a cache."""
    new = [deployment(*engines, name=name, uid="", replicas=count) for name, count in (("a", 1), ("b", replicas))]
    items = [one.to_manifest() for one in (*new, model_cache("weights"))]
    return json.dumps({"kind": "List", "items": items}, default=str)


def test_deployments_that_are_asked_for_together_count_on_each_other() -> None:
    wanted = parse_question(question(ask="Plan", manifest=two()))
    assert permissions(wanted) == [("create", "ModelDeployment", "a"), ("create", "ModelDeployment", "b")]
    assert [one.key.name for one in wanted.caches] == ["weights"]
    free = Snapshot((cluster("berlin", nodes=1),), (), (), (), EPOCH)
    told = answer(wanted, (), free).document["items"]
    assert [(one["name"], one["settled"]) for one in told] == [("a", True), ("b", False)]


@pytest.mark.parametrize("kind", ["ModelDeployment", "ModelCache"])
def test_objects_are_counted_before_any_of_them_is_read(kind: str) -> None:
    """A manifest has room for 480 deployments, of which each may cost what one may: nobody could read these."""
    unreadable = json.dumps({"kind": "List", "items": [{"kind": kind}] * (AT_ONCE + 1)})
    with pytest.raises(QuestionError, match=f"{AT_ONCE} deployments and 1000 replicas at once"):
        parse_question(question(ask="Plan", manifest=unreadable))


def test_several_deployments_have_the_bounds_of_one(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(QuestionError, match="1000 replicas at once"):
        parse_question(question(ask="Plan", manifest=two(replicas=1000)))
    many = [deployment(name=f"m{n}", uid="", replicas=1).to_manifest() for n in range(AT_ONCE + 1)]
    with pytest.raises(QuestionError, match=f"{AT_ONCE} deployments"):
        parse_question(question(ask="Plan", manifest=json.dumps({"kind": "List", "items": many}, default=str)))
    selects = engine(request('device.driver == "what no other test asks for"'))
    wanted = parse_question(question(ask="Plan", manifest=two(selects)))
    monkeypatch.setattr(budget, "STEPS", 0)
    with pytest.raises(QuestionError, match="their selectors take too long together"):
        answer(wanted, (), seen())


LOST = (cluster("berlin", nodes=1), cluster("oslo", nodes=1))
OTHERS = deployment(name="secret", namespace="others", uid="of-others", replicas=1)


@pytest.mark.parametrize("how", ["without", "drain"])
@pytest.mark.parametrize("has_model", [False, True])
def test_what_becomes_of_a_cluster_is_the_forecast_and_names_nobody_else(how: str, *, has_model: bool) -> None:
    on_oslo = replace(hub_of(OTHERS, LOST[1]), clusters=LOST)
    before = replace(on_oslo, model=on_oslo.fleet()) if has_model else on_oslo
    wanted = parse_question(question(ask="Plan", **{how: "oslo"}))
    assert permissions(wanted) == [("list", "InferenceCluster", "")]

    after = without(on_oslo, "oslo") if how == "without" else with_drained(on_oslo, "oslo")
    foreseen = forecast(on_oslo, after, clusters=frozenset({"oslo"}))
    assert [(one.name, one.added) for one in foreseen] == [("secret", ("berlin/default",))]
    assert answer(wanted, (), before).document == document("Plan", Outcomes(foreseen))
    told = answer(wanted, (), before, frozenset((OWN.key.namespace,)))
    assert read(Outcomes, told.document) == Outcomes((), Others(1, added=1, removed=1, stuck=0, waiting=0))
    assert "secret" not in json.dumps(told.document) + told.words


def test_a_cluster_that_is_drained_while_it_does_not_answer_is_still_known_not_to() -> None:
    silent = hub_of(OTHERS, LOST[1])
    fleet = silent.fleet()
    fleet.observe_cluster(LOST[1], unreachable_since=EPOCH)
    after = with_drained(replace(silent, model=fleet), "oslo").fleet().info("oslo")
    assert after is not None
    assert (after.cluster.unreachable_since, [one.key for one in after.cluster.taints]) == (EPOCH, [DRAINED.key])


def hub_of(subject: ModelDeployment, *clusters: InferenceCluster) -> Snapshot:
    """With the replicas of one deployment."""
    return Snapshot(clusters, tuple(map(ModelReplica.parse, placed(subject, *clusters))), (subject,), (), EPOCH)


def test_hardware_takes_no_right_on_a_model() -> None:
    wanted = parse_question(question(ask="Hardware"))
    assert permissions(wanted) == []
    assert answer(wanted, (), seen()).document == document("Hardware", hardware(seen()))


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ({"ask": "Why"}, "say of which ModelDeployment"),
        ({"ask": "Who"}, "spec.ask"),
        ({"ask": "Plan", "modelDeployment": "x"}, "say one of spec.manifest, "),
        ({"ask": "Plan", "drain": "berlin", "without": "oslo"}, "say one of spec.manifest, "),
        ({"ask": "Plan", "manifest": '{"kind": "List", "items": []}'}, "has no ModelDeployment"),
        ({"ask": "Plan", "manifest": '{"kind": "List", "items": [{"kind": "Secret"}]}'}, "is no ModelDeployment"),
        ({"ask": "Plan", "drain": "Berlin"}, "spec.drain"),
        ({"ask": "Plan", "manifest": "[1]"}, "is no ModelDeployment"),
        ({"ask": "Plan", "manifest": '{"kind": "Secret"}'}, "is no ModelDeployment"),
        ({"ask": "Plan", "manifest": "[" * 10_000}, "is no ModelDeployment"),
        ({"ask": "Why", "modelDeployment": "../x"}, "spec.modelDeployment"),
    ],
)
def test_what_cannot_be_asked_says_what_to_ask(spec: dict[str, Any], words: str) -> None:
    with pytest.raises(QuestionError, match=words):
        parse_question(question(**spec))


def test_a_manifest_is_always_one_of_the_namespace_in_which_it_is_asked() -> None:
    text = json.dumps(deployment(namespace="others", uid="").to_manifest(), default=str)
    assert [key.namespace for key in parse_question(question(ask="Plan", manifest=text)).keys] == [OWN.key.namespace]
