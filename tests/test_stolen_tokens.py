"""What a stolen token of each account of the chart's gives on the hub: docs/permissions.md has the table.

Each place of it is an answer of a real API server to that account, with the chart's permissions and policies.
"""

# ruff: noqa: F401, F811 - fixtures
from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import pytest
import yaml

from localfleet import binaries
from modelplane_operator.api import labels
from scripts.pages import placed
from tests.support.api import Api
from tests.support.chart import NAMESPACE
from tests.support.golden import Golden
from tests.support.manifests import ROOT, Manifest
from tests.support.power import CREATE, Hub, giving, held, hub, plain

pytestmark = [pytest.mark.fleet, pytest.mark.server]

PAGE = ROOT / "docs" / "permissions.md"
ACCOUNTS: Mapping[str, str] = {
    "the operator": f"{NAMESPACE}:modelplane-operator",
    "what installs the hub gateway": f"{NAMESPACE}:modelplane-operator-hub-gateway",
    "the key service": f"{NAMESPACE}:modelplane-keys",
    "Traefik": "traefik-system:traefik",
}
LISTED = "tenantNamespaces={named}"
OURS = {labels.OWNER_UID: "7f9c24e8"}
RECORD = "sh.helm.release.v1.modelplane.v1"


@dataclass(frozen=True, slots=True)
class Deed:
    """What a thief tries, by kubectl; nothing is stored."""

    words: str
    arguments: Sequence[str]
    stdin: Manifest | None = None


def secret(namespace: str) -> Sequence[str]:
    return "get", "secret", "openai", f"-n{namespace}"


def merged(what: str, name: str, namespace: str, **change: object) -> Sequence[str]:
    where = (f"-n{namespace}",) if namespace else ()
    return "patch", what, name, *where, "--type=merge", "--dry-run=server", f"-p={json.dumps(change)}"


def service(marks: Manifest) -> Manifest:
    found = plain("v1", "Service", "qwen-0123456789")
    spec = {"clusterIP": "None", "ports": [{"port": 80}]}
    return {**found, "metadata": {**found["metadata"], "namespace": "named", "labels": marks}, "spec": spec}


def program(**more: str) -> Manifest:
    pod = {"containers": [{"name": "c", "image": "example.com/thief"}], **more}
    template = {"metadata": {"labels": {"app": "trap"}}, "spec": pod}
    spec = {"selector": {"matchLabels": {"app": "trap"}}, "template": template}
    return {**plain("apps/v1", "Deployment", "trap"), "spec": spec}


def asking(resource: str) -> Manifest:
    """The configuration of the operator's webhook, when it is sent what is written of a resource."""
    found = plain("admissionregistration.k8s.io/v1", "ValidatingWebhookConfiguration", "modelplane-operator")
    rule = {"apiGroups": ["*"], "apiVersions": ["*"], "operations": ["CREATE"], "resources": [resource]}
    hook = {"name": "a.modelplane.ai", "admissionReviewVersions": ["v1"], "sideEffects": "None", "rules": [rule]}
    hook["clientConfig"] = {"service": {"name": "a", "namespace": NAMESPACE}}
    return {**found, "webhooks": [{**hook, "failurePolicy": "Ignore", "timeoutSeconds": 1}]}


