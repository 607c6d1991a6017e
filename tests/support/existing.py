"""A cluster that is brought to a hub, a replica on it, and the controllers of both at work."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace

from kubeloop.client.access import read_kubeconfig
from kubeloop.client.resolver import Resolver
from kubeloop.watched import Controllers
from localfleet.fleet import Fleet
from modelplane_operator.clusters.class_ import controller as inference_class
from modelplane_operator.clusters.cluster import controller as inference_cluster
from modelplane_operator.clusters.cluster.connections import Connections
from modelplane_operator.clusters.cluster.fabrics import Fabrics
from modelplane_operator.clusters.cluster.gateways import Gateways
from modelplane_operator.operator import Build, assemble
from modelplane_operator.settings import Settings
from modelplane_operator.world import World
from tests.support.builders import GPU, claim
from tests.support.manifests import Manifest

QUIET = Settings(listen=("127.0.0.1", 0))
CLASS = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "InferenceClass",
    "metadata": {"name": "h100"},
    "spec": {
        "devices": [
            {
                "name": "gpu",
                "driver": GPU,
                "deviceClassName": GPU,
                "count": 8,
                "attributes": {"architecture": {"string": "Hopper"}},
                "capacity": {"memory": {"value": "80Gi"}},
            }
        ]
    },
}


def cluster(name: str, **existing: str) -> Manifest:
    origin = {"source": "Existing", "existing": {"secretRef": {"name": name}, **existing}}
    pools = [{"name": "h100", "className": "h100", "nodeCount": 2}]
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "InferenceCluster",
        "metadata": {"name": name},
        "spec": {"cluster": origin, "nodePools": pools},
    }


def replica(on: str, namespace: str) -> Manifest:
    template = {"spec": {"containers": [{"name": "engine", "image": "vllm"}]}}
    members = [{"role": "Standalone", "nodePoolName": "h100", "template": template, "deviceRequests": [claim()]}]
    return {
        "apiVersion": "modelplane.ai/v1alpha1",
        "kind": "ModelReplica",
        "metadata": {"name": "m", "namespace": namespace},
        "spec": {"clusterName": on, "engines": [{"name": "main", "members": members}]},
    }


def kinds(world: World) -> Controllers:
    """The controllers that this is about."""
    known = Connections(world.fleet, world.connection_changed)
    clusters = inference_cluster.controller(known, Gateways(time.monotonic), Resolver(time.monotonic), Fabrics())
    return inference_class.CONTROLLER, clusters


@contextmanager
def operating(
    fleet: Fleet, settings: Settings = QUIET, build: Build = kinds, *, kubeconfig: str = "", name: str = "operator"
) -> Iterator[None]:
    """The operator, in a thread of its own; as the administrator, unless a kubeconfig says otherwise."""
    access = read_kubeconfig(kubeconfig or fleet.kubeconfig("hub").read_text())
    started: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]] = Future()

    async def run() -> None:
        stop = asyncio.Event()
        started.set_result((asyncio.get_running_loop(), stop))
        await replace(assemble(settings, access, build, name=name), stop_grace=20).run(stop)

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(asyncio.run, run())
        loop, stop = started.result()
        try:
            yield
        finally:
            loop.call_soon_threadsafe(stop.set)
            running.result()


OPEN = {
    "apiVersion": "modelplane.ai/v1alpha1",
    "kind": "InferenceGateway",
    "metadata": {"name": "default"},
    "spec": {"backend": "Traefik", "traefik": {"version": "40.2.0"}, "mutualTLS": "Never"},
}
"""A hub gateway by whose word clusters answer anybody; without one their gateways wait."""
