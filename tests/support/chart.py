"""What Helm makes of the operator's chart."""

from __future__ import annotations

import asyncio
from pathlib import Path

import yaml

from localfleet import binaries
from tests.support.manifests import ROOT, Manifest

CHART = ROOT / "charts" / "modelplane-operator"
NAMESPACE = "modelplane-system"
ANYWHERE = "tenantNamespaces=all"
"""Models in all namespaces: what has to be said at install."""


async def helm(*arguments: str, kubeconfig: Path | None = None, succeeds: bool = True) -> str:
    """What helm prints; on failure, what it complains of."""
    program = binaries.ensure("helm")["helm"]
    where = [f"--kubeconfig={kubeconfig}"] if kubeconfig else ["--kube-version=1.36.0"]
    process = await asyncio.create_subprocess_exec(
        program, *arguments, *where, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    async with asyncio.timeout(120):
        said, complained = await process.communicate()
    assert (process.returncode == 0) == succeeds, complained.decode()
    return (said if succeeds else complained).decode()


async def rendered(*values: str) -> list[Manifest]:
    """All that it makes with these values, but for the definitions of our kinds, which are long."""
    chosen = [f"--set={value}" for value in ("crds.enabled=false", ANYWHERE, *values)]
    said = await helm("template", "mp", str(CHART), f"--namespace={NAMESPACE}", *chosen)
    return [manifest for manifest in yaml.safe_load_all(said) if manifest]


async def permissions(*values: str) -> list[Manifest]:
    """What of the chart says who the operator is and what it may do, and where."""
    kinds = {"Namespace", "ServiceAccount", "ClusterRole", "ClusterRoleBinding", "Role", "RoleBinding"}
    policies = {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    return [
        one
        for one in await rendered(*values)
        if one["kind"] in kinds
        or (one["kind"] in policies and one["metadata"]["name"].startswith("modelplane-operator-"))
    ]
