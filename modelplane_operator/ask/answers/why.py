"""Why a model is as it is: where its replicas are and how each is, what it waits for, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kubeloop.condition_types import Condition, Synced
from kubeloop.words import sentence
from modelplane_operator.api import InferenceCluster, ModelDeployment, ModelReplica, ModelService, labels
from modelplane_operator.api.remedies import remedy as remedy_of
from modelplane_operator.ask.answers.clusters import every_cluster
from modelplane_operator.ask.answers.documents import Miss, ReplicaState, Route, Why
from modelplane_operator.ask.answers.fixes import MOST, Fix, fixes
from modelplane_operator.ask.answers.snapshot import Snapshot, ready
from modelplane_operator.scheduling.decision import Decision, Refusal
from modelplane_operator.scheduling.placement import charges, read
from modelplane_operator.scheduling.prose import group, reason_to_move, remedy, summary
from modelplane_operator.scheduling.prose import reason as told


def why(
    deployment: ModelDeployment,
    services: Iterable[ModelService],
    snapshot: Snapshot,
    *,
    with_clusters: bool = False,
) -> Why:
    fleet = snapshot.fleet()
    asked = snapshot.placement_request(deployment, fleet)
    decision = snapshot.decide(deployment, fleet)
    mine = sorted(
        (one for one in snapshot.owned.get(deployment.key, ()) if read(one).owner == asked.owner),
        key=lambda one: one.metadata.name,
    )
    state = ready(deployment.conditions)
    tried = fixes(asked, decision, fleet, snapshot)
    return Why(
        namespace=deployment.key.namespace,
        name=deployment.key.name,
        ready=_good(deployment.conditions) and decision.settled,
        reason=state.reason if state else "NotReconciled",
        since=state.last_transition_time if state else None,
        cause=sentence(_cause(decision, state), _paused(deployment.conditions)),
        help=_helps(decision, tried, mine, state),
        desired=decision.desired,
        replicas=tuple(_replica(one, snapshot.cluster.get(one.spec.cluster_name)) for one in mine),
        waiting=decision.missing,
        decision=sentence(summary(decision)),
        misses=tuple(map(_miss, decision.refusals)) if not decision.settled else (),
        routes=tuple(_routes(deployment, mine, services)),
        weights=snapshot.awaited(deployment, decision),
        clusters=every_cluster(asked, decision, fleet, snapshot) if with_clusters else (),
    )


def _cause(decision: Decision, state: Condition | None) -> str:
    if not decision.settled:
        return sentence(summary(decision))
    if state is None:
        return "The operator has not looked at it yet: see whether it runs in modelplane-system"
    return state.message or state.reason


def _paused(conditions: Sequence[Condition]) -> str:
    """That nothing of what is decided is done, and how it would be."""
    synced = next((one for one in conditions if one.type == Synced.__name__), None)
    if synced is None or synced.reason != Synced.RECONCILE_PAUSED.reason:
        return ""
    return f"it is paused: take the annotation {labels.PAUSED} off, and what was changed since is done"


def _helps(
    decision: Decision, tried: Sequence[Fix], replicas: Iterable[ModelReplica], state: Condition | None
) -> tuple[str, ...]:
    if tried:
        return tuple(sentence(str(fix)) for fix in tried)
    if not decision.settled:
        moving = (f"for replica {one.replica.key.name}: {reason_to_move(one.why)}" for one in decision.stuck)
        given = (f"on cluster {one.nearest}: {words}" for one in decision.refusals if (words := remedy(one.reason)))
        return tuple(map(sentence, dict.fromkeys(given) or dict.fromkeys(moving)))[:MOST]
    ill = [(one, found) for one in replicas if (found := _ill(one))]
    given = [remedy_of("ModelReplica", found) or _describe(one) for one, found in ill]
    return tuple(dict.fromkeys(given))[:MOST] or _remedies("ModelDeployment", state)


def _describe(replica: ModelReplica) -> str:
    return f"See what becomes of it: kubectl describe modelreplica {replica.metadata.name} -n {replica.key.namespace}"


def _remedies(kind: str, state: Condition | None) -> tuple[str, ...]:
    words = remedy_of(kind, state) if state else ""
    return (words,) if words else ()


def _ill(replica: ModelReplica) -> Condition | None:
    """What a replica says that is not Ready."""
    found = ready(replica.conditions)
    return None if found is None or found.status == "True" else found


def _good(conditions: Sequence[Condition]) -> bool:
    found = ready(conditions)
    return found is not None and found.status == "True"


def _said(conditions: Sequence[Condition]) -> str:
    """Why an object is not Ready; empty when it is."""
    found = ready(conditions)
    if found is None:
        return "not looked at yet"
    return "" if found.status == "True" else found.message or found.reason


def _wrong_with(cluster: InferenceCluster | None) -> str:
    """Empty when it is Ready; its own words are for whoever may read it."""
    if cluster is None:
        return "its cluster is gone"
    if cluster.metadata.deletion_timestamp is not None:
        return "its cluster is being deleted"
    if _good(cluster.conditions):
        return ""
    state = ready(cluster.conditions)
    return f"its cluster is not Ready ({state.reason})" if state else "nothing is known of its cluster yet"


def _replica(replica: ModelReplica, cluster: InferenceCluster | None) -> ReplicaState:
    found = ready(replica.conditions)
    pools = sorted(charges(read(replica).engines))
    return ReplicaState(
        name=replica.metadata.name,
        cluster=replica.spec.cluster_name,
        pool="+".join(pools),
        ready=_good(replica.conditions),
        says=sentence(_said(replica.conditions), _wrong_with(cluster)),
        since=found.last_transition_time if found else None,
    )


def _miss(refusal: Refusal) -> Miss:
    return Miss(group(refusal), refusal.nearest, told(refusal.reason), remedy(refusal.reason))


def _routes(
    deployment: ModelDeployment, replicas: Sequence[ModelReplica], services: Iterable[ModelService]
) -> Iterable[Route]:
    """The services that select its replicas' labels, or would if there were any."""
    template = deployment.spec.template
    given = (template.metadata.labels if template and template.metadata else None) or {}
    carried = [one.metadata.labels for one in replicas] or [{labels.DEPLOYMENT: deployment.key.name, **given}]
    for service in services:
        if service.key.namespace != deployment.key.namespace:
            continue
        selects = [entry.selector.match_labels for entry in service.spec.endpoints]
        if any(wanted.items() <= each.items() for wanted in selects for each in carried):
            address = (service.status.address if service.status else None) or ""
            yield Route(service.key.name, address, _good(service.conditions), _said(service.conditions), _help(service))


def _help(service: ModelService) -> str:
    found = ready(service.conditions)
    return remedy_of("ModelService", found) if found else ""
