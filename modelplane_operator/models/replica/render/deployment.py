"""Render the Deployment of an engine whose pods stand alone."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.models.replica.render.part import Part
from modelplane_operator.models.replica.render.pods import Lifecycle, render_pod
from modelplane_operator.owned import on_cluster


def render_deployment(replica: ModelReplica, engine: PlacedEngine, part: Part, lifecycle: Lifecycle) -> Manifest:
    """Render the Deployment of a standalone engine.

    A replica has one node per pod, so a new pod fits only after an old one has gone. With one pod allowed to be
    missing, the condition Available is True without any pod of a single copy: count the ready pods instead.
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
            # Longer than a pod may take to start, or the Deployment would report failure while the pod loads.
            "progressDeadlineSeconds": lifecycle.startup_seconds + 600,
            "template": render_pod(replica, engine, engine.members[0], part, lifecycle),
        },
    }
