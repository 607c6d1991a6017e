"""What a stolen token of the operator's account gives on the hub, with the chart's permissions on a real API server."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field

import pytest
import yaml

from localfleet import binaries
from modelplane_operator.api import labels
from tests.support.api import Api
from tests.support.chart import NAMESPACE, permissions
from tests.support.manifests import Manifest
from tests.support.policies import obeyed

pytestmark = pytest.mark.fleet

OPERATOR = f"--as=system:serviceaccount:{NAMESPACE}:modelplane-operator"
CREATE = ("create", "--dry-run=server", "-f", "-")
VALUES = ("hubGateway.envoyGateway=true", "hubGateway.metallb=true")
HOMES = (NAMESPACE, "traefik-system", "envoy-gateway-system", "metallb-system", "named", "unnamed")


@pytest.fixture(scope="module")
async def hub(api: Api) -> Api:
    for name in HOMES:
        home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
        await api.kubectl("apply", "--server-side", "-f", "-", stdin=yaml.safe_dump(home))
        await api.kubectl("create", "secret", "generic", "openai", f"-n{name}", "--from-literal=key=canary")
    return api


@dataclass(slots=True)
class Hub:
    """The hub, and what it permits the chart's account: that stays while the next test asks for the same."""

    api: Api
    granted: dict[tuple[str, ...], str] = field(default_factory=dict[tuple[str, ...], str])

    async def given(self, *values: str) -> Api:
        """The hub while the account has the permissions that go with these values of the chart."""
        if values not in self.granted:
            for text in self.granted.values():
                await self.api.kubectl("delete", "-f", "-", stdin=text)
            rendered = yaml.safe_dump_all(one for one in await permissions(*values) if one["kind"] != "Namespace")
            await self.api.kubectl("apply", "--server-side", "-f", "-", stdin=rendered)
            await obeyed(self.api)
            self.granted = {values: rendered}
        return self.api


@pytest.fixture(scope="module")
def giving(hub: Api) -> Hub:
    return Hub(hub)


@pytest.fixture
async def by_default(giving: Hub) -> Api:
    return await giving.given()


@pytest.fixture
async def with_names(giving: Hub) -> Api:
    return await giving.given("tenantNamespaces={named}")


@pytest.fixture
async def with_everything(giving: Hub) -> Api:
    return await giving.given(*VALUES)


async def refusal(api: Api, *arguments: str, stdin: str = "") -> str:
    """Why the operator's account may not do that; empty when it may."""
    try:
        await api.kubectl(*arguments, OPERATOR, **({"stdin": stdin} if stdin else {}))
    except AssertionError as error:
        return str(error)
    return ""


