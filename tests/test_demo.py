"""The demo's hub has what the chart makes on a hub, but for pods and networks: what is tried is what is installed."""

from __future__ import annotations

import pytest

from localfleet import binaries
from scripts import chart

pytestmark = pytest.mark.fleet


def test_the_demo_has_the_accounts_rights_and_policies_of_the_chart() -> None:
    manifests = chart.rendered(binaries.ensure("helm")["helm"], "modelplane-system")

    kinds = {one["kind"] for one in chart.without_pods(manifests, "modelplane-system")}
    assert kinds == {
        *("Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"),
        *("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"),
    }
    accounts = {one["metadata"]["name"] for one in manifests if one["kind"] == "ServiceAccount"}
    assert {"modelplane-operator", "modelplane-keys"} <= accounts
    assert "--traefik-account=traefik" in chart.arguments(manifests)
