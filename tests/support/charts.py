"""Charts as tests need them: small, under the names of the real ones, packed into a folder that is the mirror."""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from pathlib import Path

CONFIG = """
apiVersion: v1
kind: ConfigMap
metadata: {name: {{ .Release.Name }}}
data: {values: {{ toJson .Values | quote }}, version: {{ .Chart.Version | quote }}}
{{- if .Values.refused }}
---
apiVersion: v1
kind: Service
metadata: {name: {{ .Release.Name }}}
spec: {ports: [{port: 99999}]}
{{- end }}
"""
"""A chart that says what it was given; with `refused: true` no API server takes it."""

HOOK = """
{{- if .Values.hang }}
apiVersion: batch/v1
kind: Job
metadata:
  name: {{ .Release.Name }}-hook
  annotations: {helm.sh/hook: "pre-install,pre-upgrade,pre-rollback,pre-delete"}
spec: {template: {spec: {restartPolicy: Never, containers: [{name: hook, image: hook}]}}}
{{- end }}
"""
"""With `hang: true` Helm waits for a Job that nobody runs."""

SIMPLE: Mapping[str, str] = {"templates/config.yaml": CONFIG, "templates/hook.yaml": HOOK}


def pack(mirror: Path, name: str, version: str, files: Mapping[str, str] = SIMPLE) -> Path:
    """Put a chart into the mirror."""
    described = {"Chart.yaml": f"apiVersion: v2\nname: {name}\nversion: {version}\n", **files}
    package = mirror / f"{name}-{version}.tgz"
    with tarfile.open(package, "w:gz") as archive:
        for path, text in described.items():
            entry = tarfile.TarInfo(f"{name}/{path}")
            entry.size = len(text.encode())
            archive.addfile(entry, io.BytesIO(text.encode()))
    return package
