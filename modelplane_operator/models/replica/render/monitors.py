"""Render PodMonitors for engines and pickers, for clusters that have a Prometheus Operator."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render.endpoint_picker import METRICS_PORT_NAME
from modelplane_operator.models.replica.render.part import metrics_path
from modelplane_operator.models.replica.render.pods import PORT_NAME
from modelplane_operator.owned import on_cluster


def render_monitors(replica: ModelReplica, *, picked: bool) -> tuple[Manifest, ...]:
    """Render a PodMonitor for the serving pods and, if there is one, another for the endpoint picker."""
    name, picker = replica.metadata.name, names.picker(replica.metadata.name)
    return (
        _render_monitor(replica, name, {labels.SERVING: name}, PORT_NAME, metrics_path(replica)),
        *(
            [_render_monitor(replica, picker, {labels.PICKER_APP: picker}, METRICS_PORT_NAME, "/metrics")]
            if picked
            else []
        ),
    )


# Tenants control an engine's response, and share the Prometheus. vLLM and SGLang have some thousand samples.
_LIMITS = {"sampleLimit": 20_000, "labelLimit": 64, "labelValueLengthLimit": 4096}
"""Limits on the samples of one scrape."""


def _render_monitor(replica: ModelReplica, name: str, match_labels: dict[str, str], port: str, path: str) -> Manifest:
    """Render a PodMonitor for the pods with these labels."""
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": on_cluster(replica, name),
        "spec": {
            "selector": {"matchLabels": match_labels},
            "podMetricsEndpoints": [{"port": port, "path": path, "followRedirects": False}],
            **_LIMITS,
            "podTargetLabels": [labels.DEPLOYMENT, labels.WORKLOAD],
        },
    }
