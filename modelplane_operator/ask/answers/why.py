"""Explain the state of a model: where its replicas are, what it waits for, and what would help."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence

from kubeloop.condition_types import Condition, Synced
from kubeloop.words import list_names, sentence
from modelplane_operator.api import InferenceCluster, LLMInference, ModelDeployment, ModelReplica, ModelService, labels
from modelplane_operator.api.model_deployment import PodTemplateAllowed, UpToDate
from modelplane_operator.api.remedies import remedy as remedy_of
from modelplane_operator.ask.answers.clusters import every_cluster
from modelplane_operator.ask.answers.documents import Explanation, Miss, ReplicaState, Route
from modelplane_operator.ask.answers.fixes import MOST, Fix, fixes
from modelplane_operator.ask.answers.snapshot import Snapshot, ready
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.placement import charges, read
from modelplane_operator.scheduling.prose import group, reason_to_move, remedy, summary
from modelplane_operator.scheduling.prose import reason as describe_reason
from modelplane_operator.scheduling.reasons import NoMatch

STARTING = "starting (waiting for: the operator's first status)"
"""State of an object without conditions."""


def explain(
    deployment: ModelDeployment,
    services: Iterable[ModelService],
    snapshot: Snapshot,
    *,
    with_clusters: bool = False,
) -> Explanation:
    """Return the explanation. `with_clusters` adds each cluster's answer to one more replica."""
    fleet = snapshot.fleet()
    request = snapshot.placement_request(deployment, fleet)
    decision = snapshot.decide(deployment, fleet)
    owned = sorted(
        (replica for replica in snapshot.owned.get(deployment.key, ()) if read(replica).owner == request.owner),
        key=lambda replica: replica.metadata.name,
    )
    state = ready(deployment.conditions)
    suggestions = fixes(request, decision, fleet, snapshot)
    specials = [*_describe_specials(deployment, owned)]
    return Explanation(
        namespace=deployment.key.namespace,
        name=deployment.key.name,
        ready=is_ready(deployment.conditions) and decision.is_complete,
        reason=state.reason if state else "NotReconciled",
        since=state.last_transition_time if state else None,
        cause=sentence(_find_cause(decision, state), *(text for text, _ in specials)),
        help=(*filter(None, (change for _, change in specials)), *_advise(decision, suggestions, owned, state)),
        desired=decision.desired,
        replicas=tuple(_replica_state(replica, snapshot.cluster.get(replica.spec.cluster_name)) for replica in owned),
        waiting=decision.missing,
        decision=sentence(summary(decision)),
        misses=()
        if decision.is_complete
        else tuple(
            Miss(group(refusal), refusal.nearest, describe_reason(refusal.reason), remedy(refusal.reason))
            for refusal in decision.refusals
        ),
        routes=tuple(_find_routes(deployment, owned, services)),
        weights=snapshot.describe_awaited_weights(deployment, decision),
        clusters=every_cluster(request, decision, fleet, snapshot) if with_clusters else (),
    )


def _find_cause(decision: Decision, state: Condition | None) -> str:
    """Return the most important obstacle, or the deployment's own message."""
    if not decision.is_complete:
        return sentence(summary(decision))
    if state is None:
        return f"{STARTING}. If that lasts, see whether the operator runs: kubectl get pods -n modelplane-system"
    return state.message or state.reason


def describe_pause(item: ModelDeployment | ModelService | LLMInference) -> tuple[str, str]:
    """Return that an object is paused, and the command that ends it; two empty texts if it is not paused."""
    synced = next((condition for condition in item.conditions if condition.type == Synced.__name__), None)
    is_paused = synced is not None and synced.reason == Synced.RECONCILE_PAUSED.reason
    if not is_paused and item.metadata.annotations.get(labels.PAUSED) != "true":
        return "", ""
    kind, (namespace, name) = item.definition.kind.lower(), item.key
    return (
        "it is paused, so the operator changes nothing of it",
        f"Resume it: kubectl annotate {kind} {name} -n {namespace} {labels.PAUSED}-",
    )


def _describe_specials(deployment: ModelDeployment, owned: Sequence[ModelReplica]) -> Iterator[tuple[str, str]]:
    """Yield what is particular about a deployment whether it is Ready or not, each with what changes it."""
    yield describe_pause(deployment)
    (namespace, name), replicas = deployment.key, deployment.spec.replicas
    if not replicas:
        scale = f"kubectl scale modeldeployment {name} -n {namespace} --replicas=1"
        yield "it is scaled to zero, so no replica runs", f"Start it: {scale}"
    for item in deployment.conditions:
        if item.type == PodTemplateAllowed.__name__ and item.status == "False":
            yield item.message or "", remedy_of("ModelDeployment", item)
        if item.reason in {UpToDate.WAITING_FOR_WINDOW.reason, UpToDate.WAITING_FOR_ROOM.reason}:
            text, _, roll = (item.message or "").rpartition(". ")
            yield text, roll
        if item.reason == UpToDate.OUTDATED.reason:
            _, _, roll = (item.message or "").rpartition(". ")
            pods = [replica.status.outdated for replica in owned if replica.status and replica.status.outdated]
            changes = dict.fromkeys(change for outdated in pods for change in outdated.changes)
            yield (
                f"an older operator, or one with other settings, rendered its pods. Changes: {'; '.join(changes)}",
                roll,
            )


