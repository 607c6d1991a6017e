"""The operator with Helm on a hub that has nothing: the hub gateway comes, changes, and goes.

It runs as the chart's account for that, with the permissions that the chart gives it. Traefik is the real one, in a
small chart under the name of the real one; Envoy Gateway is the real one in its real chart; what stands in for MetalLB
has its kinds and its permissions, and the fleet gives the addresses.
"""

from __future__ import annotations

import asyncio
import json
import re
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet import binaries
from localfleet.charts import envoy_gateway, stand_in
from localfleet.fleet import Fleet, Options
from modelplane_operator.api import names
from modelplane_operator.kinds import TRAEFIK_ACCOUNT, hub_gateway
from modelplane_operator.settings import Settings
from tests.support.chart import permissions
from tests.support.charts import pack
from tests.support.existing import operating
from tests.support.helm import noted_helm
from tests.support.hub import SYSTEM, Hub
from tests.support.permissions import GATEWAY, Permission, as_operator, given, idle, refused

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

ABSENT = "grpcroutes.gateway.networking.k8s.io"
"""A kind of the Gateway API that a hub lacks; the others are somebody else's."""
MIDDLEWARES = "middlewares.traefik.io"
"""A kind that Traefik's chart brings, and Helm leaves where it is."""
RANGE = "192.0.2.10-192.0.2.20"
ALL = "create,delete,get,list,patch,update,watch"
METALLB: Manifest = {"loadBalancer": "MetalLB", "metallb": {"addressPool": RANGE}}
IDLE = {"API servers of earlier Kubernetes stream no lists": ["list jobs.batch in envoy-gateway-system"]}
BAD_REQUEST, NOT_FOUND = 400, 404
ACCOUNT = "modelplane-operator-hub-gateway"
AS_CHART = partial(hub_gateway, traefik_account=TRAEFIK_ACCOUNT)
TRAEFIKS = "system:serviceaccount:traefik-system:traefik"
REFUSED = """
apiVersion: v1
kind: Service
metadata: {name: refused}
spec: {ports: [{port: 99999}]}
"""


def metallb() -> str:
    """What the real MetalLB's chart brings, as far as it takes permissions to bring it."""
    cluster = (
        ("", "services,namespaces", "get,list,watch"),
        ("", "nodes", "list"),
        ("", "services/status", "update"),
        ("", "events", "create,patch"),
        ("", "endpoints", "get,list,watch"),
        ("discovery.k8s.io", "endpointslices", "get,list,watch"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", ALL, "metallb-webhook-configuration"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "list,watch"),
        ("apiextensions.k8s.io", "customresourcedefinitions", ALL, "bgppeers.metallb.io", "ipaddresspools.metallb.io"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "list,watch"),
        ("metallb.io", "servicel2statuses,servicel2statuses/status", "*"),
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    )
    inside = (
        ("", "pods", "list,get"),
        ("", "secrets", ALL),
        ("", "configmaps", "get,list,watch"),
        ("apps", "deployments", "get"),
        ("metallb.io", "bfdprofiles,bgppeers,l2advertisements,bgpadvertisements,ipaddresspools", "get,list,watch"),
        ("metallb.io", "ipaddresspools/status", "update"),
        ("metallb.io", "servicebgpstatuses,servicebgpstatuses/status", "*"),
    )
    kinds = [
        definition(f"{plural}.metallb.io", kind)
        for kind, plural in (("IPAddressPool", "ipaddresspools"), ("L2Advertisement", "l2advertisements"))
    ]
    bound: list[Manifest] = []
    parts: tuple[tuple[str, Sequence[Sequence[str]]], ...] = (("ClusterRole", cluster), ("Role", inside))
    for scope, rules in parts:
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": scope, "name": "mp-metallb:controller"}
        who = {"kind": "ServiceAccount", "name": "metallb", "namespace": "metallb-system"}
        bound += [
            {**rbac(scope), "rules": list(map(rule, rules))},
            {**rbac(f"{scope}Binding"), "roleRef": role, "subjects": [who]},
        ]
    account: Manifest = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "metallb"}}
    return yaml.safe_dump_all([*kinds, account, *bound])


