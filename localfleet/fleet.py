"""A fleet as seen from outside: start it, ask it, break it, end it."""

from __future__ import annotations

import os
import select
import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import orjson

from localfleet import binaries, control, control_plane, network, profiles
from localfleet.cluster import programs
from localfleet.control import NoFleetError
from localfleet.errors import DeadlineError, FleetError
from localfleet.network import Direction
from localfleet.processes import tail
from localfleet.waiting import until

HUB = "hub"
NODE_DOWN = "localfleet.dev/node-down"
MARK = ".localfleet"  # a file in the folder of a fleet, which says what it is; what else is there may be deleted
INSIDE = "LOCALFLEET_INSIDE"  # the variable that names the fleet to those who are in its network
MEMORY_PER_CLUSTER = 600 << 20
SUPERVISOR_SECONDS = 20.0
TOOLS = {"ip": "iproute2", "unshare": "util-linux", "nsenter": "util-linux", "setpriv": "util-linux"}
SYSTEM_PATH = "/usr/sbin:/sbin"  # where `ip` lives; not on every user's PATH


@dataclass(frozen=True, slots=True)
class Options:
    """What a fleet is started with."""

    workers: int = 2
    profile: Path = profiles.DEFAULT
    base_port: int = 0  # 0: free ones; else the hub's API server gets this one, its gateway the next, and so on
    data_plane: bool = True
    fault_proxy: bool = False
    audit: bool = False  # have the API servers write who asked for what: `Fleet.audit` reads it
    token_webhook: str = ""  # the URL that workload clusters ask whose token one is, with /NAME behind it

    def describe(self) -> str:
        """Return what all clusters of a fleet have in common."""
        return f"profile {self.profile.resolve()}, {'gateways' if self.data_plane else 'no gateways'} from the start"


