"""What would become of models with a change: the operator's own decisions, one after the other, and none written."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from datetime import timedelta

from kubeloop.objects import Key
from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.api.inference_cluster import Taint
from modelplane_operator.api.placement import Placement
from modelplane_operator.ask.answers.documents import DeploymentOutcome, LeavingReplica
from modelplane_operator.ask.answers.fixes import fixes
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.models.deployment.plan.course import Course, decide
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.render import render_replica
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import charges, read
from modelplane_operator.scheduling.prose import leaving, reason_to_move, summary
from modelplane_operator.scheduling.requirement import NoCache

DRAINED = Taint(key="modelplane.ai/drain", effect="NoExecute")
"""What a drain of a cluster is: replicas that do not tolerate it move where others take them."""


def forecast(
    before: Snapshot, after: Snapshot, asked: Iterable[Key] = (), clusters: frozenset[str] = frozenset()
) -> tuple[DeploymentOutcome, ...]:
    """Of the deployments that are asked for, and of those that the change concerns: with replicas on these clusters, or
    without a place before."""
    fleet = after.fleet()
    wanted = {*asked}
    moved = {key for key, owned in before.owned.items() if any(one.spec.cluster_name in clusters for one in owned)}
    known = set(after.deployment)
    first = sorted((wanted | moved) & known)
    outcomes = [_outcome(after.deployment[key], after, fleet) for key in first]
    outcomes += [_outcome(after.deployment[key], after, fleet) for key in sorted(_waiting(after) - {*first})]
    return tuple(one for one in outcomes if one.changes or Key(one.namespace, one.name) in wanted | moved)


def without(snapshot: Snapshot, cluster: str) -> Snapshot:
    """The hub without a cluster."""
    return snapshot.with_clusters(one for one in snapshot.clusters if one.metadata.name != cluster)


def drained(snapshot: Snapshot, cluster: str) -> Snapshot:
    """The hub with a cluster that is drained."""

    def tainted(one: InferenceCluster) -> InferenceCluster:
        if one.metadata.name != cluster:
            return one
        return one.model_copy(update={"spec": one.spec.model_copy(update={"taints": (*one.spec.taints, DRAINED)})})

    return snapshot.with_clusters(map(tainted, snapshot.clusters))


def edited(snapshot: Snapshot, deployments: Iterable[ModelDeployment], caches: Iterable[ModelCache] = ()) -> Snapshot:
    """The hub with these objects applied; what is there keeps its uid, and its status."""
    known = dict(snapshot.deployment)
    for one in deployments:
        live = known.get(one.key)
        uid = live.metadata.uid if live else one.metadata.uid or f"of-{one.key}"  # as a server would give it one
        metadata = one.metadata.model_copy(update={"uid": uid})
        known[one.key] = one.model_copy(update={"metadata": metadata, "status": live.status if live else None})
    kept = dict(snapshot.cache)
    for one in caches:
        there = kept.get(one.key)
        kept[one.key] = one.model_copy(update={"metadata": there.metadata, "status": there.status}) if there else one
    return replace(snapshot, deployments=tuple(known.values()), caches=tuple(kept.values()))


def scaled(deployment: ModelDeployment, replicas: int) -> ModelDeployment:
    return deployment.model_copy(update={"spec": deployment.spec.model_copy(update={"replicas": replicas})})


def _waiting(snapshot: Snapshot) -> set[Key]:
    """Deployments that have fewer replicas than they ask for."""
    return {key for key, one in snapshot.deployment.items() if len(snapshot.owned.get(key, ())) < one.spec.replicas}


def _outcome(deployment: ModelDeployment, snapshot: Snapshot, fleet: FleetModel) -> DeploymentOutcome:
    course = decide(_observed(deployment, snapshot, fleet))
    decision = course.decision
    told = fixes(snapshot.placement_request(deployment, fleet), decision, fleet, snapshot)
    outcome = DeploymentOutcome(
        namespace=deployment.key.namespace,
        name=deployment.key.name,
        settled=decision.settled,
        decision=sentence(summary(decision)),
        added=tuple(map(_place, decision.new)),
        removed=tuple(
            LeavingReplica(one.replica.key.name, one.replica.cluster, leaving(one.why)) for one in decision.removed
        ),
        restarted=tuple(key.name for key in course.changed),
        stuck=tuple(
            LeavingReplica(one.replica.key.name, one.replica.cluster, reason_to_move(one.why)) for one in decision.stuck
        ),
        waiting=decision.missing,
        help=tuple(sentence(str(fix)) for fix in told),
        weights=snapshot.awaited(deployment, decision),
    )
    _carry_out(course, deployment, snapshot, fleet)
    return outcome


def _observed(deployment: ModelDeployment, snapshot: Snapshot, fleet: FleetModel) -> Observed:
    reference, nobody = deployment.replica.model_cache_ref, frozenset[Key]()
    cache = snapshot.cache.get(Key(deployment.key.namespace, reference.name)) if reference else None
    uid = deployment.metadata.uid
    mine = (one for one in snapshot.owned.get(deployment.key, ()) if uid and read(one).owner.uid == uid)
    return Observed(
        deployment=deployment,
        cache=(cache or NoCache.NOT_FOUND) if reference else NoCache.NOT_READ,
        fleet=fleet,
        clusters=snapshot.cluster,
        replicas=tuple(one.to_manifest() for one in mine),
        endpoints=(),
        routed=nobody,
        reached=nobody,
        grace=timedelta(0),
        now=snapshot.now,
    )


def _place(placement: Placement) -> str:
    return f"{placement.cluster}/{'+'.join(sorted(charges(placement.engines)))}"


def _carry_out(course: Course, deployment: ModelDeployment, snapshot: Snapshot, fleet: FleetModel) -> None:
    """Have the next decision count on this one, as if it were done."""
    for one in course.decision.removed:
        fleet.forget_replica(one.replica.key)
    for placement in course.decision.new:
        cluster = snapshot.cluster.get(placement.cluster)
        fleet.observe_replica(ModelReplica.parse(render_replica(deployment, placement, cluster)))
