"""A cluster that answers: what models can count on there."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.errors import ClientError
from kubeloop.plan import KEEP, Apply, Plan, SetFinalizer
from kubeloop.types import SECRET
from kubeloop.words import counted, listed
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import (
    BackendReady,
    ClusterReady,
    GPUReady,
    InferenceCluster,
    NodePool,
    ObjectsOwned,
    ObservedCluster,
    ObservedPool,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.gateway import (
    gateway_requeue,
    gateway_secured,
    gateway_status,
    misleading,
)
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware, PoolNodes, present
from modelplane_operator.clusters.cluster.plan.node_pools import ResolvedPools
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, SWEEP, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.registered import marks
from modelplane_operator.clusters.cluster.plan.serving import from_stack, has_stack, own_gateway, unless_ours
from modelplane_operator.clusters.cluster.plan.status import (
    counted_pools,
    missing_classes,
    pools_valid,
    resolved_pools,
    status_of,
    unusable_pools,
)
from modelplane_operator.routing.gateway.gateway_relay import render_relay

UNLISTED = "the nodes of the cluster have not been listed yet"
LEAST_LATENCY = 50  # milliseconds; what is less makes no difference to anybody, and varies with how busy we are


def _going_secret(seen: Observed) -> str:
    """What to do about a kubeconfig that would be gone but for our finalizer; empty when it stays."""
    if not seen.secrets.terminating:
        return ""
    return (
        f"Secret {seen.secrets.mine} is being deleted, and is kept only while a cluster names it: put the kubeconfig "
        "into a Secret of another name, and name that in spec.cluster.existing.secretRef"
    )


def in_service(seen: Observed, state: ClusterState) -> Plan:
    serving = unless_ours(seen, from_stack(seen) if has_stack(seen, state) else own_gateway(seen, state))
    resolved = resolved_pools(seen)
    nodes = present(resolved.pools, state.hardware) if isinstance(state.hardware, ObservedHardware) else {}
    running = ClusterReady.CLUSTER_RUNNING
    if resolved.missing and not resolved.pools:
        running = ClusterReady.WAITING_FOR_CLASSES
    note = f"{seen.named} is reached as before, but {seen.kubeconfig}" if seen.kubeconfig else _going_secret(seen)
    said = missing_classes(resolved) if running is ClusterReady.WAITING_FOR_CLASSES else note
    gateway = gateway_status(seen, serving)
    ready = serving.ready
    if ready.status == "True" and gateway is None:
        words = f"the gateway of {seen.named} answers the hub's gateway alone, which is not set up for that yet"
        ready = BackendReady.INSTALLING.condition(seen.now, message=": ".join(filter(None, (words, seen.hub.why))))
    relay = render_relay(seen.cluster, serving.address) if seen.hub.wanted and serving.address else ()
    secured = gateway_secured(seen, serving, gateway)
    judged = (
        running.condition(seen.now, message=said),
        ready,
        secured,
        pools_valid(seen, resolved),
        _gpu_ready(seen, state, nodes),
        _ready(seen, state, resolved, ready),
        *_owned(seen, state),
    )
    fresh = {
        "gateway": gateway,
        "gpu_pools": counted_pools(seen, resolved, nodes, last=not isinstance(state.hardware, ClientError)),
        "observed": _observed(seen, state, nodes),
        "orphans": len(state.orphans) if state.orphans is not None else None,
    }
    add_finalizer = (SetFinalizer(SECRET, seen.secrets.mine),) if seen.secrets.mine else ()
    remove_finalizers = (SetFinalizer(SECRET, key, present=False) for key in seen.secrets.unneeded)
    look = (
        REQUEUE_SOON if state.hardware is None else None
    )  # where there are no nodes, no event tells that they were listed
    sweep = SWEEP if state.orphans is not None else None
    waits = (serving.requeue_after, gateway_requeue(seen, serving, secured), look, sweep)
    return Plan(
        (
            KEEP,
            *add_finalizer,
            *serving.steps,
            *map(Apply, relay),
            *misleading(seen, relay),
            *remove_finalizers,
            *marks(seen, state),
        ),
        status_of(seen, resolved, judged).model_copy(update=fresh),
        requeue_after=min((wait for wait in waits if wait), default=None),
    )


def _gpu_ready(seen: Observed, state: ClusterState, nodes: Mapping[str, PoolNodes]) -> Condition:
    if isinstance(state.hardware, ClientError):
        return GPUReady.NOT_SEEN.condition(
            seen.now, message=f"the nodes of {seen.named} cannot be seen: {state.hardware}"
        )
    if state.hardware is None:
        return GPUReady.NOT_SEEN.condition(seen.now, message=UNLISTED)
    pools = {pool.name: pool for pool in seen.cluster.spec.node_pools}
    few = {name: found for name, found in nodes.items() if found.nodes < _at_least(pools[name])}
    short = {name: found for name, found in nodes.items() if found.lacking}
    own = ": label them, or correct nodeCount" if seen.cluster.spec.cluster.source == "Existing" else ""
    said = [
        f"pool {name}: {found.nodes} of {counted(_at_least(pools[name]), 'node')} with the label "
        f"{labels.POOL}={name}{own}"
        for name, found in few.items()
    ]
    said += [
        f"pool {name}: {found.usable} of {counted(found.nodes, 'node')} usable, {found.lacking}"
        for name, found in short.items()
    ]
    if "DRA" not in state.apis:
        said.insert(0, "the cluster does not serve resource.k8s.io/v1, through which pods claim devices")
    if short or "DRA" not in state.apis:
        return GPUReady.DEVICES_MISSING.condition(seen.now, message="; ".join(said))
    if few:
        return GPUReady.NODES_MISSING.condition(seen.now, message="; ".join(said))
    return GPUReady.ALL_PRESENT.condition(seen.now)


def _owned(seen: Observed, state: ClusterState) -> Iterator[Condition]:
    if state.orphans:
        words = (
            f"nothing on this hub owns {counted(len(state.orphans), 'object')} of the operator's on {seen.named}: "
            f"{listed(state.orphans)}; delete what is not another hub's"
        )
        yield ObjectsOwned.ORPHANS_FOUND.condition(seen.now, message=words)
    elif state.orphans is not None:
        yield ObjectsOwned.ALL_OWNED.condition(seen.now)


def _at_least(pool: NodePool) -> int:
    """The nodes that must be there at any time."""
    return (pool.min_node_count or 0) if pool.max_node_count else pool.node_count


def _observed(seen: Observed, state: ClusterState, nodes: Mapping[str, PoolNodes]) -> ObservedCluster:
    last = seen.cluster.status.observed if seen.cluster.status else None
    return ObservedCluster(
        version=state.version,
        latency_ms=_latency(state.latency, last.latency_ms if last else None),
        identity=state.registered.identity or None,
        apis=tuple(sorted(state.apis)),
        pools=tuple(ObservedPool(name=name, nodes=found.nodes, usable=found.usable) for name, found in nodes.items()),
    )


def _latency(seconds: float | None, last: int | None) -> int | None:
    """Milliseconds, told anew only when they are others by far: the status is not written for each answer."""
    if seconds is None:
        return last
    found = max(LEAST_LATENCY, round(seconds * 1000))
    return last if last and last / 3 <= found <= last * 3 else found


def _ready(seen: Observed, state: ClusterState, resolved: ResolvedPools, backend: Condition) -> Condition:
    """Whether models can be placed. A pool that is wrong keeps its last good devices, and closes no other pool."""
    lacks = [*unusable_pools(seen, resolved)]
    if backend.status == "Unknown":
        return Ready.UNREACHABLE.condition(seen.now, message=backend.message or "")
    if backend.reason == BackendReady.ADDRESS_IN_USE.reason:  # whose endpoint it is, is no business of other tenants
        words = f"the gateway of {seen.named} has no address of its own: see BackendReady"
        return not_ready(InferenceCluster.definition.kind, backend, words)
    if backend.status != "True":
        return not_ready(InferenceCluster.definition.kind, backend)
    if lacks and not resolved.pools:
        words = f"no pool can be used: {'; '.join(lacks)}"
        return not_ready(InferenceCluster.definition.kind, pools_valid(seen, resolved), words)
    if state.hardware is None and not is_true(seen.cluster.conditions, Ready):
        return Ready.CREATING.condition(seen.now, message=UNLISTED)
    if backend.reason == BackendReady.DEGRADED.reason:
        lacks.append(backend.message or "")
    if seen.problem:
        lacks.append(f"pools are not as they are asked for: {seen.problem}")
    return (Ready.DEGRADED if lacks else Ready.AVAILABLE).condition(seen.now, message="; ".join(lacks))
