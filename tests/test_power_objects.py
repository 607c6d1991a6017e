"""Which objects of the hub a stolen token of the operator's account writes: its own, and of users' its finalizer."""

# ruff: noqa: F401, F811 - fixtures
from __future__ import annotations

import json

import pytest
import yaml

from kubeloop.client.kube import BEFORE_ALL
from localfleet import binaries
from modelplane_operator.api import labels
from tests.support.api import Api
from tests.support.chart import NAMESPACE
from tests.support.manifests import ROOT, Manifest
from tests.support.power import (
    CREATE,
    ENGINES,
    GATEWAY,
    HOMES,
    OPERATOR,
    VALUES,
    Hub,
    by_default,
    giving,
    hub,
    plain,
    refusal,
    with_everything,
    with_names,
)

pytestmark = pytest.mark.fleet

OURS = {labels.OWNER_UID: "7f9c24e8", labels.OWNER_KIND: "ModelEndpoint"}
NAMED = "qwen-0123456789"
APPLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")

ON_HUB = ("gateway_relay", "inference_gateway", "llm_inference", "model_deployment", "model_endpoint", "model_service")
"""Whose objects are on the hub."""


def service(name: str, where: str, marks: Manifest | None = OURS, **spec: object) -> Manifest:
    found = plain("v1", "Service", name)
    metadata = {**found["metadata"], "namespace": where, "labels": dict(marks or {})}
    ports = [{"name": "http", "port": 80, "targetPort": 80}]
    return {**found, "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports, **spec}}


def endpoints(of: str, where: str, marks: Manifest = OURS, name: str = "") -> Manifest:
    found = plain("discovery.k8s.io/v1", "EndpointSlice", name or f"{of}-ipv4")
    metadata = {**found["metadata"], "namespace": where, "labels": {**marks, labels.SERVICE_NAME: of}}
    thief = [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]
    return {**found, "metadata": metadata, "addressType": "IPv4", "ports": [], "endpoints": thief}


def routed(name: str, where: str, marks: Manifest = OURS, kind: str = "HTTPRoute") -> Manifest:
    found = plain("gateway.networking.k8s.io/v1", kind, name)
    spec: Manifest = {"parentRefs": [{"name": "modelplane", "namespace": NAMESPACE}]}
    if kind == "Gateway":
        spec = {"gatewayClassName": "a", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}
    return {**found, "metadata": {**found["metadata"], "namespace": where, "labels": dict(marks)}, "spec": spec}


def middleware(name: str, where: str, marks: Manifest = OURS) -> Manifest:
    found = plain("traefik.io/v1alpha1", "Middleware", name)
    return {**found, "metadata": {**found["metadata"], "namespace": where, "labels": dict(marks)}, "spec": {}}


def led(route: Manifest, gateway: str, where: str) -> Manifest:
    return {**route, "spec": {"parentRefs": [{"name": gateway, "namespace": where}]}}


def about(kind: str, version: str, target: str, name: str) -> Manifest:
    """A policy about a route, which asks a thief, or about a Service, which is then trusted."""
    found = plain(version, kind, NAMED)
    group = "gateway.networking.k8s.io" if target == "HTTPRoute" else ""
    spec: Manifest = {"targetRefs": [{"group": group, "kind": target, "name": name}]}
    if kind == "BackendTLSPolicy":
        spec["validation"] = {"hostname": "a.example.com", "wellKnownCACertificates": "System"}
    return {**found, "metadata": {**found["metadata"], "namespace": "named", "labels": OURS}, "spec": spec}


@pytest.fixture(scope="module")
async def routing(hub: Api) -> Api:
    """The hub with the kinds of routes."""
    programs = binaries.ensure("gateway-api-crds", "envoy-gateway-crds", "traefik-crds")
    traefik = programs["traefik-crds"] / "01-traefik-crd.yml"
    await hub.define(programs["gateway-api-crds"], programs["envoy-gateway-crds"], traefik)
    return hub


@pytest.mark.parametrize(
    ("manifest", "why"),
    [
        (service(NAMED, "named"), ""),
        (service(NAMED, NAMESPACE), ""),
        (service(NAMED, "named", None), "do not carry its label"),
        (service("kube-dns", "kube-system"), "where no tenant is"),
        (service(NAMED, "named", clusterIP=""), "no address and no pods"),
        (service(NAMED, "named", externalIPs=["192.0.2.1"]), "no address and no pods"),
        (service(NAMED, "named", type="LoadBalancer", clusterIP=""), "no address and no pods"),
        (service(NAMED, "named", type="ExternalName", clusterIP="", externalName="a.example.com"), "no address"),
        (service(NAMED, "named", selector={"app": "theirs"}), "no address and no pods"),
        (endpoints(NAMED, "named"), ""),
        (endpoints(NAMED, "named", {}), "do not carry its label"),
        (endpoints("theirs", "named"), "those of its own Services"),
        (endpoints("theirs", "named", name=f"{NAMED}-ipv4"), "those of its own Services"),
        (endpoints("kubernetes", "default"), "those of its own Services"),
        (endpoints("kube-dns", "kube-system"), "where no tenant is"),
        (routed(NAMED, "named"), ""),
        (routed(NAMED, "named", {}), "do not carry its label"),
        (routed(NAMED, "kube-public"), "where no tenant is"),
        (routed("modelplane", NAMESPACE, kind="Gateway"), ""),
        (routed("modelplane", "named", kind="Gateway"), "where no tenant is"),
        (led(routed(NAMED, "named"), "their-gateway", "named"), "of other Gateways than the hub's own"),
        (
            about("SecurityPolicy", "gateway.envoyproxy.io/v1alpha1", "HTTPRoute", "theirs"),
            "routes and Services but its own",
        ),
        (
            about("BackendTLSPolicy", "gateway.networking.k8s.io/v1", "Service", "theirs"),
            "routes and Services but its own",
        ),
        (about("BackendTLSPolicy", "gateway.networking.k8s.io/v1", "Service", NAMED), ""),
        (middleware(NAMED, "named"), ""),
        (middleware(NAMED, "named", {}), "do not carry its label"),
    ],
    ids=lambda one: f"{one['kind']}-{one['metadata']['name']}" if isinstance(one, dict) else one,
)
async def test_of_what_leads_requests_it_makes_its_own_where_tenants_are(
    routing: Api, by_default: Api, manifest: Manifest, why: str
) -> None:
    by = GATEWAY if manifest["kind"] == "Gateway" else OPERATOR
    said = await refusal(by_default, *APPLY, stdin=yaml.safe_dump(manifest), by=by)

    assert said == "" if not why else why in said, said
    other = OPERATOR if by == GATEWAY else GATEWAY
    assert "orbidden" in await refusal(by_default, *APPLY, stdin=yaml.safe_dump(manifest), by=other)


async def test_with_named_namespaces_it_makes_nothing_in_others(routing: Api, with_names: Api) -> None:
    for where, why in (("named", ""), (NAMESPACE, ""), ("unnamed", "where no tenant is"), ("default", "no tenant")):
        for one in (service(NAMED, where), endpoints(NAMED, where), routed(NAMED, where), middleware(NAMED, where)):
            said = await refusal(with_names, *APPLY, stdin=yaml.safe_dump(one))
            assert said == "" if not why else why in said, (one, said)


@pytest.mark.parametrize(
    "theirs",
    [
        service("dns", "kube-system", None),
        service("theirs", "named", None),
        endpoints("theirs", "named", {}),
        routed("theirs", "named", {}),
        middleware("theirs", "named", {}),
    ],
    ids=lambda one: f"{one['kind']} {one['metadata']['namespace']}",
)
async def test_what_leads_requests_and_is_not_its_own_it_neither_changes_nor_takes_nor_deletes(
    routing: Api, by_default: Api, theirs: Manifest
) -> None:
    text = yaml.safe_dump(theirs)
    await by_default.kubectl("apply", "-f-", stdin=text)
    taken = {**theirs, "metadata": {**theirs["metadata"], "labels": {**theirs["metadata"]["labels"], **OURS}}}
    tried = [
        (("label", "--overwrite", "--dry-run=server", "-f-", "a=b"), text),
        (APPLY, yaml.safe_dump(taken)),
        (("delete", "--dry-run=server", "--wait=false", "-f-"), text),
    ]

    for arguments, stdin in tried:
        assert "do not carry its label" in await refusal(by_default, *arguments, stdin=stdin), arguments
    await by_default.kubectl("apply", "--server-side", "--force-conflicts", "-f-", stdin=yaml.safe_dump(taken))
    freed = ("label", "--dry-run=server", "-f-", f"{labels.OWNER_UID}-")
    assert "do not carry its label" in await refusal(by_default, *freed, stdin=text), "nor frees it of the label"
    await by_default.kubectl("delete", "-f-", stdin=text)


async def test_of_an_object_in_its_way_it_learns_that_it_is_there(by_default: Api) -> None:
    """And not that a policy refuses it: of the first it says whose it is, and leaves it alone."""
    theirs = service(NAMED, "named", None)
    await by_default.kubectl("apply", "-f-", stdin=yaml.safe_dump(theirs))
    wanted = service(NAMED, "named")
    wanted["metadata"]["resourceVersion"] = BEFORE_ALL  # as the operator says that there is to be none

    said = await refusal(by_default, *APPLY, stdin=yaml.safe_dump(wanted))

    assert "conflict" in said.lower()
    assert "do not carry its label" not in said
    await by_default.kubectl("delete", "service", NAMED, "-nnamed")


async def test_the_hubs_api_server_keeps_its_own_address(by_default: Api) -> None:
    said = await refusal(by_default, "label", "service", "kubernetes", "-ndefault", "--dry-run=server", "a=b")

    assert "do not carry its label" in said


async def test_no_service_gets_the_address_of_another_one_by_its_status(routing: Api, with_everything: Api) -> None:
    balanced = service("theirs", "named", None, type="LoadBalancer", clusterIP="")
    await with_everything.kubectl("apply", "-f-", stdin=yaml.safe_dump(balanced))
    stored = yaml.safe_load(await with_everything.kubectl("get", "service", "theirs", "-nnamed", "-oyaml"))
    stolen = yaml.safe_dump({**stored, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})

    said = await refusal(
        with_everything, "replace", "--subresource=status", "--dry-run=server", "-f-", stdin=stolen, by=GATEWAY
    )

    assert "writes no status of services" in said
    await with_everything.kubectl("delete", "service", "theirs", "-nnamed")


async def test_of_what_users_write_it_changes_its_finalizer_alone(by_default: Api) -> None:
    group = "modelplane.ai/v1alpha1"
    changed = {"mutualTLS": "Never", "endpoints": [{"weight": 7, "selector": {"matchLabels": {"a": "b"}}}]}
    theirs: list[Manifest] = [
        {
            **plain(group, "InferenceGateway", "default"),
            "spec": {"backend": "Traefik", "traefik": {"version": "40.0.0"}},
        },
        {**plain(group, "ModelService", "chat"), "spec": {"endpoints": [{"selector": {"matchLabels": {"a": "b"}}}]}},
    ]
    for manifest in theirs:
        text = yaml.safe_dump(manifest)
        await by_default.kubectl("apply", "-nnamed", "-f-", stdin=text)
        what = (f"{manifest['kind']}.v1alpha1.modelplane.ai", manifest["metadata"]["name"], "-nnamed", "--type=merge")
        for change, taken in (
            ({"metadata": {"finalizers": [labels.FINALIZER]}}, True),
            ({"metadata": {"finalizers": ["example.com/kept"]}}, False),
            ({"metadata": {"labels": OURS}}, False),
            (
                {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "1"}]}},
                False,
            ),
            ({"spec": changed}, False),
        ):
            by = GATEWAY if manifest["kind"] == "InferenceGateway" else OPERATOR
            said = await refusal(by_default, "patch", *what, "--dry-run=server", f"-p={json.dumps(change)}", by=by)
            assert ("changes its own finalizer" in said) is not taken, (what, change, said)
            assert not taken or said == ""
        await by_default.kubectl("delete", "-nnamed", "-f-", stdin=text)


