"""The hub's front door with its charts: what comes before the Gateway, and what goes after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from modelplane_operator.api import labels
from modelplane_operator.api.base import Key
from modelplane_operator.api.inference_gateway import InferenceGateway, InferenceGatewayStatus
from modelplane_operator.api.release import Part
from modelplane_operator.clients.releases import Revision
from modelplane_operator.planning import gateway_stack
from modelplane_operator.planning.charts import Seen
from modelplane_operator.planning.inference_gateway import Observed, plan
from modelplane_operator.planning.plan import Apply, Delete, Install, Plan, Release, Step, Uninstall
from modelplane_operator.rendering.gateway_stack import gateway_parts
from modelplane_operator.rendering.inference_gateway import render_inference_gateway

Manifest = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = {"loadBalancer": "MetalLB", "metallb": {"addressPool": "192.0.2.10-192.0.2.20"}}
DEFINITION: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gateways.gateway.networking.k8s.io"},
}


def gateway(name: str = "default", *, going: bool = False, **traefik: Any) -> InferenceGateway:
    when = {"deletionTimestamp": "2026-01-01T11:59:00Z"} if going else {}
    metadata = {"name": name, "uid": "u", "finalizers": [labels.FINALIZER], **when}
    return InferenceGateway.parse(
        {"metadata": metadata, "spec": {"backend": "Traefik", "traefik": {"version": "40.2.0", **traefik}}}
    )


def revision(part: Part) -> Revision:
    release = part.release
    return Revision(release.key, 1, "deployed", Key("a", "b"), "s", "1", NOW.timestamp() - 999, release.digest, "u")


def planned(known: InferenceGateway, *installed: str, children: tuple[Manifest, ...] = ()) -> Plan:
    there = {part.release.key: (revision(part),) for part in gateway_parts(known) if part.name in installed}
    routing = plan(Observed(known, children, namespace=True, now=NOW))
    return gateway_stack.with_charts(known, routing, Seen("", NOW, 420.0, history=there), children, (DEFINITION,))


def brief(step: Step) -> str:
    match step:
        case Apply(manifest):
            return f"apply {manifest['kind']}"
        case Install(release):
            return f"install {release.key}"
        case _:
            return str(step)


def said(found: Plan) -> dict[str, tuple[str, str]]:
    assert isinstance(found.status, InferenceGatewayStatus)
    return {one.type: (one.reason, one.message or "") for one in found.status.conditions}


def test_traefik_comes_first() -> None:
    found = planned(gateway())

    assert list(map(brief, found.steps)) == [
        "apply CustomResourceDefinition",
        "install traefik-system/mp-traefik",
    ]
    assert said(found) == {
        "ControllerReady": ("Installing", "traefik is not installed"),
        "Ready": ("Creating", "traefik is not installed"),
    }
    assert found.hold


def test_the_gateway_comes_when_traefik_is_there() -> None:
    known = gateway()
    routing = plan(Observed(known, (), namespace=True, now=NOW))
    found = planned(known, "traefik")

    assert found.steps[1:] == routing.steps
    assert found.status == routing.status


def test_metallb_has_its_addresses_as_soon_as_it_is_there() -> None:
    first, then = planned(gateway(**POOL)), planned(gateway(**POOL), "metallb")

    assert [brief(step) for step in first.steps if isinstance(step, Install)] == [
        "install metallb-system/mp-metallb",
        "install traefik-system/mp-traefik",
    ]
    assert list(map(brief, then.steps))[2:] == ["apply IPAddressPool", "apply L2Advertisement"]
    assert said(then)["ControllerReady"] == ("Installing", "traefik is not installed")


def test_another_gateway_installs_nothing() -> None:
    assert planned(gateway("second")) == plan(Observed(gateway("second"), (), namespace=True, now=NOW))


def test_it_goes_from_the_front() -> None:
    known, installed = gateway(going=True, **POOL), ["metallb", "traefik"]
    left = [{**one, "metadata": {**one["metadata"], "uid": one["kind"]}} for one in render_inference_gateway(gateway())]
    done: list[Step] = []
    while not done or done[-1] != Release():
        for step in (found := planned(known, *installed, children=tuple(left))).steps:
            done.append(step)
            if isinstance(step, Delete):
                left = [one for one in left if one["metadata"]["uid"] != step.uid]
            elif isinstance(step, Uninstall):
                installed.remove(step.release.name.removeprefix("mp-"))
        assert found.steps

    assert list(map(brief, done)) == [
        "delete Gateway modelplane-system/modelplane",
        "delete GatewayClass traefik",
        "uninstall Helm release traefik-system/mp-traefik",
        "uninstall Helm release metallb-system/mp-metallb",
        "release the object",
    ]
