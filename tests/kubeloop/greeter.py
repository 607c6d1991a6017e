"""An operator for two clusters and one kind: each Greeting on the hub puts its text into a ConfigMap on `worker`.

python -m tests.kubeloop.greeter HUB_KUBECONFIG WORKER_KUBECONFIG
"""

import asyncio
import os
import signal
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path

from kubeloop import naming, types
from kubeloop.client.access import read_kubeconfig
from kubeloop.condition_types import Ready
from kubeloop.errors import Unreachable
from kubeloop.loop import Clients, Controller
from kubeloop.manager import Manager
from kubeloop.model import Model
from kubeloop.objects import Key, Manifest
from kubeloop.ownership import owner_labels
from kubeloop.plan import LET_GO, Apply, Plan, delete
from kubeloop.reading import find
from kubeloop.resource import Definition, Resource, Status, of
from kubeloop.types import CONFIG_MAP
from kubeloop.wiring import owner_of_kind

naming.use(replace(naming.names(), field_manager="greeter", system_namespace="default"))


class Spec(Model):
    text: str


class Greeting(Resource[Spec, Status]):
    definition = Definition("Greeting", "example.com", "greet", "Namespaced", conditions=(Ready,))


types.register(of(Greeting))


@dataclass(frozen=True)
class Observed:
    greeting: Greeting
    config_map: Manifest | None
    now: datetime


async def observe(greeting: Greeting, clients: Clients) -> Observed:
    worker = clients.cluster("worker")
    if not worker.synced:  # an object that is not cached may still exist
        raise Unreachable("cluster worker was not listed yet")
    return Observed(greeting, find(worker, CONFIG_MAP, greeting.key), clients.now())


def plan(observed: Observed) -> Plan:
    greeting, key = observed.greeting, observed.greeting.key
    if greeting.metadata.deletion_timestamp:
        return Plan((delete(observed.config_map, cluster="worker"),) if observed.config_map else (LET_GO,))
    metadata = {"name": key.name, "namespace": key.namespace, "labels": owner_labels(greeting)}
    config_map: Manifest = {
        "apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {"text": greeting.spec.text}
    }  # fmt: skip
    ready = Ready.AVAILABLE if observed.config_map else Ready.CREATING
    return Plan((Apply(config_map, "worker"),), Status(conditions=(ready.condition(observed.now),)))


async def main(hub: str, worker: str) -> None:
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    access = read_kubeconfig(hub)
    identity, lease = f"greeter-{os.getpid()}", Key("default", "greeter")
    manager = Manager.create(access, identity=identity, lease=lease, component="example.com/greeter")
    manager.add((Controller(Greeting, observe, plan, remote_watches={CONFIG_MAP: owner_of_kind("Greeting")}),))
    manager.fleet.set("worker", read_kubeconfig(worker))
    await manager.run(stop)


if __name__ == "__main__":
    asyncio.run(main(*(Path(kubeconfig).read_text() for kubeconfig in sys.argv[1:])))
