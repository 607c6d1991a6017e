"""One replica: its objects on its cluster, how it does there, and how it goes.

A replica goes from behind: its pods end first and finish what they answer, while the route still leads to them; then
the rest is deleted, then the namespace when no other replica needs it and nobody else has anything there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime

from modelplane_operator.api import labels, names
from modelplane_operator.api.conditions import Condition, Ready
from modelplane_operator.api.model_replica import (
    CacheTransfer,
    HeldNodes,
    ModelAccepted,
    ModelReady,
    ModelReplica,
    ModelReplicaStatus,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.types import type_of
from modelplane_operator.kube.conditions import condition
from modelplane_operator.kube.errors import ClientError
from modelplane_operator.kube.objects import Manifest, entries, is_terminating, key_of, labels_of, section
from modelplane_operator.kube.ownership import was_applied
from modelplane_operator.kube.resources import (
    CONFIG_MAP,
    DEPLOYMENT,
    HTTP_ROUTE,
    INFERENCE_POOL,
    LEADER_WORKER_SET,
    RESOURCE_CLAIM_TEMPLATE,
    SECRET,
)
from modelplane_operator.planning.nodes import Unfit
from modelplane_operator.planning.plan import LET_GO, Apply, Plan, Step, delete, prune
from modelplane_operator.planning.symptoms import (
    ALL_FIT,
    is_behind,
    is_ready,
    is_refused,
    refuses_backend,
    symptoms,
    told,
    unfinished,
    unrouted,
)
from modelplane_operator.rendering.model_replica import (
    INFERENCE_POOLS,
    CannotRender,
    Context,
    Lifecycle,
    Source,
    render_model_replica,
    sources,
    unheard,
    untransferred,
)
from modelplane_operator.scheduling.placement import charges, read

KIND = ModelReplica.definition.kind
REQUEUE_SOON = 0.5  # until the first lists of its cluster are in
REFRESH = 300.0  # Secrets of the hub are read and not watched: a changed one reaches its copies within that time
WORKLOADS = frozenset({DEPLOYMENT, LEADER_WORKER_SET})
# Pods of the shape before may still name these, and could not be made again without them.
_NAMED_BY_PODS = frozenset({RESOURCE_CLAIM_TEMPLATE, SECRET, CONFIG_MAP})


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The replica's cluster, as far as it is known at the moment."""

    exists: bool = True
    """Whether there is an InferenceCluster of that name, or a connection left over from one."""
    connected: bool = True
    """Whether what was seen there can be relied on. Otherwise nothing is decided about it."""
    error: ClientError | None = None
    """Why it cannot be reached; None while it can, or while that is being found out."""
    serving: bool = True
    """Whether its gateway answers: models may do so while the API server does not."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A replica and all that was seen of it."""

    replica: ModelReplica
    site: ClusterState
    around: Context
    children: tuple[Manifest, ...]
    """What we applied on the cluster for this replica."""
    pods: tuple[Manifest, ...]
    namespace: Manifest | None
    """The namespace on the cluster, when no other replica needs it."""
    fences: tuple[Manifest, ...]
    """What we have put around that namespace; it goes with it."""
    lifecycle: Lifecycle
    now: datetime
    nodes: Unfit = ALL_FIT
    """The nodes of its cluster on which pods do not run, or get no more."""
    of_others: tuple[str, ...] = ()
    """What others have in that namespace, which then stays: nobody else's is deleted with ours."""


@dataclass(frozen=True, slots=True)
class _Engine:
    """One engine as it is on the cluster."""

    name: str
    copies: int
    workload: Manifest | None
    current: bool
    """Whether the workload has been told its present content."""
    pods: Sequence[Manifest]
    """Those that answer requests, on nodes that are ready: the followers of a gang do not."""
    stranded: int = 0
    """How many pods call themselves ready on nodes that are not: what they last said."""

    @property
    def answers(self) -> bool:
        """Whether requests find a pod; right after a change, one of the new content must be there already."""
        if self.workload is None or not self.current or is_behind(self.workload):
            return False
        return bool(section(self.workload, "status").get("updatedReplicas")) and bool(self.pods)

    @property
    def lacks(self) -> str:
        """What is missing of all its copies; empty when nothing is."""
        if self.workload is None:
            return f"engine {self.name}: no workload yet"
        lacks = unfinished(self.workload, self.copies) if self.current else "its workload is being changed"
        if not lacks and self.stranded:
            lacks = f"{self.stranded} of its pods on nodes that are not ready"
        return f"engine {self.name}: {lacks}" if lacks else ""


@dataclass(frozen=True, slots=True)
class _Problem:
    """What keeps a replica from being as it should."""

    reason: ModelAccepted
    words: str


