"""What is rendered carries a request: from the hub's gateway over a cluster's to an engine, on a real fleet.

No operator runs: the test writes the owners, applies what follows from them, and asks.
"""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from collections.abc import Iterable, Iterator
from typing import Any, TypeVar

import pytest
import yaml

from kubeloop.resource import Resource
from localfleet.errors import FleetError
from localfleet.fleet import Fleet
from localfleet.waiting import until
from modelplane_operator.api import names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_deployment import ModelDeployment
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.models.deployment.render import render_endpoint, render_replica
from modelplane_operator.models.replica.render import (
    LEADER_WORKER_SETS,
    CannotRender,
    Context,
    Lifecycle,
    render_model_replica,
)
from modelplane_operator.routing.endpoint.backend_url import Backend, parse_url
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.render import address_of, render_inference_gateway
from modelplane_operator.routing.service.render import render_model_service
from modelplane_operator.routing.service.weights import MAX_BACKENDS, Target, select_endpoints, weigh_endpoints
from tests.support.hub import Hub
from tests.support.manifests import Manifest

pytestmark = pytest.mark.fleet

WORKER = "worker-1"
BRIEF = Lifecycle(drain_seconds=2, grace_seconds=15)
"""Pods that end soon: the next test needs their nodes."""
AnyResource = TypeVar("AnyResource", bound=Resource[Any, Any])

GPU = 'device.attributes["gpu.nvidia.com"].architecture == "Hopper"'
CLAIM = Claim("gpu", "gpu.nvidia.com", 8, (GPU,))
CONTAINER = {"name": "engine", "image": "vllm/vllm-openai:v0.11.0", "args": ["--model=Qwen/Qwen3-8B"]}
POD = {"spec": {"containers": [CONTAINER]}}
DEVICES = {"devices": [{"name": "gpu", "count": 8, "selectors": [{"cel": GPU}]}]}

CLUSTER_GATEWAY = [
    {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": names.SYSTEM_NAMESPACE},
    },
    {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "GatewayClass",
        "metadata": {"name": "envoy"},
        "spec": {"controllerName": "gateway.envoyproxy.io/gatewayclass-controller"},
    },
    {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": names.CLUSTER_GATEWAY, "namespace": names.SYSTEM_NAMESPACE},
        "spec": {
            "gatewayClassName": "envoy",
            "listeners": [
                {"name": "http", "port": 80, "protocol": "HTTP", "allowedRoutes": {"namespaces": {"from": "All"}}}
            ],
        },
    },
]


def apply(fleet: Fleet, cluster: str, manifests: Iterable[Manifest]) -> None:
    fleet.kubectl(
        *(cluster, "apply", "--server-side", "--force-conflicts", "--field-manager=modelplane", "-f", "-"),
        documents=yaml.safe_dump_all(manifests),
    )


def delete(fleet: Fleet, cluster: str, manifests: Iterable[Manifest]) -> None:
    """Delete them in this order, and wait until they are gone."""
    fleet.kubectl(cluster, "delete", "--ignore-not-found", "-f", "-", documents=yaml.safe_dump_all(manifests))


def stored(fleet: Fleet, kind: type[AnyResource], manifest: Manifest) -> AnyResource:
    """The object as the hub keeps it, with its uid; without finalizers, which no operator is there to take off."""
    free = {**manifest, "metadata": {**manifest["metadata"], "finalizers": []}}
    said = fleet.kubectl(*("hub", "apply", "--server-side", "-f", "-", "-o", "json"), documents=yaml.safe_dump(free))
    return kind.parse(json.loads(said))


def free(fleet: Fleet) -> bool | None:
    """True as soon as no pod holds devices of the cluster any more, which the next test needs."""
    return fleet.kubectl(WORKER, "get", "resourceclaims", "--all-namespaces", "-o", "name") == "" or None


def gateway_address(fleet: Fleet, cluster: str, name: str) -> str:
    def found() -> str | None:
        what = ("gateways.gateway.networking.k8s.io", name, f"--namespace={names.SYSTEM_NAMESPACE}")
        try:
            return address_of(json.loads(fleet.kubectl(cluster, "get", *what, "-o", "json")))
        except FleetError:
            return None

    return until(found, seconds=120, what=f"the gateway of {cluster} to have an address", interval=0.5)


def ask(fleet: Fleet, namespace: str, service: str) -> tuple[int, Any]:
    """A chat completion through the hub's public gateway: status and answer."""
    url = f"http://127.0.0.1:{fleet.cluster('hub')['ports']['gateway']}/{namespace}/{service}/v1/chat/completions"
    body = {"model": "Qwen/Qwen3-8B", "messages": [{"role": "user", "content": "hello"}]}
    request = urllib.request.Request(url, json.dumps(body).encode(), {"Content-Type": "application/json"})
    try:
        with urllib.request.urlopen(request, timeout=10) as answer:  # noqa: S310  # the URL is ours
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as refusal:
        return refusal.code, None