@dataclass(frozen=True, slots=True)
class Fleet:
    """The fleet of one folder; several fleets may run side by side, each in a folder of its own."""

    folder: Path

    @property
    def socket(self) -> Path:
        return self.folder / "control"

    @property
    def log(self) -> Path:
        return self.folder / "supervisor.log"

    def is_up(self) -> bool:
        try:
            control.supervisor_pid(self.socket)
        except NoFleetError:
            return False
        return True

    def ask(self, verb: str, sockets: Sequence[socket.socket] = (), **request: Any) -> Any:
        return control.ask(self.socket, {"verb": verb, **request}, sockets)

    def up(self, options: Options = Options(), say: Callable[[str], None] = lambda _: None) -> None:
        """Start what is not there yet, mend what has died, and return when all of it is ready."""
        with binaries.locked(f"fleet-{binaries.digest(str(self.folder).encode())}"):  # one `up` at a time
            there = {each["name"] for each in self.status()["clusters"]} if self.is_up() else set[str]()
            if there:
                self.check_same(options)
            wanted = [HUB, *(f"worker-{number}" for number in range(1, options.workers + 1))]
            check_memory(len(wanted) - len(there))
            prepare(options.profile)
            if not there:
                if not self.is_up():
                    self.clear()
                    self.start_supervisor()
                (self.folder / MARK).write_text(options.describe())
            # More at once than cores would only make every one of them late.
            with ThreadPoolExecutor(max_workers=(os.cpu_count() or 1) + 1) as pool:

                def ready(index: int, name: str) -> None:
                    if name in there:
                        self.ask("mend", cluster=name)
                    else:
                        self.add(name, index, options)
                    say(f"{name} is ready")

                try:
                    for done in [pool.submit(ready, index, name) for index, name in enumerate(wanted)]:
                        done.result()
                finally:  # after a failure, or Ctrl-C, none of the others begins
                    pool.shutdown(wait=False, cancel_futures=True)

    def add(self, name: str, index: int, options: Options = Options()) -> None:
        """Start one more cluster."""
        with ExitStack() as held:
            ports = [options.base_port and options.base_port + 2 * index + offset for offset in (0, 1)]
            sockets = [held.enter_context(listener(port)) for port in ports]
            self.ask(
                "add",
                sockets,
                cluster=name,
                index=index,
                profile=str(options.profile.resolve()),
                data_plane=options.data_plane,
                fault_proxy=options.fault_proxy,
                audit=options.audit,
                token_webhook=f"{options.token_webhook}/{name}" if options.token_webhook and index else "",
            )

    def add_worker(self, name: str, options: Options = Options()) -> None:
        """Start a cluster of that name at a free place."""
        taken = {each["index"] for each in self.status()["clusters"]}
        free = next((index for index in range(1, network.MAX_CLUSTERS) if index not in taken), None)
        if free is None:
            raise FleetError(f"a fleet has at most {network.MAX_CLUSTERS} clusters")
        self.add(name, free, options)

    def remove(self, name: str) -> None:
        """End one cluster and forget it."""
        self.ask("remove", cluster=name)
        shutil.rmtree(self.folder / "clusters" / name, ignore_errors=True)

    def status(self) -> Any:
        return self.ask("status")

    def memory(self) -> dict[str, int]:
        """Bytes that the processes of each cluster take."""
        return self.ask("memory")

    def cluster(self, name: str) -> Any:
        """What `status` says of one cluster."""
        clusters = {each["name"]: each for each in self.status()["clusters"]}
        if name not in clusters:
            raise FleetError(f"there is no cluster {name}; there are {', '.join(clusters)}")
        return clusters[name]

    def kubeconfig(self, name: str) -> Path:
        """The administrator's kubeconfig of a cluster, for use on this machine."""
        return Path(self.cluster(name)["kubeconfig"])

    def inner_kubeconfig(self, name: str) -> Path:
        """The one for use in the fleet's network: what an operator there is told by."""
        return self.folder / "clusters" / name / "kubeconfig"

    def audit_log(self, name: str) -> Path:
        """Where a cluster that was started with `audit` writes its audit events."""
        return self.folder / "clusters" / name / control_plane.AUDIT_LOG

    def audit(self, name: str) -> list[Any]:
        """The audit events of a cluster that was started with `audit`, but for one that is just being written."""
        whole, _, _ = self.audit_log(name).read_bytes().rpartition(b"\n")
        return [orjson.loads(line) for line in whole.splitlines()]

    def down(self) -> bool:
        """End every process of the fleet and remove its folder; answer whether there was anything to end."""
        try:
            pid = control.supervisor_pid(self.socket)
        except NoFleetError:
            pid = None
        if pid is not None:
            with pidfd(pid) as process:  # PID 1 of its namespace: the kernel ends all others with it
                kill(process)
        if self.folder in STARTED:
            STARTED.pop(self.folder).wait()
        found = self.folder.exists()
        self.clear()
        return pid is not None or found

    def clear(self) -> None:
        """Remove what a fleet has left: those who run in its network, and its folder."""
        names = {path.name for path in self.folder.iterdir()} if self.folder.exists() else set[str]()
        if names and not {MARK, self.socket.name} & names:
            raise FleetError(
                f"{self.folder} has files that are not a fleet's, and would be deleted: "
                "let LOCALFLEET_HOME name a folder that is empty or not there"
            )
        self.end_those_inside()
        shutil.rmtree(self.folder, ignore_errors=True)

    def end_those_inside(self) -> None:
        """Kill what `inside` has started: it is in the fleet's networks, but does not end with the supervisor."""
        mark = f"{INSIDE}={self.folder.absolute()}".encode()
        for number in (int(path.name) for path in Path("/proc").glob("[0-9]*")):
            if number == os.getpid():
                continue
            try:
                with pidfd(number) as process:  # before the look, so that the number is nobody else's afterwards
                    if mark in Path(f"/proc/{number}/environ").read_bytes().split(b"\0"):
                        kill(process)
            except (FileNotFoundError, ProcessLookupError, PermissionError):  # it has ended, or is somebody else's
                continue

    def inside(self, command: Sequence[str], cluster: str | None = None) -> list[str]:
        """The command, run in the fleet's network, or in that of one of its clusters."""
        pid = control.supervisor_pid(self.socket)
        enter = ["nsenter", f"--target={pid}", *([] if os.geteuid() == 0 else ["--user", "--preserve-credentials"])]
        enter += ["--mount", "--net", f"--wdns={Path.cwd()}", "--"]
        there = [] if cluster is None else ["nsenter", f"--net=/run/netns/{self.cluster(cluster)['name']}", "--"]
        return [*enter, "env", f"{INSIDE}={self.folder.absolute()}", *there, *command]

    def listen(self, port: int) -> socket.socket:
        """A socket of this process that listens in the fleet's network, for what clusters ask of the world outside."""
        ours, theirs = socket.socketpair()
        with ours, theirs:
            code = f"import socket, sys; s = socket.create_server(('', {port}), backlog=512); "
            code += "socket.send_fds(socket.socket(fileno=int(sys.argv[1])), [b'.'], [s.fileno()])"
            command = self.inside([sys.executable, "-c", code, str(theirs.fileno())])
            done = subprocess.run(command, pass_fds=[theirs.fileno()], capture_output=True, text=True, check=False)
            if done.returncode:
                raise FleetError(f"nothing can listen on port {port} of the fleet's network: {done.stderr.strip()}")
            _, (descriptor,), _, _ = socket.recv_fds(ours, 1, 1)
        return socket.socket(fileno=descriptor)

    def fault(self, cluster: str, component: str, action: str) -> None:
        """Pause, resume, kill, stop or restart one component."""
        self.ask("component", cluster=cluster, component=component, action=action)

    def cut(self, cluster: str, direction: Direction = Direction.BOTH) -> None:
        """Let nothing reach the cluster, or nothing leave it, or neither."""
        self.ask("cut", cluster=cluster, direction=direction.value)

    def heal(self, cluster: str) -> None:
        """Take back cuts and delays."""
        self.ask("cut", cluster=cluster, direction=None)

    def delay(self, cluster: str, milliseconds: int) -> None:
        """Let everything take longer: between clusters where the kernel can, else what comes in through 127.0.0.1."""
        self.ask("delay", cluster=cluster, milliseconds=milliseconds)

    def node(self, cluster: str, node: str, *, down: bool) -> None:
        """Silence a node, or let it speak again: kwok and the engine simulator look at this annotation."""
        mark = f"{NODE_DOWN}={'true' if down else 'false'}"
        self.kubectl(cluster, "annotate", "--overwrite", "node", node, mark)

    def kubectl(self, cluster: str, *arguments: str, documents: str | None = None) -> str:
        """What kubectl says; `documents` are given to it as standard input, for `-f-`."""
        kubectl = binaries.ensure("kubectl")["kubectl"]
        command = [kubectl, "--kubeconfig", self.kubeconfig(cluster), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False, input=documents)
        if done.returncode:
            raise FleetError(f"kubectl {' '.join(arguments)} on {cluster} failed: {done.stderr.strip()}")
        return done.stdout

    def credentials(self, cluster: str, action: str) -> None:
        """`expire` what was handed out, or `rotate` it: the new kubeconfig lies where the old one did."""
        self.ask("credentials", cluster=cluster, action=action)

    def check_same(self, options: Options) -> None:
        """Refuse to go on with a fleet that was started for something else."""
        mark = self.folder / MARK
        if mark.exists() and (found := mark.read_text()) != options.describe():
            raise FleetError(
                f"another fleet is up: it has {found}, and not {options.describe()}. "
                "End it first (make demo-down), or name another folder with LOCALFLEET_HOME"
            )

    def start_supervisor(self) -> None:
        self.folder.mkdir(parents=True, mode=0o700)
        (self.folder / MARK).touch()
        command = [*namespaces(), sys.executable, "-m", "localfleet.supervisor", str(self.folder)]
        environment = {**environment_inside(), "PYTHONPATH": str(Path(__file__).parents[1])}
        with self.log.open("wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

        def listening() -> bool | None:
            if process.poll() is not None:
                raise FleetError(f"the fleet's supervisor did not start:\n{tail(self.log)}")
            return self.is_up() or None

        STARTED[self.folder] = process
        try:
            until(listening, seconds=SUPERVISOR_SECONDS, what="the fleet's supervisor to listen")
        except FleetError:
            process.kill()
            STARTED.pop(self.folder).wait()
            raise


# Fleets that this very process has started: it is their parent, and has to bury them.
STARTED: dict[Path, subprocess.Popen[bytes]] = {}


@contextmanager
def pidfd(number: int) -> Generator[int]:
    """Open a process, whose number may be another one's later."""
    process = os.pidfd_open(number)
    try:
        yield process
    finally:
        os.close(process)


def kill(process: int) -> None:
    """Kill a process that is open, and return once it has ended."""
    signal.pidfd_send_signal(process, signal.SIGKILL)
    if not select.select([process], [], [], SUPERVISOR_SECONDS)[0]:
        raise DeadlineError(f"waited {SUPERVISOR_SECONDS:g} s for the fleet's processes to end, in vain")


def default_folder() -> Path:
    """Where a fleet keeps what it needs while it is up."""
    chosen = os.environ.get("LOCALFLEET_HOME")
    base = os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state"
    return Path(chosen) if chosen else Path(base) / "modelplane-localfleet" / "fleet"


def path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{SYSTEM_PATH}"


def environment_inside() -> dict[str, str]:
    """Return this process's environment for programs in the fleet's network, which reaches none of its proxies."""
    variables = {name: value for name, value in os.environ.items() if not name.lower().endswith("_proxy")}
    return variables | {"PATH": path()}


def namespaces() -> list[str]:
    """Enter namespaces of the fleet's own; when the first process in them dies, so do all."""
    mine = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    return ["unshare", *mine, "--mount", "--net", "--pid", "--fork", "--kill-child", "--mount-proc"]


def prepare(profile: Path) -> None:
    """Make the programs that fleets of this profile run, on a machine that can run them."""
    check_machine()
    binaries.ensure(*programs(profiles.load(profile).hub_gateway))


def check_machine() -> None:
    """Say now, in words, what would fail later."""
    if sys.platform != "linux":
        raise FleetError(f"a local fleet is made of Linux network namespaces; this is {sys.platform}: use a Linux VM")
    missing = [f"{tool} (package {package})" for tool, package in TOOLS.items() if not shutil.which(tool, path=path())]
    if missing:
        raise FleetError(f"missing: {', '.join(missing)}; install it with your package manager")
    tried = subprocess.run(
        [*namespaces(), "true"], capture_output=True, text=True, check=False, env={**os.environ, "PATH": path()}
    )
    if tried.returncode:
        raise FleetError(
            f"this user may not make namespaces ({tried.stderr.strip()}).\n"
            "Either run as root, or allow it to ordinary users: sysctl user.max_user_namespaces must be above 0, and "
            "where they exist, kernel.unprivileged_userns_clone must be 1 and "
            "kernel.apparmor_restrict_unprivileged_userns 0. In a container, start it with --privileged."
        )


def check_memory(new_clusters: int) -> None:
    needed, free = new_clusters * MEMORY_PER_CLUSTER, binaries.available_memory()
    if needed > free and not os.environ.get("LOCALFLEET_IGNORE_MEMORY"):
        raise FleetError(
            f"{new_clusters} more clusters need about {needed >> 20} MiB of memory and {free >> 20} MiB are free: "
            "start fewer (--workers), free some, or set LOCALFLEET_IGNORE_MEMORY=1 to try all the same"
        )


def listener(port: int) -> socket.socket:
    """A socket that listens on this machine's loopback."""
    try:
        return socket.create_server(("127.0.0.1", port), backlog=512)
    except OSError as error:
        raise FleetError(
            f"port {port} of 127.0.0.1 is not to be had ({error.strerror}): end what listens there, or choose another "
            "with --port (without it, free ports are taken)"
        ) from error