def definition(name: str, kind: str) -> Manifest:
    plural, _, group = name.partition(".")
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    version = {"name": "v1beta1", "served": True, "storage": True, "schema": schema}
    names = {"kind": kind, "plural": plural}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": name},
        "spec": {"group": group, "scope": "Namespaced", "names": names, "versions": [version]},
    }


def rbac(kind: str) -> Manifest:
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "mp-metallb:controller"}}


def rule(told: Sequence[str]) -> Manifest:
    group, resources, verbs, *names = told
    named = {"resourceNames": names} if names else {}
    return {"apiGroups": [group], "resources": resources.split(","), "verbs": verbs.split(","), **named}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub that has everything but software; it writes down who asks for what."""
    fleet = Fleet(tmp_path_factory.mktemp("hub-gateway") / "fleet")
    try:
        fleet.up(Options(workers=0, data_plane=False, audit=True))
        hub = Hub(fleet)
        hub.learn()
        hub.kubectl("create", "namespace", SYSTEM)
        yield hub
    finally:
        fleet.down()


def traefik(_: str) -> Mapping[str, str]:
    return {**stand_in("traefik"), "crds/middlewares.yaml": yaml.safe_dump(definition(MIDDLEWARES, "Middleware"))}


@dataclass(frozen=True, slots=True)
class Backend:
    """What the hub gateway may be, and what the operator's account has to be given for that."""

    name: str
    part: str
    """What conditions call it."""
    chart: str
    files: Callable[[str], Mapping[str, str]]
    """Of its chart, at a version."""
    versions: tuple[str, str, str]
    """One that works, another that works, and one that no API server takes."""
    values: tuple[str, ...]
    """Of the operator's chart."""
    asked: Manifest = field(default_factory=dict[str, Any])
    """More that is asked for at first."""
    real: bool = False
    """Whether its chart is the real one, so that all that the account may do is needed."""

    @property
    def namespace(self) -> str:
        return f"{self.part}-system"

    @property
    def release(self) -> str:
        return f"mp-{self.chart}"

    def hub_gateway(self, version: str, name: str = "default", **asked: Any) -> Manifest:
        settings = f"{self.name[0].lower()}{self.name[1:]}"
        return {
            "apiVersion": "modelplane.ai/v1alpha1",
            "kind": "InferenceGateway",
            "metadata": {"name": name},
            "spec": {"backend": self.name, settings: {"version": version, **asked}},
        }


TRAEFIK = Backend(
    name="Traefik",
    part="traefik",
    chart="traefik",
    files=traefik,
    versions=("40.2.0", "40.2.1", "40.2.2"),
    values=("hubGateway.metallb=true",),
    asked=METALLB,
)
ENVOY_GATEWAY = Backend(
    name="EnvoyGateway",
    part="envoy-gateway",
    chart="gateway-helm",
    files=envoy_gateway,
    versions=("v1.9.1", "v1.9.2", "v1.9.3"),
    values=("hubGateway.traefik=false", "hubGateway.envoyGateway=true"),
    real=True,
)


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    folder, mirror = tmp_path / "definitions", tmp_path / "mirror"
    shutil.copytree(gateway_api(), folder / "hub")
    mirror.mkdir()
    pack(mirror, "metallb", "0.14.9", {"templates/all.yaml": metallb()})
    return Settings(
        listen=("127.0.0.1", 0),
        helm=str(noted_helm(tmp_path)),
        chart_mirror=str(mirror),
        chart_digests="ignored",
        definitions=folder,
    )


def gateway_api() -> Path:
    """The definitions of the Gateway API's kinds."""
    return binaries.ensure("gateway-api-crds")["gateway-api-crds"]


