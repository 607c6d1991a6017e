"""A deployment as its controller sees it, on clusters that the scheduler knows."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.models.deployment.plan import Observed
from modelplane_operator.models.deployment.render import render_replica
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.requirement import NoCache, placement_request
from modelplane_operator.scheduling.schedule import schedule
from tests.support.builders import EPOCH
from tests.support.manifests import change

Manifest = dict[str, Any]


def seen(
    subject: ModelDeployment,
    *clusters: InferenceCluster,
    replicas: Iterable[Manifest] = (),
    endpoints: Iterable[Manifest] = (),
    cache: ModelCache | NoCache = NoCache.NOT_READ,
) -> Observed:
    fleet = FleetModel()
    for one in clusters:
        fleet.observe_cluster(one)
    replicas = tuple(replicas)
    for manifest in replicas:
        fleet.observe_replica(ModelReplica.parse(manifest))
    nobody = frozenset[Any]()
    known = {one.metadata.name: one for one in clusters}
    grace = timedelta(seconds=30)
    return Observed(subject, cache, fleet, known, replicas, tuple(endpoints), nobody, nobody, grace, EPOCH)


def placed(subject: ModelDeployment, *clusters: InferenceCluster, ready: bool = True) -> tuple[Manifest, ...]:
    """The replicas of a deployment as the scheduler places them on such clusters, once they are stored."""
    decision = schedule(placement_request(subject), seen(subject, *clusters).fleet, now=EPOCH)
    known = {one.metadata.name: one for one in clusters}
    return tuple(
        stored(render_replica(subject, one, known.get(one.cluster)), ready=ready) for one in decision.placements
    )


def stored(manifest: Manifest, *, ready: bool = True, why: str = "") -> Manifest:
    told = {"status": str(ready), "reason": "Simulated", "message": why, "observedGeneration": 1}
    conditions = [{"type": kind, **told, "lastTransitionTime": EPOCH.isoformat()} for kind in ("ModelReady", "Ready")]
    kept = change(manifest, "metadata.uid", f"uid-of-{manifest['metadata']['name']}")
    kept = change(kept, "metadata.generation", 1)
    return {**change(kept, "metadata.resourceVersion", "1"), "status": {"conditions": conditions}}
