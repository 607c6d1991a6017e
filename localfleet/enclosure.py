"""A network of its own for programs whose ports are fixed, so that several of them run on one machine.

It reaches nothing but addresses that it is given, by the same addresses, and is reached on ports that it is given, by
the same ports of 127.0.0.1: connections are carried over its border, in both directions. Ordinary users can make one.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Generator, Iterable, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

from localfleet import network
from localfleet.errors import FleetError
from localfleet.forwarder import Forwarder

Address = tuple[str, int]
SYSTEM_PATH = "/usr/sbin:/sbin"  # where `ip` is; not on every user's PATH
LOOPBACK = "127.0.0.1"
AT_MOST = 200  # descriptors in one message


@dataclass(frozen=True, slots=True)
class Enclosure:
    """A network that lasts as long as the process that keeps it."""

    keeper: int

    def inside(self, command: Sequence[str]) -> list[str]:
        """Return the command that runs this one there."""
        user = [] if os.geteuid() == 0 else ["--user", "--preserve-credentials"]
        return ["nsenter", f"--target={self.keeper}", *user, "--net", "--", *command]


@contextmanager
def enclosure(reached: Iterable[Address], ports: Iterable[int]) -> Generator[Enclosure]:
    """Make a network in which these addresses of this machine can be reached, and in which these ports are served."""
    addresses = [*dict.fromkeys(reached)]
    with ExitStack() as held:
        entries = [held.enter_context(socket.create_server((LOOPBACK, port), backlog=512)) for port in ports]
        ours, theirs = map(held.enter_context, socket.socketpair())
        told = json.dumps({"control": theirs.fileno(), "entries": [s.fileno() for s in entries], "reached": addresses})
        user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
        environment = {"PATH": f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"}
        keeper = subprocess.Popen(
            ["unshare", *user, "--net", "--", sys.executable, "-m", "localfleet.enclosure", told],
            pass_fds=[theirs.fileno(), *(entry.fileno() for entry in entries)],
            stdin=subprocess.PIPE,  # its end is the keeper's end
            env={**os.environ, **environment, "PYTHONPATH": str(Path(__file__).parents[1])},
        )
        held.callback(end, keeper)
        theirs.close()
        _, descriptors, _, _ = socket.recv_fds(ours, 1, AT_MOST)
        if len(descriptors) != len(addresses):
            raise FleetError(f"a network of its own cannot be made: its keeper ended with {keeper.wait()}")
        for address, descriptor in zip(addresses, descriptors, strict=True):
            name = f"{keeper.pid} {address}"
            forwarder().add(name, socket.socket(fileno=descriptor), partial(target, address))
            held.callback(forwarder().remove, name)
        yield Enclosure(keeper.pid)


@cache
def forwarder() -> Forwarder:
    """Return what carries connections in this process."""
    return Forwarder()


def target(address: Address) -> Address:
    return address


def end(keeper: subprocess.Popen[bytes]) -> None:
    if keeper.stdin:
        keeper.stdin.close()
    keeper.wait()


def keep(control: socket.socket, entries: Sequence[socket.socket], reached: Sequence[Address]) -> None:
    """Hold this process's new network open until standard input ends."""
    hosts = [host for host in dict.fromkeys(host for host, _ in reached) if host != LOOPBACK]
    network.batch(["link set lo up", *(f"addr add {host}/32 dev lo" for host in hosts)])
    listeners = [socket.create_server(address, backlog=512) for address in reached]
    for entry in entries:
        port = entry.getsockname()[1]
        forwarder().add(str(port), entry, partial(target, (LOOPBACK, port)))
    socket.send_fds(control, [b"."], [listener.fileno() for listener in listeners])
    for each in (control, *listeners):
        each.close()
    sys.stdin.read()


if __name__ == "__main__":
    arguments = json.loads(sys.argv[1])
    keep(
        socket.socket(fileno=arguments["control"]),
        [socket.socket(fileno=descriptor) for descriptor in arguments["entries"]],
        [(host, port) for host, port in arguments["reached"]],
    )
