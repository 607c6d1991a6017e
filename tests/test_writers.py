"""Whose objects others rely on: what a tenant may not write although its roles let it, on a real API server."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest
import yaml

from localfleet import binaries
from modelplane_operator.api import labels, names
from tests.api.contract import rich
from tests.support.api import Api, named
from tests.support.chart import rendered
from tests.support.manifests import ROOT
from tests.support.policies import hold_to, obeyed

Manifest = dict[str, Any]

pytestmark = pytest.mark.fleet

SYSTEM, TEAM, OTHERS = "modelplane-system", "team-a", "team-b"
OPERATOR = f"system:serviceaccount:{SYSTEM}:modelplane-operator"
COLLECTOR = "system:serviceaccount:kube-system:generic-garbage-collector"
TENANT = "jane"
# More than a tenant gets: its roles are not what stops it.
GROUPS = [
    "modelplane.ai",
    "inference.devopstoolkit.ai",
    "gateway.networking.k8s.io",
    "traefik.io",
    "gateway.envoyproxy.io",
]
EVERYTHING = {"apiGroups": GROUPS, "resources": ["*"], "verbs": ["*"]}
KINDS = ("HTTPRoute", "GRPCRoute", "TLSRoute", "TCPRoute", "UDPRoute")
HUB_GATEWAY = {"name": "modelplane", "namespace": SYSTEM}


@dataclass(frozen=True, slots=True)
class Cluster:
    """An API server with people on it."""

    api: Api

    async def applied(self, manifest: Manifest, by: str = TENANT) -> str:
        """Why somebody's write is refused; empty when it goes through."""
        return await self.said(
            "apply", "--server-side", "--force-conflicts", "-f-", by=by, stdin=yaml.safe_dump(manifest)
        )

    async def deleted(self, kind: str, name: str, by: str = TENANT) -> str:
        return await self.said("delete", kind, name, "-n", TEAM, by=by)

    async def said(self, *arguments: str, by: str, stdin: str = "") -> str:
        try:
            await self.api.kubectl(f"--as={by}", *arguments, stdin=stdin)
        except AssertionError as refusal:
            return str(refusal)
        return ""


@pytest.fixture(scope="module")
async def cluster(api: Api) -> AsyncIterator[Cluster]:
    programs = binaries.ensure("gateway-api-crds", "traefik-crds")
    await api.define(programs["gateway-api-crds"], programs["traefik-crds"] / "01-traefik-crd.yml")
    for namespace in (SYSTEM, TEAM, OTHERS):
        await api.kubectl("create", "namespace", namespace)
    users = [
        {"kind": "User", "name": name, "apiGroup": "rbac.authorization.k8s.io"}
        for name in (TENANT, OPERATOR, COLLECTOR)
    ]
    role = {"apiVersion": "rbac.authorization.k8s.io/v1", "metadata": {"name": "all"}}
    chosen = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "all"}
    await api.kubectl(
        *("apply", "-f-"),
        stdin=yaml.safe_dump_all(
            [
                {**role, "kind": "ClusterRole", "rules": [EVERYTHING]},
                {**role, "kind": "ClusterRoleBinding", "roleRef": chosen, "subjects": users},
            ]
        ),
    )
    yield Cluster(api)


async def policies(*values: str) -> list[Manifest]:
    """All but those about the operator's account, which hold it to objects with its label: tests/test_power.py."""
    return [
        one
        for one in await rendered(*values)
        if one["kind"].startswith("ValidatingAdmissionPolicy")
        and not one["metadata"]["name"].startswith("modelplane-operator-")
    ]


@pytest.fixture(scope="module")
async def guarded(cluster: Cluster) -> Cluster:
    await hold_to(cluster.api, await policies())
    return cluster


def route(name: str, *paths: str, kind: str = "HTTPRoute", **spec: Any) -> Manifest:
    """A route to the hub gateway."""
    matches = [{"path": {"type": "Exact", "value": path}} for path in paths]
    port = {"name": "mine", "port": 80}
    rules = [{"backendRefs": [port], **({"matches": matches} if matches else {})}]
    hosts = {"hostnames": ["x.example.com"]} if kind == "TLSRoute" else {}
    return {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": kind,
        "metadata": {"name": name, "namespace": TEAM},
        "spec": {"parentRefs": [HUB_GATEWAY], **hosts, "rules": rules, **spec},
    }


