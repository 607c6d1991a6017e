"""Who scrapes the metrics of engines and pickers: PodMonitors, where the cluster has a Prometheus Operator."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.render.endpoint_picker import METRICS_PORT_NAME
from modelplane_operator.models.replica.render.part import metrics_path
from modelplane_operator.models.replica.render.pods import PORT_NAME
from modelplane_operator.owned import on_cluster


def render_monitors(replica: ModelReplica, *, picked: bool) -> tuple[Manifest, ...]:
    """Return one for the pods that answer requests, and one for the picker before them, if there is one."""
    name, picker = replica.metadata.name, names.picker(replica.metadata.name)
    return (
        _monitor(replica, name, {labels.SERVING: name}, PORT_NAME, metrics_path(replica)),
        *([_monitor(replica, picker, {labels.PICKER_APP: picker}, METRICS_PORT_NAME, "/metrics")] if picked else []),
    )


# What an engine answers is its tenant's, and the Prometheus is everybody's. vLLM and SGLang have some thousand samples.
_LIMITS = {"sampleLimit": 20_000, "labelLimit": 64, "labelValueLengthLimit": 4096}


def _monitor(replica: ModelReplica, name: str, selected: dict[str, str], port: str, path: str) -> Manifest:
    return {
        "apiVersion": "monitoring.coreos.com/v1",
        "kind": "PodMonitor",
        "metadata": on_cluster(replica, name),
        "spec": {
            "selector": {"matchLabels": selected},
            "podMetricsEndpoints": [{"port": port, "path": path, "followRedirects": False}],
            **_LIMITS,
            "podTargetLabels": [labels.DEPLOYMENT, labels.WORKLOAD],
        },
    }