def plan(seen: Observed) -> Plan:
    if seen.replica.metadata.deletion_timestamp is not None:
        return _teardown(seen)
    if not seen.site.exists:
        name = seen.replica.spec.cluster_name
        return _waiting(seen, f"there is no connection to cluster {name}: see its InferenceCluster")
    if seen.site.error is not None:
        return _out_of_sight(seen, seen.site.error)
    if not seen.site.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    rendered = render_model_replica(seen.replica, _whole(seen), lifecycle=seen.lifecycle)
    if isinstance(rendered, CannotRender):
        return Plan(status=_judged(seen, _engines(seen, ()), _Problem(ModelAccepted.INVALID_ENGINE, rendered.message)))
    engines = _engines(seen, rendered)
    cluster = seen.replica.spec.cluster_name
    steps: list[Step] = [Apply(manifest, cluster) for manifest in rendered]
    complete = not any(engine.lacks for engine in engines)
    spare = [child for child in seen.children if not _keeps(child, seen, complete=complete)]
    steps += prune(spare, rendered, owner=seen.replica.metadata.uid or "", cluster=cluster)
    steps += prune(seen.fences, rendered, owner=seen.around.namespace_uid, cluster=cluster)
    again = REFRESH if sources(seen.replica) else None
    missing = _missing(seen, copied=False)
    problem = _Problem(ModelAccepted.SOURCE_NOT_FOUND, missing) if missing else None
    return Plan(tuple(steps), _judged(seen, engines, problem), requeue_after=again)


def _around(seen: Observed) -> Context:
    """What was seen, but for pools where a Service already leads to the pods: nothing moves what runs without need.

    A cluster may serve InferencePools and its gateway not route to them: other programs bring that API, too. It says so
    of the first route that leads to one.
    """
    if _is_pooled(seen):
        return replace(seen.around, pools_refused=any(map(refuses_backend, _routes(seen))))
    if not _routes(seen) or seen.replica.spec.is_split:
        return seen.around
    return replace(seen.around, serves=seen.around.serves - {INFERENCE_POOLS})


def _routes(seen: Observed) -> Sequence[Manifest]:
    return [child for child in seen.children if type_of(child) == HTTP_ROUTE]


def _is_pooled(seen: Observed) -> bool:
    """Whether the route leads to an InferencePool, so that a picker says where each request goes."""
    rules = [rule for route in _routes(seen) for rule in entries(route, "spec", "rules")]
    return any(ref.get("kind") == INFERENCE_POOL.kind for rule in rules for ref in entries(rule, "backendRefs"))


def _is_pickers(manifest: Manifest, seen: Observed) -> bool:
    """Whether it is the picker's workload, or a pod of it."""
    name = names.picker(seen.replica.metadata.name)
    return manifest["metadata"]["name"] == name or labels_of(manifest).get(labels.PICKER_APP) == name


def _unpicked(seen: Observed) -> str:
    """Why nobody says where a request goes; empty when somebody does, or nobody has to."""
    if not _is_pooled(seen) or any(_runs(pod, seen) for pod in seen.pods if _is_pickers(pod, seen)):
        return ""
    return "no pod of its endpoint picker is ready"


def _engines(seen: Observed, rendered: Iterable[Manifest]) -> Sequence[_Engine]:
    workloads = {key_of(child).name: child for child in seen.children if type_of(child) in WORKLOADS}
    wanted = {key_of(manifest).name: manifest for manifest in rendered if type_of(manifest) in WORKLOADS}
    found: list[_Engine] = []
    for engine in seen.replica.spec.engines:
        name = names.workload(seen.replica.metadata.name, engine.name)
        live, present = workloads.get(name), wanted.get(name)
        # What cannot be rendered now leaves the workload as it is, and that is what it is judged by.
        current = live is not None and (present is None or was_applied(live, present))
        ready = [pod for pod in seen.pods if is_ready(pod) and labels_of(pod).get(labels.WORKLOAD) == name]
        pods = [pod for pod in ready if labels.SERVING in labels_of(pod) and _runs(pod, seen)]
        stranded = sum(not _runs(pod, seen) for pod in ready)
        found.append(_Engine(engine.name, engine.copies, live, current, pods, stranded))
    return found


def _runs(pod: Manifest, seen: Observed) -> bool:
    """Whether a pod is ready, and its node too: of one that is silent, nobody knows."""
    return is_ready(pod) and not seen.nodes.under(pod)


def _keeps(child: Manifest, seen: Observed, *, complete: bool) -> bool:
    """Whether a child stays even if it is not wanted: what running pods need, and copies of what has vanished."""
    if type_of(child) not in _NAMED_BY_PODS:
        return False
    return not complete or child["metadata"]["name"] in {_copy(seen, source) for source in _lost(seen)}


def _copy(seen: Observed, source: Source) -> str:
    return names.copied(seen.replica.metadata.name, source.use, source.name)


