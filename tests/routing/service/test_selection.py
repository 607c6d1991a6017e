"""What a service says when it has no endpoints."""

from __future__ import annotations

from dataclasses import replace
from unittest.mock import Mock

import pytest

from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.routing.service import selection
from modelplane_operator.routing.service.plan import plan
from modelplane_operator.routing.service.selection import Neighbours, state
from tests.support.plans import told
from tests.support.services import Manifest, endpoint, seen, service

pytestmark = pytest.mark.usefixtures("well_worded")

SELECTED = "No ModelEndpoints matched the configured selectors (group=a)"


def replica(status: str, reason: str, message: str = "") -> Manifest:
    said = {"type": "ModelReady", "status": status, "reason": reason, "message": message}
    return {"metadata": {"name": "one"}, "status": {"conditions": [{"type": "Ready"}, said]}}


STARTING = replica("False", "ModelStarting", "no pod of engine vllm answers")


@pytest.mark.parametrize(
    ("near", "words"),
    {
        "nothing": (
            Neighbours(),
            (
                "this namespace has no ModelEndpoints, and those of other namespaces do not count: create a"
                " ModelDeployment here"
            ),
        ),
        "others": (
            Neighbours(({"group": "b"}, {"group": "b", "more": "x"}, {"group": "c"})),
            "of the 3 in this namespace: group=b (2), group=c (1): select one of these",
        ),
        "without the label": (
            Neighbours(({"model": "b"},)),
            "of the 1 in this namespace: none has the label group: add it to the endpoints that you mean",
        ),
        "many": (
            Neighbours(tuple({"group": one} for one in "bcdef")),
            "of the 5 in this namespace: group=b (1), group=c (1), group=d (1), and 2 more: select one of these",
        ),
        "a typing error": (
            Neighbours(tuple({"group": one} for one in ("b", "b", "c", "d", "aa"))),
            "of the 5 in this namespace: group=aa (1), group=b (2), group=c (1), and 1 more: select one of these",
        ),
        "a replica": (
            Neighbours(({"group": "b"},), (("one", state(STARTING)),)),
            "no answer from 1 ModelReplica with these labels: one (ModelStarting: no pod of engine vllm answers)",
        ),
    }.values(),
)
def test_a_service_without_endpoints_says_what_it_selects_and_what_there_is(near: Neighbours, words: str) -> None:
    found = told(plan(replace(seen(service((1, "a"))), near=near)))

    assert found["EndpointsResolved"] == ("False", "NoEndpoints", f"{SELECTED}; {words}")
    assert found["Ready"][2] == f"No endpoint can answer. {SELECTED}; {words}"


def test_labels_by_the_thousand_are_counted_and_few_of_them_compared(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tenant chooses how many labels there are, and each service without endpoints reads them."""
    asked = [(1, letter) for letter in "abcdefghijklmnop"]
    many = tuple({"group": f"x{number}"} for number in range(5_000)) + ({"group": "pq"},) * 2
    compared = Mock(wraps=selection.SequenceMatcher)
    monkeypatch.setattr(selection, "SequenceMatcher", compared)

    found = told(plan(replace(seen(service(*asked)), near=Neighbours(many))))["EndpointsResolved"][2]

    assert "of the 5002 in this namespace: group=" in found
    assert "and 4998 more" in found
    assert 0 < compared.call_count <= 3 * selection.COMPARED


def test_the_label_that_was_meant_is_found_among_many_that_are_more_common() -> None:
    others = [{"group": f"team-{number}"} for number in range(300) for _ in range(3)]
    near = Neighbours(({"group": "qwen3-8b"}, *others))
    asked = service((1, "qwen3-8"))

    assert "group=qwen3-8b (1), " in told(plan(replace(seen(asked), near=near)))["EndpointsResolved"][2]


@pytest.mark.parametrize(
    ("manifest", "words"),
    [
        (STARTING, "ModelStarting: no pod of engine vllm answers"),
        (replica("Unknown", "ClusterUnreachable"), "ClusterUnreachable"),
        (replica("True", "Serving"), "answers; its endpoint is starting"),
        ({"metadata": {"name": "one"}}, "starting (waiting for: its cluster)"),
    ],
)
def test_a_replica_says_why_it_has_no_endpoint(manifest: Manifest, words: str) -> None:
    assert state(manifest) == words


def test_nobody_waits_for_an_endpoint_whose_url_cannot_be_used() -> None:
    broken = endpoint("one", url="gopher://nowhere", routed=None).to_manifest()
    invalid = {"type": "RoutingReady", "status": "False", "reason": "InvalidURL", "message": "Invalid spec.url: why"}
    broken["status"] = {"conditions": [{**invalid, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}

    assert told(plan(seen(service((1, "a")), ModelEndpoint.parse(broken))))["EndpointsResolved"][2] == (
        "Matched 1 endpoint; 1 with a URL that cannot be used (one: Invalid spec.url: why)"
    )