def prefixed(name: str, path: Manifest, **spec: Any) -> Manifest:
    return route(name, rules=[{"matches": [{"path": path}], "backendRefs": [{"name": "mine", "port": 80}]}], **spec)


async def test_an_exact_path_of_another_tenant_does_not_come_to_the_hub_gateway(guarded: Cluster) -> None:
    stolen = route("thief", f"/{OTHERS}/chat/v1/chat/completions")

    assert "take the routes that the operator makes" in await guarded.applied(stolen)
    assert await guarded.applied(stolen, by=OPERATOR) == ""


@pytest.mark.parametrize("kind", KINDS)
async def test_no_kind_of_route_comes_to_the_hub_gateway(guarded: Cluster, kind: str) -> None:
    assert "denied request" in await guarded.applied(route("any", kind=kind))


@pytest.mark.parametrize(
    "parent",
    [
        {**HUB_GATEWAY, "sectionName": "web"},
        {**HUB_GATEWAY, "port": 8000, "kind": "Gateway"},
        {**HUB_GATEWAY, "group": "gateway.networking.k8s.io"},
        {"name": "another", "namespace": SYSTEM},
    ],
)
async def test_however_a_route_names_its_parent(guarded: Cluster, parent: Manifest) -> None:
    assert "denied request" in await guarded.applied(route("spelled", parentRefs=[{"name": "own"}, parent]))


async def test_a_parent_of_the_same_namespace_is_meant_where_none_is_named(guarded: Cluster) -> None:
    beside = named(route("beside", parentRefs=[{"name": "modelplane"}]), "beside", namespace=SYSTEM)

    assert "denied request" in await guarded.applied(beside)
    assert await guarded.applied(route("elsewhere", parentRefs=[{"name": "modelplane"}])) == "", "a Gateway of its own"


async def test_a_route_that_comes_to_the_hub_gateway_later_is_refused_then(guarded: Cluster) -> None:
    assert await guarded.applied(route("later", parentRefs=[{"name": "own"}])) == ""

    assert "denied request" in await guarded.applied(route("later"))


async def test_a_tenant_does_not_change_what_the_operators_route_matches(guarded: Cluster) -> None:
    ours = route("ours", f"/{TEAM}/chat")
    assert await guarded.applied(ours, by=OPERATOR) == ""

    assert "denied request" in await guarded.applied(route("ours", f"/{OTHERS}/chat"))
    labelled = {**ours, "metadata": {**ours["metadata"], "labels": {"mine": "yes"}}}
    assert await guarded.applied(labelled) == "", "what changes no route is not in question"


async def test_listeners_are_not_added_to_the_hub_gateway(guarded: Cluster) -> None:
    listeners = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "ListenerSet",
        "metadata": {"name": "more", "namespace": TEAM},
        "spec": {"parentRef": HUB_GATEWAY, "listeners": [{"name": "web", "port": 8000, "protocol": "HTTP"}]},
    }

    assert "denied request" in await guarded.applied(listeners)


@pytest.mark.parametrize(("which", "refused"), [("traefik", True), ("envoy", True), ("own", False)])
async def test_a_gateway_beside_the_hub_gateway_has_a_class_of_its_own(
    guarded: Cluster, which: str, *, refused: bool
) -> None:
    """Traefik answers the routes of all Gateways of its class at one address."""
    beside = {
        "apiVersion": "gateway.networking.k8s.io/v1",
        "kind": "Gateway",
        "metadata": {"name": f"beside-{which}", "namespace": TEAM},
        "spec": {"gatewayClassName": which, "listeners": [{"name": "web", "port": 8000, "protocol": "HTTP"}]},
    }

    assert ("belong to the hub gateway" in await guarded.applied(beside)) == refused