async def test_whatever_is_rendered_for_the_hub_its_account_may_make(routing: Api, giving: Hub) -> None:
    """By the expected outputs of the renderers, but for kinds that are not here: MetalLB's, and VLLMRuntimes."""
    rendered = {folder: rendered_for(folder) for folder in ON_HUB}
    every = [one for found in rendered.values() for one in found]
    homes = {one["metadata"].get("namespace", "default") for one in every} - {"default", *HOMES}
    for name in homes:
        home = yaml.safe_dump(plain("v1", "Namespace", name))
        await routing.kubectl("apply", "--server-side", "-f-", stdin=home)
    api = await giving.given(*VALUES, f"llmInferences.onHub.ml-team={{{','.join(ENGINES)}}}")

    assert len({one["kind"] for one in every}) > 15
    for folder, found in rendered.items():
        by = GATEWAY if folder == "inference_gateway" else OPERATOR
        assert await refusal(api, *APPLY, stdin=yaml.safe_dump_all(found), by=by) == "", folder


async def test_what_installs_charts_makes_no_service_with_an_address_of_its_choice(by_default: Api) -> None:
    for spec, why in (
        ({"externalIPs": ["192.0.2.1"]}, "makes no services"),
        ({"type": "ExternalName", "externalName": "a.example.com"}, "makes no services"),
        ({"type": "LoadBalancer"}, ""),
    ):
        one = service("trap", "traefik-system", None, **{"clusterIP": "", **spec})
        said = await refusal(by_default, *CREATE, stdin=yaml.safe_dump(one), by=GATEWAY)
        assert said == "" if not why else why in said, (spec, said)


