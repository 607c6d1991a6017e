"""The software of the hub gateway: what comes before its Gateway, and goes after it.

It goes from the front: the Gateway and its class while their controller still runs, which takes the address away; then
the controller, then MetalLB, which gave it. Definitions of kinds stay. Of another backend it takes the same way.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from kubeloop.condition_types import Condition, Ready, is_true
from kubeloop.objects import is_terminating, key_of, section
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
    judge,
    lacking,
    remove,
)
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.gateway_pods import keeping_balancer
from modelplane_operator.routing.gateway.plan.observed import Observed
from modelplane_operator.routing.gateway.render import render_inference_gateway
from modelplane_operator.routing.gateway.render.software import (
    METALLB,
    gateway_parts,
    render_addresses,
    render_namespaces,
)

UNREADY = 15.0  # until we look again for what no event tells of: pods that come up
AT_REST = 60.0  # the same for releases and pods that somebody changes


def install(seen: Observed, charts: ObservedCharts, served: Plan) -> Plan:
    """Install what answers requests, and then do what is to be `served`."""
    gateway = seen.gateway
    spec = keeping_balancer(gateway.spec, _service_annotations(charts))
    wanted = gateway_parts(gateway.model_copy(update={"spec": spec}), seen.allowed)
    statuses = judge(wanted, charts)
    routable, there = _routable(statuses), all(one.runs for one in statuses)
    steps: list[Step] = [KEEP, *map(Apply, seen.definitions)]
    steps += (Apply(one) for one in render_namespaces(gateway) if one["metadata"]["name"] not in seen.taken)
    steps += (one.step for one in statuses if one.step is not None)
    # What is no longer wanted does its work until what is wanted instead is there, and lets go of what it has made.
    unwanted = sorted(charts.releases - {part.release.key for part in wanted}) if there and not _outlived(seen) else ()
    steps += served.steps if routable else ()
    steps += (step for key in unwanted if (step := remove(key, charts)[1]) is not None)
    # Last, because MetalLB refuses them for some moments after it has come up.
    if any(one.part.name == METALLB and one.state == "Deployed" for one in statuses):
        steps += map(Apply, render_addresses(gateway))
    waits = [one.requeue_after for one in statuses if one.requeue_after is not None]
    waits += [] if served.requeue_after is None else [served.requeue_after]
    waits += (
        [REQUEUE_AFTER] if unwanted else [UNREADY] if any(one.state == "Starting" for one in statuses) else [AT_REST]
    )
    return Plan(tuple(steps), _status(seen, statuses, served), requeue_after=min(waits))


def _service_annotations(charts: ObservedCharts) -> Mapping[str, str] | None:
    """Return the annotations that Traefik's Service has been deployed with; None where there is no Traefik."""
    deployed = (charts.deployed(key) for key in charts.history)
    held = (charts.contents.get((one.release, one.number)) for one in deployed if one)
    values = (one.values for one in held if one and one.chart == traefik.CHART)
    return next((section(one, "service", "annotations") for one in values), None)


def _outlived(seen: Observed) -> bool:
    """Whether something is left of a backend that is no longer asked for. Its controller holds it by a finalizer."""
    wanted = {(type_of(one), key_of(one)) for one in render_inference_gateway(seen.gateway)}
    return any((type_of(one), key_of(one)) not in wanted for one in seen.children)


def _routable(statuses: Iterable[ChartStatus]) -> bool:
    """Whether there is something that can serve the Gateway; an address may come later."""
    return all(one.runs for one in statuses if one.part.name != METALLB)


def _status(seen: Observed, statuses: Sequence[ChartStatus], served: Plan) -> InferenceGatewayStatus:
    """What the Gateway says, but for what charts know better."""
    now, words = seen.now, "; ".join(lacking(statuses))
    known = seen.gateway.status or InferenceGatewayStatus()
    said = served.status if _routable(statuses) and isinstance(served.status, InferenceGatewayStatus) else known
    if words:
        failed = any(one.state == "Failed" and not one.runs for one in statuses)
        reason = ControllerReady.INSTALL_FAILED if failed else ControllerReady.INSTALLING
        controller = reason.condition(now, message=words)
        conditions = (controller, not_ready(InferenceGateway.definition.kind, controller))
    else:
        news = {one.type: one for one in (_change(seen, statuses), _unpresented(seen, statuses, said)) if one}
        conditions = tuple(news.get(one.type, one) for one in said.conditions)
    return said.model_copy(update={"conditions": conditions})


def _unpresented(seen: Observed, statuses: Iterable[ChartStatus], said: InferenceGatewayStatus) -> Condition | None:
    """That what runs is not yet what presents the certificate. Once it does, a later version does so, too."""
    known = seen.gateway.conditions
    settled = all(one.state == "Deployed" for one in statuses) or is_true(known, MutualTLSReady)
    if settled or not is_true(said.conditions, MutualTLSReady):
        return None
    return MutualTLSReady.PREPARING.condition(
        seen.now, message="the chart of the hub gateway is being changed to present the certificate"
    )


def _change(seen: Observed, statuses: Iterable[ChartStatus]) -> Condition | None:
    """What is on its way, or failed, while what was there before answers requests."""
    for reason, states in (
        (ControllerReady.ROLLED_BACK, {"Failed", "RollingBack", "RolledBack"}),
        (ControllerReady.UPGRADING, {"Upgrading", "Waiting"}),
    ):
        words = [
            f"chart {one.part.name}{f': {one.message}' if one.message else f' is {one.state}'}"
            for one in statuses
            if one.state in states
        ]
        if words:
            return reason.condition(seen.now, message="; ".join(words))
    return None


# On its way out -------------------------------------------------------------------------------------------------------


def teardown(seen: Observed, charts: ObservedCharts) -> Plan:
    """Take the Gateway away, and then its software."""
    if children := seen.children:
        first = next((child for child in children if type_of(child) == GATEWAY), children[0])
        steps = () if is_terminating(first) else (delete(first),)
        return _leaving(seen, f"waiting for what is being deleted: {first['kind']} {key_of(first)}", *steps)
    if seen.balancer:
        return _leaving(seen, f"load balancer {seen.balancer} is being taken away")
    if not charts.releases:
        return Plan((LET_GO,))
    last = sorted(charts.releases, key=lambda release: (release.name == f"mp-{METALLB}", release))[0]
    words, step = remove(last, charts)
    return _leaving(seen, words, *([step] if step else []))


def leave(seen: Observed) -> Plan:
    """What has charts that nobody may touch: it waits, unless somebody has said to leave them."""
    if seen.gateway.metadata.annotations.get(labels.ABANDON) == "true":
        return Plan((LET_GO,))
    words = "the charts of the hub gateway go as soon as the operator may use Helm on the hub again"
    return _leaving(seen, f'{words}; annotate it with {labels.ABANDON}="true" to leave them')


def _leaving(seen: Observed, words: str, *steps: Step) -> Plan:
    known = seen.gateway.status or InferenceGatewayStatus()
    terminating = Ready.DELETING.condition(seen.now, message=words)
    return Plan(steps, known.model_copy(update={"conditions": (terminating,)}), requeue_after=REQUEUE_AFTER)