async def may(api: Api, asked: dict[str, str]) -> bool:
    """Whether the operator's account may do that, as `kubectl auth can-i` asks; no namespace: everywhere."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": OPERATOR.partition("=")[2], "groups": groups, "resourceAttributes": asked},
    }
    path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
    return (await api.client.request("POST", path, body=review))["status"]["allowed"]


async def test_by_default_secrets_are_read_by_their_name_alone(by_default: Api) -> None:
    assert await refusal(by_default, "get", "secret", "openai", "-nunnamed") == ""
    for listed in (("-A",), ("-nunnamed",), ("-nkube-system",)):
        assert "cannot list resource" in await refusal(by_default, "get", "secrets", *listed)


@pytest.mark.parametrize(
    ("verb", "resource"),
    [
        ("create", "pods/exec"),
        ("get", "pods/exec"),
        ("create", "pods/attach"),
        ("create", "pods/portforward"),
        ("patch", "pods/ephemeralcontainers"),
        ("update", "pods/ephemeralcontainers"),
        ("get", "pods/proxy"),
        ("get", "services/proxy"),
        ("get", "nodes/proxy"),
        ("create", "serviceaccounts/token"),
        ("impersonate", "serviceaccounts"),
    ],
)
async def test_it_steps_into_no_pod_and_takes_nobodys_place(with_everything: Api, verb: str, resource: str) -> None:
    of, _, part = resource.partition("/")
    for where in ("", *HOMES):
        asked = {"verb": verb, "resource": of, "subresource": part, "namespace": where}
        assert not await may(with_everything, asked), f"it may in {where or 'all namespaces'}"
    assert await may(with_everything, {"verb": "get", "resource": "secrets", "namespace": "named"}), "it may something"


async def test_with_named_namespaces_no_other_ones_secret_is_read(with_names: Api) -> None:
    assert await refusal(with_names, "get", "secret", "openai", "-nnamed") == ""
    assert "cannot get resource" in await refusal(with_names, "get", "secret", "openai", "-nunnamed")
    opted_in = ("rolebinding", "modelplane", "-nunnamed")
    await with_names.kubectl(
        *("create", *opted_in, "--clusterrole=modelplane-operator-tenant"),
        f"--serviceaccount={NAMESPACE}:modelplane-operator",
    )
    assert await refusal(with_names, "get", "secret", "openai", "-nunnamed") == ""
    await with_names.kubectl("delete", *opted_in)


def definition(group: str) -> Manifest:
    schema = {"openAPIV3Schema": {"type": "object"}}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"traps.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": "Trap", "plural": "traps"},
            "versions": [{"name": "v1", "served": True, "storage": True, "schema": schema}],
        },
    }


def role(name: str) -> Manifest:
    rules = [{"apiGroups": [""], "resources": ["services"], "verbs": ["get"]}]
    return {**_named("rbac.authorization.k8s.io/v1", "ClusterRole", name), "rules": rules}


def binding(name: str) -> Manifest:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mp-metallb:controller"}
    return {**_named("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name), "roleRef": reference}


def webhook(name: str) -> Manifest:
    return {**_named("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", name), "webhooks": []}


def namespace(name: str) -> Manifest:
    return _named("v1", "Namespace", name)


def _named(api_version: str, kind: str, name: str) -> Manifest:
    return {"apiVersion": api_version, "kind": kind, "metadata": {"name": name}}


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        (definition("example.com"), definition("metallb.io")),
        (role("anything"), role("mp-metallb:speaker")),
        (binding("anything"), binding("mp-metallb:speaker")),
        (webhook("trap"), webhook("metallb-webhook-configuration")),
        (namespace("trap"), namespace("traefik-system")),
    ],
    ids=lambda one: f"{one['kind']} {one['metadata']['name']}",
)
async def test_what_is_made_everywhere_is_made_by_its_name(
    with_everything: Api, theirs: Manifest, ours: Manifest
) -> None:
    await with_everything.kubectl("apply", "-f", "-", stdin=yaml.safe_dump(role("mp-metallb:controller")))

    assert "the operator makes no" in await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(theirs))
    assert "orbidden" not in await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(ours)), "it may be there"


def held(kind: str, name: str = "trap", **more: str) -> Manifest:
    """A Secret of that type where Traefik's chart goes."""
    metadata = {"name": name, "namespace": "traefik-system", **({"annotations": more} if more else {})}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": kind}


def converted(group: str, namespace: str) -> Manifest:
    """A kind whose objects a Service converts."""
    found, service = definition(group), {"name": "thief", "namespace": namespace, "path": "/"}
    webhook = {"conversionReviewVersions": ["v1"], "clientConfig": {"service": service}}
    return {**found, "spec": {**found["spec"], "conversion": {"strategy": "Webhook", "webhook": webhook}}}


async def test_no_kind_that_it_makes_or_changes_is_converted_by_a_thief(with_everything: Api) -> None:
    for group, namespace, refused in (
        ("gateway.envoyproxy.io", "metallb-system", True),
        ("metallb.io", "named", True),
        ("metallb.io", "metallb-system", False),
    ):
        said = await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(converted(group, namespace)))
        assert ("makes no customresourcedefinitions" in said) is refused, (group, namespace, said)


def program(kind: str, namespace: str, account: str) -> Manifest:
    pod: Manifest = {"containers": [{"name": "c", "image": "example.com/thief"}], "restartPolicy": "Always"}
    template = {"metadata": {"labels": {"app": "trap"}}, "spec": {**pod, "serviceAccountName": account}}
    spec = {"selector": {"matchLabels": {"app": "trap"}}, "template": template}
    metadata = {"name": "trap", "namespace": namespace}
    return {"apiVersion": "apps/v1", "kind": kind, "metadata": metadata, "spec": spec}


