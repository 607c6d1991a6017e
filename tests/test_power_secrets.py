"""Which Secrets beside the operator a stolen token of its account writes: Helm's records are among them."""

# ruff: noqa: F401, F811 - fixtures
from __future__ import annotations

import json
import re

import pytest
import yaml

from modelplane_operator.api import labels
from tests.support.api import Api
from tests.support.chart import NAMESPACE
from tests.support.manifests import Manifest
from tests.support.power import (
    CREATE,
    by_default,
    giving,
    held,
    hub,
    refusal,
)

pytestmark = [pytest.mark.fleet, pytest.mark.server]


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
        {"metadata": {"labels": {labels.OWNER_UID: "7f9c24e8"}}},
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