def of_traefik(kind: str, name: str, **labelled: str) -> Manifest:
    """An object of one of Traefik's kinds."""
    answering = {"routes": [{"kind": "Rule", "match": "PathPrefix(`/`)", "services": [{"name": "mine", "port": 80}]}]}
    spec = {"IngressRoute": answering, "Middleware": {"addPrefix": {"prefix": "/"}}}[kind]
    metadata = {"name": name, "namespace": TEAM, "labels": labelled}
    return {"apiVersion": "traefik.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}


@pytest.mark.parametrize("kind", ["IngressRoute", "Middleware"])
async def test_what_the_hub_gateways_traefik_obeys_is_the_operators(guarded: Cluster, kind: str) -> None:
    """It is told by a label; others of the kind are for a Traefik of the tenant's own."""
    obeyed = of_traefik(kind, "forged", **{labels.OWNER_UID: "u"})
    refusal = "The operator alone writes what the hub gateway obeys"

    assert refusal in await guarded.applied(obeyed)
    assert await guarded.applied(of_traefik(kind, "own")) == ""
    assert refusal in await guarded.applied(of_traefik(kind, "own", **{labels.OWNER_UID: "u"}))
    assert await guarded.applied(named(obeyed, "made"), by=OPERATOR) == ""
    assert refusal in await guarded.applied(of_traefik(kind, "made"))


def replica(name: str, **metadata: Any) -> Manifest:
    stored = {part: value for part, value in rich()["ModelReplica"].items() if part != "status"}
    return named(stored, name, namespace=TEAM, **metadata)


async def test_a_tenant_writes_no_replica(guarded: Cluster) -> None:
    assert "The operator alone writes ModelReplicas" in await guarded.applied(replica("forged"))
    assert await guarded.applied(replica("ours"), by=OPERATOR) == ""

    paused = replica("ours", annotations={"crossplane.io/paused": "true"})
    assert "The operator alone" in await guarded.applied(paused)
    says = ("patch", "modelreplica", "ours", "-n", TEAM, "--subresource=status", "--type=merge", "-p")
    assert "The operator alone" in await guarded.said(*says, '{"status": {"conditions": []}}', by=TENANT)
    assert "The operator alone" in await guarded.deleted("modelreplica", "ours")
    assert await guarded.deleted("modelreplica", "ours", by=COLLECTOR) == ""


@pytest.mark.parametrize(
    ("kind", "forged"),
    [
        ("ModelEndpoint", {"routing": {"rewritePath": "/team-b/victim/"}}),
        ("ModelDeployment", {"replicas": {"ready": 9}}),
        ("ModelService", {"address": "http://elsewhere.example.com"}),
        ("ModelCache", {"clusters": [{"name": "berlin", "volume": "another"}]}),
        ("LLMInference", {"locations": [{"target": "InferenceCluster", "name": "berlin", "namespace": "kube-system"}]}),
    ],
)
async def test_a_tenant_writes_objects_and_not_their_status(guarded: Cluster, kind: str, forged: Manifest) -> None:
    stored = {part: value for part, value in rich()[kind].items() if part != "status"}
    assert await guarded.applied(named(stored, "mine", namespace=TEAM)) == ""

    says = ("patch", kind, "mine", "-n", TEAM, "--subresource=status", "--type=merge", "-p")
    said = await guarded.said(*says, json.dumps({"status": forged}), by=TENANT)
    assert f"The operator alone writes the status of {kind}s" in said
    assert await guarded.said(*says, json.dumps({"status": forged}), by=OPERATOR) == ""


@pytest.mark.parametrize("name", ["llminference:team-b/dev", ""])
async def test_no_status_leads_to_the_cluster_of_another_tenant(guarded: Cluster, name: str) -> None:
    """By whatever name the operator knows the way there, and without any it is the hub."""
    stored = {part: value for part, value in rich()["LLMInference"].items() if part != "status"}
    assert await guarded.applied(named(stored, "leading", namespace=TEAM)) == ""

    places = [{"target": "InferenceCluster", "name": name, "namespace": TEAM}]
    says = ("patch", "LLMInference", "leading", "-n", TEAM, "--subresource=status", "--type=merge", "-p")
    said = await guarded.said(*says, json.dumps({"status": {"locations": places}}), by=OPERATOR)
    assert "status.locations[0].name" in said


async def test_whom_the_values_name_may_write_all_of_it(cluster: Cluster) -> None:
    named = f"admission.writers.users={{{TENANT}}}"
    for policy in await policies(named):
        if policy["metadata"]["name"].endswith(("-hints", "-in-use")):
            continue  # those refuse nobody anything, and these are for everybody
        conditions = [one["expression"] for one in policy["spec"].get("matchConditions", ())]
        assert not conditions or f'"{TENANT}"' in conditions[0]
    kinds = {one["metadata"]["name"] for one in await policies("admission.enabled=false")}
    assert kinds == {f"modelplane-{of}-in-use" for of in ("inferenceclusters", "inferenceclasses", "infrastructure")}


# Kinds of Envoy Gateway's ---------------------------------------------------------------------------------------------


def of_envoy_gateway(kind: str) -> Manifest:
    """The definition of a kind of Envoy Gateway's, with whatever is in it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    version = {"name": "v1alpha1", "served": True, "storage": True, "schema": {"openAPIV3Schema": schema}}
    plural, group = KINDS_OF_ENVOY_GATEWAY[kind], "gateway.envoyproxy.io"
    spec = {"group": group, "names": {"kind": kind, "plural": plural}, "scope": "Namespaced", "versions": [version]}
    metadata = {"name": f"{plural}.{group}"}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": metadata,
        "spec": spec,
    }


POLICIES = {"EnvoyExtensionPolicy": "envoyextensionpolicies", "SecurityPolicy": "securitypolicies"}
KINDS_OF_ENVOY_GATEWAY = {**POLICIES, "Backend": "backends"}
ROUTE, GATEWAY = ({"group": "gateway.networking.k8s.io", "kind": kind} for kind in ("HTTPRoute", "Gateway"))


@pytest.fixture(scope="module")
async def with_envoy_gateway(guarded: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Cluster:
    definitions = tmp_path_factory.mktemp("kinds") / "kinds.yaml"
    definitions.write_text(yaml.safe_dump_all(map(of_envoy_gateway, KINDS_OF_ENVOY_GATEWAY)))
    await guarded.api.define(definitions)
    return guarded


async def test_no_route_gets_a_program_that_changes_its_path(with_envoy_gateway: Cluster) -> None:
    """The operator's own are in the namespaces of tenants, too, and lead to clusters where others have models."""

    def attached(kind: str, **targets: Any) -> Manifest:
        metadata = {"name": "attached", "namespace": TEAM}
        lua = [{"type": "Inline", "inline": "function envoy_on_request(handle) end"}]
        spec = {"lua": lua, **targets}
        return {"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec}

    for kind in POLICIES:
        for targets in (
            {"targetRef": {**ROUTE, "name": "own"}},
            {"targetRefs": [{**GATEWAY, "name": "own"}, {**ROUTE, "name": "own"}]},
            {"targetSelectors": [{**ROUTE, "matchLabels": {}}]},
        ):
            assert "may rewrite what a route asks for" in await with_envoy_gateway.applied(attached(kind, **targets))
        assert await with_envoy_gateway.applied(attached(kind, targetRefs=[{**GATEWAY, "name": "own"}])) == ""
        ours = attached(kind, targetRefs=[{**ROUTE, "name": "own"}])
        assert await with_envoy_gateway.applied(named(ours, "ours"), by=OPERATOR) == ""


async def test_where_the_operators_routes_lead_by_envoy_gateway_no_tenant_changes(with_envoy_gateway: Cluster) -> None:
    """A Backend in the tenant's namespace could lead the gateway to whatever address, inside too."""

    def backend(name: str, address: str, **labelled: str) -> Manifest:
        metadata = {"name": name, "namespace": TEAM, "labels": labelled}
        spec = {"endpoints": [{"ip": {"address": address, "port": 443}}]}
        return {"apiVersion": "gateway.envoyproxy.io/v1alpha1", "kind": "Backend", "metadata": metadata, "spec": spec}

    ours, refusal = {labels.OWNER_UID: "u"}, "The operator alone writes what the hub gateway obeys"
    assert await with_envoy_gateway.applied(backend("ours", "203.0.113.7", **ours), by=OPERATOR) == ""

    assert refusal in await with_envoy_gateway.applied(backend("ours", "169.254.169.254", **ours))
    assert refusal in await with_envoy_gateway.applied(backend("ours", "169.254.169.254"))
    assert refusal in await with_envoy_gateway.applied(backend("forged", "169.254.169.254", **ours))
    assert await with_envoy_gateway.applied(backend("own", "203.0.113.7")) == ""
    freed = ("patch", "backend", "ours", "-n", TEAM, "--type=merge", "-p", '{"metadata": {"ownerReferences": null}}')
    assert await with_envoy_gateway.said(*freed, by=COLLECTOR) == "", "what deletes an owner without its children"


# Below a namespace's own prefix ---------------------------------------------------------------------------------------


OWN, THEIRS = f"/{TEAM}", f"/{OTHERS}"
ALLOWED = [
    {"type": "PathPrefix", "value": OWN},
    {"type": "PathPrefix", "value": f"{OWN}/docs"},
    {"type": "Exact", "value": f"{OWN}/index.html"},
]
REFUSED = [
    {"type": "PathPrefix", "value": "/"},
    {"type": "PathPrefix", "value": f"{OWN}x"},
    {"type": "PathPrefix", "value": THEIRS},
    {"type": "Exact", "value": f"{THEIRS}/chat/v1/chat/completions"},
    {"type": "RegularExpression", "value": f"{OWN}/.*"},
]


@pytest.fixture
async def shared(guarded: Cluster) -> AsyncIterator[Cluster]:
    """The same, where namespaces may bring routes below their own prefix; and afterwards as before."""
    usual = await policies()
    await hold_to(guarded.api, await policies("admission.routes=OwnPrefix"))
    yield guarded
    await hold_to(guarded.api, usual)


async def test_a_route_stays_below_the_prefix_of_its_namespace(shared: Cluster) -> None:
    for number, path in enumerate(ALLOWED):
        assert await shared.applied(prefixed(f"own-{number}", path)) == ""
    headers = [{"path": ALLOWED[1], "method": "GET", "headers": [{"name": "x-kind", "value": "docs"}]}]
    port = {"name": "mine", "port": 80}
    assert await shared.applied(route("own-more", rules=[{"matches": headers, "backendRefs": [port]}])) == ""

    # its requests would be counted as those of service chat in namespace TEAM-b
    forged = prefixed(f"b-{names.service_route(f'{TEAM}-b', 'chat')}", ALLOWED[0])
    assert "ten hexadecimal digits" in await shared.applied(forged)

    for path in REFUSED:
        assert f"begin with {OWN}/" in await shared.applied(prefixed("theirs", path)), path
    both = {"matches": [{"path": ALLOWED[0]}, {"path": REFUSED[2]}], "backendRefs": [port]}
    assert "denied request" in await shared.applied(route("theirs", rules=[both]))
    assert "denied request" in await shared.applied(route("theirs")), "without a match it takes all paths"
    unsaid = {"matches": [{"method": "GET"}], "backendRefs": [port]}
    assert "denied request" in await shared.applied(route("theirs", rules=[unsaid]))
    named = prefixed("theirs", ALLOWED[0], hostnames=["models.example.com"])
    assert "denied request" in await shared.applied(named), "a route with a hostname goes before ours"
    for kind in KINDS[1:]:
        assert "denied request" in await shared.applied(route("theirs", kind=kind))


def rewriting(name: str, *, of_backend: bool = False, **filtering: Any) -> Manifest:
    """A route below its own prefix with a filter of the rule, or of what it leads to."""
    filters, port = {"filters": [filtering]}, {"name": "mine", "port": 80}
    rule = {"backendRefs": [{**port, **filters}]} if of_backend else {"backendRefs": [port], **filters}
    return route(name, rules=[{"matches": [{"path": ALLOWED[0]}], **rule}])


def rewrite(replaced: str = "", **also: str) -> Manifest:
    path = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": replaced}} if replaced else {}
    return {"type": "URLRewrite", "urlRewrite": {**path, **also}}


LEADING = [
    {"type": "RequestHeaderModifier", "requestHeaderModifier": {"set": [{"name": "x-kind", "value": "docs"}]}},
    rewrite(OWN),
    rewrite(f"{OWN}/model-0123456789/v1", hostname="docs.example.com"),
]
MISLEADING = [
    rewrite("/"),
    rewrite(f"{OWN}x/model"),
    rewrite(f"{THEIRS}/model-0123456789", hostname="far.gateways.modelplane.internal"),
    rewrite(hostname="far.gateways.modelplane.internal"),
    rewrite(f"{OWN}/../{OTHERS}/model-0123456789"),
    rewrite(f"{OWN}/%2e%2e/{OTHERS}/model-0123456789"),
    {
        "type": "URLRewrite",
        "urlRewrite": {"path": {"type": "ReplaceFullPath", "replaceFullPath": f"{THEIRS}/model-0123456789/"}},
    },
    {"type": "ExtensionRef", "extensionRef": {"group": "traefik.io", "kind": "Middleware", "name": "mine"}},
]


async def test_a_route_below_its_prefix_leads_to_no_path_of_others(shared: Cluster) -> None:
    """The gateways of clusters answer whom the hub's asks for, by the path."""
    for of_backend in (False, True):
        for number, filtering in enumerate(LEADING):
            assert await shared.applied(rewriting(f"leads-{number}", of_backend=of_backend, **filtering)) == ""
        for filtering in MISLEADING:
            said = await shared.applied(rewriting("misleads", of_backend=of_backend, **filtering))
            assert "take no ExtensionRef" in said, filtering


# On workload clusters -------------------------------------------------------------------------------------------------


STRANGER = route(
    "thief", f"/{OTHERS}/model-0123456789/", parentRefs=[{"name": "inference-gateway", "namespace": SYSTEM}]
)


@pytest.fixture
async def workload(guarded: Cluster) -> AsyncIterator[Cluster]:
    """The same as a workload cluster, where the hub gateway's policies are not."""
    usual = await policies()
    bindings = [one for one in usual if one["kind"].endswith("Binding")]
    await guarded.api.kubectl("delete", "-f-", stdin=yaml.safe_dump_all(bindings))
    await obeyed(guarded.api)
    yield guarded
    await hold_to(guarded.api, usual)


async def test_the_gateway_of_a_workload_cluster_takes_no_strangers_routes(workload: Cluster) -> None:
    """By the policy of examples/access."""
    said = list(yaml.safe_load_all((ROOT / "examples" / "access" / "routes.yaml").read_text()))
    ours = "system:serviceaccount:modelplane-access:modelplane-operator"
    await workload.api.kubectl("create", "clusterrolebinding", "ours", "--clusterrole=all", f"--user={ours}")
    await hold_to(workload.api, said)

    assert "comes from the operator" in await workload.applied(named(STRANGER, "another"))
    assert await workload.applied(named(STRANGER, "ours"), by=ours) == ""
    await workload.api.kubectl("delete", "-f-", stdin=yaml.safe_dump_all(said))


async def test_whoever_has_all_rights_in_a_namespace_makes_no_clusters_by_the_operators_credentials(
    guarded: Cluster,
) -> None:
    owner, platform = "joan", "pat"
    binding = ("create", "rolebinding", owner, "--clusterrole=cluster-admin", f"--user={owner}", "-n", TEAM)
    await guarded.api.kubectl(*binding)
    everywhere = ("create", "clusterrolebinding", platform, "--clusterrole=cluster-admin", f"--user={platform}")
    await guarded.api.kubectl(*everywhere)
    for kind in ("EKSCluster", "GKECluster", "ServingStack"):
        manifest = {part: value for part, value in rich()[kind].items() if part != "status"}
        manifest = named(manifest, "mine", namespace=TEAM)

        refused = await guarded.applied(manifest, by=owner)
        assert "needs the permission to create InferenceClusters" in refused
        assert await guarded.applied(manifest, by=platform) == ""
        status = ("patch", kind, "mine", "-n", TEAM, "--subresource=status", "--type=merge", "-p", '{"status":{}}')
        assert "needs the permission to create InferenceClusters" in await guarded.said(*status, by=owner)
