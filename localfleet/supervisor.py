"""The fleet's first process: PID 1 of the fleet's own PID, mount and network namespaces.

When it ends, however it ends, the kernel ends everything it started and forgets their namespaces: that is why `down`
leaves nothing, also after a crash. It answers requests on a socket in the fleet's folder (`control.py`).
"""

from __future__ import annotations

import signal
import socket
import sys
import threading
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import orjson

from localfleet import binaries, control, network, profiles
from localfleet.cluster import Cluster, Plan, programs
from localfleet.control import Message
from localfleet.errors import FleetError
from localfleet.forwarder import Forwarder
from localfleet.network import Direction, Wire
from localfleet.processes import Command, start, tail

PROXY = "faultproxy"


class Supervisor:
    """The clusters that run, and what may be asked about them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.clusters: dict[str, Cluster] = {}
        self.ports: dict[str, dict[str, int]] = {}
        self.cuts: dict[str, str] = {}
        self.latencies: dict[str, float] = {}
        self.forwarder = Forwarder()
        self.lock = threading.Lock()
        self.verbs: dict[str, Callable[[Message, list[socket.socket]], Message]] = {
            "add": self.add,
            "remove": self.remove,
            "mend": self.mend,
            "status": self.status,
            "memory": self.memory,
            "component": self.component,
            "cut": self.cut,
            "delay": self.delay,
            "credentials": self.credentials,
        }

    def answer(self, connection: socket.socket) -> None:
        with connection:
            try:
                request, sockets = control.receive(connection)
                reply = self.verbs[request["verb"]](request, sockets)
            except* FleetError as errors:
                reply = {"error": "\n".join(str(error) for error in leaves(errors))}
            except* Exception as errors:  # noqa: BLE001 - the one boundary: whoever asked must hear of it
                reply = {"error": "".join(traceback.format_exception(errors))}
            try:
                connection.sendall(orjson.dumps(reply))
            except OSError:
                print(f"nobody waited for this reply: {reply}", flush=True)

    def named(self, request: Message) -> Cluster:
        name = request["cluster"]
        if name not in self.clusters:
            raise FleetError(f"there is no cluster {name}; there are {', '.join(self.clusters)}")
        return self.clusters[name]

    def add(self, request: Message, sockets: list[socket.socket]) -> Message:
        """Start a cluster, reachable through the sockets: its API server's, then its gateway's."""
        name, index = request["cluster"], request["index"]
        profile = profiles.load(Path(request["profile"]))
        plan = Plan(
            wire=Wire(name, index),
            folder=self.folder / "clusters" / name,
            pools=profile.pools(index),
            binaries=binaries.ensure(*programs(profile.gateway(index))),
            gateway=profile.gateway(index),
            data_plane=request["data_plane"],
            audit=request["audit"],
            token_webhook=request["token_webhook"],
        )
        with self.lock:
            if name in self.clusters:
                raise FleetError(f"cluster {name} is there already")
            cluster = self.clusters[name] = Cluster(plan)
        api, gateway = sockets
        self.ports[name] = {"api": api.getsockname()[1], "gateway": gateway.getsockname()[1]}
        try:
            cluster.boot()
        except BaseException:
            self.clusters.pop(name).end()
            raise
        server = f"https://127.0.0.1:{self.ports[name]['api']}"
        cluster.hand_out(self.outside(name), server)
        target = (plan.wire.address, network.API_PORT)
        if request["fault_proxy"]:
            target = self.put_proxy(cluster, name)
        latency = lambda: self.latencies.get(name, 0.0)  # noqa: E731 - for both ends of it
        self.forwarder.add(f"{name}/api", api, lambda: target, latency)
        balancer = plan.wire.balancers.replace(".0/24", ".1")
        self.forwarder.add(f"{name}/gateway", gateway, lambda: (balancer, 80), latency)
        return {"kubeconfig": str(self.outside(name))}

    def put_proxy(self, cluster: Cluster, name: str) -> tuple[str, int]:
        """Run the fault proxy in front of the API server: what is handed out leads to the proxy from now on."""
        port = self.ports[name]["api"]  # the same number inside, so that the proxy's kubeconfig is right outside too
        folder = cluster.plan.folder
        arguments = {
            "--upstream-kubeconfig": cluster.layout.kubeconfig,
            "--write-kubeconfig": self.outside(name),
            "--control-socket": folder / f"{PROXY}.sock",
            "--record": folder / "requests.jsonl",
            "--port": str(port),
        }
        argv = [sys.executable, "-m", f"localfleet.{PROXY}", *(part for pair in arguments.items() for part in pair)]
        log = cluster.layout.log(PROXY)
        process = start(Command(PROXY, argv, log, {"PYTHONPATH": str(Path(__file__).parents[1])}))
        cluster.running[PROXY] = process
        process.wait_until(process.says_ready, seconds=30, what=f"the fault proxy of {name} to be ready")
        return "127.0.0.1", port

    def outside(self, name: str) -> Path:
        """The kubeconfig for those outside."""
        return self.folder / "clusters" / name / "kubeconfig-outside"

    def remove(self, request: Message, _: list[socket.socket]) -> Message:
        cluster = self.named(request)
        for end in ("api", "gateway"):
            self.forwarder.remove(f"{cluster.layout.name}/{end}")
        cluster.end()
        del self.clusters[cluster.layout.name], self.ports[cluster.layout.name]
        return {}

    def mend(self, request: Message, _: list[socket.socket]) -> Message:
        self.named(request).mend()
        return {}

    def status(self, _: Message, __: list[socket.socket]) -> Message:
        return {
            "clusters": [
                {
                    "name": name,
                    "index": cluster.plan.wire.index,
                    "address": cluster.plan.wire.address,
                    "balancers": cluster.plan.wire.balancers,
                    "ports": self.ports[name],
                    "kubeconfig": str(self.outside(name)),
                    "fault": self.cuts.get(name),
                    "components": {
                        component: state(process.process.pid)
                        if process.alive
                        else f"dead:\n{tail(process.command.log)}"
                        for component, process in list(cluster.running.items())
                    },
                }
                for name, cluster in sorted(self.clusters.items(), key=lambda item: item[1].plan.wire.index)
            ]
        }

    def memory(self, _: Message, __: list[socket.socket]) -> Message:
        """Asked for by itself: the kernel walks the page tables of every process for it."""
        return {name: memory_of(cluster) for name, cluster in self.clusters.items()}

    def component(self, request: Message, _: list[socket.socket]) -> Message:
        cluster, name = self.named(request), request["component"]
        actions: dict[str, Callable[[], None]] = {
            "pause": lambda: cluster.signal(name, signal.SIGSTOP),
            "resume": lambda: cluster.signal(name, signal.SIGCONT),
            "kill": lambda: cluster.signal(name, signal.SIGKILL),
            "stop": lambda: cluster.stop(name),
            "restart": lambda: cluster.restart(name),
        }
        actions[request["action"]]()
        return {}

    def cut(self, request: Message, _: list[socket.socket]) -> Message:
        wire = self.named(request).plan.wire
        self.cuts.pop(wire.name, None)
        self.latencies.pop(wire.name, None)
        if request["direction"] is None:
            network.heal(wire)
        else:
            network.cut(wire, Direction(request["direction"]))
            self.cuts[wire.name] = f"cut off ({request['direction']})"
        return {}

    def delay(self, request: Message, _: list[socket.socket]) -> Message:
        wire = self.named(request).plan.wire
        milliseconds: int = request["milliseconds"]
        self.cuts[wire.name] = f"delayed by {milliseconds} ms"
        if not network.delay(wire, milliseconds):
            self.latencies[wire.name] = milliseconds / 1000
            self.cuts[wire.name] += " at 127.0.0.1 only (this kernel has no netem)"
        return {"fault": self.cuts[wire.name]}

    def credentials(self, request: Message, _: list[socket.socket]) -> Message:
        cluster = self.named(request)
        if PROXY in cluster.running:
            raise FleetError("the fault proxy has credentials of its own: let a rule of it answer 401 instead")
        if request["action"] == "expire":
            cluster.expire_credentials()
        else:
            port = self.ports[cluster.layout.name]["api"]
            cluster.hand_out(self.outside(cluster.layout.name), f"https://127.0.0.1:{port}")
        return {}


def leaves(group: BaseExceptionGroup[Any]) -> list[BaseException]:
    """The errors in a group of groups."""
    found: list[BaseException] = []
    for each in group.exceptions:
        match each:
            case BaseExceptionGroup():
                found += leaves(cast("BaseExceptionGroup[Any]", each))
            case _:
                found.append(each)
    return found


def memory_of(cluster: Cluster) -> int:
    """Bytes of memory that the cluster's processes take, shared pages counted once over all who share them."""
    inode = Path(cluster.plan.wire.namespace).stat().st_ino
    mine = {process.process.pid for process in cluster.running.values()}
    total = 0
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            ours = int(folder.name) in mine or (folder / "ns/net").stat().st_ino == inode
            marked = f"LOCALFLEET_CLUSTER={cluster.layout.name}\0".encode() in (folder / "environ").read_bytes()
            if ours or marked:
                lines = (folder / "smaps_rollup").read_text().splitlines()
                total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        except (FileNotFoundError, ProcessLookupError, PermissionError):  # it ended meanwhile
            continue
    return total


def state(pid: int) -> str:
    """What the kernel says of a process: "paused" when it was stopped by a signal."""
    letter = Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0]
    return "paused" if letter == "T" else "running"


def _end(*_: object) -> None:
    sys.exit()


def main() -> None:
    """Run until killed; the kernel spares the first process of a namespace a signal that it does not ask for."""
    signal.signal(signal.SIGTERM, _end)
    folder = Path(sys.argv[1])
    network.prepare()
    supervisor = Supervisor(folder)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "control"))
        listener.listen(64)
        while True:
            connection, _ = listener.accept()
            threading.Thread(target=supervisor.answer, args=(connection,), daemon=True).start()


if __name__ == "__main__":
    main()
