"""Which Gateway the hub gets, and what is said of it, as steps and conditions."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewayStatus
from modelplane_operator.clients.resources import GATEWAY, type_of
from modelplane_operator.planning.inference_gateway import Observed, plan
from modelplane_operator.planning.plan import Create
from tests.support.builders import EPOCH
from tests.support.plans import carried_out, told

Manifest = dict[str, Any]

ADDRESS = "10.0.0.42"


def gateway(name: str = "default", *, going: bool = False, address: str | None = None) -> InferenceGateway:
    when = {"deletionTimestamp": EPOCH.isoformat()} if going else {}
    spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}}
    status = {"address": address} if address else {}
    return InferenceGateway.parse({"metadata": {"name": name, "uid": "u", **when}, "spec": spec, "status": status})


def seen(subject: InferenceGateway, *children: Manifest, namespace: bool = True) -> Observed:
    return Observed(subject, children, namespace=namespace, now=EPOCH)


def written(observed: Observed) -> Observed:
    children = carried_out(plan(observed), observed.children)
    return replace(observed, children=tuple(one for one in children if one["kind"] != "Namespace"), namespace=True)


def judged(observed: Observed, *, status: str = "True", generation: int = 1, address: str | None = ADDRESS) -> Observed:
    """The same once a gateway controller has looked at it."""

    def said(child: Manifest) -> Manifest:
        aspects = ("Accepted", "Programmed") if type_of(child) == GATEWAY else ("Accepted",)
        conditions = [
            {"type": one, "status": status, "reason": "Because", "message": "why", "observedGeneration": generation}
            for one in aspects
        ]
        addresses = [{"type": "IPAddress", "value": address}] if address and type_of(child) == GATEWAY else []
        return {**child, "status": {"conditions": conditions, "addresses": addresses}}

    return replace(observed, children=tuple(map(said, observed.children)))


def address(observed: Observed) -> str | None:
    status = plan(observed).status
    assert isinstance(status, InferenceGatewayStatus)
    return status.address


def test_nothing_is_there_yet() -> None:
    first = seen(gateway())

    assert [str(step) for step in plan(first).steps] == [
        "apply GatewayClass traefik",
        "apply Gateway modelplane-system/modelplane",
    ]
    assert told(plan(first)) == {
        "ControllerReady": ("False", "Installing", "GatewayClass traefik is not there yet"),
        "Ready": (
            "False",
            "Creating",
            "GatewayClass traefik is not there yet; Gateway modelplane-system/modelplane is not there yet; "
            "Gateway modelplane-system/modelplane has no address",
        ),
    }
    assert address(first) is None


def test_the_namespace_is_made_where_it_lacks_and_belongs_to_nobody() -> None:
    without = plan(seen(gateway(), namespace=False))
    namespace = without.steps[0]

    assert str(namespace) == "create Namespace modelplane-system"
    assert isinstance(namespace, Create)
    assert namespace.manifest["metadata"] == {"name": "modelplane-system"}
    assert plan(written(seen(gateway(), namespace=False))) == plan(written(seen(gateway())))


def test_a_gateway_that_is_programmed_and_has_an_address_is_ready() -> None:
    ready = judged(written(seen(gateway())))

    assert address(ready) == ADDRESS
    assert told(plan(ready)) == {
        "ControllerReady": ("True", "ControllerHealthy", ""),
        "Ready": ("True", "Available", f"Models are reached at {ADDRESS}"),
    }
    assert plan(written(ready)) == plan(ready), "a fixpoint"


@pytest.mark.parametrize(
    ("found", "controller", "why"),
    [
        (
            judged(written(seen(gateway())), generation=0),
            "Installing",
            "GatewayClass traefik is not Accepted yet: no gateway controller has looked at it; "
            "Gateway modelplane-system/modelplane is not Programmed yet: no gateway controller has looked at it",
        ),
        (
            judged(written(seen(gateway())), status="False"),
            "Installing",
            "GatewayClass traefik is not Accepted: Because: why; "
            "Gateway modelplane-system/modelplane is not Programmed: Because: why",
        ),
        (
            judged(written(seen(gateway())), address=None),
            "ControllerHealthy",
            "Gateway modelplane-system/modelplane has no address",
        ),
    ],
    ids=["nobody looked", "refused", "no address"],
)
def test_what_is_lacking_is_named(found: Observed, controller: str, why: str) -> None:
    assert told(plan(found))["ControllerReady"][1] == controller
    assert told(plan(found))["Ready"] == ("False", "Creating", why)


def test_the_address_outlives_a_gateway_that_somebody_deletes() -> None:
    assert address(seen(gateway(address=ADDRESS))) == ADDRESS


def test_another_name_is_told_and_gets_nothing() -> None:
    second = plan(seen(gateway("bare-metal")))
    why = "Models are served through the InferenceGateway named default; this one does nothing"

    assert second.steps == ()
    assert told(second) == {"ControllerReady": ("False", "NotServed", why), "Ready": ("False", "Creating", why)}


def test_a_gateway_on_its_way_out_gets_nothing_new_and_keeps_its_address() -> None:
    leaving = seen(gateway(going=True, address=ADDRESS))

    assert plan(leaving).steps == ()
    assert address(leaving) == ADDRESS
    assert told(plan(leaving))["Ready"][:2] == ("False", "Deleting")