async def test_where_charts_go_it_makes_what_helm_makes_and_no_token(with_everything: Api) -> None:
    tried = [
        # Kubernetes would write a token of Traefik's into it, which lists the Secrets of tenants.
        (held("kubernetes.io/service-account-token", **{"kubernetes.io/service-account.name": "traefik"}), True),
        (held("Opaque"), True),
        (held("helm.sh/release.v1", "sh.helm.release.v1.mp-traefik.v1"), False),
        (program("Deployment", "traefik-system", "default"), True),
        (program("DaemonSet", "envoy-gateway-system", ""), True),
        (program("Deployment", "traefik-system", "traefik"), False),
        (program("Deployment", "envoy-gateway-system", "envoy-gateway"), False),
        (program("Deployment", "metallb-system", "anybody"), False),
    ]
    for manifest, refused in tried:
        said = await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(manifest))
        assert ("the operator makes no" in said) is refused, (manifest, said)
        assert refused or said == "", (manifest, said)


@pytest.mark.parametrize(
    "objects",
    [
        definition("example.com"),
        role("anything"),
        binding("anything"),
        webhook("trap"),
    ],
    ids=lambda one: one["kind"],
)
async def test_what_is_there_everywhere_is_changed_and_deleted_by_its_name(
    with_everything: Api, objects: Manifest
) -> None:
    text = yaml.safe_dump(objects)
    await with_everything.kubectl("apply", "-f", "-", stdin=text)

    changed = await refusal(with_everything, "label", "--overwrite", "-f", "-", "a=b", stdin=text)
    deleted = await refusal(with_everything, "delete", "--wait=false", "-f", "-", stdin=text)

    assert "cannot patch resource" in changed or "cannot get resource" in changed
    assert "cannot delete resource" in deleted
    await with_everything.kubectl("delete", "-f", "-", stdin=text)


async def test_of_the_secrets_beside_it_the_account_makes_and_deletes_those_of_gateways_alone(by_default: Api) -> None:
    def beside(name: str, kind: str = "kubernetes.io/tls", **more: str) -> str:
        manifest = held(kind, name, **more)
        keys = {"data": {"tls.crt": "", "tls.key": ""}}
        return yaml.safe_dump({**manifest, **keys, "metadata": {**manifest["metadata"], "namespace": NAMESPACE}})

    def drop(name: str) -> tuple[str, ...]:
        return ("delete", "--dry-run=server", "secret", name, f"-n{NAMESPACE}", "--wait=false")

    ours = "modelplane-gateway-authority-1"
    await by_default.kubectl("create", "secret", "generic", ours, f"-n{NAMESPACE}")
    assert "makes and deletes no other" in await refusal(by_default, *CREATE, stdin=beside("trap"))
    assert "makes and deletes no other" in await refusal(by_default, *drop("openai"))
    assert await refusal(by_default, *CREATE, stdin=beside("modelplane-gateway-certificate")) == ""
    # Kubernetes would write a token of the operator's into it, which never ends.
    eternal = {"kubernetes.io/service-account.name": "modelplane-operator"}
    for kind, notes in (("kubernetes.io/service-account-token", eternal), ("Opaque", {})):
        trap = beside("modelplane-gateway-x", kind, **notes)
        assert "makes and deletes no other" in await refusal(by_default, *CREATE, stdin=trap), kind
    assert await refusal(by_default, *drop(ours)) == ""
    await by_default.kubectl("delete", "secret", ours, f"-n{NAMESPACE}")


def asking(name: str, group: str, namespace: str) -> Manifest:
    """A webhook's configuration: what is written of a group is sent to a Service."""
    service = {"name": "theirs", "namespace": namespace, "path": "/a", "port": 443}
    hook = {
        "name": "admission.modelplane.ai",
        "admissionReviewVersions": ["v1"],
        "clientConfig": {"service": service, "caBundle": ""},
        "failurePolicy": "Ignore",
        "sideEffects": "None",
        "rules": [{"apiGroups": [group], "apiVersions": ["*"], "operations": ["CREATE"], "resources": ["*"]}],
    }
    return {**webhook(name), "webhooks": [hook]}