def _advise(
    decision: Decision, tried: Sequence[Fix], replicas: Iterable[ModelReplica], state: Condition | None
) -> tuple[str, ...]:
    """Return advice: changes that were tried, or else remedies for the scheduler's reasons, or for replicas."""
    if tried:
        return tuple(sentence(str(fix)) for fix in tried)
    if not decision.is_complete:
        moving = (f"for replica {item.replica.key.name}: {reason_to_move(item.reason)}" for item in decision.blocked)
        # What to ask for instead is the user's to change, and everything else is something of the cluster.
        advice = (
            remedy_text if isinstance(item.reason, NoMatch) else f"on cluster {item.nearest}: {remedy_text}"
            for item in decision.refusals
            if (remedy_text := remedy(item.reason))
        )
        return tuple(map(sentence, dict.fromkeys(advice) or dict.fromkeys(moving)))[:MOST]
    advice = [
        remedy_of("ModelReplica", problem)
        or f"See what becomes of it: kubectl describe modelreplica {item.metadata.name} -n {item.key.namespace}"
        for item in replicas
        if (problem := ready(item.conditions)) and problem.status != "True"
    ]
    if advice:
        return tuple(dict.fromkeys(advice))[:MOST]
    own_remedy = remedy_of("ModelDeployment", state) if state else ""
    return (own_remedy,) if own_remedy else ()


def is_ready(conditions: Sequence[Condition]) -> bool:
    """True if the Ready condition is True."""
    state = ready(conditions)
    return state is not None and state.status == "True"


def ready_message(conditions: Sequence[Condition]) -> str:
    """Return why an object is not Ready; "" if it is."""
    state = ready(conditions)
    if state is None:
        return STARTING
    return "" if state.status == "True" else state.message or state.reason


def _cluster_problem(cluster: InferenceCluster | None) -> str:
    """Return what is wrong with a replica's cluster; "" if it is Ready.

    The cluster's own message is not included.
    """
    if cluster is None:
        return "its InferenceCluster was deleted"
    if cluster.metadata.deletion_timestamp is not None:
        return "its cluster is being deleted"
    if is_ready(cluster.conditions):
        return ""
    state = ready(cluster.conditions)
    return f"its cluster is not Ready ({state.reason})" if state else f"its cluster is {STARTING}"


def _replica_state(replica: ModelReplica, cluster: InferenceCluster | None) -> ReplicaState:
    """Return the state of a replica."""
    state = ready(replica.conditions)
    pools = sorted(charges(read(replica).engines))
    return ReplicaState(
        name=replica.metadata.name,
        cluster=replica.spec.cluster_name,
        pool="+".join(pools),
        ready=is_ready(replica.conditions),
        says=sentence(ready_message(replica.conditions), _cluster_problem(cluster)),
        since=state.last_transition_time if state else None,
    )


def selects(service: ModelService, deployment: ModelDeployment, replicas: Sequence[ModelReplica]) -> bool:
    """True if a service selects the labels of the deployment's replicas, or those that a new one would have."""
    template = deployment.spec.template
    template_labels = (template.metadata.labels if template and template.metadata else None) or {}
    carried = [replica.metadata.labels for replica in replicas] or [
        {labels.DEPLOYMENT: deployment.key.name, **template_labels}
    ]
    selectors = [entry.selector.match_labels for entry in service.spec.endpoints]
    return service.key.namespace == deployment.key.namespace and any(
        selector.items() <= candidate.items() for selector in selectors for candidate in carried
    )


def _find_routes(
    deployment: ModelDeployment, replicas: Sequence[ModelReplica], services: Iterable[ModelService]
) -> Iterable[Route]:
    """Yield the services that lead to the replicas, or would lead to a new one."""
    for service in services:
        if selects(service, deployment, replicas):
            state = ready(service.conditions)
            yield Route(
                service.key.name,
                (service.status.address if service.status else None) or "",
                is_ready(service.conditions),
                sentence(ready_message(service.conditions), *describe_missing_routes(service)),
                remedy_of("ModelService", state) if state else "",
            )


def describe_missing_routes(service: ModelService) -> Iterator[str]:
    """Yield a clause for the routes of the model's API that a service that is Ready does not carry, by their reason."""
    paths = defaultdict[str, list[str]](list)
    for route in service.status.routes if service.status and is_ready(service.conditions) else ():
        if not route.carried:
            paths[route.message or ""].append(route.path)
    for message, missing in paths.items():
        yield f"requests to {list_names(missing)} do not reach the engines{f': {message}' if message else ''}"