@pytest.mark.parametrize(
    "backend", [TRAEFIK, pytest.param(ENVOY_GATEWAY, marks=pytest.mark.slow)], ids=lambda backend: backend.name
)
def test_with_the_charts_rights_it_comes_changes_and_goes(
    hub: Hub, settings: Settings, tmp_path: Path, backend: Backend
) -> None:
    first, better, bad = backend.versions
    for version, more in ((first, {}), (better, {}), (bad, {"templates/refused.yaml": REFUSED})):
        pack(tmp_path / "mirror", backend.chart, version, {**backend.files(version), **more})
    account = {"apiVersion": "v1", "kind": "List", "items": asyncio.run(permissions(*backend.values))}
    hub.apply(account)
    kubeconfig, begun = as_operator(hub, ACCOUNT), len(hub.fleet.audit("hub"))
    hub.kubectl("delete", "-f", str(gateway_api()), "--ignore-not-found")
    hub.kubectl("delete", "crd", *brought(backend.files(first)), "--ignore-not-found")
    hub.kubectl("create", "-f", str(gateway_api()))
    hub.kubectl("delete", "crd", ABSENT)
    kinds_before, roles_before = definitions(hub), roles(hub)
    with operating(hub.fleet, settings, AS_CHART, kubeconfig=kubeconfig, name="hub-gateway"):
        comes(hub, backend)
        assert ABSENT in definitions(hub)
        there = len(hub.fleet.audit("hub"))
    with operating(hub.fleet, settings, AS_CHART, kubeconfig=kubeconfig, name="hub-gateway"):
        changes(hub, backend)
        assert written(by_operator(hub, there), "gateways", "gatewayclasses", "envoyproxies", "namespaces") == set()
        passed_on = given(role for name, role in roles(hub).items() if name not in roles_before)
        goes(hub, backend)
    kinds_after = definitions(hub)
    assert kinds_after.keys() == kinds_before.keys() | {ABSENT} | brought(backend.files(first))
    assert all(kinds_after[name] == known for name, known in kinds_before.items())
    assert Counter((tmp_path / "runs").read_text().splitlines()) == {
        **({"upgrade mp-metallb": 1, "uninstall mp-metallb": 1} if backend.asked else {}),
        f"upgrade {backend.release}": 3,
        f"rollback {backend.release}": 1,
        f"uninstall {backend.release}": 1,
    }
    token = yaml.safe_load(kubeconfig)["users"][0]["user"]["token"]
    assert token not in (tmp_path / "argv").read_text() + (tmp_path / "environment").read_text()
    assert list(tmp_path.glob("**/kubeconfig")) == []
    asked = by_operator(hub, begun)
    assert refused(asked, GATEWAY) == []
    if backend.real:
        assert idle(asked, GATEWAY, hub_gateway_permissions(account) - passed_on, IDLE) == []
    assert in_order(asked, "gateways", "gatewayclasses", "deployments")
    if backend is TRAEFIK:
        assert "secrets" not in {event["objectRef"]["resource"] for event in everywhere(asked)}
        assert refused(hub.fleet.audit("hub")[begun:], TRAEFIKS) == []
    hub.kubectl("delete", "-f-", documents=account)


def everywhere(events: Iterable[Manifest]) -> Iterator[Manifest]:
    """What was asked of all namespaces at once."""
    return (event for event in events if event.get("objectRef") and "namespace" not in event["objectRef"])


def test_in_named_namespaces_traefik_serves_those_and_reads_no_other_ones_secrets(
    hub: Hub, settings: Settings, tmp_path: Path
) -> None:
    version, *_ = TRAEFIK.versions
    pack(tmp_path / "mirror", TRAEFIK.chart, version, TRAEFIK.files(version))
    for namespace in ("named", "unnamed"):
        hub.kubectl("create", "namespace", namespace)
    account = {"apiVersion": "v1", "kind": "List", "items": asyncio.run(permissions("tenantNamespaces={named}"))}
    hub.apply(account)
    kubeconfig, begun = as_operator(hub, ACCOUNT), len(hub.fleet.audit("hub"))
    listed = replace(settings, tenant_namespaces=("named",))
    with operating(hub.fleet, listed, AS_CHART, kubeconfig=kubeconfig, name="hub-gateway"):
        hub.apply(TRAEFIK.hub_gateway(version))
        hub.says("default", "Ready", "Available", what="ig")
        for namespace in ("unnamed", "named"):
            hub.apply(route(namespace))
        accepted = ("get", "httproute", "mine", "-ojsonpath={.status.parents[0].conditions[0].status}")
        hub.until(lambda: hub.kubectl(*accepted, "-nnamed") == "True", "the route to be accepted")
        assert hub.kubectl(*accepted, "-nunnamed") == ""
        assert hub.kubectl("auth", "can-i", "list", "secrets", "-nnamed", f"--as={TRAEFIKS}").strip() == "yes"
        hub.kubectl("delete", "ig", "default", "--timeout=180s")
    asked = hub.fleet.audit("hub")[begun:]
    assert (refused(asked, TRAEFIKS), refused(asked, GATEWAY)) == ([], [])
    read = {event["objectRef"].get("namespace") for event in asked if reads_secrets(event, TRAEFIKS)}
    assert read == {SYSTEM, "traefik-system", "named"}
    hub.kubectl("delete", "-f-", documents=account)


