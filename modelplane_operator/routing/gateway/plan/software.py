"""Plan the software of the hub gateway, installed before its Gateway and removed after it.

Removal order: the Gateway and its class while their controller still runs, which releases the address; the controller;
MetalLB, which gave the address. CustomResourceDefinitions stay. A change of the backend removes the old one in the same
order.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.objects import Key, is_terminating, key_of, section
from kubeloop.plan import KEEP, LET_GO, Apply, Plan, Step, delete
from kubeloop.types import GATEWAY, type_of
from modelplane_operator.api import labels
from modelplane_operator.api.inference_gateway import (
    ControllerReady,
    InferenceGateway,
    InferenceGatewayStatus,
    MutualTLSReady,
)
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.clusters.stack.chart_states import (
    REQUEUE_AFTER,
    ChartStatus,
    ObservedCharts,
    compute_chart_status,
    describe_missing,
    remove,
)
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.gateway_pods import keep_load_balancer
from modelplane_operator.routing.gateway.plan.observed import Observed
from modelplane_operator.routing.gateway.render import render_inference_gateway
from modelplane_operator.routing.gateway.render.software import (
    METALLB,
    gateway_parts,
    render_addresses,
    render_namespaces,
)

UNREADY = 15.0  # seconds between polls of pods that are starting
POLL_INTERVAL = 60.0  # seconds between polls of releases and pods, which users may change


def install(observed: Observed, charts: ObservedCharts, served: Plan) -> Plan:
    """Return the plan that installs the software, and then executes the plan `served`."""
    gateway = observed.gateway
    spec = keep_load_balancer(gateway.spec, _find_service_annotations(charts))
    components = gateway_parts(gateway.model_copy(update={"spec": spec}), observed.allowed)
    statuses = compute_chart_status(components, charts)
    routable, installed = _is_routable(statuses), all(item.runs for item in statuses)
    steps: list[Step] = [KEEP, *map(Apply, observed.definitions)]
    steps += (Apply(item) for item in render_namespaces(gateway) if item["metadata"]["name"] not in observed.taken)
    steps += (item.step for item in statuses if item.step is not None)
    # Obsolete releases keep running until their replacement is installed and their objects are deleted.
    # The controller of an old backend holds its objects by a finalizer.
    obsolete: list[Key] = []
    if installed:
        rendered = {(type_of(manifest), key_of(manifest)) for manifest in render_inference_gateway(gateway)}
        if all((type_of(manifest), key_of(manifest)) in rendered for manifest in observed.children):
            obsolete = sorted(charts.releases - {component.release.key for component in components})
    steps += served.steps if routable else ()
    steps += (step for key in obsolete if (step := remove(key, charts)[1]) is not None)
    # Last, because MetalLB rejects these for some moments after its start.
    if any(item.part.name == METALLB and item.state == "Deployed" for item in statuses):
        steps += map(Apply, render_addresses(gateway))
    delays = [item.requeue_after for item in statuses if item.requeue_after is not None]
    delays += [] if served.requeue_after is None else [served.requeue_after]
    delays += (
        [REQUEUE_AFTER]
        if obsolete
        else [UNREADY]
        if any(item.state == "Starting" for item in statuses)
        else [POLL_INTERVAL]
    )
    return Plan(tuple(steps), _build_status(observed, statuses, served), requeue_after=min(delays))


def _find_service_annotations(charts: ObservedCharts) -> Mapping[str, str] | None:
    """Return the annotations with which Traefik's Service was deployed; None without Traefik."""
    deployed = (charts.find_deployed(key) for key in charts.history)
    contents = (charts.contents.get((item.release, item.number)) for item in deployed if item)
    values = (item.values for item in contents if item and item.chart == traefik.CHART)
    return next((section(item, "service", "annotations") for item in values), None)


def _is_routable(statuses: Iterable[ChartStatus]) -> bool:
    """True if the software that serves the Gateway is deployed; an address may follow later."""
    return all(chart_status.runs for chart_status in statuses if chart_status.part.name != METALLB)


