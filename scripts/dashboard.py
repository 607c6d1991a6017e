"""The dashboard that the chart has for Grafana: every metric of docs/operations.md, from who leads to each cluster."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

FILE = Path("charts/modelplane-operator/files/dashboard.json")
WIDTH, HEIGHT, IN_A_ROW = 8, 7, 3
"""Of a panel, on Grafana's grid of 24 columns."""

Json = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Panel:
    """A graph: what it shows, in which unit, and the legend and query of each of its lines."""

    title: str
    unit: str
    queries: Mapping[str, str]


def rate(metric: str, *by: str, only: str = "") -> str:
    return f"sum by ({', '.join(by)}) (rate({metric}{only}[$__rate_interval]))"


def slowest(metric: str, *by: str, share: float = 0.95) -> str:
    return f"histogram_quantile({share}, {rate(f'{metric}_bucket', 'le', *by)})"


CLUSTER = '{cluster=~"$cluster"}'
ROWS: Mapping[str, Sequence[Panel]] = {
    "The operator": (
        Panel(
            "Who leads, and who could",
            "short",
            {
                "leading": "sum(modelplane_leading)",
                "ready": "sum(modelplane_ready)",
                "leading (hub gateway)": "sum(modelplane_hub_gateway_leading)",
            },
        ),
        Panel("Delay of the event loop, at worst", "s", {"{{instance}}": "modelplane_loop_lag_seconds"}),
        Panel(
            "Memory, and open files",
            "short",
            {
                "{{instance}} bytes": 'process_resident_memory_bytes{job=~".*modelplane.*"}',
                "{{instance}} files": 'process_open_fds{job=~".*modelplane.*"}',
            },
        ),
    ),
    "Reconciles": (
        Panel(
            "Reconciles", "ops", {"{{kind}} {{outcome}}": rate("modelplane_reconcile_seconds_count", "kind", "outcome")}
        ),
        Panel("How long 95 of 100 take at most", "s", {"{{kind}}": slowest("modelplane_reconcile_seconds", "kind")}),
        Panel(
            "Under way, and how long the longest goes on",
            "short",
            {
                "{{kind}} running": "sum by (kind) (modelplane_reconciles_running)",
                "{{kind}} longest, s": "max by (kind) (modelplane_reconcile_longest_seconds)",
            },
        ),
        Panel(
            "Objects that are due, and all that wait or run",
            "short",
            {
                "{{kind}} due": "max by (kind) (modelplane_queue_depth)",
                "{{kind}} all": "max by (kind) (modelplane_queue_keys)",
            },
        ),
        Panel("How long the oldest is due", "s", {"{{kind}}": "max by (kind) (modelplane_queue_oldest_seconds)"}),
        Panel(
            "Objects that are left alone, or cannot be read",
            "short",
            {
                "{{kind}} quarantined": "max by (kind) (modelplane_quarantined)",
                "{{resource}} {{stage}}": "sum by (resource, stage) (increase(modelplane_object_failures_total[5m]))",
            },
        ),
    ),
    "Decisions, checks and Events": (
        Panel(
            "How long 99 of 100 decisions of the scheduler take at most",
            "s",
            {"{{outcome}}": slowest("modelplane_scheduler_decision_seconds", "outcome", share=0.99)},
        ),
        Panel(
            "Whether models answer", "ops", {"{{kind}} {{outcome}}": rate("modelplane_checks_total", "kind", "outcome")}
        ),
        Panel(
            "Events; a webhook that was altered",
            "ops",
            {
                "{{outcome}}": rate("modelplane_events_total", "outcome"),
                "altered": "max(modelplane_webhook_altered)",
            },
        ),
    ),
    "Models": (
        Panel(
            "Replicas: asked for, with a cluster, that answer",
            "short",
            {
                "asked for": "sum(modelplane_modeldeployment_spec_replicas)",
                "with a cluster": "sum(modelplane_modeldeployment_status_replicas)",
                "that answer": "sum(modelplane_modeldeployment_status_replicas_ready)",
            },
        ),
        Panel(
            "Replicas without a cluster, by reason",
            "short",
            {"{{reason}}": "sum by (reason) (modelplane_modeldeployment_status_replicas_unplaced)"},
        ),
        Panel(
            "The ten models that lack most replicas",
            "short",
            {
                "{{namespace}}/{{name}}": "topk(10, sum by (namespace, name) "
                "(modelplane_modeldeployment_status_replicas_unplaced))"
            },
        ),
    ),
    "API servers": (
        Panel(
            "Writes",
            "wps",
            {"{{side}} {{verb}} {{resource}}": rate("modelplane_writes_total", "side", "verb", "resource")},
        ),
        Panel(
            "Requests that fail",
            "reqps",
            {
                "{{side}} {{outcome}}": rate(
                    "modelplane_request_seconds_count", "side", "outcome", only='{outcome!="OK"}'
                )
            },
        ),
        Panel(
            "How long 95 of 100 requests take at most",
            "s",
            {"{{side}} {{verb}}": slowest("modelplane_request_seconds", "side", "verb")},
        ),
        Panel(
            "The hub",
            "short",
            {
                "answers": "min(modelplane_hub_answers)",
                "round trip, s": "max(modelplane_hub_round_trip_seconds)",
                "{{resource}} fails for, s": "max by (resource) (modelplane_hub_watch_failing_seconds) > 0",
            },
        ),
        Panel(
            "How long watches of the hub have been silent",
            "s",
            {"{{resource}}": "max by (resource) (modelplane_hub_watch_age_seconds)"},
        ),
        Panel("Objects of the hub", "short", {"{{resource}}": "max by (resource) (modelplane_hub_objects)"}),
    ),
    "Workload clusters": (
        Panel(
            "Clusters that do not answer, or misbehave",
            "short",
            {
                "{{cluster}} is away": f"max by (cluster) (modelplane_cluster_answers{CLUSTER}) == 0",
                "{{cluster}} misbehaves": f"max by (cluster) (modelplane_cluster_misbehaves{CLUSTER}) == 1",
                "{{cluster}} is not verified": f"max by (cluster) (modelplane_cluster_verified{CLUSTER}) == 0",
            },
        ),
        Panel("Round trip", "s", {"{{cluster}}": f"max by (cluster) (modelplane_cluster_round_trip_seconds{CLUSTER})"}),
        Panel(
            "Since when nothing was heard",
            "s",
            {
                "{{cluster}}": f"max by (cluster) (modelplane_cluster_contact_age_seconds{CLUSTER})",
                "{{cluster}}, one watch": f"max by (cluster) (modelplane_cluster_watch_age_seconds{CLUSTER})",
            },
        ),
        Panel(
            "What nothing on the hub owns",
            "short",
            {"{{cluster}}": f"max by (cluster) (modelplane_cluster_orphans{CLUSTER})"},
        ),
        Panel(
            "Clusters by phase of the rollout of charts",
            "short",
            {"{{phase}}": f"sum by (phase) (max by (cluster, phase) (modelplane_stack_rollout{CLUSTER}))"},
        ),
    ),
}


