"""Admission policies on a real API server, which obeys one some seconds after it was written."""

from __future__ import annotations

import asyncio
from uuid import uuid4

from localfleet.kubeclient import ApiError
from tests.support.api import Api
from tests.support.manifests import Manifest

REGISTRATION = "admissionregistration.k8s.io/v1"
DEADLINE_SECONDS = 60.0


async def obeyed(api: Api) -> None:
    """Wait until the server obeys all policies and bindings that were written before, and none that was deleted before.

    It learns of policies in the order in which they were written, of bindings likewise, and takes what it has learned
    of both all at once: when it obeys one more of each, it obeys those before. That one among several is obeyed tells
    nothing of the others.
    """
    name = f"last-{uuid4().hex}"
    trial = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}}
    for plural, manifest in (
        ("validatingadmissionpolicies", refusing(name)),
        ("validatingadmissionpolicybindings", binding(name)),
    ):
        await api.client.request("POST", f"/apis/{REGISTRATION}/{plural}", manifest)
    async with asyncio.timeout(DEADLINE_SECONDS):
        while not await refused(api, trial):  # noqa: ASYNC110 - nothing tells of it
            await asyncio.sleep(0.1)


async def refused(api: Api, trial: Manifest) -> bool:
    try:
        await api.client.request("POST", "/api/v1/namespaces/default/configmaps", trial, params={"dryRun": "All"})
    except ApiError as error:
        assert trial["metadata"]["name"] in str(error), "refused for another reason"
        return True
    return False


def refusing(name: str) -> Manifest:
    """A policy that refuses a ConfigMap of its own name."""
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
    spec = {
        "matchConstraints": {"resourceRules": [{**rule, "resourceNames": [name]}]},
        "validations": [{"expression": "false"}],
    }
    return {
        "apiVersion": REGISTRATION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": spec,
    }


def binding(name: str) -> Manifest:
    return {
        "apiVersion": REGISTRATION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
