"""Ready of a user's ModelEndpoint: whether its place takes connections; and what of its URL is used."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kubeloop.words import sentence
from modelplane_operator.api.model_endpoint import ModelEndpointStatus
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.endpoint.plan import Observed, Reached, plan
from tests.support.endpoints import IP, endpoint, seen, settled
from tests.support.plans import told

pytestmark = pytest.mark.usefixtures("well_worded")

GOES = "Requests go to http://34.55.100.10:80"
THERE = Checked(Reached(""))
REFUSED = Reached("host 34.55.100.10 refuses connections to port 80", certain=True)
SILENT = Reached("host 34.55.100.10 takes no connection to port 80 from the operator")


def tried(checked: Checked[Reached], before: Observed | None = None) -> Observed:
    """A user's endpoint, and what connections to its place have met with since; its status of before is written."""
    observed = before or settled(seen(endpoint(IP, rewritePath="/")))
    found = plan(observed).status
    assert isinstance(found, ModelEndpointStatus)
    written = observed.endpoint.model_copy(update={"status": found if before else None})
    return replace(observed, endpoint=written, reached=checked)


def ready(observed: Observed) -> tuple[str, str, str]:
    assert told(plan(observed))["RoutingReady"][:2] == ("True", "BackendConfigured"), "routes are not taken back"
    return told(plan(observed))["Ready"]


def test_a_new_endpoint_is_ready_once_its_place_has_taken_a_connection() -> None:
    for checked in (Checked(), Checked(REFUSED)):
        assert ready(tried(checked)) == ("False", "Creating", f"Starting (waiting for: {IP} to take a connection)")
    assert ready(tried(THERE)) == ("True", "Available", GOES)


def test_a_place_that_refuses_everybody_is_told_and_comes_back() -> None:
    away = tried(Checked(REFUSED, failing=True), tried(THERE))
    assert ready(away) == ("Unknown", "Unreachable", sentence(REFUSED.lack))
    assert ready(tried(Checked(), away)) == ("Unknown", "Unreachable", sentence(REFUSED.lack)), (
        "another operator begins"
    )
    assert ready(tried(THERE, away))[0] == "True"


def test_a_place_that_the_operator_alone_may_not_reach_stays_ready_and_says_so() -> None:
    silent = tried(Checked(SILENT))
    doubt = ("True", "Available", f"{GOES}, but {SILENT.lack}")
    assert ready(silent) == doubt
    for checked in (Checked(), Checked(SILENT), Checked(SILENT, failing=True)):
        assert ready(tried(checked, silent)) == doubt, "and nothing is written again"
    assert ready(tried(Checked(SILENT, failing=True), tried(THERE))) == doubt
    assert ready(tried(THERE, silent)) == ("True", "Available", GOES)


@pytest.mark.parametrize("checked", [Checked(), Checked(REFUSED), Checked(SILENT)])
def test_one_failure_or_another_operator_takes_nothing_back(checked: Checked[Reached]) -> None:
    assert ready(tried(checked, tried(THERE))) == ("True", "Available", GOES)


@pytest.mark.parametrize(
    ("url", "rewrite", "ignored"),
    [
        (f"{IP}", None, True),
        ("http://34.55.100.10/v1?key=x", None, True),
        ("http://34.55.100.10/", None, False),
        ("http://34.55.100.10", None, False),
        (f"{IP}", "/v1/", False),
    ],
)
def test_a_path_that_nobody_uses_is_told(url: str, rewrite: str | None, ignored: bool) -> None:  # noqa: FBT001
    words = ", with the path that clients send: the path in spec.url is ignored, so write it into rewritePath"
    said = told(plan(settled(seen(endpoint(url, **({"rewritePath": rewrite} if rewrite else {}))))))

    assert said["RoutingReady"][2] == f"{GOES}{words if ignored else ''}"
