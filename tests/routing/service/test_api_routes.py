"""Which routes of a model's API its service says it carries."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.routing.service.api_routes import ROUTES, api_routes

pytestmark = pytest.mark.usefixtures("well_worded")


def replica(
    name: str, *, revision: int = 3, picks: bool = True, own: tuple[str, ...] = (), paths: str = "ModelAPIs"
) -> Any:
    condition = {"type": "PickerReady", "status": "True", "reason": "Picking"}
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"clusterName": "a", "podRevision": revision, **({"serving": {"paths": [*own]}} if own else {})},
        "status": {"paths": paths, "conditions": [condition] if picks else []},
    }


def told(*replicas: Any, others: int = 0) -> dict[str, tuple[bool, str | None]]:
    return {route.path: (route.carried, route.message) for route in api_routes(replicas, others)}


def test_a_service_without_endpoints_carries_nothing() -> None:
    assert {carried for carried, _ in told().values()} == {False}


def test_replicas_of_today_and_places_outside_carry_every_route() -> None:
    assert told(replica("r"), others=1) == dict.fromkeys(ROUTES, (True, None))


def test_an_older_picker_carries_only_what_it_can_read() -> None:
    found = told(replica("r", revision=2))

    assert found["/v1/chat/completions"] == found["/v1/realtime"] == (True, None)
    why = "r has an older endpoint picker, which answers 400; the next change of its deployment replaces it"
    assert found["/v1/audio/speech"] == (False, why)
    assert told(replica("r", revision=2, picks=False))["/v1/audio/speech"] == (True, None)
    assert told(replica("r", revision=2), replica("s"))["/v1/audio/speech"] == (True, f"not by 1 of 2 endpoints: {why}")


def test_a_path_of_its_own_is_carried_where_the_cluster_allows_it() -> None:
    found = told(replica("r", own=("/mine",)), replica("s"))

    why = "s is on cluster a, which does not allow it (isolation.pods.allowedPaths)"
    assert found["/mine"] == (True, f"not by 1 of 2 endpoints: {why}")


def test_where_everything_is_open_it_says_so_and_what_closes_it() -> None:
    carried, message = told(replica("r", paths="All"))["/"]

    assert carried
    assert message is not None and "apply the access manifest there again" in message
