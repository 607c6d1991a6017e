"""Admission policies on a real API server, which obeys one some seconds after it was written."""

from __future__ import annotations

from collections.abc import Iterable
from uuid import uuid4

import yaml

from localfleet.creation import Creator
from tests.support.api import Api
from tests.support.manifests import Manifest
from tests.support.processes import eventually

REGISTRATION = "admissionregistration.k8s.io/v1"


async def hold_to(api: Api, policies: Iterable[Manifest]) -> None:
    """Have the server obey these policies, as they are now."""
    await api.kubectl("apply", "--server-side", "--force-conflicts", "-f-", stdin=yaml.safe_dump_all(policies))
    await obeyed(api)


async def obeyed(api: Api) -> None:
    """Wait until the server obeys all policies and bindings that were written before, and none that was deleted before.

    It learns of policies in the order in which they were written, of bindings likewise, and takes what it has learned
    of both all at once: when it obeys one more of each, it obeys those before. That one among several is obeyed tells
    nothing of the others.
    """
    name = f"last-{uuid4().hex}"
    await Creator(api.client).create([refusing(name), binding(name)])
    metadata = {"name": name, "namespace": "default"}
    trial = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": metadata}
    await eventually(lambda: api.refusal(trial), lambda said: name in said, "the policies to be obeyed")


def refusing(name: str) -> Manifest:
    """A policy that refuses a Lease of its own name."""
    rule = {"apiGroups": ["coordination.k8s.io"], "apiVersions": ["v1"], "resources": ["leases"]}
    return {
        "apiVersion": REGISTRATION,
        "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": name},
        "spec": {
            "matchConstraints": {"resourceRules": [{**rule, "operations": ["CREATE"], "resourceNames": [name]}]},
            "validations": [{"expression": "false"}],
        },
    }


def binding(name: str) -> Manifest:
    return {
        "apiVersion": REGISTRATION,
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": name},
        "spec": {"policyName": name, "validationActions": ["Deny"]},
    }
