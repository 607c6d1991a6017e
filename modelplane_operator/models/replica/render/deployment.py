"""An engine whose pods stand alone: a Deployment."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.models.replica.render.part import Part
from modelplane_operator.models.replica.render.pods import Lifecycle, render_pod
from modelplane_operator.owned import on_cluster


def render_deployment(replica: ModelReplica, engine: PlacedEngine, part: Part, lifecycle: Lifecycle) -> Manifest:
    """The Deployment of a standalone engine.

    A replica has as many nodes as it has pods, so that a new pod fits only where an old one has gone. With one pod
    allowed to be missing, the condition Available is true without any of one: count the ready ones.
    """
    name = names.workload(replica.metadata.name, engine.name)
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": on_cluster(replica, name),
        "spec": {
            "replicas": engine.copies,
            "selector": {"matchLabels": {labels.WORKLOAD: name}},
            "strategy": {"type": "RollingUpdate", "rollingUpdate": {"maxSurge": 0, "maxUnavailable": 1}},
            # Longer than a pod may take to start, or it would be called stuck while it loads.
            "progressDeadlineSeconds": lifecycle.startup_seconds + 600,
            "template": render_pod(replica, engine, engine.members[0], part, lifecycle),
        },
    }
