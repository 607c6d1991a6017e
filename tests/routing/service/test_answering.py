"""Ready of a ModelService: whether a request through the gateway was answered, and what one that failed means."""

from __future__ import annotations

from dataclasses import replace

import pytest

from modelplane_operator.api.auth import Auth
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service.answer import GatewayAnswer
from modelplane_operator.routing.service.plan import Observed, plan
from tests.support.plans import told
from tests.support.services import endpoint, keys_of, secret, seen, service, settled, status

pytestmark = pytest.mark.usefixtures("well_worded")

Asked = Checked

ALONE = ": endpoint one (http://10.0.0.1:80) takes connections, so look at the log of the server there"
WELL = Asked(GatewayAnswer(200))
REFUSED = GatewayAnswer(lack="refuses the connection", connected=False)
BROKEN = GatewayAnswer(502)


def asked(checked: Checked[GatewayAnswer], observed: Observed | None = None) -> Observed:
    """A service with all of its routes, and what requests have met with."""
    return replace(observed or settled(seen(service((1, "a")), endpoint("one"))), check=checked)


def after(observed: Observed, checked: Checked[GatewayAnswer]) -> Observed:
    """The same service when its status is written, and requests have met with something else."""
    known = observed.service.model_copy(update={"status": status(observed)})
    return replace(observed, service=known, check=checked)


def said(observed: Observed) -> dict[str, tuple[str, str]]:
    """Status and reason of those that requests decide."""
    found = told(plan(observed))
    return {name: found[name][:2] for name in ("Answering", "AuthReady", "Ready") if name in found}


@pytest.mark.parametrize(
    "answer", [None, GatewayAnswer(503), GatewayAnswer(404, unrouted=True), GatewayAnswer(lack="hangs"), REFUSED]
)
def test_a_new_service_is_not_ready_before_a_request_was_answered(answer: GatewayAnswer | None) -> None:
    fresh = asked(Asked(answer))

    waiting = "Starting (waiting for: an answer to the first request through the gateway)"
    assert told(plan(fresh))["Ready"] == ("False", "Creating", waiting)
    assert told(plan(fresh))["Answering"] == ("Unknown", "Asking", "")
    assert said(after(fresh, WELL)) == {"Answering": ("True", "Answered"), "Ready": ("True", "Available")}


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (GatewayAnswer(503), "Requests fail with 503"),
        (
            GatewayAnswer(404, unrouted=True),
            "Requests fail with 404: the hub's gateway, or a cluster's, has not loaded the route",
        ),
        (
            GatewayAnswer(lack="gives no answer within 4 s"),
            "Requests fail: the hub's gateway gives no answer within 4 s",
        ),
    ],
)
def test_what_requests_go_on_to_meet_with_is_told(answer: GatewayAnswer, words: str) -> None:
    failing = asked(Asked(answer, failing=True))

    assert told(plan(failing))["Answering"] == ("False", "NotAnswered", words)
    assert told(plan(failing))["Ready"] == ("False", "NotAnswered", f"{words}{ALONE}")


@pytest.mark.parametrize("number", [200, 301, 401, 403, 404, 429])
def test_whatever_an_engine_or_provider_says_is_an_answer_unless_it_fails(number: int) -> None:
    assert said(asked(Asked(GatewayAnswer(number))))["Ready"] == ("True", "Available")


@pytest.mark.parametrize("failure", [BROKEN, REFUSED, GatewayAnswer(404, unrouted=True)])
def test_a_ready_service_stays_so_until_several_requests_in_a_row_have_failed(failure: GatewayAnswer) -> None:
    ready = asked(WELL)
    for checked in (Asked(), Asked(failure)):
        assert status(after(ready, checked)) == status(ready), "after a change of routes, a restart, or one failure"
    failing = after(ready, Asked(failure, failing=True))
    assert said(failing)["Answering"][0] != "True"
    assert said(after(failing, WELL)) == said(ready)


def test_an_outage_is_told_with_what_requests_meet_with() -> None:
    down = after(asked(WELL), Asked(BROKEN, failing=True))

    assert told(plan(down))["Answering"] == ("False", "NotAnswered", "Requests fail with 502")
    assert told(plan(down))["Ready"] == (
        "False",
        "NotAnswered",
        f"Requests fail with 502{ALONE}",
    )
    assert said(after(down, Asked()))["Ready"][0] == "False", "nor does it come back by itself"


