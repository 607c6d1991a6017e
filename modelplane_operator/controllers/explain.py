"""Ask the scheduler, from outside the operator, what it would decide for a deployment now, and why."""

from __future__ import annotations

import asyncio
from datetime import datetime

from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.api.base import Key
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.resources import of
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.need import NoCache, ask
from modelplane_operator.scheduling.prose import explain as told
from modelplane_operator.scheduling.schedule import schedule


async def explain(key: Key, hub: Kube, *, now: datetime) -> str:
    """The decision for one deployment, from what the hub says at this moment; raises NotFound.

    Since when a cluster has not answered only the operator knows: failover for that reason is not foreseen here.
    """
    deployment = ModelDeployment.parse(await hub.get(of(ModelDeployment), key))
    async with asyncio.TaskGroup() as group:
        clusters = group.create_task(hub.list(of(InferenceCluster)))
        replicas = group.create_task(hub.list(of(ModelReplica)))
    fleet = FleetModel()
    for manifest in clusters.result().items:
        fleet.observe_cluster(InferenceCluster.parse(manifest))
    for manifest in replicas.result().items:
        fleet.observe_replica(ModelReplica.parse(manifest))
    return told(schedule(ask(deployment, await _cache(deployment, hub), fleet.devices), fleet, now=now))


async def _cache(deployment: ModelDeployment, hub: Kube) -> ModelCache | NoCache:
    reference = deployment.replica.model_cache_ref
    if reference is None:
        return NoCache.NOT_READ  # nothing asks for one
    found = await hub.find(of(ModelCache), Key(deployment.key.namespace, reference.name))
    return NoCache.NOT_FOUND if found is None else ModelCache.parse(found)
