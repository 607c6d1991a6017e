"""Who reaches whom by the NetworkPolicies around tenants' namespaces, as Kubernetes documents them, and on a network
that enforces them: an API server, a network namespace of Linux's for each pod, and kube-router, which makes rules of
the kernel's firewall of the policies."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from shutil import which

import pytest
import yaml

from localfleet import binaries
from localfleet.errors import DeadlineError, FleetError
from localfleet.fleet import HUB, SYSTEM_PATH, Fleet, Options
from localfleet.network import REAL_PODS_TABLE, Wire
from localfleet.processes import Command, Running, start
from localfleet.waiting import until
from modelplane_operator.api.isolation import Isolation
from tests.support.manifests import ROOT, Manifest
from tests.support.network_policies import ATTEMPTS, METADATA, Attempt, Peer, allows, fences, peers
from tests.support.pages import blocks

POLICY = "NetworkPolicy"
PAGE = ROOT / "docs/security.md"
NODE = Wire(HUB, 0).address
WHO = peers(NODE)
AS_SAID = {one: one.allowed for one in ATTEMPTS}
PROGRAMS = {"iptables": "iptables", "ipset": "ipset"}
"""What kube-router runs, and the packages of Debian that have it."""

SERVER = """
import json, signal, socket, sys, threading
ports = json.loads(sys.argv[1])
def serve(listener):
    while True:
        connection, _ = listener.accept()
        connection.close()
def echo(heard):
    while True:
        heard.sendto(*heard.recvfrom(512))
for port in ports["TCP"]:
    threading.Thread(target=serve, args=(socket.create_server(("", port)),)).start()
for port in ports["UDP"]:
    heard = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
    heard.bind(("", port))
    threading.Thread(target=echo, args=(heard,)).start()
print("ready", flush=True)
signal.pause()
"""
CLIENT = """
import json, socket, sys
from concurrent.futures import ThreadPoolExecutor
def reached(one):
    protocol, address, port = one
    try:
        if protocol == "TCP":
            socket.create_connection((address, port), timeout=2).close()
        else:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asked:
                asked.settimeout(2)
                asked.connect((address, port))
                asked.send(b"?")
                asked.recv(1)
    except OSError:
        return False
    return True
with ThreadPoolExecutor(32) as pool:
    print(json.dumps([*pool.map(reached, json.loads(sys.argv[1]))]))
"""


def reckoned(isolation: Isolation | None = None) -> Mapping[Attempt, bool]:
    """Return what Kubernetes' documentation makes of the policies."""
    policies = [made for made in fences(isolation) if made["kind"] == POLICY]
    return {one: allows(policies, WHO[one.source], WHO[one.target], one.port, one.protocol) for one in ATTEMPTS}


def test_tenants_reach_neither_each_other_nor_the_metadata_service_and_the_gateway_reaches_engines() -> None:
    assert reckoned() == AS_SAID


@pytest.mark.parametrize(
    ("isolation", "opened"),
    [
        ({"networkPolicy": {"metadataService": "Allowed"}}, {("engine", "metadata"), ("picker", "metadata")}),
        ({"networkPolicy": {"mode": "Disabled"}}, {(one.source, one.target) for one in ATTEMPTS}),
        (
            {"networkPolicy": {"monitoringNamespaces": ["monitoring", "default"]}},
            {("stranger", "engine"), ("stranger", "picker")},
        ),
    ],
)
def test_what_the_platform_team_opens_is_open_and_no_more(isolation: Manifest, opened: set[tuple[str, str]]) -> None:
    found = reckoned(Isolation.model_validate(isolation))

    assert found == {one: one.allowed or (one.source, one.target) in opened for one in ATTEMPTS}


def test_what_the_page_leaves_out_of_the_operators_egress_is_metadata_alone() -> None:
    (values,) = [yaml.safe_load(block) for block in blocks(PAGE) if "egress" in block]
    policy: Manifest = {
        "metadata": {"namespace": "modelplane-system"},
        "spec": {"podSelector": {}, "policyTypes": ["Egress"], "egress": values["networkPolicy"]["egress"]},
    }
    operator = Peer("operator", "modelplane-system")

    def reaches(address: str, port: int, protocol: str = "TCP") -> bool:
        return allows([policy], operator, Peer("somewhere", address=address), port, protocol)

    assert [address for address in METADATA if reaches(address, 80)] == []
    assert reaches("203.0.113.7", 8443) and reaches("10.1.2.3", 6443) and reaches("2001:db8::1", 80)
    assert reaches("10.1.2.3", 53, "UDP") and not reaches("203.0.113.7", 8443, "UDP")