def reads_secrets(event: Manifest, user: str) -> bool:
    return event["user"]["username"] == user and event.get("objectRef", {}).get("resource") == "secrets"


def route(namespace: str) -> Manifest:
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": "mine", "namespace": namespace},
        "spec": {"parentRefs": [{"name": names.HUB_GATEWAY, "namespace": SYSTEM}], "hostnames": ["a.example"]},
    }


def comes(hub: Hub, backend: Backend) -> None:
    first, *_ = backend.versions
    hub.apply(backend.hub_gateway(first, name="second"))
    hub.apply(backend.hub_gateway(first, **backend.asked))
    hub.says("default", "Ready", "Available: Models are reached at http://10.", what="ig")
    hub.says("default", "ControllerReady", "ControllerHealthy", what="ig")
    hub.says("second", "ControllerReady", "NotServed", what="ig")
    if backend.asked:
        pool = ("ipaddresspool", "modelplane", "metallb-system")
        hub.until(lambda: hub.get(*pool) is not None, "MetalLB's addresses")
        assert (hub.get(*pool) or {})["spec"] == {"addresses": [RANGE]}
    answers(hub)


def changes(hub: Hub, backend: Backend) -> None:
    _, better, bad = backend.versions
    hub.apply(backend.hub_gateway(better))  # without MetalLB, which is not asked for any more
    until_deployed(hub, backend.release, ["2"])
    until_deployed(hub, "mp-metallb", [])
    hub.says("default", "ControllerReady", "ControllerHealthy", what="ig")
    hub.apply(backend.hub_gateway(bad))
    hub.says("default", "ControllerReady", f"RolledBack: Chart {backend.part}", what="ig")
    until_deployed(hub, backend.release, ["4"])  # the version before
    hub.until(lambda: "Invalid value: 99999" in hub.reason("ig", "default", "ControllerReady"), "the reason")
    assert hub.reason("ig", "default", "Ready").startswith("Available")
    answers(hub)


def goes(hub: Hub, backend: Backend) -> None:
    hub.kubectl("delete", "ig", "--all", "--timeout=180s")
    assert hub.kubectl("get", "gateway,gatewayclass", "-A", "-oname") == ""
    assert hub.kubectl("get", "secret", "-A", "-l", "owner=helm", "-oname") == ""
    left = ("get", "deployment,service", "-n", backend.namespace, "-oname")
    hub.until(lambda: hub.kubectl(*left) == "", "the programs and the load balancer to go")


def test_a_hub_gets_the_kinds_of_the_gateway_api_and_keeps_them(hub: Hub, settings: Settings, tmp_path: Path) -> None:
    """As an administrator, who makes the namespaces as well; those go again."""
    version, *_ = TRAEFIK.versions
    pack(tmp_path / "mirror", TRAEFIK.chart, version, TRAEFIK.files(version))
    hub.kubectl("delete", "-f", str(gateway_api()), "--ignore-not-found")
    with operating(hub.fleet, settings, hub_gateway, name="hub-gateway"):
        hub.apply(TRAEFIK.hub_gateway(version))
        hub.says("default", "Ready", "Available", what="ig")
        answers(hub)
        hub.kubectl("delete", "ig", "default", "--timeout=180s")
    hub.gone("namespace", TRAEFIK.namespace)
    assert ABSENT in definitions(hub)


