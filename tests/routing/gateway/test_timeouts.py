"""The times of every hop between a client and an engine, as they are rendered: docs/hub-gateway.md shows them."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.clusters.cluster.cluster_gateway import render_cluster_gateway
from modelplane_operator.models.replica.render.pods import DEFAULT_LIFECYCLE, KEEP_ALIVE
from modelplane_operator.routing.gateway import envoy_gateway, traefik
from modelplane_operator.routing.gateway.gateway_pods import DRAIN, LEAVE
from modelplane_operator.routing.gateway.gateway_relay import render_relay
from tests.support.manifests import ROOT, Manifest

TRAEFIKS_IDLE = 180.0  # of an entry point, by Traefik itself (v3.7: DefaultIdleTimeout)
ENVOYS_CONNECT = 10.0  # by Envoy Gateway itself
UVICORNS_IDLE = 5.0  # of engines of before, that are not told to wait for longer
BALANCERS = {"AWS (NLB)": 350.0, "Azure": 240.0, "GKE (passthrough)": 600.0}
"""How long each keeps a silent connection. TCP keepalives, every 60 s, count for all of these."""
KEEPALIVE = 60.0

GATEWAY = InferenceGateway.model_validate(
    {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": "default", "uid": "g"},
        "spec": {"backend": "Traefik", "traefik": {"version": "39.0.0"}},
    }
)
CLUSTER = InferenceCluster.model_validate(
    {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": "a", "uid": "c"},
        "spec": {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": "a", "key": "k"}}}},
    }
)


@dataclass(frozen=True)
class Hop:
    """A connection: how long it may take to open, and how long each end keeps it without a request."""

    name: str
    connect: float | None
    front: float | None
    back: float

    def __str__(self) -> str:
        connect, front = ("" if each is None else f"{each:g} s" for each in (self.connect, self.front))
        return f"| {self.name} | {connect} | {front} | {self.back:g} s |"


def seconds(text: Any) -> float:
    found = re.fullmatch(r"(\d+)s", str(text))
    assert found, text
    return float(found[1])


def of_kind(objects: Any, kind: str) -> Manifest:
    return next(each for each in objects if each["kind"] == kind)


def argument(values: Manifest, name: str) -> float:
    (text,) = (each.partition("=")[2] for each in values["additionalArguments"] if each.startswith(f"--{name}="))
    return seconds(text)


def hops() -> list[Hop]:
    software = traefik.software(GATEWAY.spec)
    assert software is not None
    values = traefik.chart(GATEWAY, software, traefik.Allowed()).release.values
    own = [argument(values, f"serversTransport.forwardingTimeouts.{key}") for key in ("dialTimeout", "idleConnTimeout")]
    relay = of_kind(render_relay(CLUSTER, "10.0.0.1"), "ServersTransport")["spec"]["forwardingTimeouts"]
    cluster = render_cluster_gateway(CLUSTER)
    client = seconds(of_kind(cluster, "ClientTrafficPolicy")["spec"]["timeout"]["http"]["idleTimeout"])
    backend = of_kind(cluster, "BackendTrafficPolicy")["spec"]["timeout"]
    hub = envoy_gateway.render_after(GATEWAY)
    hub_client = seconds(of_kind(hub, "ClientTrafficPolicy")["spec"]["timeout"]["http"]["idleTimeout"])
    hub_backend = of_kind(hub, "BackendTrafficPolicy")["spec"]["timeout"]
    (told,) = {seconds(f"{each['value']}s") for each in KEEP_ALIVE}
    to_engine = seconds(backend["http"]["connectionIdleTimeout"])
    connect = seconds(backend["tcp"]["connectTimeout"])
    return [
        Hop("client to Traefik", None, None, TRAEFIKS_IDLE),
        Hop("Traefik to itself, to present the hub's certificate", *own, TRAEFIKS_IDLE),
        Hop("Traefik to a cluster's gateway", seconds(relay["dialTimeout"]), seconds(relay["idleConnTimeout"]), client),
        Hop("client to Envoy Gateway on the hub", None, None, hub_client),
        Hop(
            "Envoy Gateway on the hub to a cluster's gateway",
            seconds(hub_backend["tcp"]["connectTimeout"]),
            seconds(hub_backend["http"]["connectionIdleTimeout"]),
            client,
        ),
        Hop("a cluster's gateway to an engine", connect, to_engine, UVICORNS_IDLE),
        Hop("a cluster's gateway to vLLM or SGLang", connect, to_engine, told),
    ]


def test_no_hop_closes_a_connection_before_the_one_in_front_of_it() -> None:
    assert [str(hop) for hop in hops() if hop.front is not None and hop.front >= hop.back] == []


def test_no_load_balancer_forgets_a_connection_that_is_still_used() -> None:
    """What is idle goes before; what is silent within an answer is kept alive."""
    idle = max(min(hop.front or hop.back, hop.back) for hop in hops())
    assert min(BALANCERS.values()) > max(idle, KEEPALIVE)


def test_whatever_ends_has_longer_than_the_answers_behind_it() -> None:
    assert DEFAULT_LIFECYCLE.drain_seconds < LEAVE + DRAIN
    assert DEFAULT_LIFECYCLE.grace_seconds > DEFAULT_LIFECYCLE.drain_seconds


def test_the_page_shows_the_times_of_all_hops() -> None:
    page = (ROOT / "docs" / "hub-gateway.md").read_text()
    assert [str(hop) for hop in hops() if str(hop) not in page] == []