def _lost(seen: Observed) -> Mapping[Source, str]:
    """What the engines name and the hub does not have, or not whole: in words."""
    there = {(original["kind"], original["metadata"]["name"]): original for original in seen.around.referenced}
    return {
        source: words
        for source in sources(seen.replica)
        if (words := _lack(source, there.get((source.kind, source.name))))
    }


def _lack(source: Source, original: Manifest | None) -> str:
    if original is None:
        return f"no {source.kind} {source.name}"
    gone = source.needed - {*section(original, "data"), *section(original, "binaryData")}
    keys = f"key{'s' if len(gone) > 1 else ''} {', '.join(sorted(gone))}"
    return f"no {keys} in {source.kind} {source.name}" if gone else ""


def _missing(seen: Observed, *, copied: bool) -> str:
    """What the hub lacks that engines wait for: of what they have a copy of before, or of what they have none."""
    has = {child["metadata"]["name"] for child in seen.children}
    absent = [
        words for source, words in _lost(seen).items() if source.required and (_copy(seen, source) in has) is copied
    ]
    return f"namespace {seen.replica.key.namespace} has {', '.join(absent)}" if absent else ""


def _whole(seen: Observed) -> Context:
    """What was seen, but for referenced objects that have lost keys of which the engines have a copy."""
    has, lost = {child["metadata"]["name"] for child in seen.children}, _lost(seen)
    kept = {(source.kind, source.name) for source in lost if _copy(seen, source) in has}
    referenced = [one for one in seen.around.referenced if (one["kind"], one["metadata"]["name"]) not in kept]
    return replace(_around(seen), referenced=tuple(referenced))


# What is reported -----------------------------------------------------------------------------------------------------


def _judged(seen: Observed, engines: Sequence[_Engine], problem: _Problem | None) -> ModelReplicaStatus:
    """The conditions of a replica whose cluster was seen. `problem`: what keeps it from being as it should."""
    now, words = seen.now, problem.words if problem else ""
    absent = [engine.name for engine in engines if engine.workload is None]
    silent = [engine.name for engine in engines if not engine.answers]
    detour, unpicked, found = _unrouted(seen), _unpicked(seen), symptoms(seen.pods, seen.nodes)
    ill = told(found)
    if absent:
        reason = problem.reason if problem else ModelAccepted.DEPLOYING
        accepted = reason.condition(now, message=words or f"no workload yet of engine {', '.join(absent)}")
        answers = ModelReady.WAITING_FOR_MODEL.condition(now)
    else:
        kept = _missing(seen, copied=True)
        accepted = ModelAccepted.ACCEPTED.condition(now, message=f"{kept}; the copy of before stays" if kept else "")
        if silent:
            deaf = [unheard(engine) for engine in seen.replica.spec.engines if engine.name in silent]
            reason = found[0].reason if found else ModelReady.MODEL_STARTING
            why = _sentence(words, f"no pod of engine {', '.join(silent)} answers", *deaf, ill)
            answers = reason.condition(now, message=why)
        elif unpicked:
            answers = ModelReady.PICKER_NOT_READY.condition(now, message=_sentence(unpicked, ill))
        elif detour:
            refused = any(map(is_refused, _routes(seen)))
            reason = ModelReady.ROUTE_REFUSED if refused else ModelReady.MODEL_STARTING
            answers = reason.condition(now, message=detour)
        else:
            answers = ModelReady.SERVING.condition(now)
    lacks = _sentence(words, *(engine.lacks for engine in engines), unpicked, detour)
    if problem:
        why = problem.reason.condition(now)
    elif absent or answers.status != "True":
        why = accepted if absent else answers
    else:
        why = (found[0].reason if found else ModelReady.MODEL_STARTING).condition(now)
    cordoned = seen.nodes.cordoned(seen.pods)
    whole = Ready.AVAILABLE.condition(now, message=cordoned)
    if lacks:
        whole = not_ready(KIND, why, _sentence(lacks, ill, cordoned))
    return _status(
        (accepted, *_transfer(seen), answers, whole), held=_held(seen), unschedulable_since=_unschedulable_since(seen)
    )


def _transfer(seen: Observed) -> tuple[Condition, ...]:
    if not seen.replica.spec.is_split:
        return ()
    lacking = untransferred(seen.replica)
    found = CacheTransfer.NOT_CONFIGURED if lacking else CacheTransfer.CONFIGURED
    return (found.condition(seen.now, message=lacking),)


def _status(
    conditions: tuple[Condition, ...],
    *,
    held: tuple[HeldNodes, ...] = (),
    unschedulable_since: datetime | None = None,
) -> ModelReplicaStatus:
    return ModelReplicaStatus(conditions=conditions, held_nodes=held, unschedulable_since=unschedulable_since)


