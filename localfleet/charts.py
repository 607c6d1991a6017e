"""Charts under the names of real ones, for whoever installs charts on a fleet that can fetch none.

What a fleet runs for real (see `cloud/pods.py`), its stand-in installs whole. Any other is one pod, which says that it
is ready and does nothing: its work is done by the fleet's own parts, or not needed there.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Mapping
from pathlib import Path

import yaml

from localfleet import binaries

MANIFESTS = Path(__file__).parent / "manifests"
WHOLE = {
    "traefik": MANIFESTS / "traefik" / "traefik.yaml",
    "gateway-helm": MANIFESTS / "envoy-gateway" / "envoy-gateway.yaml",
}
"""Each begins with its namespace, which charts leave to whoever installs them."""
POD = """
apiVersion: apps/v1
kind: Deployment
metadata: {name: {{ .Release.Name }}}
spec:
  selector: {matchLabels: {app: {{ .Release.Name }}}}
  template:
    metadata: {labels: {app: {{ .Release.Name }}}}
    spec:
      terminationGracePeriodSeconds: 1  # half as long again does a namespace wait that is deleted with pods in it
      securityContext: {runAsNonRoot: true, runAsUser: 65532, seccompProfile: {type: RuntimeDefault}}
      containers:
      - name: main
        image: {{ .Chart.Name | quote }}
        securityContext: {allowPrivilegeEscalation: false, capabilities: {drop: [ALL]}}
"""

# What Traefik's chart makes when it is asked to.
BUDGET = """
{{- if (.Values.podDisruptionBudget).enabled }}
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: traefik, namespace: traefik-system}
spec:
  maxUnavailable: {{ .Values.podDisruptionBudget.maxUnavailable }}
  selector: {matchLabels: {app.kubernetes.io/name: traefik}}
{{- end }}"""


def stand_in(chart: str) -> Mapping[str, str]:
    """The files of the chart that stands in for one of that name."""
    manifest = WHOLE.get(chart)
    if manifest is None:
        return {"templates/all.yaml": POD}
    _, *documents = manifest.read_text().split("\n---\n")
    if chart != "traefik":
        return {"templates/all.yaml": "\n---\n".join(documents)}
    return {"templates/all.yaml": _as_traefiks_chart(documents), "values.yaml": "rbac: {enabled: true}\n"}


def _as_traefiks_chart(documents: list[str]) -> str:
    """With the values of Traefik's chart that say who it is and where it serves."""
    account = ("kind: ServiceAccount\n", "kind: ClusterRole\n", "kind: ClusterRoleBinding\n")
    status = "        - --providers.kubernetesgateway.statusaddress.service.namespace=traefik-system\n"
    served = (
        "{{- with ((.Values.providers).kubernetesGateway).namespaces }}\n"
        '        - --providers.kubernetesgateway.namespaces={{ join "," . }}\n'
        '        - --providers.kubernetescrd.namespaces={{ join "," . }}\n{{- end }}\n'
    )
    return "\n---\n".join(
        f"{{{{- if .Values.rbac.enabled }}}}\n{one}\n{{{{- end }}}}"
        if any(kind in one for kind in account)
        else one.replace(status, status + served)
        for one in (*documents, BUDGET)
    )


def envoy_gateway(version: str) -> Mapping[str, str]:
    """The files of the real gateway-helm, which comes with its program's Go module, as if it were of that version."""
    folder = binaries.ensure("envoy-gateway-chart")["envoy-gateway-chart"]
    files = {str(path.relative_to(folder)): path.read_text() for path in sorted(folder.rglob("*")) if path.is_file()}
    described = {**yaml.safe_load(files["Chart.yaml"]), "version": version, "appVersion": version}
    # Its release fills these in; an image that is left out is the one of the chart's version.
    values = re.sub(r"\$\{\w+\}", "", files.pop("values.tmpl.yaml"))
    return {**files, "Chart.yaml": yaml.safe_dump(described), "values.yaml": values}


def pack(mirror: Path, name: str, version: str, files: Mapping[str, str]) -> Path:
    """Put a chart into a folder, as `helm pull` would."""
    described = {"Chart.yaml": f"apiVersion: v2\nname: {name}\nversion: {version}\n", **files}
    package = mirror / f"{name}-{version}.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for path, text in described.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return package
