"""Create the controllers of all kinds, with the components that several of them share."""

from __future__ import annotations

import time
from datetime import timedelta
from functools import partial

from kubeloop.cache.referenced import ReferencedObjects
from kubeloop.client.resolver import Resolver
from kubeloop.watched import Controllers
from modelplane_operator.ask.admission.with_reviews import add_reviews
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.decide import LAG
from modelplane_operator.clouds.eks import controller as eks_cluster
from modelplane_operator.clouds.eks.cloud import connect as connect_aws
from modelplane_operator.clouds.gke import controller as gke_cluster
from modelplane_operator.clouds.gke.cloud import connect as connect_google
from modelplane_operator.clouds.tokens import Tokens
from modelplane_operator.clouds.work import CloudWork
from modelplane_operator.clusters.class_ import controller as inference_class
from modelplane_operator.clusters.cluster import controller as inference_cluster
from modelplane_operator.clusters.cluster.connections import Connections
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.gateways import Gateways
from modelplane_operator.clusters.stack import controller as serving_stack
from modelplane_operator.clusters.stack.definitions import read_definitions
from modelplane_operator.models.cache import controller as model_cache
from modelplane_operator.models.deployment import controller as model_deployment
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.models.llm_inference import controller as llm_inference
from modelplane_operator.models.llm_inference.tenant_clusters import TenantClusters
from modelplane_operator.models.replica import controller as model_replica
from modelplane_operator.models.replica.render import operator_settings
from modelplane_operator.routing.endpoint import controller as model_endpoint
from modelplane_operator.routing.endpoint import outside
from modelplane_operator.routing.endpoint.hub_networks import HubRanges
from modelplane_operator.routing.endpoint.through import ClusterGateways, refuse_inward
from modelplane_operator.routing.gateway import controller as inference_gateway
from modelplane_operator.routing.gateway.data_plane import Allowed
from modelplane_operator.routing.service import controller as model_service
from modelplane_operator.routing.service.counters import GatewayCounters
from modelplane_operator.routing.service.probe import Asker
from modelplane_operator.world import World

TRAEFIK_ACCOUNT = "traefik"  # in traefik-system; the operator's chart creates it with its permissions
REFERENCED_SECONDS = 60.0  # seconds until a referenced Secret is read again


def hub_gateway(world: World, traefik_account: str = "") -> Controllers:
    """Return the controller of InferenceGateways, which can run in a separate pod with its own service account.

    `traefik_account`: an existing account for Traefik; without one, Traefik's chart creates it with its permissions.
    """
    settings, folder = world.settings, world.settings.definitions
    return (
        inference_gateway.controller(
            read_definitions(folder / "hub") if folder else (),
            None if settings.hub_gateway == "own" else world.helm,
            allowed=Allowed(traefik_account, settings.tenant_namespaces),
        ),
    )


def kinds(world: World, cloud_lag: timedelta = LAG) -> Controllers:
    """Return the controllers of all kinds. `cloud_lag`: the time until a cloud lists a new resource."""
    settings, now = world.settings, time.monotonic
    helm, drain_grace = world.helm, timedelta(seconds=settings.drain_grace)
    folder = settings.definitions
    on_cluster = read_definitions(folder / "cluster") if folder else ()
    connections = Connections(world.fleet, world.connection_changed)
    referenced = ReferencedObjects(world.hub, now, REFERENCED_SECONDS, world.wake)
    gateways, resolver = Gateways(now), Resolver(now)
    cluster_gateways = ClusterGateways(Asker(now, refuse_inward(settings.reach)), world.wake, world.checked)
    fabrics = Fabrics()
    google = partial(connect_google, hosts=dict(settings.google_endpoints))
    accounts = Accounts({"EKS": connect_aws, "GKE": google})
    on_clouds = CloudWork(accounts, Tokens(accounts, connections, now), world.now, cloud_lag)
    world.fleet.awaits = on_clouds.tokens.awaits
    ranges = HubRanges(world.hub, now)
    tenants = TenantClusters(now, ranges, settings.reach, world.connection_changed)
    world.fleet.run_in_background(tenants.fleet)
    view = FleetView(world.now)
    controllers: Controllers = (
        inference_class.CONTROLLER,
        inference_cluster.controller(
            connections,
            gateways,
            resolver,
            fabrics,
            describe_silence=cluster_gateways.describe_silence,
            helm=helm is not None,
            settle=drain_grace + timedelta(seconds=settings.lifecycle.grace_seconds),
            background=(on_clouds.tokens.run,),
        ),
        *(() if settings.hub_gateway == "apart" else hub_gateway(world)),
        model_deployment.controller(
            view,
            drain_grace,
            referenced,
            world.scheduled,
            operator=operator_settings(settings.images, settings.lifecycle),
            max_disruptions=settings.max_disruptions,
        ),
        model_replica.controller(
            referenced, gateways, settings.lifecycle, settings.images, cluster_gateways.describe_failure
        ),
        model_cache.controller(referenced, settings.hydrator),
        model_endpoint.controller(
            settings.reach,
            referenced,
            ranges,
            resolver,
            outside.checks(resolver, world.wake, world.checked),
            gateways=cluster_gateways,
        ),
        model_service.controller(
            referenced,
            settings.keys_address,
            model_service.checks(Asker(now), world.wake, world.checked),
            GatewayCounters(world.hub, now, world.wake),
        ),
        llm_inference.controller(
            referenced, tenants, settings.llm_inferences_on_hub, settings.llm_inference_hosts_on_hub
        ),
        *((serving_stack.controller(on_cluster, helm, fabrics, connections),) if helm else ()),
        eks_cluster.controller(on_clouds),
        gke_cluster.controller(on_clouds),
    )
    return add_reviews(controllers, view, settings.reach) if settings.admission_listen else controllers
