"""What the chart makes on a hub, for a demo whose operator is no pod there."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

Manifest = dict[str, Any]

CHART = Path(__file__).resolve().parent.parent / "charts" / "modelplane-operator"
OF_PODS = frozenset(("Deployment", "NetworkPolicy", "PodDisruptionBudget", "Service", "ServiceMonitor"))


class ChartError(Exception):
    """Helm does not render the chart; the message says why."""


def rendered(helm: Path, namespace: str) -> Sequence[Manifest]:
    """Return all of it but the definitions of our kinds: for models in all namespaces, behind Envoy Gateway."""
    chosen = ("--set=crds.enabled=false", "--set=tenantNamespaces=all")
    chosen += ("--set=hubGateway.traefik=false", "--set=hubGateway.envoyGateway=true")
    where = (f"--namespace={namespace}", "--kube-version=1.36.0")
    command = (helm, "template", "modelplane-operator", CHART, *where, *chosen)
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise ChartError(f"the chart cannot be rendered:\n{done.stderr}")
    return [manifest for manifest in yaml.safe_load_all(done.stdout) if manifest]


def without_pods(manifests: Sequence[Manifest], namespace: str, webhook: str) -> Sequence[Manifest]:
    """The accounts, their permissions and all of admission, behind the namespace that Helm would make for them.

    `webhook`: the URL at which the hub's API server asks the operator, as no Service leads to it.
    """
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
    return [home, *(_asking(one, webhook) for one in manifests if one["kind"] not in OF_PODS)]


def _asking(manifest: Manifest, webhook: str) -> Manifest:
    if manifest["kind"] != "ValidatingWebhookConfiguration":
        return manifest
    return {**manifest, "webhooks": [{**one, "clientConfig": {"url": webhook}} for one in manifest["webhooks"]]}


def arguments(manifests: Sequence[Manifest], name: str = "modelplane-operator") -> Sequence[str]:
    """Return the arguments of a Deployment's program, but for where it listens."""
    (container,) = next(
        one["spec"]["template"]["spec"]["containers"]
        for one in manifests
        if (one["kind"], one["metadata"]["name"]) == ("Deployment", name)
    )
    return [argument for argument in container["args"] if not argument.startswith(("--listen=", "--admission-listen="))]