OWN, METALLBS = "modelplane-operator", "metallb-webhook-configuration"
EVERYTHING = [{"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["*"], "resources": ["*/*"]}]


@pytest.mark.parametrize(
    "change",
    [
        {"rules": EVERYTHING},
        {"failurePolicy": "Fail"},
        {"clientConfig": {"url": "https://thief.example.com/"}},
        {"clientConfig": {"service": {"name": "thief", "namespace": NAMESPACE, "path": "/a"}}},
        {"clientConfig": {"service": {"name": "theirs", "namespace": NAMESPACE, "path": "/a", "port": 8443}}},
        {"matchConditions": [{"name": "none", "expression": "false"}]},
        {"namespaceSelector": {"matchLabels": {"a": "b"}}},
        {"timeoutSeconds": 30},
        {"name": "thief.modelplane.ai"},
    ],
    ids=lambda change: next(iter(change)),
)
async def test_of_its_webhooks_configuration_it_writes_whom_to_trust_and_the_path_and_no_more(
    by_default: Api, change: Manifest
) -> None:
    text = yaml.safe_dump(asking(OWN, "modelplane.ai", NAMESPACE))
    await by_default.kubectl("apply", "--server-side", "--force-conflicts", "-f", "-", stdin=text)
    stored = yaml.safe_load(await by_default.kubectl("get", "validatingwebhookconfiguration", OWN, "-oyaml"))
    (hook,) = stored["webhooks"]

    async def replaced(hooks: list[Manifest], **metadata: object) -> str:
        changed = {**stored, "webhooks": hooks, "metadata": {**stored["metadata"], **metadata}}
        return await refusal(by_default, "replace", "--dry-run=server", "-f-", stdin=yaml.safe_dump(changed))

    held = "changes no more of its webhook's configuration"
    assert held in await replaced([{**hook, **change}])
    assert held in await replaced([hook, {**hook, "name": "thief.modelplane.ai", "rules": EVERYTHING}])
    assert held in await replaced([])
    assert held in await replaced([hook], finalizers=["example.com/kept"])
    access = yaml.safe_load(by_default.server.kubeconfig.read_text())["clusters"][0]["cluster"]
    service = {**hook["clientConfig"]["service"], "path": "/b"}
    ours = {"service": service, "caBundle": access["certificate-authority-data"]}
    assert await replaced([{**hook, "clientConfig": ours}]) == "", "that is the operator's to write"


async def test_metallbs_webhook_is_asked_of_metallbs_kinds_alone(with_everything: Api) -> None:
    speaker = "--as=system:serviceaccount:metallb-system:mp-metallb-controller"
    for group, namespace, taken in (
        ("metallb.io", "metallb-system", True),
        ("*", "metallb-system", False),
        ("", "metallb-system", False),
        ("metallb.io", "named", False),
    ):
        text = yaml.safe_dump(asking(METALLBS, group, namespace))
        assert ("makes no" in await refusal(with_everything, *CREATE, stdin=text)) is not taken, (group, namespace)
    # The operator may make a program that runs as MetalLB's.
    text = yaml.safe_dump(asking(METALLBS, "metallb.io", "metallb-system"))
    await with_everything.kubectl("apply", "-f-", stdin=text)
    given = ("--clusterrole=modelplane-operator-hub-gateway", "--serviceaccount=metallb-system:mp-metallb-controller")
    await with_everything.kubectl("create", "clusterrolebinding", "metallbs", *given)
    rules = f'[{{"op": "replace", "path": "/webhooks/0/rules", "value": {json.dumps(EVERYTHING)}}}]'
    patch = ("patch", "validatingwebhookconfiguration", METALLBS, "--type=json", "--dry-run=server", f"-p={rules}")
    with pytest.raises(AssertionError, match="makes no"):
        await with_everything.kubectl(*patch, speaker)
    await with_everything.kubectl("delete", "clusterrolebinding", "metallbs")
    await with_everything.kubectl("delete", "-f-", stdin=text)


OURS = {labels.OWNER_UID: "7f9c24e8", labels.OWNER_KIND: "ModelEndpoint"}
NAMED = "qwen-0123456789"
APPLY = ("apply", "--server-side", "--force-conflicts", "--dry-run=server", "-f", "-")


def service(name: str, where: str, marks: Manifest | None = OURS, **spec: object) -> Manifest:
    found = _named("v1", "Service", name)
    metadata = {**found["metadata"], "namespace": where, "labels": dict(marks or {})}
    ports = [{"name": "http", "port": 80, "targetPort": 80}]
    return {**found, "metadata": metadata, "spec": {"clusterIP": "None", "ports": ports, **spec}}


def endpoints(of: str, where: str, marks: Manifest = OURS, name: str = "") -> Manifest:
    found = _named("discovery.k8s.io/v1", "EndpointSlice", name or f"{of}-ipv4")
    metadata = {**found["metadata"], "namespace": where, "labels": {**marks, labels.SERVICE_NAME: of}}
    thief = [{"addresses": ["192.0.2.1"], "conditions": {"ready": True}}]
    return {**found, "metadata": metadata, "addressType": "IPv4", "ports": [], "endpoints": thief}


def routed(name: str, where: str, marks: Manifest = OURS, kind: str = "HTTPRoute") -> Manifest:
    found = _named("gateway.networking.k8s.io/v1", kind, name)
    spec: Manifest = {"parentRefs": [{"name": "a"}]}
    if kind == "Gateway":
        spec = {"gatewayClassName": "a", "listeners": [{"name": "a", "port": 80, "protocol": "HTTP"}]}
    return {**found, "metadata": {**found["metadata"], "namespace": where, "labels": dict(marks)}, "spec": spec}


def middleware(name: str, where: str, marks: Manifest = OURS) -> Manifest:
    found = _named("traefik.io/v1alpha1", "Middleware", name)
    return {**found, "metadata": {**found["metadata"], "namespace": where, "labels": dict(marks)}, "spec": {}}


@pytest.fixture(scope="module")
async def routing(hub: Api) -> Api:
    """The hub with the kinds of routes."""
    programs = binaries.ensure("gateway-api-crds", "traefik-crds")
    await hub.define(programs["gateway-api-crds"], programs["traefik-crds"] / "01-traefik-crd.yml")
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
        (routed("modelplane", "named", kind="Gateway"), "no Gateways but the hub's own"),
        (middleware(NAMED, "named"), ""),
        (middleware(NAMED, "named", {}), "do not carry its label"),
    ],
    ids=lambda one: f"{one['kind']}-{one['metadata']['name']}" if isinstance(one, dict) else one,
)
async def test_of_what_leads_requests_it_makes_its_own_where_tenants_are(
    routing: Api, by_default: Api, manifest: Manifest, why: str
) -> None:
    said = await refusal(by_default, *APPLY, stdin=yaml.safe_dump(manifest))

    assert said == "" if not why else why in said, said


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


async def test_the_hubs_api_server_keeps_its_own_address(by_default: Api) -> None:
    said = await refusal(by_default, "label", "service", "kubernetes", "-ndefault", "--dry-run=server", "a=b")

    assert "do not carry its label" in said


async def test_no_service_gets_the_address_of_another_one_by_its_status(routing: Api, with_everything: Api) -> None:
    balanced = service("theirs", "named", None, type="LoadBalancer", clusterIP="")
    await with_everything.kubectl("apply", "-f-", stdin=yaml.safe_dump(balanced))
    stored = yaml.safe_load(await with_everything.kubectl("get", "service", "theirs", "-nnamed", "-oyaml"))
    stolen = yaml.safe_dump({**stored, "status": {"loadBalancer": {"ingress": [{"ip": "192.0.2.1"}]}}})

    said = await refusal(with_everything, "replace", "--subresource=status", "--dry-run=server", "-f-", stdin=stolen)

    assert "writes no status of services" in said
    await with_everything.kubectl("delete", "service", "theirs", "-nnamed")


async def test_of_what_users_write_it_changes_its_finalizer_alone(by_default: Api) -> None:
    group = "modelplane.ai/v1alpha1"
    changed = {"mutualTLS": "Never", "endpoints": [{"weight": 7, "selector": {"matchLabels": {"a": "b"}}}]}
    theirs: list[Manifest] = [
        {
            **_named(group, "InferenceGateway", "default"),
            "spec": {"backend": "Traefik", "traefik": {"version": "40.0.0"}},
        },
        {**_named(group, "ModelService", "chat"), "spec": {"endpoints": [{"selector": {"matchLabels": {"a": "b"}}}]}},
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
            said = await refusal(by_default, "patch", *what, "--dry-run=server", f"-p={json.dumps(change)}")
            assert ("changes its own finalizer" in said) is not taken, (what, change, said)
            assert not taken or said == ""
        await by_default.kubectl("delete", "-nnamed", "-f-", stdin=text)


def patched(name: str, change: Manifest) -> tuple[str, ...]:
    return ("patch", "secret", name, f"-n{NAMESPACE}", "--type=merge", "--dry-run=server", f"-p={json.dumps(change)}")


async def test_helms_records_of_our_own_release_are_not_its_to_write(by_default: Api) -> None:
    record = "sh.helm.release.v1.modelplane.v7"
    manifest = held("helm.sh/release.v1", record)
    marks = {"owner": "helm", "name": "modelplane", "status": "deployed", "version": "7"}
    manifest["metadata"] |= {"namespace": NAMESPACE, "labels": marks}
    await by_default.kubectl("apply", "-f-", stdin=yaml.safe_dump({**manifest, "data": {"release": "QQ=="}}))

    for change in (
        {"data": {"release": "Qg=="}},
        {"metadata": {"labels": {"status": "failed"}}},
        {"metadata": {"labels": {"owner": None}}},
        {"metadata": {"finalizers": [labels.FINALIZER]}},
    ):
        assert "no record of Helm's" in await refusal(by_default, *patched(record, change)), change
    drop = ("delete", "secret", record, f"-n{NAMESPACE}", "--dry-run=server", "--wait=false")
    assert "no record of Helm's" in await refusal(by_default, *drop)
    # Helm takes what has its label, of whatever type.
    forged = held("kubernetes.io/tls", "modelplane-gateway-x")
    forged["metadata"] |= {"namespace": NAMESPACE, "labels": marks}
    forged["data"] = {"tls.crt": "", "tls.key": "", "release": "Qg=="}
    assert "no record of Helm's" in await refusal(by_default, *CREATE, stdin=yaml.safe_dump(forged))
    await by_default.kubectl("delete", "secret", record, f"-n{NAMESPACE}")


async def test_of_others_secrets_beside_it_it_changes_its_finalizer_and_the_content_of_what_it_holds(
    by_default: Api,
) -> None:
    ours = {"metadata": {"finalizers": [labels.FINALIZER]}}
    other, more = {"data": {"key": "Qg=="}}, {"data": {"more": "Qg=="}}
    refused = "changes of others' Secrets"

    assert refused in await refusal(by_default, *patched("openai", other))
    for change in (
        {"metadata": {"finalizers": ["example.com/kept"]}},
        {"metadata": {"labels": OURS}},
        {"metadata": {"annotations": {"a": "b"}}},
        {"immutable": True},
    ):
        assert refused in await refusal(by_default, *patched("openai", change)), change
    assert "no record of Helm's" in await refusal(
        by_default, *patched("openai", {"metadata": {"labels": {"owner": "helm"}}})
    )
    assert await refusal(by_default, *patched("openai", ours)) == ""
    await by_default.kubectl(*(one for one in patched("openai", ours) if one != "--dry-run=server"))
    assert await refusal(by_default, *patched("openai", other)) == "", "a token is renewed in it"
    assert refused in await refusal(by_default, *patched("openai", more))
    assert refused in await refusal(by_default, *patched("openai", {"data": {"key": None}}))
    let_go = {"metadata": {"finalizers": None}}
    await by_default.kubectl(*(one for one in patched("openai", let_go) if one != "--dry-run=server"))
    token = ("create", "secret", "generic", "token", f"-n{NAMESPACE}", "--type=bootstrap.kubernetes.io/token")
    await by_default.kubectl(*token, "--from-literal=token-id=a")
    await by_default.kubectl(*(one for one in patched("token", ours) if one != "--dry-run=server"))
    assert refused in await refusal(by_default, *patched("token", {"data": {"token-id": "Qg=="}}))
    await by_default.kubectl(*(one for one in patched("token", let_go) if one != "--dry-run=server"))
    await by_default.kubectl("delete", "secret", "token", f"-n{NAMESPACE}")


async def test_the_api_server_counts_what_the_policies_refuse(by_default: Api) -> None:
    """By the labels that the alert ModelplaneAccountRefused asks for."""
    assert "no record of Helm's" in await refusal(
        by_default, *patched("openai", {"metadata": {"labels": {"owner": "helm"}}})
    )

    told = await by_default.kubectl("get", "--raw", "/metrics")
    (counted,) = re.findall(
        r"^apiserver_validating_admission_policy_check_total\{(.*policy=\"modelplane-operator-secrets\".*)\} ",
        told,
        re.M,
    )
    assert 'enforcement_action="deny"' in counted
