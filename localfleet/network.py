"""The fleet's network: a namespace for the fleet, and one per cluster at the end of a wire of its own.

Every wire is a veth pair into the fleet's namespace, which routes between them. So each cluster has addresses and
ports of its own, and a wire can be cut in either direction by a routing rule, which drops silently, as networks do.

    ip rule 10       a cut: what comes in over the wire goes nowhere
            50       the pods that the fleet runs for real, each in a namespace of its own
            100      local addresses (the kernel's own rule 0, moved so that those two come first), among them every
                     other pod address: there the engine simulator listens
            32766    everything else, over the wire
"""

from __future__ import annotations

import fcntl
import os
import random
import socket
import subprocess
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cache
from itertools import islice
from pathlib import Path

from localfleet import binaries
from localfleet.errors import FleetError

MAX_CLUSTERS = 32
API_PORT = 6443
REAL_PODS_TABLE = 150


@dataclass(frozen=True, slots=True)
class Wire:
    """The addresses of cluster number `index` of a fleet; 0 is the hub."""

    name: str
    index: int

    @property
    def address(self) -> str:
        return f"10.90.{self.index}.2"

    @property
    def gateway(self) -> str:
        return f"10.90.{self.index}.1"

    @property
    def device(self) -> str:
        """The fleet's end of the wire."""
        return f"wire{self.index}"

    @property
    def pods(self) -> str:
        return f"10.{100 + self.index}.0.0/16"

    @property
    def services(self) -> str:
        return f"10.{140 + self.index}.0.0/16"

    @property
    def balancers(self) -> str:
        """Where LoadBalancer addresses come from; they are reachable from every cluster."""
        return f"10.{180 + self.index}.0.0/24"

    @property
    def namespace(self) -> str:
        """A file to enter the cluster's network by."""
        return f"/run/netns/{self.name}"

    def inside(self, *command: str | Path) -> list[str | Path]:
        """The command, run in the cluster's network."""
        return ["nsenter", f"--net={self.namespace}", "--", *command]


class Direction(Enum):
    """Seen from the cluster: what reaches it, what it sends, or both."""

    TO = "to"
    FROM = "from"
    BOTH = "both"


FORWARDING = "echo 1 > /proc/sys/net/ipv4/ip_forward"
CUTS_FIRST = ("rule add pref 100 lookup local", "rule del pref 0")


def prepare() -> None:
    """Make this process's network namespace the fleet's: up, forwarding, with room for cuts."""
    run("mount", "-t", "tmpfs", "tmpfs", "/run")  # the clusters' namespaces are named here, and seen by nobody else
    batch(["link set lo up", *CUTS_FIRST])
    run("sh", "-c", FORWARDING)


def connect(wire: Wire) -> None:
    """Make the cluster's namespace and its wire."""
    run("ip", "netns", "add", wire.name)
    batch(
        [
            f"link add {wire.device} type veth peer name eth0 netns {wire.name}",
            f"addr add {wire.gateway}/30 dev {wire.device}",
            f"link set {wire.device} up",
        ]
    )
    batch(
        [
            "link set lo up",
            # Where pods that run for real send what is not theirs: an address that every one of their wires can use.
            "addr add 169.254.1.1/32 dev lo",
            f"addr add {wire.address}/30 dev eth0",
            "link set eth0 up",
            f"route add default via {wire.gateway}",
            *CUTS_FIRST,
            f"route add local {wire.services} dev lo",
            f"route add local {wire.balancers} dev lo",
            f"route add local {wire.pods} dev lo",
            f"rule add pref 50 lookup {REAL_PODS_TABLE}",
        ],
        wire,
    )
    run(*wire.inside("sh", "-c", FORWARDING))
    # Pods too: nothing rewrites their addresses on the way out, as in clusters whose pods have addresses of the VPC.
    batch([f"route add {each} via {wire.address}" for each in (wire.balancers, wire.pods)])


def disconnect(wire: Wire) -> None:
    """Take away what there is of the cluster's namespace and wire; its processes have ended before."""
    heal(wire)
    quietly("ip", "link", "delete", wire.device)
    quietly("ip", "netns", "delete", wire.name)


def cut(wire: Wire, direction: Direction) -> None:
    """From now on nothing arrives in that direction, and nobody is told."""
    heal(wire)
    if direction is not Direction.FROM:
        batch(["rule add pref 10 iif eth0 blackhole"], wire)
    if direction is not Direction.TO:
        batch([f"rule add pref 10 iif {wire.device} blackhole"])


def heal(wire: Wire) -> None:
    """Take back every cut and delay of the wire."""
    drop_rule = ["rule", "del", "pref", "10"]
    quietly(*wire.inside("ip", *drop_rule, "iif", "eth0"))
    quietly("ip", *drop_rule, "iif", wire.device)
    quietly(*wire.inside("tc", "qdisc", "del", "dev", "eth0", "root"))
    quietly("tc", "qdisc", "del", "dev", wire.device, "root")


def delay(wire: Wire, milliseconds: int) -> bool:
    """Make every packet wait on its way in and on its way out; false where the kernel has no netem to do it."""
    late = ["qdisc", "replace", "dev"], ["root", "netem", "delay", f"{milliseconds}ms"]
    inside, outside = [*late[0], "eth0", *late[1]], [*late[0], wire.device, *late[1]]
    return quietly(*wire.inside("tc", *inside)) and quietly("tc", *outside)


# Ports for servers, below those that Linux takes for connections that go out.
PORTS = range(20000, 32768)
claimed: set[int] = set()
claiming = threading.Lock()


def free_ports(count: int) -> list[int]:
    """Return ports on which nothing listens, and which no other process gets by this function while this one runs."""
    with claiming:
        candidates = iter(random.SystemRandom().sample(PORTS, len(PORTS)))
        found = [*islice(filter(claim, candidates), count)]
        claimed.update(found)
    if len(found) < count:
        raise FleetError(f"there are no {count} free ports from {PORTS.start} to {PORTS.stop - 1}")
    return found


def claim(port: int) -> bool:
    """Reserve a port for this process, unless another process has it."""
    if port in claimed:
        return False
    claimed_by_others = claims()
    try:
        fcntl.lockf(claimed_by_others, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
        socket.create_server(("", port)).close()
    except OSError:
        return False
    return True


@cache
def claims() -> int:
    """Open the file of which a process locks a byte for each port: the kernel unlocks them when the process ends."""
    folder = binaries.cache_folder() / "locks"  # and not /tmp, where others could put the file before us
    folder.mkdir(parents=True, exist_ok=True)
    return os.open(folder / "ports", os.O_RDWR | os.O_CREAT, 0o600)


def batch(commands: Sequence[str], wire: Wire | None = None) -> None:
    """Run several `ip` commands as one process, in the fleet's network or in a cluster's."""
    command = ["ip", "-batch", "-"] if wire is None else wire.inside("ip", "-batch", "-")
    finish(command, subprocess.run(command, input="\n".join(commands), capture_output=True, text=True, check=False))


def run(*command: str | Path) -> None:
    finish(command, subprocess.run(command, capture_output=True, text=True, check=False))


def quietly(*command: str | Path) -> bool:
    """Run what may fail, as when there is nothing to take back; answer whether it did not."""
    return subprocess.run(command, capture_output=True, check=False).returncode == 0


def finish(command: Sequence[str | Path], done: subprocess.CompletedProcess[str]) -> None:
    if done.returncode:
        raise FleetError(f"{' '.join(map(str, command))} failed: {done.stderr.strip() or done.stdout.strip()}")
