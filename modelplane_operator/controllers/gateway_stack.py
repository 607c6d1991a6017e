"""InferenceGateway with its software: what to read beside what the routing half reads."""

from __future__ import annotations

from modelplane_operator.api import labels
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.clients.kube import Kube
from modelplane_operator.controllers import inference_gateway as routing
from modelplane_operator.controllers.charts import look, ours
from modelplane_operator.kube.objects import Key, Manifest, labels_of
from modelplane_operator.kube.resources import NAMESPACE, SERVICE
from modelplane_operator.planning.gateway_stack import Observed, plan
from modelplane_operator.rendering.gateway_stack import (
    EVERYTHING,
    NAMESPACES,
    Allowed,
    gateway_parts,
    render_namespaces,
)
from modelplane_operator.rendering.inference_gateway import data_plane
from modelplane_operator.runtime.loop import Clients, Controller
from modelplane_operator.runtime.reading import Cluster, find


def controller(
    definitions: tuple[Manifest, ...], *, helm: bool, allowed: Allowed = EVERYTHING
) -> Controller[InferenceGateway, Observed]:
    """`definitions` are those of the Gateway API's kinds; without `helm`, somebody else installs the software."""

    async def observe(gateway: InferenceGateway, clients: Clients) -> Observed:
        routed = await routing.observe(gateway, clients)
        if not helm:
            return Observed(routed, None)
        hub, going = clients.hub, gateway.metadata.deletion_timestamp is not None
        return Observed(
            routed,
            charts=await look(
                hub,
                gateway.metadata.uid or "",
                gateway_parts(gateway, allowed),
                clients,
                homes=NAMESPACES,
                namespaces=_namespaces(hub),
            ),
            taken=_taken(gateway, hub),
            definitions=() if going else await ours(hub.kube, definitions),
            balancer=await _balancer(gateway, hub.kube) if going else "",
            allowed=allowed,
        )

    return Controller(InferenceGateway, observe, plan, watches=routing.CONTROLLER.watches)


def _namespaces(hub: Cluster) -> tuple[str, ...]:
    """Where charts of the front door can be: the account may read Helm's records there, and nowhere else."""
    return tuple(name for name in NAMESPACES if find(hub, NAMESPACE, Key("", name)))


async def _balancer(gateway: InferenceGateway, kube: Kube) -> str:
    """The load balancer, if it is being taken away: whoever gave it the address has to take that back."""
    balancer = data_plane(gateway).load_balancer
    service = await kube.find(SERVICE, balancer)
    return str(balancer) if service and service["metadata"].get("deletionTimestamp") else ""


def _taken(gateway: InferenceGateway, hub: Cluster) -> frozenset[str]:
    named = (one["metadata"]["name"] for one in render_namespaces(gateway))
    there = {name: found for name in named if (found := find(hub, NAMESPACE, Key("", name)))}
    return frozenset(
        name for name, found in there.items() if labels_of(found).get(labels.OWNER_UID) != gateway.metadata.uid
    )
