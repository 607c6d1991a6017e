"""Which kinds the operator runs: one line for each, and what they need beside their controllers."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Mapping
from datetime import timedelta

from modelplane_operator.clients.definitions import read_definitions
from modelplane_operator.clients.front_door import Asker
from modelplane_operator.clients.gateways import Gateways
from modelplane_operator.clients.informer import Index
from modelplane_operator.clients.ranges import HubRanges
from modelplane_operator.clients.referenced import ReferencedObjects
from modelplane_operator.clients.resolver import Resolver
from modelplane_operator.controllers import (
    gateway_stack,
    inference_class,
    inference_cluster,
    model_deployment,
    model_endpoint,
    model_replica,
    model_service,
    outside,
    serving_stack,
)
from modelplane_operator.controllers.connections import Connections
from modelplane_operator.controllers.fabrics import Fabrics
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.kube.resources import ResourceType
from modelplane_operator.rendering.gateway_stack import Allowed
from modelplane_operator.runtime.world import Kinds, World

REFERENCED_SECONDS = 60.0  # users' Secrets are read again after so long

Indexes = Mapping[ResourceType, Mapping[str, Index]]


def kinds(world: World) -> Kinds:
    settings = world.settings
    fleet = FleetView(world.now)
    gateways, fabrics = Gateways(time.monotonic), Fabrics()
    connections = Connections(world.fleet, world.connection_changed, plain_http=settings.plain_http)
    referenced = ReferencedObjects(world.hub, time.monotonic, REFERENCED_SECONDS, world.wake)
    with_helm = bool(settings.helm)
    folder = settings.definitions
    on_hub, on_cluster = (read_definitions(folder / where) if folder else () for where in ("hub", "cluster"))
    resolver, ranges = Resolver(time.monotonic), HubRanges(world.hub, time.monotonic)
    services = model_service.checks(Asker(time.monotonic), world.wake, world.checked)
    places = outside.checks(resolver, world.wake, world.checked)
    return Kinds(
        controllers=(
            inference_class.CONTROLLER,
            inference_cluster.controller(
                connections,
                gateways,
                resolver,
                helm=with_helm,
                settle=timedelta(seconds=settings.drain_grace) + timedelta(seconds=settings.lifecycle.grace_seconds),
            ),
            gateway_stack.controller(
                on_hub,
                helm=with_helm and settings.front_door == "helm",
                allowed=Allowed(settings.traefik_account, settings.tenant_namespaces),
            ),
            model_deployment.controller(fleet, timedelta(seconds=settings.drain_grace), world.scheduled),
            model_replica.controller(referenced, gateways, settings.lifecycle, settings.images),
            model_endpoint.controller(settings.reach, referenced, ranges, resolver, places),
            model_service.controller(referenced, settings.keys_address, services),
            *((serving_stack.controller(on_cluster, connections.why),) if with_helm else ()),
        ),
        listeners=(fleet.listen, fabrics.listen, connections.listen, services.listen, places.listen),
        while_leading=(referenced.run, services.run, places.run),
        on_health=(fleet.on_health,),
        on_unauthorized=(connections.refused,),
        watched_remotely=(
            *inference_cluster.watched_remotely(fabrics.cut_node),
            *model_replica.WATCHED_REMOTELY,
            *(serving_stack.WATCHED_REMOTELY if with_helm else ()),
        ),
        indexes=_merged(
            inference_class.INDEXES,
            inference_cluster.INDEXES,
            model_deployment.INDEXES,
            model_endpoint.INDEXES,
            model_replica.INDEXES,
            model_service.INDEXES,
            serving_stack.INDEXES,
        ),
    )


def _merged(*parts: Indexes) -> Indexes:
    """The indexes of several kinds; several may want to find the same type."""
    merged: defaultdict[ResourceType, dict[str, Index]] = defaultdict(dict)
    for part in parts:
        for kind, indexes in part.items():
            merged[kind].update(indexes)
    return merged
