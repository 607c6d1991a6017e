"""The hub's front door with its software: what the routing half decides, once there is something that can do it.

It goes from the front: the Gateway and its class while Traefik still runs, which takes the address away; then Traefik,
then MetalLB, which gave it. Definitions of kinds stay.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from modelplane_operator.api import labels, names
from modelplane_operator.api.conditions import Ready
from modelplane_operator.api.inference_gateway import ControllerReady, InferenceGateway, InferenceGatewayStatus
from modelplane_operator.api.model import Manifest
from modelplane_operator.clients.resources import GATEWAY, key_of, type_of
from modelplane_operator.planning.charts import LOOK, Seen, Standing, judge, remove
from modelplane_operator.planning.plan import Apply, Plan, Release, Step, delete
from modelplane_operator.rendering.gateway_stack import METALLB, TRAEFIK, gateway_parts, render_addresses


def with_charts(
    gateway: InferenceGateway,
    routing: Plan,
    charts: Seen,
    children: Sequence[Manifest],
    definitions: Iterable[Manifest],
) -> Plan:
    """`routing` is what is decided where Traefik runs; `children` are the Gateway and its class, as far as there."""
    if gateway.metadata.deletion_timestamp is not None:
        return _teardown(gateway, charts, children)
    if gateway.key.name != names.DEFAULT_GATEWAY:
        return routing
    standings = {one.part.name: one for one in judge(gateway_parts(gateway), charts)}
    steps: list[Step] = [Apply(definition) for definition in definitions]
    steps += [one.step for one in standings.values() if one.step is not None]
    if METALLB in standings and standings[METALLB].runs:
        steps += map(Apply, render_addresses(gateway))
    there = all(one.runs for one in standings.values())
    if there:
        steps += routing.steps
    again = [one.again for one in standings.values() if one.again is not None]
    status = routing.status if there else _installing(gateway, standings.values(), charts)
    return Plan(tuple(steps), status, requeue_after=min(again, default=routing.requeue_after), hold=True)


def _installing(gateway: InferenceGateway, standings: Iterable[Standing], charts: Seen) -> InferenceGatewayStatus:
    words = "; ".join(
        f"{one.part.name} is not installed" + (f": {one.message}" if one.message else "")
        for one in standings
        if not one.runs
    )
    known = gateway.status or InferenceGatewayStatus()
    conditions = (
        ControllerReady.INSTALLING.condition(charts.now, message=words),
        Ready.CREATING.condition(charts.now, message=words),
    )
    return known.model_copy(update={"conditions": conditions})


def _teardown(gateway: InferenceGateway, charts: Seen, children: Sequence[Manifest]) -> Plan:
    if labels.FINALIZER not in gateway.metadata.finalizers:
        return Plan()
    if children:
        first = next((child for child in children if type_of(child) == GATEWAY), children[0])
        steps = () if first["metadata"].get("deletionTimestamp") else (delete(first),)
        return _leaving(gateway, charts, f"being deleted: {first['kind']} {key_of(first)}", *steps)
    if not charts.releases:
        return Plan((Release(),))
    last = sorted(charts.releases, key=lambda release: release.name != f"mp-{TRAEFIK}")[0]
    words, step = remove(last, charts)
    return _leaving(gateway, charts, words, *([step] if step else []))


def _leaving(gateway: InferenceGateway, charts: Seen, words: str, *steps: Step) -> Plan:
    known = gateway.status or InferenceGatewayStatus()
    going = Ready.DELETING.condition(charts.now, message=words)
    return Plan(steps, known.model_copy(update={"conditions": (going,)}), requeue_after=LOOK)