def _build_status(observed: Observed, statuses: Sequence[ChartStatus], served: Plan) -> InferenceGatewayStatus:
    """Return the status of the Gateway, with conditions replaced where the state of charts matters more."""
    now, problems = observed.now, "; ".join(describe_missing(statuses))
    last_status = observed.gateway.status or InferenceGatewayStatus()
    base = (
        served.status if _is_routable(statuses) and isinstance(served.status, InferenceGatewayStatus) else last_status
    )
    if problems:
        failed = any(item.state == "Failed" and not item.runs for item in statuses)
        reason = ControllerReady.INSTALL_FAILED if failed else ControllerReady.INSTALLING
        controller = reason.condition(now, message=problems)
        conditions = (controller, not_ready(InferenceGateway.definition.kind, controller))
    else:
        overrides = {
            item.type: item
            for item in (_build_change(observed, statuses), _build_preparing(observed, statuses, base))
            if item
        }
        conditions = tuple(overrides.get(item.type, item) for item in base.conditions)
    return base.model_copy(update={"conditions": conditions})


def _build_preparing(
    observed: Observed, statuses: Iterable[ChartStatus], base_status: InferenceGatewayStatus
) -> Condition | None:
    """Return MutualTLSReady as preparing while the running version presents no certificate yet; else None.

    Once it has presented it, later versions do too.
    """
    conditions = observed.gateway.conditions
    done = all(chart_status.state == "Deployed" for chart_status in statuses) or is_true(conditions, MutualTLSReady)
    if done or not is_true(base_status.conditions, MutualTLSReady):
        return None
    return MutualTLSReady.PREPARING.condition(
        observed.now, message="starting (waiting for: the hub gateway's chart to present the certificate)"
    )


def _build_change(observed: Observed, statuses: Iterable[ChartStatus]) -> Condition | None:
    """Return the condition of an upgrade that is running or failed while the old version serves; else None."""
    for reason, states in (
        (ControllerReady.ROLLED_BACK, {"Failed", "RollingBack", "RolledBack"}),
        (ControllerReady.UPGRADING, {"Upgrading", "Waiting"}),
    ):
        messages = [
            f"chart {item.part.name}{f': {item.message}' if item.message else f' is {item.state}'}"
            for item in statuses
            if item.state in states
        ]
        if messages:
            return reason.condition(observed.now, message="; ".join(messages))
    return None


# Removal -------------------------------------------------------------------------------------------------------


def teardown(observed: Observed, charts: ObservedCharts) -> Plan:
    """Return the plan with the next step of the removal: the Gateway first, then its software."""
    if children := observed.children:
        next_child = next((child for child in children if type_of(child) == GATEWAY), children[0])
        steps = () if is_terminating(next_child) else (delete(next_child),)
        return _build_deletion_plan(
            observed, f"waiting for deletions: {next_child['kind']} {key_of(next_child)}", *steps
        )
    if observed.balancer:
        return _build_deletion_plan(observed, f"load balancer {observed.balancer} is being deleted")
    if not charts.releases:
        return Plan((LET_GO,))
    next_release = sorted(charts.releases, key=lambda release: (release.name == f"mp-{METALLB}", release))[0]
    message, step = remove(next_release, charts)
    return _build_deletion_plan(observed, message, *([step] if step else []))


def leave(observed: Observed) -> Plan:
    """Return the plan for charts that the operator may not change: it waits, unless the user has abandoned them."""
    if observed.gateway.metadata.annotations.get(labels.ABANDON) == "true":
        return Plan((LET_GO,))
    message = "the charts of the hub gateway stay until the operator may use Helm on the hub again"
    return _build_deletion_plan(
        observed, f'{message}; annotate the InferenceGateway with {labels.ABANDON}="true" to leave them'
    )


def _build_deletion_plan(observed: Observed, message: str, *steps: Step) -> Plan:
    """Return the plan of a step of the removal, with its message."""
    last_status = observed.gateway.status or InferenceGatewayStatus()
    terminating = Ready.DELETING.condition(observed.now, message=message)
    return Plan(steps, last_status.model_copy(update={"conditions": (terminating,)}), requeue_after=REQUEUE_AFTER)