@pytest.mark.parametrize(
    ("pod", "refused"),
    [
        ({}, False),
        ({"hostNetwork": True}, True),
        ({"volumes": [{"name": "a", "hostPath": {"path": "/"}}]}, True),
        ({"volumes": [{"name": "a", "secret": {"secretName": "openai"}}]}, True),
        ({"volumes": [{"name": "a", "emptyDir": {}}]}, False),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "openai", "key": "key"}}}]}, True),
        ({"env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "huggingface-token", "key": "token"}}}]}, False),
        ({"envFrom": [{"secretRef": {"name": "openai"}}]}, True),
    ],
)
async def test_an_engine_on_the_hub_has_no_secret_but_one_and_nothing_of_its_node(
    giving: Hub, pod: Manifest, *, refused: bool
) -> None:
    where = ENGINES[0]
    api = await giving.given(f"llmInferences.onHub.ml-team={{{','.join(ENGINES)}}}")
    of_container = {name: pod[name] for name in ("env", "envFrom") if name in pod}
    of_pod = {name: value for name, value in pod.items() if name not in of_container}
    template = {"containers": [{"name": "c", "image": "example.com/engine", **of_container}], **of_pod}
    labels_of_pod = {"app": "engine"}
    found = plain("apps/v1", "Deployment", "engine")
    metadata = {**found["metadata"], "namespace": where, "labels": OURS}
    spec = {
        "selector": {"matchLabels": labels_of_pod},
        "template": {"metadata": {"labels": labels_of_pod}, "spec": template},
    }

    said = await refusal(api, *APPLY, stdin=yaml.safe_dump({**found, "metadata": metadata, "spec": spec}))

    assert ("no Deployments that have a Secret" in said) is refused, said
    assert refused or said == ""


def rendered_for(folder: str) -> list[Manifest]:
    return [
        one
        for path in sorted((ROOT / "tests/rendering/golden" / folder).glob("*.out.yaml"))
        for one in yaml.safe_load_all(path.read_text())
        if one
        and one.get("kind") not in (None, "IPAddressPool", "L2Advertisement", "VLLMRuntime")
        and (one["kind"] != "Ingress" or one["metadata"]["namespace"] in ENGINES)
    ]