REPLACE = ("replace", "--dry-run=server", "-f", "-")
DEEDS = (
    Deed("list all Secrets of the hub", ("get", "secrets", "-A")),
    Deed("read a Secret of a listed namespace, by its name", secret("named")),
    Deed("read a Secret of another namespace, by its name", secret("unnamed")),
    Deed("list the Secrets of a listed namespace", ("get", "secrets", "-nnamed")),
    Deed("list kubeconfigs and cloud credentials in `modelplane-system`", ("get", "secrets", f"-n{NAMESPACE}")),
    Deed("read a kubeconfig there, by its name", secret(NAMESPACE)),
    Deed("change a Secret there that is not held", merged("secret", "openai", NAMESPACE, data={"key": "QQ=="})),
    Deed("change Helm's record of our release", merged("secret", RECORD, NAMESPACE, data={"release": "QQ=="})),
    Deed("make a Service of the operator's where tenants are", CREATE, service(OURS)),
    Deed("make another Service there", CREATE, service({})),
    Deed(
        "change the Service of the hub's API server",
        merged("service", "kubernetes", "default", metadata={"labels": OURS}),
    ),
    Deed("change a ModelService of a tenant", merged("modelservice", "chat", "named", metadata={"labels": OURS})),
    Deed("run a program where tenants are", (*CREATE, "-nnamed"), program()),
    Deed("run a program in `modelplane-system`", (*CREATE, f"-n{NAMESPACE}"), program()),
    Deed("run a program in `traefik-system`, as no account", (*CREATE, "-ntraefik-system"), program()),
    Deed("the same as Traefik", (*CREATE, "-ntraefik-system"), program(serviceAccountName="traefik")),
    Deed(
        "step into a pod of the operator's",
        ("create", "--raw", f"/api/v1/namespaces/{NAMESPACE}/pods/a/exec", "-f-"),
        {},
    ),
    Deed("make a token of another account", ("create", "token", "default", "-nkube-system")),
    Deed("have all Secrets that are written sent somewhere", REPLACE, asking("secrets")),
    Deed("make a ClusterRole", CREATE, {**plain("rbac.authorization.k8s.io/v1", "ClusterRole", "trap"), "rules": []}),
    Deed("delete a policy that holds it", ("delete", "validatingadmissionpolicy", "--all", "--dry-run=server")),
)


@pytest.fixture(scope="module")
async def settled(hub: Api) -> Api:
    """The hub with something of everybody's."""
    record, chat = held("helm.sh/release.v1", RECORD), plain("modelplane.ai/v1alpha1", "ModelService", "chat")
    record["metadata"] |= {"namespace": NAMESPACE, "labels": {"owner": "helm"}}
    chat["metadata"] |= {"namespace": "named"}
    chat["spec"] = {"endpoints": [{"selector": {"matchLabels": {"a": "b"}}}]}
    for manifest in (record, chat, asking("none")):
        await hub.kubectl("apply", "-f-", stdin=yaml.safe_dump(manifest))
    return hub


async def answer(api: Api, deed: Deed, account: str) -> str:
    """Whether the server does that for the account: `yes`, or what stops it."""
    stdin = "" if deed.stdin is None else yaml.safe_dump(deed.stdin)
    try:
        await api.kubectl(*deed.arguments, f"--as=system:serviceaccount:{account}", stdin=stdin)
    except AssertionError as error:
        said = str(error)
        assert "orbidden" in said or "ValidatingAdmissionPolicy" in said, f"{deed.words}: {said}"
        return "no, by a policy" if "ValidatingAdmissionPolicy" in said else "no"
    return "**yes**"


async def test_the_page_says_what_a_stolen_token_gives(settled: Api, giving: Hub, golden: Golden) -> None:
    found = dict[tuple[str, str, str], str]()
    for value in ("", LISTED):
        api = await giving.given(*filter(None, [value]))
        for deed in DEEDS:
            for name, account in ACCOUNTS.items():
                found[deed.words, name, value] = await answer(api, deed, account)
    columns = [(name, value) for name in ACCOUNTS for value in ("", LISTED)]
    titles = " | ".join(f"{name}, {'a list' if value else '`all`'}" for name, value in columns)
    rows = [f"| {deed.words} | {' | '.join(found[deed.words, *column] for column in columns)} |" for deed in DEEDS]
    table = "\n".join((f"| With the token of ... | {titles} |", "|---" * (len(columns) + 1) + "|", *rows, ""))
    golden.holds(PAGE, placed(PAGE.read_text(), "stolen tokens", table))