def _unschedulable_since(seen: Observed) -> datetime | None:
    """By our own clock, and since the first time that it was seen: that of the cluster may be wrong."""
    if not any(map(_is_unschedulable, seen.pods)):
        return None
    last = seen.replica.status
    return (last.unschedulable_since if last else None) or seen.now


def _is_unschedulable(pod: Manifest) -> bool:
    """Whether a pod that is to have a node for itself has found none."""
    awaits = section(pod, "spec").get("resourceClaims") and not is_terminating(pod)
    return bool(awaits) and condition(pod, "PodScheduled").status == "False"


def _held(seen: Observed) -> tuple[HeldNodes, ...]:
    """Pools on more of whose nodes the replica has pods than its spec asks for."""
    asked = charges(read(seen.replica).engines)
    pools = Counter(section(pod, "spec", "nodeSelector").get(labels.POOL, "") for pod in seen.pods if _has_node(pod))
    return tuple(
        HeldNodes(pool=pool, nodes=nodes) for pool, nodes in sorted(pools.items()) if nodes > asked.get(pool, 0)
    )


def _has_node(pod: Manifest) -> bool:
    """Whether a pod has a node for itself: one that claims devices does, until its containers have ended."""
    spec, phase = section(pod, "spec"), section(pod, "status").get("phase")
    return bool(spec.get("nodeName") and spec.get("resourceClaims")) and phase not in {"Succeeded", "Failed"}


def _sentence(*parts: str) -> str:
    return "; ".join(filter(None, parts))


def _unrouted(seen: Observed) -> str:
    routes = _routes(seen)
    return unrouted(routes[0]) if routes else "it has no route yet"


def _waiting(seen: Observed, why: str) -> Plan:
    """Nothing can be done yet. What was known of a replica that runs stays true."""
    if seen.replica.conditions:
        return Plan()
    now = seen.now
    conditions = (
        ModelAccepted.WAITING_FOR_CLUSTER.condition(now, message=why),
        ModelReady.WAITING_FOR_MODEL.condition(now),
        Ready.CREATING.condition(now, message=why),
    )
    return Plan(status=_status(conditions))


def _out_of_sight(seen: Observed, error: ClientError) -> Plan:
    """The cluster's API server does not answer. That alone ends no model: only when its gateway is silent too."""
    if not seen.replica.conditions:
        return Plan(status=_waiting(seen, str(error)).status, failure=error)
    if seen.site.serving:
        return Plan(failure=error)
    why = f"neither cluster {seen.replica.spec.cluster_name} nor its gateway answers"
    lost = (
        ModelReady.CLUSTER_UNREACHABLE.condition(seen.now, message=why),
        Ready.UNREACHABLE.condition(seen.now, message=why),
    )
    last = seen.replica.status
    known = _status(
        lost, held=last.held_nodes if last else (), unschedulable_since=last.unschedulable_since if last else None
    )
    return Plan(status=known, failure=error)


# How it goes ----------------------------------------------------------------------------------------------------------


def _teardown(seen: Observed) -> Plan:
    replica, cluster = seen.replica, seen.replica.spec.cluster_name
    if labels.FINALIZER not in replica.metadata.finalizers:
        return Plan()
    if not seen.site.exists:  # nobody can reach what may be left there
        return Plan((LET_GO,))
    if seen.site.error is not None:
        why = f"cluster {cluster} does not answer; what runs there is deleted when it does"
        return Plan(status=_going(seen, why), failure=seen.site.error)
    if not seen.site.connected:
        return Plan(requeue_after=REQUEUE_SOON)
    workloads = [child for child in seen.children if type_of(child) in WORKLOADS and not _is_pickers(child, seen)]
    # The picker stays as long as any of them answers. Then its pods end by themselves: they hold no devices, and
    # nobody waits for the minutes that they have.
    engines = [pod for pod in seen.pods if not _is_pickers(pod, seen)]
    if workloads or engines:
        steps = tuple(delete(each, cluster=cluster) for each in workloads if not is_terminating(each))
        return Plan(steps, _going(seen, f"waiting for {_count(engines, 'pod')} to end"))
    if seen.children:
        steps = tuple(delete(each, cluster=cluster) for each in seen.children if not is_terminating(each))
        return Plan(steps, _going(seen, f"waiting for {_count(seen.children, 'object')} to go"))
    if seen.namespace is not None and not seen.of_others and not is_terminating(seen.namespace):
        return Plan((delete(seen.namespace, cluster=cluster), LET_GO))
    return Plan((LET_GO,))


def _going(seen: Observed, why: str) -> ModelReplicaStatus:
    return _status((Ready.DELETING.condition(seen.now, message=why),))


def _count(found: Sequence[Manifest], noun: str) -> str:
    return f"{len(found)} {noun}" if len(found) == 1 else f"{len(found)} {noun}s"