NOW = {"lastTransitionTime": "2026-01-01T00:00:00Z"}


def test_an_outage_names_the_endpoint_that_is_not_ready() -> None:
    lost = [{"type": "Ready", "status": "False", "reason": "Unreachable", "message": "Host a refuses", **NOW}]
    dead = endpoint("one")
    assert dead.status
    dead = ModelEndpoint.parse({**dead.to_manifest(), "status": {**dead.status.to_manifest(), "conditions": lost}})
    down = after(asked(WELL, settled(seen(service((1, "a")), dead))), Asked(BROKEN, failing=True))

    words = "Requests fail with 502: endpoint one (http://10.0.0.1:80): Host a refuses"
    assert told(plan(down))["Ready"] == ("False", "NotAnswered", words)


def test_a_gateway_that_the_operator_cannot_reach_keeps_no_service_from_being_ready() -> None:
    fresh = asked(Asked(REFUSED))
    assert said(fresh) == {"Answering": ("Unknown", "Asking"), "Ready": ("False", "Creating")}

    alone = after(fresh, Asked(REFUSED, failing=True))
    assert said(alone) == {"Answering": ("Unknown", "GatewayUnreachable"), "Ready": ("True", "Available")}
    assert told(plan(alone))["Ready"][2] == (
        "Requests go to 1 endpoint, as far as the operator can tell. "
        "The operator's own connection fails: the hub's gateway refuses the connection"
    )


def test_a_service_that_an_operator_of_before_called_ready_stays_so() -> None:
    before = after(settled(seen(service((1, "a")), endpoint("one"))), Asked())
    assert "Answering" not in {one.type for one in before.service.conditions}

    for checked in (Asked(), Asked(BROKEN)):
        assert said(replace(before, check=checked)) == {
            "Answering": ("Unknown", "Asking"),
            "Ready": ("True", "Available"),
        }
    assert said(replace(before, check=Asked(BROKEN, failing=True)))["Ready"][0] == "False"


def test_what_was_answered_once_is_no_answer_of_routes_that_were_gone_in_between() -> None:
    gone = after(settled(replace(asked(WELL), endpoints=())), Asked())
    assert said(gone) == {"Answering": ("Unknown", "Asking"), "Ready": ("False", "NoEndpoints")}

    back = after(settled(replace(gone, endpoints=(endpoint("one"),))), Asked())
    assert said(back)["Ready"] == ("False", "Creating")


def guarded() -> Observed:
    plain = service((1, "a"))
    auth: Auth = keys_of("clients")
    closed: ModelService = plain.model_copy(update={"spec": plain.spec.model_copy(update={"auth": auth})})
    return settled(seen(closed, endpoint("one"), secrets={"clients": secret(one="key")}))


@pytest.mark.parametrize(
    ("answer", "wanted"),
    {
        "the key service": (GatewayAnswer(401, key_missing=True), ("True KeyAsked", "True KeysFound", "True")),
        "a dead key service": (GatewayAnswer(500), ("False NotAnswered", "False KeyServiceUnavailable", "False")),
        "one that hangs": (GatewayAnswer(lack="hangs"), ("False NotAnswered", "False KeyServiceUnavailable", "False")),
        "nobody asks": (GatewayAnswer(200), ("False NotAnswered", "False NotEnforced", "False")),
        "somebody else's 401": (GatewayAnswer(401), ("False NotAnswered", "True KeysFound", "False")),
        "no route": (GatewayAnswer(404, unrouted=True), ("False NotAnswered", "True KeysFound", "False")),
    }.values(),
)
def test_where_keys_are_asked_for_a_request_without_one_must_be_refused(
    answer: GatewayAnswer, wanted: tuple[str, str, str]
) -> None:
    ready = asked(Asked(GatewayAnswer(401, key_missing=True)), guarded())
    assert said(after(ready, Asked(answer)))["Ready"][0] == "True", "one request is no outage"

    found = said(after(ready, Asked(answer, failing=not answer.key_missing)))
    assert (" ".join(found["Answering"]), " ".join(found["AuthReady"]), found["Ready"][0]) == wanted
