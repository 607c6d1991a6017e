"""What makes a cluster's gateway: a ServingStack of ours, or we ourselves."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.conditions import condition
from kubeloop.objects import key_of
from kubeloop.plan import Apply, Issue, Step
from kubeloop.types import SECRET, ResourceType, type_of
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
from modelplane_operator.clusters.cluster.plan.mutual_tls import SHUT, Hub, doors, waits
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_AFTER, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.registered import mark_of
from modelplane_operator.clusters.stack.render import render_stack
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES, keeping_balancer, service_annotations
from modelplane_operator.routing.gateway.render import address_of


@dataclass(frozen=True, slots=True)
class ClusterServing:
    """How requests come to the models there: what to write for it, and how it stands."""

    ready: Condition
    address: str | None = None
    steps: tuple[Step, ...] = ()
    requeue_after: float | None = None
    server_name: str | None = None
    """What the gateway proves to be to the hub's."""
    http: bool = field(default=True)
    """Whether it answers anybody."""
    why: str = ""
    """Why it must go on to do so."""
    port: int | None = None
    """By which it does, where that is not 80."""


def unless_ours(seen: Observed, serving: ClusterServing) -> ClusterServing:
    """Without the address of the hub's own gateway, where requests would go round: a cluster may say any."""
    if serving.address not in seen.hub_gateway:
        return serving
    words = (
        f"the gateway of {seen.named} says that it is at {serving.address}, where the hub's own is: give it an address "
        "of its own"
    )
    refused = BackendReady.ADDRESS_IN_USE.condition(seen.now, message=words)
    return replace(serving, ready=refused, address=None, requeue_after=REQUEUE_AFTER)


def has_stack(seen: Observed, state: ClusterState) -> bool:
    """Whether a ServingStack makes the gateway. One that is ours already stays so: another owner's would replace it."""
    mark = mark_of(seen, state.children)
    return seen.stack is not None or (seen.helm and all(one is mark for one in state.children))


def from_stack(seen: Observed) -> ClusterServing:
    charts = charts_of(seen.cluster, seen.infrastructure)
    wanted = render_stack(seen.cluster, charts or (), driver_root_of(seen.cluster))
    steps = (Apply(wanted),) if charts is not None else ()  # else those that are there would be taken away
    if seen.stack is None:
        words = f"ServingStack {key_of(wanted)} is being made"
        return ClusterServing(BackendReady.INSTALLING.condition(seen.now, message=words), steps=steps)
    stack = ServingStack.parse(seen.stack)
    told, synced = condition(seen.stack, "Ready"), condition(seen.stack, "Synced")
    refused = synced.message if synced.status == "False" else None
    gateway = stack.status.gateway if stack.status else None
    reasons = {"True": BackendReady.BACKEND_HEALTHY, "Unknown": BackendReady.UNREACHABLE}
    reason = reasons.get(told.status, BackendReady.INSTALLING)
    if reason is BackendReady.BACKEND_HEALTHY and told.reason == Ready.DEGRADED.reason:
        reason = BackendReady.DEGRADED
    why = "; ".join(filter(None, (refused, told.message)))
    words = ": ".join(filter(None, (f"ServingStack {stack.key}", why)))
    if told.reason == BackendReady.INSTALL_FAILED.reason:
        reason = BackendReady.INSTALL_FAILED
    if reason is BackendReady.BACKEND_HEALTHY:
        words = ""
    if not seen.helm:
        words = f"ServingStack {stack.key} is as it was: this operator runs no Helm"
    ready = reason.condition(seen.now, message=words)
    if gateway is None:
        return ClusterServing(ready, None, steps)
    asked = stack.spec.gateway.listeners if stack.spec.gateway else ()
    return ClusterServing(
        ready,
        gateway.address,
        steps,
        server_name=gateway.server_name,
        http=gateway.http is not False,
        why=f"spec.gateway.listeners of ServingStack {stack.key} answer anybody: take them out" if asked else "",
        port=own_port(asked),
    )


def own_gateway(seen: Observed, state: ClusterState) -> ClusterServing:
    if missing := _missing_software(state):
        words = f"{seen.named} has no gateway yet, as it lacks {missing}: install that there"
        return ClusterServing(
            BackendReady.NOT_INSTALLED.condition(seen.now, message=words), _address(state), requeue_after=REQUEUE_AFTER
        )
    cluster = seen.cluster.metadata.name
    last = seen.cluster.status.gateway if seen.cluster.status else None
    live = gateway_among(state.children)
    # What may not be seen any more is no reason to open a gateway that has it.
    unseen = replace(seen.hub, known=False) if live and is_guarded(live) else Hub()
    hub = unseen if state.unpermitted else seen.hub
    closed = is_true(seen.cluster.conditions, GatewaySecured)
    opened = doors(
        seen.cluster, cluster, hub, state.children, seen.now, last.server_name if last else None, closed=closed
    )
    if live is None and state.unpermitted and closed:  # nor to make another one in its place that is open
        opened = SHUT
    namespace = () if state.has_namespace else (render_system_namespace(seen.cluster),)
    gateway = keeping_balancer(gateway_of(seen.cluster), service_annotations(state.children))
    wanted = render_cluster_gateway(seen.cluster, gateway, https=opened.https, http=opened.http)
    before, after = (tuple(Apply(one, cluster) for one in part) for part in (namespace, wanted))
    steps = (*before, *opened.issued(), *after)
    # What is likely to fail comes last, and keeps nothing else there from being done.
    steps = tuple(sorted(steps, key=lambda step: _made_by(step) in state.forbidden))
    address = _address(state)
    return ClusterServing(
        _own_gateway_ready(seen, state, address, shut=opened.shut),
        address,
        steps,
        server_name=opened.server_name,
        http=opened.http,
        why=state.unpermitted,
    )


def _made_by(step: Apply | Issue) -> ResourceType:
    """The type of what a step makes."""
    return type_of(step.manifest) if isinstance(step, Apply) else SECRET


def _own_gateway_ready(seen: Observed, state: ClusterState, address: str | None, *, shut: bool) -> Condition:
    if address:
        words = f"the gateway of {seen.named} is of before this operator ran Helm, which installs nothing there"
        words = words if seen.helm else ""
        return BackendReady.BACKEND_HEALTHY.condition(seen.now, message=words)
    if shut:
        return BackendReady.INSTALLING.condition(seen.now, message=waits(state.unpermitted or seen.hub.why))
    gateway = gateway_among(state.children)
    said = condition(gateway, "Programmed").message if gateway else None
    words = f"gateway {names.CLUSTER_GATEWAY} has no address yet{f': {said}' if said else ''}; {GIVE_ADDRESSES}"
    return BackendReady.INSTALLING.condition(seen.now, message=words)


def _missing_software(state: ClusterState) -> str:
    """What the gateway needs and the cluster does not serve; empty when it has all."""
    needed = {"GatewayAPI": "the Gateway API (gateway.networking.k8s.io/v1)"}
    needed["EnvoyGateway"] = "Envoy Gateway (gateway.envoyproxy.io/v1alpha1)"
    return " and ".join(words for name, words in needed.items() if name not in state.apis)


def _address(state: ClusterState) -> str | None:
    """Where requests for the cluster's models go; None until its gateway is there for them."""
    gateway = gateway_among(state.children)
    if gateway is None or not condition(gateway, "Programmed").is_true:
        return None
    return address_of(gateway)