def text() -> str:
    dashboard = {
        "uid": "modelplane-operator",
        "title": "Modelplane operator",
        "tags": ["modelplane"],
        "schemaVersion": 39,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-3h", "to": "now"},
        "templating": {"list": [datasource(), clusters()]},
        "panels": list(panels()),
    }
    return json.dumps(dashboard, indent=2) + "\n"


def datasource() -> Json:
    return {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus", "current": {}}


def clusters() -> Json:
    query = "label_values(modelplane_cluster_answers, cluster)"
    return {
        "name": "cluster",
        "label": "Cluster",
        "type": "query",
        "datasource": source(),
        "definition": query,
        "query": {"query": query, "refId": "cluster"},
        "refresh": 2,
        "sort": 1,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def source() -> Json:
    return {"type": "prometheus", "uid": "${datasource}"}


def panels() -> Iterator[Json]:
    """The rows, one below the other, and what is in each."""
    number, down = 0, 0
    for title, row in ROWS.items():
        number += 1
        yield {
            "id": number,
            "type": "row",
            "title": title,
            "collapsed": False,
            "panels": [],
            "gridPos": place(0, down, 24, 1),
        }
        down += 1
        for index, panel in enumerate(row):
            number += 1
            across, below = index % IN_A_ROW * WIDTH, index // IN_A_ROW * HEIGHT
            yield graph(number, panel, place(across, down + below, WIDTH, HEIGHT))
        down += -(-len(row) // IN_A_ROW) * HEIGHT


def place(x: int, y: int, w: int, h: int) -> Json:
    return {"x": x, "y": y, "w": w, "h": h}


def graph(number: int, panel: Panel, where: Json) -> Json:
    targets = [
        {"refId": chr(ord("A") + index), "datasource": source(), "expr": query, "legendFormat": legend}
        for index, (legend, query) in enumerate(panel.queries.items())
    ]
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "datasource": source(),
        "gridPos": where,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom"},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
        "targets": targets,
    }
