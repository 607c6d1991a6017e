"""The hub's hub gateway with its charts: what comes before the Gateway, and what goes after it."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from kubeloop.helm.release import Component, Revision
from kubeloop.objects import Key
from kubeloop.plan import LET_GO, Apply, Delete, Install, Plan, Step, Uninstall
from modelplane_operator.api import labels
from modelplane_operator.api.inference_gateway import EnvoyGateway, InferenceGateway, InferenceGatewayStatus
from modelplane_operator.clusters.stack.chart_states import ObservedCharts, Workload
from modelplane_operator.routing.gateway.plan import Observed, plan
from modelplane_operator.routing.gateway.plan.gateway import serve
from modelplane_operator.routing.gateway.render import render_inference_gateway
from modelplane_operator.routing.gateway.render.software import gateway_parts

pytestmark = pytest.mark.usefixtures("well_worded")

Manifest = dict[str, Any]

NOW = datetime(2026, 1, 1, 12, tzinfo=UTC)
POOL = {"loadBalancer": "MetalLB", "metallb": {"addressPool": "192.0.2.10-192.0.2.20"}}
DEFINITION: Manifest = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "gateways.gateway.networking.k8s.io"},
}


def gateway(
    name: str = "default", *, terminating: bool = False, held: bool = True, noted: str = "", **traefik: Any
) -> InferenceGateway:
    when: dict[str, Any] = {"annotations": {noted: "true"}} if noted else {}
    when |= {"deletionTimestamp": "2026-01-01T11:59:00Z"} if terminating else {}
    metadata = {"name": name, "uid": "u", "finalizers": [labels.FINALIZER] if held else [], **when}
    return InferenceGateway.parse(
        {"metadata": metadata, "spec": {"backend": "Traefik", "traefik": {"version": "40.2.0", **traefik}}}
    )


def by_envoy_gateway() -> InferenceGateway:
    """The same, once it has been changed."""
    spec = gateway().spec.model_copy(
        update={"backend": "EnvoyGateway", "envoy_gateway": EnvoyGateway(version="v1.9.1")}
    )
    return gateway().model_copy(update={"spec": spec})


def revision(part: Component, status: str = "deployed", number: int = 1) -> Revision:
    release = part.release
    when = NOW.timestamp() - 999 + number
    return Revision(release.key, number, status, Key("a", "b"), "s", "1", when, release.digest, "u")


def seen(known: InferenceGateway, *children: Manifest, **software: Any) -> Observed:
    return Observed(known, children, namespace=True, now=NOW, **software)


def installed(known: InferenceGateway, *names: str) -> dict[Key, tuple[Revision, ...]]:
    return {part.release.key: (revision(part),) for part in gateway_parts(known) if part.name in names}


def planned(known: InferenceGateway, *names: str, children: tuple[Manifest, ...] = (), **charts: Any) -> Plan:
    charts = {"history": installed(known, *names), **charts}
    return plan(seen(known, *children, charts=ObservedCharts("", NOW, 420.0, **charts), definitions=(DEFINITION,)))


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
        "add our finalizer to the object",
        "apply CustomResourceDefinition",
        "apply Namespace",
        "install traefik-system/mp-traefik",
    ]
    assert said(found) == {
        "ControllerReady": ("Installing", "Chart traefik is not installed"),
        "Ready": ("Creating", "Chart traefik is not installed"),
    }


def test_the_gateway_comes_when_traefik_is_there() -> None:
    found = planned(gateway(), "traefik")

    ours = serve(seen(gateway(), charts=ObservedCharts("", NOW, 420.0)))
    assert found.steps[3:] == ours.steps
    assert found.status == ours.status


def test_somebody_elses_namespace_stays_theirs() -> None:
    known = gateway()
    found = plan(seen(known, charts=ObservedCharts("", NOW, 420.0), taken=frozenset({"traefik-system"})))

    assert list(map(brief, found.steps[1:])) == ["install traefik-system/mp-traefik"]


def test_metallb_has_its_addresses_as_soon_as_it_is_there() -> None:
    first, then = planned(gateway(**POOL)), planned(gateway(**POOL), "metallb")

    assert [brief(step) for step in first.steps if isinstance(step, Install)] == [
        "install metallb-system/mp-metallb",
        "install traefik-system/mp-traefik",
    ]
    assert list(map(brief, then.steps))[-2:] == ["apply IPAddressPool", "apply L2Advertisement"]
    assert said(then)["ControllerReady"] == ("Installing", "Chart traefik is not installed")


def test_a_gateway_does_not_wait_for_addresses() -> None:
    found = planned(gateway(**POOL), "traefik")

    assert all(step in found.steps for step in plan(seen(gateway(**POOL))).steps)
    assert said(found)["Ready"] == ("Creating", "Chart metallb is not installed")


def test_metallb_goes_when_it_is_no_longer_asked_for_and_traefik_is_there() -> None:
    there = installed(gateway(**POOL), "metallb", "traefik")
    alone = {key: known for key, known in there.items() if key.name == "mp-metallb"}

    assert "uninstall Helm release metallb-system/mp-metallb" in map(str, planned(gateway(), history=there).steps)
    assert not any(isinstance(step, Uninstall) for step in planned(gateway(), history=alone).steps)


def test_the_backend_before_goes_when_it_has_let_go_of_what_it_made() -> None:
    before, known = gateway(), by_envoy_gateway()
    history = installed(before, "traefik") | installed(known, "envoy-gateway")
    left = [live(one) for one in render_inference_gateway(before) if one["kind"] == "GatewayClass"]

    waits, then = planned(known, history=history, children=tuple(left)), planned(known, history=history)
    assert "delete GatewayClass traefik" in map(str, waits.steps)
    assert not any(isinstance(step, Uninstall) for step in waits.steps)
    assert "uninstall Helm release traefik-system/mp-traefik" in map(str, then.steps)


def live(manifest: Manifest) -> Manifest:
    return {**manifest, "metadata": {**manifest["metadata"], "uid": manifest["kind"]}}


def test_pods_that_are_down_are_said_although_the_chart_is_deployed() -> None:
    down = Workload(Key("traefik-system", "mp-traefik"), "Deployment", "traefik", desired=2, ready=0)
    words = "Chart traefik: 0 of 2 pods of Deployment traefik ready"

    found = said(planned(gateway(), "traefik", workloads=(down,)))
    assert found == {"ControllerReady": ("Installing", words), "Ready": ("Creating", words)}


def test_a_change_that_failed_is_said_and_what_was_there_before_goes_on() -> None:
    known = gateway()
    (part,) = gateway_parts(known)
    history = {part.release.key: (revision(part, "failed", 2), revision(part))}
    there = [{**one, "metadata": {**one["metadata"], "generation": 1}} for one in render_inference_gateway(known)]
    for one, aspect in zip(there, ("Accepted", "Programmed"), strict=True):
        told = {"type": aspect, "status": "True", "reason": aspect, "observedGeneration": 1}
        one["status"] = {"conditions": [told], "addresses": [{"value": "192.0.2.7"}]}

    found = planned(known, history=history, children=tuple(there))
    assert "roll back Helm release traefik-system/mp-traefik to revision 1" in map(str, found.steps)
    assert said(found)["ControllerReady"] == ("RolledBack", "Chart traefik: Helm failed without an error message")
    assert said(found)["Ready"][0] == "Available"


def test_what_was_there_before_helm_is_left_to_whoever_made_it() -> None:
    known = gateway(held=False)
    there = render_inference_gateway(known)

    assert planned(known, children=there) == plan(seen(known, *there))


def test_without_helm_only_the_gateway_is_ours() -> None:
    known, terminating = gateway(), gateway(terminating=True)

    assert plan(seen(known)) == serve(seen(known))
    left = plan(seen(terminating))
    assert left.steps == ()
    assert said(left)["Ready"][1].startswith(
        "The charts of the hub gateway stay until the operator may use Helm on the hub again"
    )
    abandoned = gateway(terminating=True, noted=labels.ABANDON)
    assert plan(seen(abandoned)).steps == (LET_GO,)


def test_another_gateway_installs_nothing() -> None:
    assert planned(gateway("second")) == plan(seen(gateway("second")))


def test_it_goes_from_the_front() -> None:
    known, there = gateway(terminating=True, **POOL), ["metallb", "traefik"]
    left = list(map(live, render_inference_gateway(gateway())))
    done: list[Step] = []
    while not done or done[-1] != LET_GO:
        for step in (found := planned(known, *there, children=tuple(left))).steps:
            done.append(step)
            if isinstance(step, Delete):
                left = [one for one in left if one["metadata"]["uid"] != step.uid]
            elif isinstance(step, Uninstall):
                there.remove(step.release.name.removeprefix("mp-"))
        assert found.steps

    assert list(map(brief, done)) == [
        "delete Gateway modelplane-system/modelplane",
        "delete GatewayClass traefik",
        "uninstall Helm release traefik-system/mp-traefik",
        "uninstall Helm release metallb-system/mp-metallb",
        "remove our finalizer from the object",
    ]


def test_whoever_gave_an_address_stays_until_it_is_given_back() -> None:
    known = gateway(terminating=True, **POOL)
    charts = ObservedCharts("", NOW, 420.0, history=installed(known, "metallb"))

    waits = plan(seen(known, charts=charts, balancer="traefik-system/traefik"))
    assert waits.steps == ()
    assert said(waits)["Ready"] == ("Deleting", "Load balancer traefik-system/traefik is being deleted")
    then = plan(seen(known, charts=charts))
    assert list(map(brief, then.steps)) == ["uninstall Helm release metallb-system/mp-metallb"]
