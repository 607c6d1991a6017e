"""Plan the gateway of a cluster, through an own ServingStack or directly.

`in_service` publishes the resulting address, after `reject_hub_address` has checked it. With a Helm, the operator
creates a ServingStack that installs the gateway's software; without one, another owner installs it, and the operator
only creates the Gateway.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.conditions import condition
from kubeloop.objects import key_of
from kubeloop.plan import Apply, Step
from kubeloop.types import SECRET, type_of
from modelplane_operator.api import names
from modelplane_operator.api.inference_cluster import BackendReady, GatewaySecured
from modelplane_operator.api.serving_stack import ServingStack
from modelplane_operator.clouds.render import charts_of, driver_root_of
from modelplane_operator.clusters.cluster.cluster_gateway import (
    gateway_among,
    gateway_of,
    is_guarded,
    own_port,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.clusters.cluster.plan.mutual_tls import SHUT, Hub, Listeners, choose_listeners, waits
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_AFTER, REQUEUE_SOON, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.registered import mark_of
from modelplane_operator.clusters.stack.render import render_stack
from modelplane_operator.routing.gateway.certificates import is_reported
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES, keep_load_balancer, service_annotations
from modelplane_operator.routing.gateway.render import address_of


@dataclass(frozen=True, slots=True)
class ClusterServing:
    """The state of a cluster's gateway, and the steps that create it."""

    ready: Condition
    """The BackendReady condition."""
    address: str | None = None
    """The address of the gateway; None until it has one."""
    steps: tuple[Step, ...] = ()
    """Steps that create or change the gateway."""
    requeue_after: float | None = None
    """Seconds until the next reconcile, for state without events."""
    server_name: str | None = None
    """The name that the gateway's certificate proves to the hub's gateway."""
    http: bool = field(default=True)
    """True if the gateway answers anyone, by http."""
    reason: str = ""
    """The reason why it cannot stop doing so; empty if it can."""
    port: int | None = None
    """The port of its http listener, unless that is 80."""


def reject_hub_address(observed: Observed, serving: ClusterServing) -> ClusterServing:
    """Return the serving without an address that is the hub gateway's own, as requests would loop.

    A cluster may report any address.
    """
    if serving.address not in observed.hub_gateway:
        return serving
    message = (
        f"the gateway of {observed.display_name} reports {serving.address}, which is the hub gateway's address: give "
        "it an address of its own"
    )
    rejected = BackendReady.ADDRESS_IN_USE.condition(observed.now, message=message)
    return replace(serving, ready=rejected, address=None, requeue_after=REQUEUE_AFTER)


def has_stack(observed: Observed, state: ClusterState) -> bool:
    """True if a ServingStack creates the gateway.

    A gateway that the operator created directly stays so: another owner's would replace it.
    """
    mark = mark_of(observed, state.children)
    return observed.stack is not None or (observed.helm and all(child is mark for child in state.children))


def from_stack(observed: Observed) -> ClusterServing:
    """Return the serving of a cluster whose gateway a ServingStack creates, from that stack's status."""
    charts = charts_of(observed.cluster, observed.infrastructure)
    desired = render_stack(observed.cluster, charts or (), driver_root_of(observed.cluster))
    steps = (Apply(desired),) if charts is not None else ()  # applying without charts would uninstall the present ones
    if observed.stack is None:
        message = f"ServingStack {key_of(desired)} is being created"
        return ClusterServing(BackendReady.INSTALLING.condition(observed.now, message=message), steps=steps)
    stack = ServingStack.parse(observed.stack)
    ready_condition, synced = condition(observed.stack, "Ready"), condition(observed.stack, "Synced")
    sync_error = synced.message if synced.status == "False" else None
    gateway = stack.status.gateway if stack.status else None
    # The stack's Ready condition decides; a degraded stack still serves.
    reasons = {"True": BackendReady.BACKEND_HEALTHY, "Unknown": BackendReady.UNREACHABLE}
    reason = reasons.get(ready_condition.status, BackendReady.INSTALLING)
    if reason is BackendReady.BACKEND_HEALTHY and ready_condition.reason == Ready.DEGRADED.reason:
        reason = BackendReady.DEGRADED
    details = "; ".join(filter(None, (sync_error, ready_condition.message)))
    message = ": ".join(filter(None, (f"ServingStack {stack.key}", details)))
    causes = (BackendReady.INSTALL_FAILED, BackendReady.CERTIFICATE_REPLACED)
    reason = next((cause for cause in causes if cause.reason == ready_condition.reason), reason)
    if reason is BackendReady.BACKEND_HEALTHY:
        message = ""
    if not observed.helm:
        message = f"ServingStack {stack.key} is not changed, as this operator runs without Helm"
    ready = reason.condition(observed.now, message=message)
    if gateway is None:
        return ClusterServing(ready, None, steps)
    listeners = stack.spec.gateway.listeners if stack.spec.gateway else ()
    return ClusterServing(
        ready,
        gateway.address,
        steps,
        server_name=gateway.server_name,
        http=gateway.http is not False,
        reason=(
            f"spec.gateway.listeners of ServingStack {stack.key} are open to anybody: remove them" if listeners else ""
        ),
        port=own_port(listeners),
    )


