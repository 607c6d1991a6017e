"""The API server that tests share: every module finds it as if it had just been started."""

from __future__ import annotations

from typing import Any

import pytest

from localfleet.kubeclient import ApiError
from localfleet.seed import CRDS
from tests.api.contract import rich
from tests.conftest import Servers
from tests.support.api import Api, path_of

pytestmark = pytest.mark.fleet

TOY: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "toys.example.com"},
    "spec": {
        "group": "example.com",
        "scope": "Cluster",
        "names": {"kind": "Toy", "plural": "toys"},
        "versions": [
            {"name": "v1", "served": True, "storage": True, "schema": {"openAPIV3Schema": {"type": "object"}}}
        ],
    },
}
POLICY: dict[str, Any] = {
    "apiVersion": "admissionregistration.k8s.io/v1",
    "kind": "ValidatingAdmissionPolicy",
    "metadata": {"name": "no"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "resources": ["pods"], "operations": ["CREATE"]}
            ]
        },
        "validations": [{"expression": "false"}],
    },
}
TOYS = "/apis/example.com/v1/toys"


async def held(api: Api) -> dict[str, list[str]]:
    """The names of what there is of some kinds."""
    asked = {
        "namespaces": "/api/v1/namespaces",
        "classes": path_of(rich()["InferenceClass"]),
        "kinds": CRDS,
        "policies": "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies",
        "roles": "/apis/rbac.authorization.k8s.io/v1/clusterroles",
    }
    found = {name: (await api.client.request("GET", path))["items"] for name, path in asked.items()}
    return {name: sorted(one["metadata"]["name"] for one in items) for name, items in found.items()}


async def test_what_a_module_leaves_is_gone_for_the_next(servers: Servers) -> None:
    api = await servers.clean()
    before = await held(api)
    for time in range(2):
        await api.kubectl("create", "namespace", "left")
        await api.kubectl("delete", "clusterrole", "view")
        await api.client.request("POST", CRDS, TOY)
        await api.until_served(TOY)
        metadata = {"name": f"toy-{time}", "finalizers": ["example.com/held"]}
        await api.client.request("POST", TOYS, {"apiVersion": "example.com/v1", "kind": "Toy", "metadata": metadata})
        assert len((await api.client.request("GET", TOYS))["items"]) == 1
        await api.create(rich()["InferenceClass"])

        assert await servers.clean() is api
        assert await held(api) == before
        with pytest.raises(ApiError, match="404"):
            await api.client.request("GET", TOYS)


async def test_a_server_that_still_heeds_a_policy_is_not_used_again(servers: Servers) -> None:
    api = await servers.clean()
    before = await held(api)
    await api.client.request("POST", "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies", POLICY)
    after = await servers.clean()
    assert after is not api
    assert await held(after) == before
