"""One cluster of a fleet: its components, how they start, and what can be done to them."""

from __future__ import annotations

import asyncio
import shutil
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from localfleet import control_plane, leaderworkerset, network, pki, profiles, seed
from localfleet.cloud.pods import PROGRAMS as OF_PODS
from localfleet.control_plane import Layout
from localfleet.creation import Creator, documents
from localfleet.engine import STAGES as ENGINE_STAGES
from localfleet.errors import DeadlineError, FleetError
from localfleet.kubeclient import KubeClient, Manifest, connect
from localfleet.network import Wire
from localfleet.processes import Command, Running, start
from localfleet.profiles import Gateway, Pool

HERE = Path(__file__).parent
START_SECONDS = 120.0  # for eight clusters that start at once on two busy cores
PROGRAMS = (
    "etcd",
    "kube-apiserver",
    "kube-controller-manager",
    "kube-scheduler",
    "kubectl",
    "kwok",
    "helm",
    "envoy-gateway",
    "envoy",
    "endpoint-picker",
    "gateway-api-crds",
    "envoy-gateway-crds",
    "envoy-gateway-chart",
)
OF_TRAEFIK = ("traefik", "traefik-crds")
API_SERVER, ETCD = "kube-apiserver", "etcd"
FIRST = (ETCD, API_SERVER)  # the others need an API server


@dataclass(frozen=True, slots=True)
class Plan:
    """What a cluster is to be."""

    wire: Wire
    folder: Path
    pools: Sequence[Pool]
    binaries: Mapping[str, Path]
    gateway: Gateway = Gateway.ENVOY_GATEWAY
    data_plane: bool = True  # run the gateway from the start; else only when somebody installs it
    audit: bool = False
    token_webhook: str = ""

    @property
    def is_hub(self) -> bool:
        return self.wire.index == 0

    @property
    def layout(self) -> Layout:
        return Layout(
            name=self.wire.name,
            folder=self.folder,
            address=self.wire.address,
            port=network.API_PORT,
            etcd_port=2379,
            peer_port=2380,
            advertised=self.wire.address,
            service_range=self.wire.services,
        )


def commands(plan: Plan) -> dict[str, Command]:
    """Every component of the cluster, in the order they start, run in the cluster's network."""
    layout, binaries = plan.layout, plan.binaries
    kubeconfig = f"--kubeconfig={layout.kubeconfig}"

    def ours(name: str, *arguments: str | Path) -> Command:
        return Command(name, [sys.executable, "-m", f"localfleet.{name}", kubeconfig, *arguments], layout.log(name))

    kwok = [
        binaries["kwok"],
        kubeconfig,
        "--manage-all-nodes",
        f"--config={HERE / 'stages.yaml'}",
        f"--config={ENGINE_STAGES}",
        f"--cidr={plan.wire.pods}",
        f"--node-ip={plan.wire.address}",
        "--node-lease-duration-seconds=40",
        # 9443 of 0.0.0.0 by default, where admission webhooks of the cluster would want to listen
        "--server-address=127.0.0.1:10247",
    ]
    flags = control_plane.audit_flags(layout) if plan.audit else ()
    flags += control_plane.token_webhook_flags(layout) if plan.token_webhook else ()
    all_of_them = [
        control_plane.etcd(layout, binaries),
        control_plane.api_server(layout, binaries, *flags),
        control_plane.controller_manager(layout, binaries),
        control_plane.scheduler(layout, binaries),
        Command("kwok", kwok, layout.log("kwok")),
        ours(
            "cloud",
            f"--name={plan.wire.name}",
            f"--balancers={plan.wire.balancers}",
            f"--api={plan.wire.address}:{network.API_PORT}",
            f"--folder={plan.folder / 'pods'}",
            *(f"--program={name}={binaries[name]}" for name in OF_PODS if name in binaries),
        ),
    ]
    if not plan.is_hub:
        all_of_them += [ours("engine", f"--cluster={plan.wire.name}"), ours("leaderworkerset", "--no-install-crd")]
    environment = {"PYTHONPATH": str(HERE.parent)}
    return {
        command.name: Command(command.name, plan.wire.inside(*command.argv), command.log, environment)
        for command in all_of_them
    }


def programs(gateway: Gateway) -> tuple[str, ...]:
    """Return the names of what a cluster with that gateway runs."""
    return (*PROGRAMS, *(OF_TRAEFIK if gateway is Gateway.TRAEFIK else ()))


def kinds(binaries: Mapping[str, Path], gateway: Gateway) -> tuple[Path, ...]:
    """Where the kinds are described that a new cluster serves beyond Kubernetes' own."""
    every = (binaries["gateway-api-crds"],)
    if gateway is Gateway.TRAEFIK:
        return (*every, binaries["traefik-crds"] / "01-traefik-crd.yml")
    return (*every, binaries["envoy-gateway-crds"], Path(leaderworkerset.CRD))


def furniture(plan: Plan) -> list[list[Manifest]]:
    """What a new cluster holds, in batches that build on each other."""
    every = documents(HERE / "manifests" / "every")
    data_plane = documents(HERE / "manifests" / plan.gateway.folder) if plan.data_plane else ()
    namespaces = [each for each in data_plane if each["kind"] == "Namespace"]
    return [
        [*every, *profiles.manifests(plan.wire.name, plan.pools), *namespaces],
        [each for each in data_plane if each["kind"] != "Namespace"],
    ]


