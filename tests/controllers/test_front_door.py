"""The operator with Helm on a hub that has nothing: the front door comes, changes, and goes.

It runs as the chart's account, with the rights that the chart gives it. Traefik is the real one, in a small chart under
the name of the real one; what stands in for MetalLB has its kinds and its rights, and the fleet gives the addresses.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from localfleet import binaries
from localfleet.charts import stand_in
from localfleet.fleet import Fleet, Options
from modelplane_operator.controllers.kinds import kinds
from modelplane_operator.settings import Settings
from tests.controllers.test_clusters import SYSTEM, Hub, operating
from tests.support.charts import pack
from tests.support.helm import noted_helm
from tests.support.manifests import ROOT
from tests.test_chart import rights

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

ABSENT = "grpcroutes.gateway.networking.k8s.io"
"""A kind of the Gateway API that a hub lacks; the others are somebody else's."""
MIDDLEWARES = "middlewares.traefik.io"
"""A kind that Traefik's chart brings, and Helm leaves where it is."""
RANGE = "192.0.2.10-192.0.2.20"
METALLB = {"loadBalancer": "MetalLB", "metallb": {"addressPool": RANGE}}
ACCOUNT = f"system:serviceaccount:{SYSTEM}:modelplane-operator"
REFUSED = """
apiVersion: v1
kind: Service
metadata: {name: refused}
spec: {ports: [{port: 99999}]}
"""