class Network:
    """The hub of a fleet without its gateways, and a network namespace for each peer but the node."""

    def __init__(self, fleet: Fleet, folder: Path) -> None:
        self.fleet, self.folder = fleet, folder
        self.addresses = {name: peer.address for name, peer in WHO.items() if peer.address}
        self.running: list[Running] = []

    def apply(self, *manifests: Manifest) -> None:
        documents = json.dumps({"apiVersion": "v1", "kind": "List", "items": manifests})
        self.fleet.kubectl(HUB, "apply", "--server-side", "-f-", documents=documents)

    def ask(self, *what: str) -> Manifest:
        return json.loads(self.fleet.kubectl(HUB, "get", *what, "-ojson"))

    def run(self, *command: str) -> str:
        """Run a command in the network of the node."""
        enter, *inside = self.fleet.inside(command, HUB)
        # As one of the fleet's processes: `ip netns` looks itself up in /proc, which there is of those alone.
        done = subprocess.run([enter, "--pid", *inside], capture_output=True, text=True, check=False)
        if done.returncode:
            raise FleetError(f"{' '.join(command)[:80]}: {done.stderr}")
        return done.stdout

    def start(self, name: str, *command: str | Path) -> Running:
        inside = self.fleet.inside([str(part) for part in command], HUB)
        running = start(Command(name, inside, self.folder / f"{name}.log"))
        self.running.append(running)
        return running

    def populate(self, pods: Mapping[str, Peer]) -> None:
        """Have the API server know the pods, and give each the address that it has there."""
        self.apply(
            *({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one.namespace}} for one in pods.values())
        )
        node = self.ask("nodes")["items"][0]["metadata"]["name"]
        for name, peer in pods.items():
            self.fleet.kubectl(HUB, "wait", "--for=create", "serviceaccount/default", f"-n{peer.namespace}")
            metadata = {"name": name, "namespace": peer.namespace, "labels": {**peer.labels}}
            container = {"name": "main", "image": "anything:v1"}
            self.apply(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": metadata,
                    "spec": {"nodeName": node, "containers": [container]},
                }
            )
        for name, peer in pods.items():
            what = ("pod", name, f"-n{peer.namespace}")
            self.addresses[name] = until(
                lambda what=what: self.ask(*what)["status"].get("podIP"), seconds=60, what=f"an address for {name}"
            )

    def connect(self, name: str) -> None:
        """Make the network of a peer, and have it listen on all ports at which somebody tries it."""
        address, device = self.addresses[name], f"peer{[*WHO].index(name)}"
        script = f"""
            ip netns add {name}
            ip link add {device} type veth peer name eth0 netns {name}
            ip link set {device} up
            ip route replace {address}/32 dev {device} table {REAL_PODS_TABLE}
            ip -n {name} link set lo up
            ip -n {name} addr add {address}/32 dev eth0
            ip -n {name} link set eth0 up
            ip -n {name} route add 169.254.1.1 dev eth0
            ip -n {name} route add default via 169.254.1.1 src {address}
        """
        self.run("sh", "-ec", script)
        mine = [one for one in ATTEMPTS if one.target == name]
        ports = {way: sorted({one.port for one in mine if one.protocol == way}) for way in ("TCP", "UDP")}
        listening = self.start(f"server-{name}", *_within(name), sys.executable, "-c", SERVER, json.dumps(ports))
        listening.wait_until(listening.says_ready, seconds=60, what=f"{name} to listen")

    def reached(self) -> Mapping[Attempt, bool]:
        """Return which of the attempts succeed."""
        found: dict[Attempt, bool] = {}
        for name in WHO:
            tried = [one for one in ATTEMPTS if one.source == name]
            asked = [(one.protocol, self.addresses[one.target], one.port) for one in tried]
            if tried:
                said = self.run(*_within(name), sys.executable, "-c", CLIENT, json.dumps(asked))
                found |= dict(zip(tried, json.loads(said), strict=True))
        return {one: found[one] for one in ATTEMPTS}


def _within(name: str) -> tuple[str, ...]:
    return () if name == "node" else ("nsenter", f"--net=/run/netns/{name}", "--")


@pytest.fixture
def network(tmp_path: Path) -> Iterator[Network]:
    lacking = [
        package for program, package in PROGRAMS.items() if not which(program, path=f"{SYSTEM_PATH}:/usr/bin:/bin")
    ]
    assert not lacking, f"kube-router needs them: apt-get install {' '.join(lacking)}"
    fleet = Fleet(tmp_path / "fleet")
    with ExitStack() as held:
        held.callback(fleet.down)
        fleet.up(Options(workers=0, data_plane=False))
        made = Network(fleet, tmp_path)
        held.callback(lambda: [one.end() for one in made.running])
        made.populate({name: peer for name, peer in WHO.items() if peer.namespace})
        for name in WHO:
            if name != "node":
                made.connect(name)
        # A fleet's pods are addresses of their node; here each has its own, or all would be let in as the node is.
        made.run("ip", "route", "delete", "local", Wire(HUB, 0).pods, "dev", "lo")
        yield made


@pytest.mark.fleet
@pytest.mark.long
def test_an_agent_that_enforces_the_policies_lets_the_same_ones_through(network: Network) -> None:
    agent = network.start(
        "kube-router",
        binaries.ensure("kube-router")["kube-router"],
        f"--kubeconfig={network.fleet.inner_kubeconfig(HUB)}",
        "--run-router=false",
        "--run-service-proxy=false",
        "--enable-cni=false",
        f"--hostname-override={network.ask('nodes')['items'][0]['metadata']['name']}",
        f"--service-cluster-ip-range={Wire(HUB, 0).services}",
        "--health-port=0",
        "--iptables-sync-period=5s",
        "--v=1",
    )
    agent.wait_until(lambda: "KUBE-POD-FW" in network.run("iptables-save"), seconds=60, what="rules for pods")
    assert network.reached() == dict.fromkeys(ATTEMPTS, True), "without policies everybody reaches everybody"

    network.apply(*(made for made in fences() if made["kind"] == POLICY))

    def as_said() -> bool | None:
        agent.check()
        return network.reached() == AS_SAID or None

    try:
        until(as_said, seconds=60, what="the policies to be enforced", interval=1)
    except DeadlineError:
        assert network.reached() == AS_SAID
        raise