@dataclass(slots=True)
class Cluster:
    """A cluster that was started, or is about to be."""

    plan: Plan
    running: dict[str, Running] = field(default_factory=dict[str, Running])
    lock: threading.RLock = field(default_factory=threading.RLock)

    @property
    def layout(self) -> Layout:
        return self.plan.layout

    def boot(self) -> None:
        """Return when the cluster is ready for use; raise with the reason when it does not get there."""
        served = kinds(self.plan.binaries, self.plan.gateway)
        shutil.copytree(seed.ensure(served), self.layout.folder / "etcd")
        control_plane.write_credentials(self.layout)
        if self.plan.audit:
            control_plane.write_audit_policy(self.layout)
        if self.plan.token_webhook:
            control_plane.write_token_webhook(self.layout, self.plan.token_webhook)
        network.connect(self.plan.wire)
        with self.lock:
            self.wait_all(self.start_missing(FIRST))
            others = self.start_missing(commands(self.plan))
            asyncio.run(self.furnish())  # some of the others say that they are ready only when they see its kinds
            self.wait_all(others)

    def mend(self) -> None:
        """Start every component that is not running, and wait until all of them serve."""
        with self.lock:
            self.wait_all(self.start_missing(FIRST))
            self.wait_all(self.start_missing(commands(self.plan)))

    def start_missing(self, names: Iterable[str]) -> list[Running]:
        every = commands(self.plan)
        return [self.start(every[name]) for name in names if not self.is_alive(name)]

    def wait_all(self, processes: Iterable[Running]) -> None:
        for process in processes:
            self.wait_ready(process)

    def is_alive(self, name: str) -> bool:
        return name in self.running and self.running[name].alive

    def start(self, command: Command) -> Running:
        self.running[command.name] = start(command)
        return self.running[command.name]

    def wait_ready(self, process: Running) -> None:
        ready = READINESS.get(process.command.name)
        if ready:
            what = f"{process.command.name} of {self.layout.name} to be ready"
            process.wait_until(lambda: ready(self, process), seconds=START_SECONDS, what=what)

    async def furnish(self) -> None:
        """Put nodes, devices, kinds and data planes in, and wait until they are up."""
        async with connect(self.layout.kubeconfig) as client:
            creator = Creator(client)
            for batch in furniture(self.plan):
                await creator.create(batch)
            await settled(self.layout.name, client)

    def component(self, name: str) -> Running:
        if name not in self.running:
            raise FleetError(f"{self.layout.name} has no component {name}; it has {', '.join(self.running)}")
        return self.running[name]

    def stop(self, name: str) -> None:
        with self.lock:
            self.component(name).end()

    def signal(self, name: str, number: signal.Signals) -> None:
        process = self.component(name)
        process.check()
        process.process.send_signal(number)
        if number is signal.SIGKILL:
            process.process.wait()

    def restart(self, name: str) -> None:
        with self.lock:
            before = self.component(name)
            before.end()
            self.wait_ready(self.start(before.command))

    def end(self) -> None:
        """End every component, the last to start first: an API server without its etcd hangs when asked to end."""
        with self.lock:
            for process in reversed(self.running.values()):
                process.end()
            network.disconnect(self.plan.wire)

    def expire_credentials(self) -> None:
        control_plane.expire_users(self.layout)

    def hand_out(self, path: Path, server: str) -> None:
        """Write a kubeconfig for the people and programs outside, and refuse those handed out before."""
        users = control_plane.renew_users(self.layout)
        pki.write(path, control_plane.kubeconfig_for(self.layout, users, "localfleet-admin", server))


READINESS: dict[str, Callable[[Cluster, Running], bool]] = {
    API_SERVER: lambda cluster, _: control_plane.api_ready(cluster.layout),
    "cloud": lambda _, process: process.says_ready(),
    "engine": lambda _, process: process.says_ready(),
    "leaderworkerset": lambda _, process: process.says_ready(),
}


async def settled(cluster: str, client: KubeClient) -> None:
    """Return when every node is ready and every deployment is available."""
    deadline = time.monotonic() + START_SECONDS
    waiting = ["anything"]
    while waiting:
        if time.monotonic() > deadline:
            raise DeadlineError(f"waited {START_SECONDS:g} s for {', '.join(waiting)} of {cluster}, in vain")
        await asyncio.sleep(0.1)
        nodes = (await client.request("GET", "/api/v1/nodes"))["items"]
        deployments = (await client.request("GET", "/apis/apps/v1/deployments"))["items"]
        waiting = [f"node {node['metadata']['name']}" for node in nodes if not is_true(node, "Ready")] + [
            f"deployment {deployment['metadata']['name']}"
            for deployment in deployments
            if not is_true(deployment, "Available")
        ]


def is_true(manifest: Manifest, condition: str) -> bool:
    conditions: list[Manifest] = manifest.get("status", {}).get("conditions", [])
    return any(each["type"] == condition and each["status"] == "True" for each in conditions)
