"""Plan a cluster that answers: finalizers, gateway, relay, conditions and observed hardware.

`plan` calls `in_service` for clusters that are neither deleted nor unreachable. The gateway itself is planned by
`serving`, and the switch to mutual TLS by `mutual_tls`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.errors import ClientError
from kubeloop.plan import KEEP, Apply, Plan, SetFinalizer
from kubeloop.types import SECRET
from kubeloop.words import count_of, list_names
from modelplane_operator.api import labels
from modelplane_operator.api.inference_cluster import (
    BackendReady,
    ClusterReady,
    GPUReady,
    InferenceCluster,
    ObjectsOwned,
    ObservedCluster,
    ObservedPool,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.cluster.plan.gateway import (
    gateway_requeue,
    gateway_secured,
    gateway_status,
    prune_relay,
)
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware, PoolNodes, nodes_by_pool
from modelplane_operator.clusters.cluster.plan.node_pools import ResolvedPools, count_desired_nodes
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, SWEEP, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.registered import marks
from modelplane_operator.clusters.cluster.plan.serving import from_stack, has_stack, own_gateway, reject_hub_address
from modelplane_operator.clusters.cluster.plan.status import (
    list_missing_classes,
    pool_statuses,
    pools_valid,
    resolve_pools,
    status_of,
    unusable_pools,
)
from modelplane_operator.routing.gateway.gateway_relay import render_relay
from modelplane_operator.scheduling.prose import describe_usable

UNLISTED = "the cluster is starting (waiting for: the list of its nodes)"
"""Message while the nodes are unknown."""
LEAST_LATENCY = 50
"""Milliseconds; smaller values are reported as this, since they vary with the load of the operator."""


def _describe_deleted_secret(observed: Observed) -> str:
    """Return the message for a kubeconfig Secret that only the finalizer keeps; else empty."""
    if not observed.secrets.terminating:
        return ""
    return (
        f"Secret {observed.secrets.own} is being deleted, and is kept only while a cluster names it: put the kubeconfig"
        " into another Secret, and name that one in spec.cluster.existing.secretRef"
    )


def in_service(observed: Observed, state: ClusterState) -> Plan:
    """Return the plan of a cluster that answers.

    The finalizer comes first; the marks for other InferenceClusters come last, so that they block no other step.
    """
    serving = reject_hub_address(
        observed, from_stack(observed) if has_stack(observed, state) else own_gateway(observed, state)
    )
    resolved = resolve_pools(observed)
    hardware = state.hardware if isinstance(state.hardware, ObservedHardware) else None
    nodes = nodes_by_pool(resolved.pools, hardware, observed.now) if hardware else {}
    # A cluster without any known pool cannot run models, whatever else works.
    running = ClusterReady.CLUSTER_RUNNING
    if resolved.missing and not resolved.pools:
        running = ClusterReady.WAITING_FOR_CLASSES
    note = (
        f"{observed.display_name} is still reached with the previous kubeconfig, but {observed.kubeconfig}"
        if observed.kubeconfig
        else _describe_deleted_secret(observed)
    )
    message = list_missing_classes(resolved) if running is ClusterReady.WAITING_FOR_CLASSES else note
    gateway = gateway_status(observed, serving)
    ready = serving.ready
    if ready.status == "True" and gateway is None:
        reason = (
            f"the gateway of {observed.display_name} is starting (waiting for: the certificate of the hub's gateway)"
        )
        ready = BackendReady.INSTALLING.condition(
            observed.now, message=": ".join(filter(None, (reason, observed.hub.reason)))
        )
    if ready.status == "True" and observed.silence:
        ready = BackendReady.GATEWAY_SILENT.condition(observed.now, message=observed.silence)
    # The relay is created as soon as mutual TLS is wanted, before any endpoint uses it.
    relay = render_relay(observed.cluster, serving.address) if observed.hub.is_desired and serving.address else ()
    secured = gateway_secured(observed, serving, gateway)
    gpu_ready = _build_gpu_ready(observed, state, nodes)
    conditions = (
        running.condition(observed.now, message=message),
        ready,
        secured,
        pools_valid(observed, resolved),
        gpu_ready,
        _build_ready(observed, state, resolved, ready, gpu_ready, note),
        *_build_ownership(observed, state),
    )
    changes = {
        "gateway": gateway,
        "gpu_pools": pool_statuses(observed, resolved, nodes, last=not isinstance(state.hardware, ClientError)),
        "observed": _build_observed(observed, state, nodes),
        "orphans": len(state.orphans) if state.orphans is not None else None,
    }
    add_finalizer = (SetFinalizer(SECRET, observed.secrets.own),) if observed.secrets.own else ()
    remove_finalizers = (SetFinalizer(SECRET, key, present=False) for key in observed.secrets.unneeded)
    hardware_poll = (
        REQUEUE_SOON if state.hardware is None else None
    )  # a cluster without nodes sends no event when its nodes have been listed
    next_sweep = SWEEP if state.orphans is not None else None
    delays = (serving.requeue_after, gateway_requeue(observed, serving, secured), hardware_poll, next_sweep)
    return Plan(
        (
            KEEP,
            *add_finalizer,
            *serving.steps,
            *map(Apply, relay),
            *prune_relay(observed, relay),
            *remove_finalizers,
            *marks(observed, state),
        ),
        status_of(observed, resolved, conditions).model_copy(update=changes),
        requeue_after=min((delay for delay in delays if delay), default=None),
    )


def _build_gpu_ready(observed: Observed, state: ClusterState, nodes: Mapping[str, PoolNodes]) -> Condition:
    """Return the GPUReady condition: unknown, devices missing, nodes missing or all present."""
    if isinstance(state.hardware, ClientError):
        return GPUReady.NOT_SEEN.condition(
            observed.now, message=f"the nodes of {observed.display_name} cannot be listed: {state.hardware}"
        )
    if state.hardware is None:
        return GPUReady.NOT_SEEN.condition(observed.now, message=UNLISTED)
    pools = {pool.name: pool for pool in observed.cluster.spec.node_pools}
    desired = {name: count_desired_nodes(pools[name], pool_nodes) for name, pool_nodes in nodes.items()}
    too_few = {name: pool_nodes for name, pool_nodes in nodes.items() if pool_nodes.nodes < desired[name]}
    unusable = {
        name: pool_nodes
        for name, pool_nodes in nodes.items()
        if pool_nodes.first_problem and pool_nodes.usable < desired[name]
    }
    remedy = ": label them, or correct nodeCount" if observed.cluster.spec.cluster.source == "Existing" else ""
    messages = [
        f"pool {name}: {pool_nodes.nodes} of {count_of(desired[name], 'node')} with the label "
        f"{labels.POOL}={name}{remedy}"
        for name, pool_nodes in too_few.items()
    ]
    messages += [
        f"pool {name}: {describe_usable(pool_nodes.usability)}: {pool_nodes.first_problem}"
        for name, pool_nodes in unusable.items()
    ]
    if "DRA" not in state.apis:
        messages.insert(0, "the cluster does not serve resource.k8s.io/v1, through which pods claim devices")
    if "DRA" not in state.apis or any(pool_nodes.without_devices for pool_nodes in unusable.values()):
        return GPUReady.DEVICES_MISSING.condition(observed.now, message="; ".join(messages))
    if too_few or unusable:
        return GPUReady.NODES_MISSING.condition(observed.now, message="; ".join(messages))
    return GPUReady.ALL_PRESENT.condition(observed.now)


def _build_ownership(observed: Observed, state: ClusterState) -> Iterator[Condition]:
    """Yield the ObjectsOwned condition; nothing while no sweep for orphans has finished."""
    if state.orphans:
        message = (
            f"nothing on this hub owns {count_of(len(state.orphans), 'object')} of the operator's on "
            f"{observed.display_name}: {list_names(state.orphans)}; delete those that no other hub created"
        )
        yield ObjectsOwned.ORPHANS_FOUND.condition(observed.now, message=message)
    elif state.orphans is not None:
        yield ObjectsOwned.ALL_OWNED.condition(observed.now)


def _build_observed(observed: Observed, state: ClusterState, nodes: Mapping[str, PoolNodes]) -> ObservedCluster:
    """Return the status fields that describe the cluster itself: version, latency, identity, APIs and pools."""
    last = observed.cluster.status.observed if observed.cluster.status else None
    return ObservedCluster(
        version=state.version,
        latency_ms=_compute_latency(state.latency, last.latency_ms if last else None),
        identity=state.registered.identity or None,
        apis=tuple(sorted(state.apis)),
        pools=tuple(
            ObservedPool(
                name=name,
                nodes=pool_nodes.nodes,
                usable=pool_nodes.usable,
                cordoned=pool_nodes.cordoned or None,
                not_ready=pool_nodes.not_ready or None,
            )
            for name, pool_nodes in nodes.items()
        ),
    )


def _compute_latency(seconds: float | None, last: int | None) -> int | None:
    """Return the latency in milliseconds; the old value unless it changed threefold, to save status writes."""
    if seconds is None:
        return last
    current = max(LEAST_LATENCY, round(seconds * 1000))
    return last if last and last / 3 <= current <= last * 3 else current


def _build_ready(  # noqa: PLR0917 - the parts of it
    observed: Observed,
    state: ClusterState,
    resolved: ResolvedPools,
    backend: Condition,
    hardware: Condition,
    note: str,
) -> Condition:
    """Return the Ready condition: True if models can be placed on the cluster.

    A pool with a broken class keeps its last good devices and does not affect other pools. `note`: the problem of the
    kubeconfig.
    """
    problems = [*unusable_pools(observed, resolved)]
    if backend.status == "Unknown":
        return Ready.UNREACHABLE.condition(observed.now, message=backend.message or "")
    # without the details, which name the endpoint of another tenant
    if backend.reason == BackendReady.ADDRESS_IN_USE.reason:
        message = f"the gateway of {observed.display_name} has no address of its own: see BackendReady"
        return not_ready(InferenceCluster.definition.kind, backend, message)
    if backend.status != "True":
        return not_ready(InferenceCluster.definition.kind, backend)
    if problems and not resolved.pools:
        message = f"no pool can be used: {'; '.join(problems)}"
        return not_ready(InferenceCluster.definition.kind, pools_valid(observed, resolved), message)
    if state.hardware is None and not is_true(observed.cluster.conditions, Ready):
        return Ready.CREATING.condition(observed.now, message=UNLISTED)
    if backend.reason == BackendReady.DEGRADED.reason:
        problems.append(backend.message or "")
    if note:
        problems.append(note)
    if hardware.status == "False":
        problems.append(hardware.message or "")
    if observed.problem:
        problems.append(f"node pools differ from the spec: {observed.problem}")
    return (Ready.DEGRADED if problems else Ready.AVAILABLE).condition(observed.now, message="; ".join(problems))
