"""Ask the scheduler, from outside the operator, what it would decide for a deployment now, and why."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime

from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.api.types import of
from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.objects import Key
from modelplane_operator.planning.cache_status import awaited
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import charges
from modelplane_operator.scheduling.prose import explain as told
from modelplane_operator.scheduling.reasons import Reason, Spare
from modelplane_operator.scheduling.requirement import Ask, NoCache, ask
from modelplane_operator.scheduling.schedule import schedule
from modelplane_operator.scheduling.survey import Fit, answer


async def explain(key: Key, hub: Kube, *, now: datetime, every_cluster: bool = False) -> str:
    """The decision for one deployment, from what the hub says at this moment; raises NotFound.

    Since when a cluster has not answered only the operator knows: failover for that reason is not foreseen here.
    """
    deployment = ModelDeployment.parse(await hub.get(of(ModelDeployment), key))
    async with asyncio.TaskGroup() as group:
        clusters = group.create_task(hub.list(of(InferenceCluster)))
        replicas = group.create_task(hub.list(of(ModelReplica)))
    return explained(
        deployment,
        await _cache(deployment, hub),
        [InferenceCluster.parse(manifest) for manifest in clusters.result().items],
        [ModelReplica.parse(manifest) for manifest in replicas.result().items],
        now=now,
        every_cluster=every_cluster,
    )


def explained(
    deployment: ModelDeployment,
    cache: ModelCache | NoCache,
    clusters: Sequence[InferenceCluster],
    replicas: Iterable[ModelReplica],
    *,
    now: datetime,
    every_cluster: bool,
) -> str:
    """The decision for one deployment; with `every_cluster` also what each says to one replica more."""
    fleet = FleetModel()
    for cluster in clusters:
        fleet.observe_cluster(cluster)
    for replica in replicas:
        fleet.observe_replica(replica)
    asked = ask(deployment, cache, fleet.devices)
    decision = schedule(asked, fleet, now=now)
    ill = {cluster.metadata.name: words for cluster in clusters if (words := _ill(cluster))}
    every = _answers(asked, decision, fleet, clusters) if every_cluster else None
    return told(decision, ill, every, _weights(cache, clusters) if deployment.replica.model_cache_ref else {})


def _weights(cache: ModelCache | NoCache, clusters: Iterable[InferenceCluster]) -> Mapping[str, str]:
    """What a new replica would wait for, by cluster."""
    if isinstance(cache, NoCache):
        return {}
    known = cache.to_manifest()
    found = {one.metadata.name: awaited(known, one.to_manifest()) for one in clusters}
    return {name: words for name, words in found.items() if words}


def _ill(cluster: InferenceCluster) -> str:
    """What is wrong with a cluster, in the words of its own condition; empty when it is Ready."""
    if cluster.metadata.deletion_timestamp is not None:
        return "its cluster is being deleted"
    ready = next((one for one in cluster.conditions if one.type == "Ready"), None)
    if ready is None or ready.status == "True":
        return "" if ready else "nothing is known of its cluster yet"
    said = " ".join((ready.message or "").split())
    return f"its cluster is not Ready ({ready.reason}){f': {said}' if said else ''}"


def _answers(
    asked: Ask, decision: Decision, fleet: FleetModel, clusters: Iterable[InferenceCluster]
) -> Mapping[str, Reason]:
    """What each cluster says to one replica more, once those that the decision finds a place for are there."""
    names = (cluster.metadata.name for cluster in clusters)
    sites = {name: site for name in names if (site := fleet.site(name)) is not None}
    for placement in decision.new:
        sites[placement.cluster] = sites[placement.cluster].charged(charges(placement.engines))
    found = {name: answer(asked.requirement, site) for name, site in sites.items()}
    return {name: Spare() if isinstance(one, Fit) else one for name, one in found.items()}


async def _cache(deployment: ModelDeployment, hub: Kube) -> ModelCache | NoCache:
    reference = deployment.replica.model_cache_ref
    if reference is None:
        return NoCache.NOT_READ  # nothing asks for one
    found = await hub.find(of(ModelCache), Key(deployment.key.namespace, reference.name))
    return NoCache.NOT_FOUND if found is None else ModelCache.parse(found)