@pytest.mark.slow
def test_one_backend_takes_over_from_the_other_and_back(hub: Hub, settings: Settings, tmp_path: Path) -> None:
    """Each leaves nothing but its kinds."""
    for backend in (TRAEFIK, ENVOY_GATEWAY):
        version, *_ = backend.versions
        pack(tmp_path / "mirror", backend.chart, version, backend.files(version))
    with operating(hub.fleet, settings, hub_gateway, name="hub-gateway"):
        for backend, other in ((TRAEFIK, ENVOY_GATEWAY), (ENVOY_GATEWAY, TRAEFIK), (TRAEFIK, ENVOY_GATEWAY)):
            hub.apply(backend.hub_gateway(backend.versions[0]))
            until_deployed(hub, backend.release, ["1"])
            until_deployed(hub, other.release, [])
            hub.says("default", "Ready", "Available", what="ig")
            answers(hub)
            classes = hub.kubectl("get", "gatewayclass", "-oname").split()
            assert len(classes) == 1
            hub.gone("service", "modelplane" if other is ENVOY_GATEWAY else "traefik", other.namespace)
        hub.kubectl("delete", "ig", "default", "--timeout=180s")
    for backend in (TRAEFIK, ENVOY_GATEWAY):
        hub.gone("namespace", backend.namespace)


def roles(hub: Hub) -> dict[str, Manifest]:
    found = json.loads(hub.kubectl("get", "clusterrole,role", "-A", "-ojson"))["items"]
    return {f"{one['kind']} {one['metadata'].get('namespace')}/{one['metadata']['name']}": one for one in found}


def hub_gateway_permissions(account: Manifest) -> set[Permission]:
    """What the operator's account has for the hub gateway's charts alone."""
    named = (one for one in account["items"] if one["metadata"]["name"].endswith("-hub-gateway"))
    return given(one for one in named if one["kind"] in {"ClusterRole", "Role"})


def brought(files: Mapping[str, str]) -> set[str]:
    """The kinds that a chart brings and Helm leaves where they are."""
    texts = (text for path, text in files.items() if "crds/" in path and "/templates/" not in path)
    return {name for text in texts for name in re.findall(r"^  name: (\S+\.\S+)$", text, re.MULTILINE)}


def definitions(hub: Hub) -> dict[str, tuple[Manifest, Manifest]]:
    """What the kinds on the hub are, and what is noted on them."""
    found = json.loads(hub.kubectl("get", "crd", "-ojson"))["items"]
    return {one["metadata"]["name"]: (one["spec"], one["metadata"].get("annotations", {})) for one in found}


def by_operator(hub: Hub, since: int) -> list[Manifest]:
    """What the operator and its Helm have asked for, since there were so many audit events."""
    return [event for event in hub.fleet.audit("hub")[since:] if event["user"]["username"] == GATEWAY]


def written(events: Iterable[Manifest], *resources: str) -> set[str]:
    """The objects of these types that were made, changed or deleted."""
    return {
        f"{event['objectRef']['resource']} {event['objectRef'].get('name')}"
        for event in events
        if event["verb"] in {"create", "update", "patch", "delete"}
        and event.get("objectRef", {}).get("resource") in resources
        and event["responseStatus"]["code"] < BAD_REQUEST
    }


def until_deployed(hub: Hub, release: str, wanted: list[str]) -> None:
    """Wait until these revisions of a release are the ones that are deployed; none: until it has gone."""
    hub.until(lambda: deployed(hub, release) == wanted, f"of {release}, {wanted} to be deployed")


def deployed(hub: Hub, release: str) -> list[str]:
    """The revisions of a release that are deployed."""
    selector = f"owner=helm,status=deployed,name={release}"
    return [one["labels"]["version"] for one in hub.metadata("secrets", selector)]


def answers(hub: Hub) -> None:
    """Wait until the hub gateway answers, which has no route: that it is ready does not say that it listens."""
    hub.until(lambda: answered(hub) == NOT_FOUND, "the hub gateway to answer")


def answered(hub: Hub) -> int | None:
    """The status with which the hub gateway answers; None while nobody does."""
    address = (hub.get("ig", "default") or {})["status"]["address"]
    ask = (
        "import http.client, sys; door = http.client.HTTPConnection(sys.argv[1]); door.request('GET', '/')"
        "; print(door.getresponse().status)"
    )
    command = hub.fleet.inside([sys.executable, "-c", ask, address], "hub")
    asked = subprocess.run(command, check=False, capture_output=True, text=True)
    return int(asked.stdout) if asked.returncode == 0 else None


def in_order(events: Iterable[Manifest], *resources: str) -> bool:
    """Whether objects of these types were last deleted in this order."""
    last = {
        event["objectRef"]["resource"]: event["requestReceivedTimestamp"]
        for event in events
        if event["verb"] == "delete"
    }
    moments = [last[resource] for resource in resources]
    return moments == sorted(moments)
