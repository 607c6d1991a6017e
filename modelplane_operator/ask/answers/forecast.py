"""Simulate a change: run the operator's own decisions one after the other, without writing anything."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from kubeloop.objects import Key
from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica, labels
from modelplane_operator.api.inference_cluster import Taint
from modelplane_operator.ask.answers.documents import DeploymentOutcome, LeavingReplica
from modelplane_operator.ask.answers.fixes import fixes
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rollout_plan import decide
from modelplane_operator.models.deployment.render import render_replica
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import charges, read
from modelplane_operator.scheduling.prose import describe_leaving, reason_to_move, summary
from modelplane_operator.scheduling.requirement import NoCache

DRAINED = Taint(key=labels.DRAIN, effect="NoExecute")
"""Taint of a drained cluster: replicas that do not tolerate it move to others."""


def forecast(
    before: Snapshot, after: Snapshot, changed: Iterable[Key] = (), clusters: frozenset[str] = frozenset()
) -> tuple[DeploymentOutcome, ...]:
    """Return the outcomes for the requested deployments and for those that the change affects.

    Affected are deployments with replicas on `clusters`, and those without a cluster before.
    """
    fleet = after.fleet()
    requested = {*changed}
    affected = {key for key, owned in before.owned.items() if any(item.spec.cluster_name in clusters for item in owned)}
    existing = set(after.deployment)
    first = sorted((requested | affected) & existing)
    outcomes = [_forecast_deployment(after.deployment[key], after, fleet) for key in first]
    without_capacity = {
        key for key, deployment in after.deployment.items() if len(after.owned.get(key, ())) < deployment.spec.replicas
    }
    outcomes += [
        _forecast_deployment(after.deployment[key], after, fleet) for key in sorted(without_capacity - {*first})
    ]
    return tuple(item for item in outcomes if item.changes or Key(item.namespace, item.name) in requested | affected)


def without(snapshot: Snapshot, cluster: str) -> Snapshot:
    """Return the hub without a cluster."""
    return snapshot.with_clusters(item for item in snapshot.clusters if item.metadata.name != cluster)


def with_drained(snapshot: Snapshot, cluster: str) -> Snapshot:
    """Return the hub with a drained cluster."""

    def drain(item: InferenceCluster) -> InferenceCluster:
        if item.metadata.name != cluster:
            return item
        return item.model_copy(update={"spec": item.spec.model_copy(update={"taints": (*item.spec.taints, DRAINED)})})

    return snapshot.with_clusters(map(drain, snapshot.clusters))


def apply_edits(
    snapshot: Snapshot, deployments: Iterable[ModelDeployment], caches: Iterable[ModelCache] = ()
) -> Snapshot:
    """Return the hub with these objects applied. Existing objects keep their uid and their status."""
    deployments_by_key = dict(snapshot.deployment)
    for item in deployments:
        live = deployments_by_key.get(item.key)
        uid = live.metadata.uid if live else item.metadata.uid or f"of-{item.key}"  # an API server would assign one
        metadata = item.metadata.model_copy(update={"uid": uid})
        deployments_by_key[item.key] = item.model_copy(
            update={"metadata": metadata, "status": live.status if live else None}
        )
    caches_by_key = dict(snapshot.cache)
    for item in caches:
        live_cache = caches_by_key.get(item.key)
        caches_by_key[item.key] = (
            item.model_copy(update={"metadata": live_cache.metadata, "status": live_cache.status})
            if live_cache
            else item
        )
    return replace(snapshot, deployments=tuple(deployments_by_key.values()), caches=tuple(caches_by_key.values()))


def scale(deployment: ModelDeployment, replicas: int) -> ModelDeployment:
    """Return the deployment with another number of replicas."""
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"replicas": replicas})})


def _forecast_deployment(deployment: ModelDeployment, snapshot: Snapshot, fleet: FleetModel) -> DeploymentOutcome:
    """Return the outcome for one deployment, and apply its decision to the fleet model."""
    rollout_plan = decide(_observe(deployment, snapshot, fleet))
    decision = rollout_plan.decision
    suggestions = fixes(snapshot.placement_request(deployment, fleet), decision, fleet, snapshot)
    outcome = DeploymentOutcome(
        namespace=deployment.key.namespace,
        name=deployment.key.name,
        settled=decision.is_complete,
        decision=sentence(summary(decision)),
        added=tuple(f"{item.cluster}/{'+'.join(sorted(charges(item.engines)))}" for item in decision.new),
        removed=tuple(
            LeavingReplica(item.replica.key.name, item.replica.cluster, describe_leaving(item.reason))
            for item in decision.removed
        ),
        restarted=tuple(key.name for key in rollout_plan.changed),
        stuck=tuple(
            LeavingReplica(item.replica.key.name, item.replica.cluster, reason_to_move(item.reason))
            for item in decision.blocked
        ),
        waiting=decision.missing,
        help=tuple(sentence(str(fix)) for fix in suggestions),
        weights=snapshot.describe_awaited_weights(deployment, decision),
    )
    # The next decision takes this one into account.
    for removal in decision.removed:
        fleet.forget_replica(removal.replica.key)
    for placement in decision.new:
        cluster = snapshot.cluster.get(placement.cluster)
        fleet.observe_replica(ModelReplica.parse(render_replica(deployment, placement, cluster)))
    return outcome


def _observe(deployment: ModelDeployment, snapshot: Snapshot, fleet: FleetModel) -> Observed:
    """Return what the controller would observe of a deployment in this snapshot."""
    reference, no_keys = deployment.replica.model_cache_ref, frozenset[Key]()
    cache = snapshot.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
    uid = deployment.metadata.uid
    own = (replica for replica in snapshot.owned.get(deployment.key, ()) if uid and read(replica).owner.uid == uid)
    return Observed(
        deployment=deployment,
        cache=(cache or NoCache.NOT_FOUND) if reference else NoCache.NOT_READ,
        fleet=fleet,
        clusters=snapshot.cluster,
        replicas=tuple(replica.to_manifest() for replica in own),
        endpoints=(),
        routed=no_keys,
        reached=no_keys,
        grace=timedelta(0),
        now=snapshot.now,
    )
