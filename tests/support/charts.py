"""Charts as tests need them: small, under the names of the real ones, packed into a folder that is the mirror."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from localfleet import charts

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
    return charts.pack(mirror, name, version, files)