def own_gateway(observed: Observed, state: ClusterState) -> ClusterServing:
    """Return the serving of a cluster whose gateway the operator creates directly, with Envoy Gateway there."""
    if missing := _list_missing_software(state):
        message = f"{observed.display_name} has no gateway, as it lacks {missing}: install it there"
        return ClusterServing(
            BackendReady.NOT_INSTALLED.condition(observed.now, message=message),
            _get_gateway_address(state),
            requeue_after=REQUEUE_AFTER,
        )
    cluster = observed.cluster.metadata.name
    last = observed.cluster.status.gateway if observed.cluster.status else None
    live = gateway_among(state.children)
    # Losing permission to read the certificate must not open a gateway that uses it.
    unreadable = replace(observed.hub, is_decided=False) if live and is_guarded(live) else Hub()
    hub = unreadable if state.unpermitted else observed.hub
    closed = is_true(observed.cluster.conditions, GatewaySecured)
    desired_doors = choose_listeners(
        observed.cluster,
        cluster,
        hub,
        state.children,
        observed.now,
        last.server_name if last else None,
        closed=closed,
        rewritten=state.rewritten,
    )
    if live is None and state.unpermitted and closed:  # nor create an open one in its place
        desired_doors = SHUT
    namespace = () if state.has_namespace else (render_system_namespace(observed.cluster),)
    gateway = keep_load_balancer(gateway_of(observed.cluster), service_annotations(state.children))
    desired = render_cluster_gateway(observed.cluster, gateway, https=desired_doors.https, http=desired_doors.http)
    # The certificate is issued after its namespace and before the Gateway that uses it.
    first, last_steps = (
        tuple(Apply(manifest, cluster) for manifest in manifests) for manifests in (namespace, desired)
    )
    reported = is_reported(observed.cluster.conditions, BackendReady.CERTIFICATE_REPLACED, observed.now)
    steps = (*first, *desired_doors.steps(reported=reported), *last_steps)
    # Steps that will likely be forbidden come last, so that they block no others.
    steps = tuple(
        sorted(
            steps, key=lambda step: (type_of(step.manifest) if isinstance(step, Apply) else SECRET) in state.forbidden
        )
    )
    address = _get_gateway_address(state)
    return ClusterServing(
        _build_own_gateway_ready(observed, state, address, desired_doors),
        address,
        steps,
        server_name=desired_doors.server_name,
        requeue_after=REQUEUE_SOON if desired_doors.replaced else None,
        http=desired_doors.http,
        reason=state.unpermitted,
    )


def _build_own_gateway_ready(
    observed: Observed, state: ClusterState, address: str | None, doors: Listeners
) -> Condition:
    """Return the BackendReady condition of a gateway that the operator creates directly."""
    if doors.replaced:
        return BackendReady.CERTIFICATE_REPLACED.condition(observed.now, message=doors.replaced)
    if address:
        message = (
            f"the gateway of {observed.display_name} was created without Helm, so this operator installs nothing there"
        )
        message = message if observed.helm else ""
        return BackendReady.BACKEND_HEALTHY.condition(observed.now, message=message)
    if doors.shut:
        return BackendReady.INSTALLING.condition(observed.now, message=waits(state.unpermitted or observed.hub.reason))
    gateway = gateway_among(state.children)
    details = condition(gateway, "Programmed").message if gateway else None
    message = f"gateway {names.CLUSTER_GATEWAY} has no address yet{f': {details}' if details else ''}; {GIVE_ADDRESSES}"
    return BackendReady.INSTALLING.condition(observed.now, message=message)


def _list_missing_software(state: ClusterState) -> str:
    """Return the required APIs that the cluster does not serve, as prose; empty when it serves all."""
    needed = {"GatewayAPI": "the Gateway API (gateway.networking.k8s.io/v1)"}
    needed["EnvoyGateway"] = "Envoy Gateway (gateway.envoyproxy.io/v1alpha1)"
    return " and ".join(description for name, description in needed.items() if name not in state.apis)


def _get_gateway_address(state: ClusterState) -> str | None:
    """Return the address of the cluster's gateway; None until the gateway is programmed."""
    gateway = gateway_among(state.children)
    if gateway is None or not condition(gateway, "Programmed").is_true:
        return None
    return address_of(gateway)
