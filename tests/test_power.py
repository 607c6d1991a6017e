"""What a stolen token of the operator's account gives on the hub, with the chart's permissions on a real API server."""

# ruff: noqa: F401, F811 - fixtures
from __future__ import annotations

import json

import pytest
import yaml

from tests.support.api import Api
from tests.support.chart import NAMESPACE
from tests.support.manifests import Manifest
from tests.support.power import (
    CREATE,
    GATEWAY,
    HOMES,
    OPERATOR,
    by_default,
    giving,
    held,
    hub,
    plain,
    refusal,
    with_everything,
    with_names,
)

pytestmark = pytest.mark.fleet


async def may(api: Api, asked: dict[str, str], by: str) -> bool:
    """Whether an account may do that, as `kubectl auth can-i` asks; no namespace: everywhere."""
    groups = ["system:serviceaccounts", f"system:serviceaccounts:{NAMESPACE}", "system:authenticated"]
    review = {
        "apiVersion": "authorization.k8s.io/v1",
        "kind": "SubjectAccessReview",
        "spec": {"user": by.partition("=")[2], "groups": groups, "resourceAttributes": asked},
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
async def test_neither_account_steps_into_a_pod_or_takes_anybodys_place(
    with_everything: Api, verb: str, resource: str
) -> None:
    of, _, part = resource.partition("/")
    for by in (OPERATOR, GATEWAY):
        for where in ("", *HOMES):
            asked = {"verb": verb, "resource": of, "subresource": part, "namespace": where}
            assert not await may(with_everything, asked, by), f"{by} may in {where or 'all namespaces'}"
        some = {"verb": "get", "resource": "secrets", "namespace": "named"}
        assert await may(with_everything, some, by), f"{by} may something"


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
    return {**plain("rbac.authorization.k8s.io/v1", "ClusterRole", name), "rules": rules}


def binding(name: str) -> Manifest:
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "mp-metallb:controller"}
    return {**plain("rbac.authorization.k8s.io/v1", "ClusterRoleBinding", name), "roleRef": reference}


def webhook(name: str) -> Manifest:
    return {**plain("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", name), "webhooks": []}


def namespace(name: str) -> Manifest:
    return plain("v1", "Namespace", name)


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

    assert "the operator makes no" in await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(theirs), by=GATEWAY)
    made = await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(ours), by=GATEWAY)
    assert "orbidden" not in made, "it may be there"
    assert "orbidden" in await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(ours)), "the operator makes none"


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
        said = await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(converted(group, namespace)), by=GATEWAY)
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
        said = await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(manifest), by=GATEWAY)
        assert ("the operator makes no" in said) is refused, (manifest, said)
        assert refused or said == "", (manifest, said)
        assert "orbidden" in await refusal(with_everything, *CREATE, stdin=yaml.safe_dump(manifest)), manifest


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

    for by in (OPERATOR, GATEWAY):
        changed = await refusal(with_everything, "label", "--overwrite", "-f", "-", "a=b", stdin=text, by=by)
        deleted = await refusal(with_everything, "delete", "--wait=false", "-f", "-", stdin=text, by=by)
        assert "cannot patch resource" in changed or "cannot get resource" in changed
        assert "cannot delete resource" in deleted or "cannot get resource" in deleted
    await with_everything.kubectl("delete", "-f", "-", stdin=text)


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


async def test_where_the_operator_is_outside_it_writes_the_path_of_its_url_and_no_other_host(by_default: Api) -> None:
    made = asking(OWN, "modelplane.ai", NAMESPACE)
    (hook,) = made["webhooks"]

    def at(url: str) -> str:
        return yaml.safe_dump({**made, "webhooks": [{**hook, "clientConfig": {"url": url}}]})

    await by_default.kubectl("delete", "validatingwebhookconfiguration", OWN, "--ignore-not-found")
    await by_default.kubectl("create", "-f", "-", stdin=at("https://operator.example.com:9443/"))
    stored = yaml.safe_load(await by_default.kubectl("get", "validatingwebhookconfiguration", OWN, "-oyaml"))

    async def moved(url: str) -> str:
        (known,) = stored["webhooks"]
        changed = {**stored, "webhooks": [{**known, "clientConfig": {**known["clientConfig"], "url": url}}]}
        return await refusal(by_default, "replace", "--dry-run=server", "-f-", stdin=yaml.safe_dump(changed))

    assert await moved("https://operator.example.com:9443/a-path") == ""
    for other in (
        "https://thief.example.com:9443/",
        "https://operator.example.com:9444/",
        "https://operator.example.com/",
    ):
        assert "changes no more of its webhook's configuration" in await moved(other), other
    await by_default.kubectl("delete", "validatingwebhookconfiguration", OWN)


async def test_metallbs_webhook_is_asked_of_metallbs_kinds_alone(with_everything: Api) -> None:
    speaker = "--as=system:serviceaccount:metallb-system:mp-metallb-controller"
    for group, namespace, taken in (
        ("metallb.io", "metallb-system", True),
        ("*", "metallb-system", False),
        ("", "metallb-system", False),
        ("metallb.io", "named", False),
    ):
        text = yaml.safe_dump(asking(METALLBS, group, namespace))
        said = await refusal(with_everything, *CREATE, stdin=text, by=GATEWAY)
        assert ("makes no" in said) is not taken, (group, namespace)
    # What installs the hub gateway may make a program that runs as MetalLB's.
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