def metallb() -> str:
    """What the real MetalLB's chart brings, as far as it takes rights to bring it."""
    cluster = (
        ("", "services,namespaces", "get,list,watch"),
        ("", "nodes", "list"),
        ("", "services/status", "update"),
        ("", "events", "create,patch"),
        ("", "endpoints", "get,list,watch"),
        ("discovery.k8s.io", "endpointslices", "get,list,watch"),
        ("admissionregistration.k8s.io", "validatingwebhookconfigurations", "list,watch"),
        ("apiextensions.k8s.io", "customresourcedefinitions", "create,delete,get,list,patch,update,watch"),
        ("metallb.io", "servicel2statuses,servicel2statuses/status", "*"),
        ("authentication.k8s.io", "tokenreviews", "create"),
        ("authorization.k8s.io", "subjectaccessreviews", "create"),
    )
    inside = (
        ("", "pods", "list,get"),
        ("", "secrets", "create,delete,get,list,patch,update,watch"),
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
    for scope, rules in (("ClusterRole", cluster), ("Role", inside)):
        role = {"apiGroup": "rbac.authorization.k8s.io", "kind": scope, "name": "metallb"}
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
    return {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": kind, "metadata": {"name": "metallb"}}


def rule(told: tuple[str, str, str]) -> Manifest:
    group, resources, verbs = told
    return {"apiGroups": [group], "resources": resources.split(","), "verbs": verbs.split(",")}


@pytest.fixture(scope="module")
def hub(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Hub]:
    """A hub that has everything but software; it writes down who asks for what."""
    fleet = Fleet(tmp_path_factory.mktemp("front-door") / "fleet")
    try:
        fleet.up(Options(workers=0, data_plane=False, audit=True))
        hub = Hub(fleet)
        hub.kubectl("apply", "--server-side", "-f", str(ROOT / "crds"))
        hub.kubectl("wait", "--for=condition=Established", "crd", "--all", "--timeout=60s")
        hub.kubectl("create", "namespace", SYSTEM)
        yield hub
    finally:
        fleet.down()


@pytest.fixture
def mirror(tmp_path: Path) -> Path:
    """The charts, and versions of Traefik's to go on to: one that works, and one that no API server takes."""
    mirror = tmp_path / "mirror"
    mirror.mkdir()
    middlewares = yaml.safe_dump(definition(MIDDLEWARES, "Middleware"))
    traefik = {**stand_in("traefik"), "crds/middlewares.yaml": middlewares}
    for version in ("40.2.0", "40.2.1"):
        pack(mirror, "traefik", version, traefik)
    pack(mirror, "traefik", "40.2.2", {**traefik, "templates/refused.yaml": REFUSED})
    pack(mirror, "metallb", "0.14.9", {"templates/all.yaml": metallb()})
    return mirror


@pytest.fixture
def settings(tmp_path: Path, mirror: Path) -> Settings:
    folder = tmp_path / "definitions"
    shutil.copytree(gateway_api(), folder / "hub")
    return Settings(
        listen=("127.0.0.1", 0),
        helm=str(noted_helm(tmp_path)),
        chart_mirror=str(mirror),
        helm_timeout=60.0,
        stop_grace=20,
        definitions=folder,
    )


def gateway_api() -> Path:
    """The definitions of the Gateway API's kinds."""
    return binaries.ensure("gateway-api-crds")["gateway-api-crds"]


def front_door(version: str = "40.2.0", name: str = "default", **traefik: Any) -> Manifest:
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceGateway",
        "metadata": {"name": name},
        "spec": {"backend": "Traefik", "traefik": {"version": version, **traefik}},
    }


def test_with_the_charts_rights_it_comes_changes_and_goes(hub: Hub, settings: Settings, tmp_path: Path) -> None:
    granted = asyncio.run(rights("frontDoor.metallb=true"))
    hub.apply({"apiVersion": "v1", "kind": "List", "items": granted})
    token = hub.kubectl("-n", SYSTEM, "create", "token", "modelplane-operator").strip()
    config = yaml.safe_load(hub.fleet.kubeconfig("hub").read_text())
    config["users"][0]["user"] = {"token": token}
    hub.kubectl("delete", "-f", str(gateway_api()), "--ignore-not-found")
    hub.kubectl("create", "-f", str(gateway_api()))
    hub.kubectl("delete", "crd", ABSENT)
    before = definitions(hub)
    with operating(hub.fleet, settings, kinds, kubeconfig=yaml.safe_dump(config)):
        comes(hub)
        assert ABSENT in definitions(hub)
        kept = versions(hub, "gateway,gatewayclass,ig,namespace")
    with operating(hub.fleet, settings, kinds, kubeconfig=yaml.safe_dump(config)):
        changes(hub)
        now = versions(hub, "gateway,gatewayclass,ig,namespace")
        assert {name for name, version in kept.items() if now[name] != version} == {"InferenceGateway default"}
        goes(hub)
    after = definitions(hub)
    assert after.keys() == before.keys() | {ABSENT, MIDDLEWARES}
    assert all(after[name] == known for name, known in before.items())
    assert Counter((tmp_path / "runs").read_text().splitlines()) == {
        "upgrade mp-metallb": 1,
        "upgrade mp-traefik": 3,
        "rollback mp-traefik": 1,
        "uninstall mp-metallb": 1,
        "uninstall mp-traefik": 1,
    }
    assert token not in (tmp_path / "argv").read_text() + (tmp_path / "environment").read_text()
    assert list(tmp_path.glob("**/kubeconfig")) == []
    asked = [event for event in hub.fleet.audit("hub") if event["user"]["username"] == ACCOUNT]
    assert [event for event in asked if event.get("responseStatus", {}).get("code") == 403] == []
    assert in_order(asked, "gateways", "gatewayclasses", "deployments")


def comes(hub: Hub) -> None:
    hub.apply(front_door(name="second"))
    hub.apply(front_door(**METALLB))
    hub.says("default", "Ready", "Available: Models are reached at http://10.", what="ig")
    hub.says("default", "ControllerReady", "ControllerHealthy", what="ig")
    hub.says("second", "ControllerReady", "NotServed", what="ig")
    pool = ("ipaddresspool", "modelplane", "-n", "metallb-system")
    hub.until(lambda: hub.get(*pool) is not None, "MetalLB's addresses")
    assert (hub.get(*pool) or {})["spec"] == {"addresses": [RANGE]}
    assert answered(hub) == 404, "Traefik answers, and has no route"


def changes(hub: Hub) -> None:
    hub.apply(front_door("40.2.1"))  # without MetalLB, which is not asked for any more
    hub.until(lambda: deployed(hub, "mp-traefik") == ["2"], "the other version")
    hub.until(lambda: deployed(hub, "mp-metallb") == [], "MetalLB to go")
    hub.says("default", "ControllerReady", "ControllerHealthy", what="ig")
    hub.apply(front_door("40.2.2"))
    hub.says("default", "ControllerReady", "RolledBack: traefik: ", what="ig")
    hub.until(lambda: deployed(hub, "mp-traefik") == ["4"], "the version before")
    hub.until(lambda: "Invalid value: 99999" in hub.reason("ig", "default", "ControllerReady"), "the reason")
    assert hub.reason("ig", "default", "Ready").startswith("Available")
    assert answered(hub) == 404


def goes(hub: Hub) -> None:
    hub.kubectl("delete", "ig", "--all", "--timeout=60s")
    assert hub.kubectl("get", "gateway,gatewayclass", "-A", "-oname") == ""
    assert hub.kubectl("get", "secret", "-A", "-l", "owner=helm", "-oname") == ""
    assert hub.kubectl("get", "deployment,service", "-n", "traefik-system", "-oname") == ""


def test_a_hub_gets_the_kinds_of_the_gateway_api_and_keeps_them(hub: Hub, settings: Settings) -> None:
    """As an administrator, who makes the namespaces as well; those go again."""
    hub.kubectl("delete", "-f", str(gateway_api()), "--ignore-not-found")
    hub.kubectl("delete", "namespace", "traefik-system", "metallb-system", "--ignore-not-found")
    with operating(hub.fleet, settings, kinds):
        hub.apply(front_door())
        hub.says("default", "Ready", "Available", what="ig")
        assert answered(hub) == 404
        hub.kubectl("delete", "ig", "default", "--timeout=60s")
    hub.gone("namespace", "traefik-system")
    assert ABSENT in definitions(hub)


def definitions(hub: Hub) -> dict[str, tuple[Manifest, Manifest]]:
    """What the kinds on the hub are, and what is noted on them."""
    found = json.loads(hub.kubectl("get", "crd", "-ojson"))["items"]
    return {one["metadata"]["name"]: (one["spec"], one["metadata"].get("annotations", {})) for one in found}


def versions(hub: Hub, what: str) -> dict[str, str]:
    found = json.loads(hub.kubectl("get", what, "-A", "-ojson"))["items"]
    return {f"{one['kind']} {one['metadata']['name']}": one["metadata"]["resourceVersion"] for one in found}


def deployed(hub: Hub, release: str) -> list[str]:
    """The revisions of a release that are deployed."""
    selector = f"owner=helm,status=deployed,name={release}"
    found = json.loads(hub.kubectl("get", "secret", "-A", "-l", selector, "-ojson"))["items"]
    return [one["metadata"]["labels"]["version"] for one in found]


def answered(hub: Hub) -> int:
    """The status with which the front door answers."""
    address = (hub.get("ig", "default") or {})["status"]["address"]
    ask = (
        "import http.client, sys; door = http.client.HTTPConnection(sys.argv[1]); door.request('GET', '/')"
        "; print(door.getresponse().status)"
    )
    command = hub.fleet.inside([sys.executable, "-c", ask, address], "hub")
    return int(subprocess.run(command, check=True, capture_output=True, text=True).stdout)


def in_order(events: Iterable[Manifest], *resources: str) -> bool:
    """Whether objects of these types were last deleted in this order."""
    last = {
        event["objectRef"]["resource"]: event["requestReceivedTimestamp"]
        for event in events
        if event["verb"] == "delete"
    }
    moments = [last[resource] for resource in resources]
    return moments == sorted(moments)