def answered(fleet: Fleet, namespace: str, service: str) -> Any:
    def found() -> Any:
        try:
            status, answer = ask(fleet, namespace, service)
        except OSError:
            return None
        return answer if status == 200 else None

    return until(found, seconds=180, what="an answer through both gateways", interval=0.5)


def deployment(namespace: str, name: str, *members: Manifest) -> Manifest:
    template = {"spec": {"engines": [{"name": "main", "members": members}]}}
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelDeployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"replicas": 1, "template": template},
    }


def service_over(name: str, namespace: str) -> Manifest:
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelService",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"endpoints": [{"selector": {"matchLabels": {"modelplane.ai/deployment": "qwen"}}}]},
    }


SHAPES = {
    "alone": [{"role": "Standalone", "nodeSelector": DEVICES, "template": POD}],
    "gang": [
        {"role": "Leader", "nodeSelector": DEVICES, "template": POD},
        {"role": "Worker", "nodeSelector": DEVICES, "template": POD},
    ],
}


@pytest.fixture(scope="module")
def gateways(fleet: Fleet) -> Iterator[str]:
    """Both gateways and our kinds; the address of the cluster's. Others have operators that make their own there."""
    Hub(fleet).learn()
    apply(fleet, WORKER, CLUSTER_GATEWAY)
    apply(fleet, "hub", CLUSTER_GATEWAY[:1])
    written = {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": "default"},
        "spec": {"backend": "Traefik", "traefik": {"version": "40.2.0"}},
    }
    front = render_inference_gateway(stored(fleet, InferenceGateway, written))
    apply(fleet, "hub", front)
    try:
        gateway_address(fleet, "hub", names.HUB_GATEWAY)
        yield gateway_address(fleet, WORKER, names.CLUSTER_GATEWAY)
    finally:
        delete(fleet, WORKER, reversed(CLUSTER_GATEWAY))
        delete(fleet, "hub", [written, *reversed(front), CLUSTER_GATEWAY[0]])
        until(lambda: free(fleet), seconds=180, what="what the engines held to be free again", interval=0.5)


@pytest.mark.parametrize("shape", SHAPES)
def test_a_completion_is_answered_and_then_refused_with_503(
    fleet: Fleet, hub_namespace: str, gateways: str, shape: str
) -> None:
    written = deployment(hub_namespace, "qwen", *SHAPES[shape])
    owner = stored(fleet, ModelDeployment, written)
    members = tuple(MemberPlacement(m["role"], "h100", 1, (CLAIM,)) for m in SHAPES[shape])
    placement = Placement(WORKER, 0, (EnginePlacement("main", members),))
    replica = stored(fleet, ModelReplica, render_replica(owner, placement, None))
    around = Context("hub-namespace", frozenset({LEADER_WORKER_SETS}))
    rendered = render_model_replica(replica, around, lifecycle=BRIEF)
    assert not isinstance(rendered, CannotRender)
    apply(fleet, WORKER, rendered)
    try:
        endpoint = stored(fleet, ModelEndpoint, render_endpoint(owner, placement, gateways))
        backend = parse_url(endpoint.spec.url)
        assert isinstance(backend, Backend)
        apply(fleet, "hub", traefik.render_endpoint(endpoint, backend))
        service = stored(fleet, ModelService, service_over("chat", hub_namespace))
        found = weigh_endpoints(
            service,
            select_endpoints(service, [endpoint]),
            {endpoint.key: Target(backend, path=endpoint.spec.rewrite_path)},
        )
        apply(fleet, "hub", render_model_service(service, found))

        assert answered(fleet, hub_namespace, "chat")["choices"][0]["message"]["role"] == "assistant"

        # The same endpoint so many times that the gateway has to call itself for all of them.
        many = stored(fleet, ModelService, service_over("many", hub_namespace))
        apply(fleet, "hub", render_model_service(many, found * (MAX_BACKENDS**2)))

        answered(fleet, hub_namespace, "many")

        apply(fleet, "hub", render_model_service(service, ()))
        until(
            lambda: ask(fleet, hub_namespace, "chat")[0] == 503 or None,
            seconds=60,
            what="the service to answer 503",
            interval=0.2,
        )
    finally:
        fleet.kubectl(WORKER, "delete", "namespace", names.remote_namespace(hub_namespace), "--wait=false")
        # A namespace takes its time to go, and an operator that begins until then would do as they say.
        fleet.kubectl("hub", "delete", "md,mr,me,ms", "--all", f"--namespace={hub_namespace}")
