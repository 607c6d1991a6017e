"""Render the LeaderWorkerSet of an engine that spans several nodes."""

from __future__ import annotations

from kubeloop.objects import Manifest
from modelplane_operator.api import names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.models.replica.render.part import Part
from modelplane_operator.models.replica.render.pods import Lifecycle, render_pod
from modelplane_operator.owned import on_cluster


def render_gang(replica: ModelReplica, engine: PlacedEngine, part: Part, lifecycle: Lifecycle) -> Manifest:
    """Render the LeaderWorkerSet of an engine with a leader and followers."""
    members = {member.role: member for member in engine.members}
    leader, worker = members["Leader"], members["Worker"]
    return {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": on_cluster(replica, names.workload(replica.metadata.name, engine.name)),
        "spec": {
            "replicas": engine.copies,
            "leaderWorkerTemplate": {
                "size": 1 + (worker.worker.nodes if worker.worker else 1),
                "leaderTemplate": render_pod(replica, engine, leader, part, lifecycle),
                "workerTemplate": render_pod(replica, engine, worker, part, lifecycle),
            },
        },
    }
