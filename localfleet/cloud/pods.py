"""A kubelet for the few pods that run for real: the data planes.

Such a pod gets a network namespace with the address that kwok gave it, a root folder of its own with the volumes that
its spec mounts, and the processes that its containers name, from the fleet's own programs. Its readiness probes are
asked, its restart policy is kept. Everything dies with this process.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import logging
import os
import re
import shlex
import shutil
from asyncio.subprocess import Process
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Any

import aiohttp

from localfleet.cloud.health import is_serving
from localfleet.cloud.names import DOMAIN, SERVER
from localfleet.cloud.work import Queue, listed
from localfleet.errors import FleetError
from localfleet.kubeclient import STRATEGIC_MERGE, ApiError, Key, KubeClient, Manifest, Mirror
from localfleet.network import REAL_PODS_TABLE

log = logging.getLogger(__name__)

# The repository of an image, without registry, tag and digest, and the program that it starts by default. The stages
# of kwok (stages.yaml) leave pods with these images alone.
IMAGES = {
    "traefik": "traefik",
    "envoyproxy/gateway": "envoy-gateway",
    "envoyproxy/envoy": "envoy",
    "llm-d/llm-d-router-endpoint-picker": "endpoint-picker",
}
PROGRAMS = tuple(IMAGES.values())
# Drains an Envoy before it ends, by a preStop hook that nobody calls here.
NOT_RUN = frozenset({"shutdown-manager"})

TOKEN_SECONDS = 7 * 24 * 3600  # longer than a fleet is up, so that no token needs renewal
PROBE_SECONDS = 0.1
PROBE_SCALE = 0.1  # of what a probe by gRPC asks for, as with the engines
STOP_SECONDS = 5.0
FIRST_BACKOFF, LAST_BACKOFF = 0.5, 10.0
BAD_REQUEST = 400
GONE = (404, 409)  # what the API server answers when the pod is no more, or is another one of the same name
FROM_THE_MACHINE = ("/usr", "/bin", "/lib", "/lib64", "/dev", "/proc", "/sys", "/etc/ssl")  # Envoy needs a libc


@dataclass(frozen=True, slots=True)
class Node:
    """What real pods need to know about where they run."""

    cluster: str
    api: str
    folder: Path


class Pods:
    """Every real pod of one cluster."""

    def __init__(self, client: KubeClient, node: Node, programs: Mapping[str, Path]) -> None:
        self._client = client
        self._node = node
        self._programs = programs
        self._queue: Queue[Key] = Queue()
        self._pods = Mirror(client, "/api/v1/pods", changed=self._queue.add)
        self._running: dict[str, asyncio.Task[None]] = {}

    async def run(self) -> None:
        await asyncio.to_thread(shutil.rmtree, self._node.folder, ignore_errors=True)
        await forget_networks(self._node.cluster)
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._pods.run())
                group.create_task(self._queue.work(self._look))
        finally:
            for task in self._running.values():
                task.cancel()
            await asyncio.gather(*self._running.values(), return_exceptions=True)

    async def _look(self, key: Key) -> None:
        pod = self._pods.objects.get(key)
        uid = pod["metadata"]["uid"] if pod is not None and wanted(pod) else None
        for other, task in list(self._running.items()):
            gone = task.get_name() == "/".join(key) and other != uid
            if gone or task.done():
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await task
                del self._running[other]
        if pod is not None and uid is not None and uid not in self._running:
            real = RealPod(pod, self._client, self._node, self._programs)
            self._running[uid] = asyncio.create_task(real.run(), name="/".join(key))


def wanted(pod: Manifest) -> bool:
    """Whether this pod is to run now: one of ours, with an address, neither ended nor going."""
    return bool(
        real(pod)
        and pod["metadata"].get("deletionTimestamp") is None
        and pod.get("status", {}).get("podIP")
        and pod["status"].get("phase") == "Running"
    )


def real(pod: Manifest) -> bool:
    containers = pod["spec"]["containers"]
    engines = any(container["name"] == "engine" for container in containers)
    return not engines and any(program_of(container["image"]) for container in containers)


def program_of(image: str) -> str | None:
    """The program behind an image, whatever registry it names: `mirror.test/docker.io/envoyproxy/envoy:v1` is Envoy."""
    repository = re.sub(r"(@.*|:[^/]*)$", "", re.sub(r"@.*$", "", image))
    parts = repository.split("/")
    return IMAGES.get("/".join(parts[-2:])) or IMAGES.get(parts[-1])


class RealPod:
    """One pod, from its root folder to its status."""

    def __init__(self, pod: Manifest, client: KubeClient, node: Node, programs: Mapping[str, Path]) -> None:
        self._pod = pod
        self._client = client
        self._node = node
        self._programs = programs
        metadata = pod["metadata"]
        self._namespace, self._name = metadata["namespace"], metadata["name"]
        self._uid: str = metadata["uid"]
        self._path = f"/api/v1/namespaces/{self._namespace}/pods/{self._name}"
        self._address: str = pod["status"]["podIP"]
        self._folder = node.folder / self._uid
        self._network = f"{node.cluster}.{self._uid[:8]}"
        self._device = f"pod{self._uid[:8]}"
        self._containers = [c for c in pod["spec"]["containers"] if c["name"] not in NOT_RUN and program_of(c["image"])]

    async def run(self) -> None:
        """Run the pod until it has ended or this task is cancelled."""
        try:
            await self._connect()
            backoff, restarts = FIRST_BACKOFF, 0
            while True:
                codes = await self._run_once(restarts)
                if await self._ended(codes):
                    return
                log.warning(
                    "%s/%s ended with %s, starting it again in %s s", self._namespace, self._name, codes, backoff
                )
                await asyncio.sleep(backoff)
                backoff, restarts = min(backoff * 2, LAST_BACKOFF), restarts + 1
        finally:
            await asyncio.shield(self._disconnect())

    async def _run_once(self, restarts: int) -> list[int]:
        """Start every container, say when they are ready, and answer their exit codes once all have ended."""
        processes: list[Process] = []
        probing: list[asyncio.Task[None]] = []
        try:
            await self._retried(self._furnish)
            processes = [await self._start(container) for container in self._containers]
            probing = [asyncio.create_task(self._probe(restarts))]
            for container, process in zip(self._containers, processes, strict=True):
                if "grpc" in container.get("livenessProbe", {}):
                    probing.append(asyncio.create_task(self._guard(container, process)))
            first = asyncio.gather(*(process.wait() for process in processes))
            return await first
        finally:
            for task in probing:
                task.cancel()
            await asyncio.shield(end(processes))
            await asyncio.shield(self._retried(lambda: self._report(restarts, ready=False)))

    async def _retried(self, step: Any) -> None:
        """Do it until it works: a Secret that is not there yet, an API server that is down."""
        while True:
            try:
                await step()
            except (ApiError, FleetError, aiohttp.ClientError, TimeoutError, OSError) as error:
                log.info("%s/%s waits: %s", self._namespace, self._name, error or type(error).__name__)
                await asyncio.sleep(FIRST_BACKOFF)
            else:
                return

    # --- network ---

    async def _connect(self) -> None:
        await shell(
            f"""
            ip netns add {self._network}
            ip link add {self._device} type veth peer name eth0 netns {self._network}
            ip link set {self._device} up
            ip route replace {self._address}/32 dev {self._device} table {REAL_PODS_TABLE}
            ip -n {self._network} link set lo up
            ip -n {self._network} addr add {self._address}/32 dev eth0
            ip -n {self._network} link set eth0 up
            ip -n {self._network} route add 169.254.1.1 dev eth0
            ip -n {self._network} route add default via 169.254.1.1 src {self._address}
            """
        )

    async def _disconnect(self) -> None:
        await shell(f"ip link delete {self._device} || true; ip netns delete {self._network} || true")
        await asyncio.to_thread(shutil.rmtree, self._folder, ignore_errors=True)

    # --- file system ---

    async def _furnish(self) -> None:
        """Write the files of every volume."""
        root = self._folder / "root"
        for folder in (root / "etc", root / "tmp", root / "root", root / "var"):
            folder.mkdir(parents=True, exist_ok=True)
        aliases = [
            f"{one['ip']} {' '.join(one['hostnames'])}\n" for one in listed(self._pod["spec"].get("hostAliases"))
        ]
        hosts = [f"127.0.0.1 localhost\n{self._address} {self._name}\n", *aliases]
        (root / "etc" / "hosts").write_text("".join(hosts))
        search = f"{self._namespace}.{DOMAIN} {DOMAIN} cluster.local"
        (root / "etc" / "resolv.conf").write_text(f"nameserver {SERVER}\nsearch {search}\noptions ndots:5\n")
        (root / "etc" / "passwd").write_text("root:x:0:0:root:/root:/bin/sh\n")
        for volume in listed(self._pod["spec"].get("volumes")):
            files = await self._files(volume)
            folder = self._folder / "volumes" / volume["name"]
            folder.mkdir(parents=True, exist_ok=True)
            for name, content in files.items():
                path = folder / name
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_bytes(content)

    async def _files(self, volume: Manifest) -> dict[str, bytes]:
        """The files of one volume; none for kinds that start empty."""
        found: dict[str, bytes] = {}
        for source in volume.get("projected", {}).get("sources", [volume]):
            match source:
                case {"secret": secret}:
                    name = secret.get("secretName") or secret["name"]
                    data = await self._data("secrets", name)
                    found |= picked({key: base64.b64decode(value) for key, value in data.items()}, secret)
                case {"configMap": config}:
                    data = await self._data("configmaps", config["name"])
                    found |= picked({key: value.encode() for key, value in data.items()}, config)
                case {"serviceAccountToken": token}:
                    found[token["path"]] = await self._token(token.get("audience"))
                case {"downwardAPI": downward}:
                    for item in downward.get("items", []):
                        found[item["path"]] = self._field(item["fieldRef"]["fieldPath"]).encode()
                case _:
                    pass
        return found

    async def _data(self, plural: str, name: str) -> dict[str, str]:
        """What a Secret (encoded) or a ConfigMap of the pod's namespace holds."""
        found = await self._client.request("GET", f"/api/v1/namespaces/{self._namespace}/{plural}/{name}")
        return found.get("data", {})

    async def _token(self, audience: str | None) -> bytes:
        account = self._pod["spec"].get("serviceAccountName", "default")
        path = f"/api/v1/namespaces/{self._namespace}/serviceaccounts/{account}/token"
        spec = {"expirationSeconds": TOKEN_SECONDS, **({"audiences": [audience]} if audience else {})}
        body = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec}
        return (await self._client.request("POST", path, body))["status"]["token"].encode()

    def _field(self, path: str) -> str:
        """The value of a downward API field."""
        found = re.fullmatch(r"metadata\.(labels|annotations)\['(.+)'\]", path)
        if found:
            return self._pod["metadata"].get(found[1], {}).get(found[2], "")
        value: Any = self._pod
        for part in path.split("."):
            value = value.get(part, "")
        return str(value)

    # --- processes ---

    async def _environment(self, container: Manifest) -> dict[str, str]:
        host, port = self._node.api.split(":")
        values = {
            "PATH": "/usr/local/bin:/usr/bin:/bin",
            "HOME": "/root",
            "HOSTNAME": self._name,
            "KUBERNETES_SERVICE_HOST": host,
            "KUBERNETES_SERVICE_PORT": port,
            "LOCALFLEET_CLUSTER": self._node.cluster,  # by which `status` finds the memory of real pods
        }
        for entry in listed(container.get("env")):
            match entry.get("valueFrom"):
                case None:
                    values[entry["name"]] = expanded(entry.get("value", ""), values)
                case {"fieldRef": {"fieldPath": path}}:
                    values[entry["name"]] = self._field(path)
                case {"secretKeyRef": {"name": name, "key": key}}:
                    data = await self._data("secrets", name)
                    values[entry["name"]] = base64.b64decode(data.get(key, "")).decode()
                case {"configMapKeyRef": {"name": name, "key": key}}:
                    values[entry["name"]] = (await self._data("configmaps", name)).get(key, "")
                case other:
                    log.warning("%s: %s is left unset: %s is not simulated", self._name, entry["name"], other)
        return values

    async def _start(self, container: Manifest) -> Process:
        command, *rest = container.get("command") or [str(program_of(container["image"]))]
        program = self._programs.get(PurePosixPath(command).name)
        if program is None:
            raise FleetError(f"{self._name}: there is no real program for {command}")
        environment = await self._environment(container)
        arguments = [expanded(text, environment) for text in (*rest, *(listed(container.get("args"))))]
        root = self._folder / "root"
        script = self._mounts(container, program)
        inside = shlex.join(["/usr/sbin/chroot", str(root), f"/localfleet/{program.name}", *arguments])
        script.append(f"exec setpriv --pdeathsig KILL {inside}")
        logs = self._node.folder.parent / "logs" / f"{self._namespace}.{self._name}.{container['name']}.log"
        with logs.open("ab") as log_file:
            return await asyncio.create_subprocess_exec(
                "nsenter",
                f"--net=/run/netns/{self._network}",
                "unshare",
                "--mount",
                "sh",
                "-ec",
                "\n".join(script),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log_file,
                stderr=log_file,
                env={**environment, "PATH": os.environ["PATH"]},
            )

    def _mounts(self, container: Manifest, program: Path) -> list[str]:
        """The shell lines that lay out the container's root folder."""
        binds = {folder: folder for folder in FROM_THE_MACHINE if Path(folder).exists()}
        binds |= {str(program): f"/localfleet/{program.name}"}
        for mount in listed(container.get("volumeMounts")):
            source = self._folder / "volumes" / mount["name"] / mount.get("subPath", "")
            binds[str(source)] = mount["mountPath"]
        return [mounted(Path(source), self._folder / "root", target) for source, target in binds.items()]

    # --- status ---

    async def _probe(self, restarts: int) -> None:
        """Report ready once every container's readiness probe says so; a probe by gRPC is asked from then on, too."""
        async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=2)) as session:
            while True:
                for container in self._containers:
                    while not await self._is_ready(container, session):  # noqa: ASYNC110 - it is another process's state
                        await asyncio.sleep(PROBE_SECONDS)
                await self._retried(lambda: self._report(restarts, ready=True))
                asked = [one for one in self._containers if "grpc" in one.get("readinessProbe", {})]
                if not asked:
                    return
                await self._failed(asked[0], "readinessProbe")
                await self._retried(lambda: self._report(restarts, ready=False))

    async def _guard(self, container: Manifest, process: Process) -> None:
        """Kill a container that has stopped saying that it lives."""
        probe = container["livenessProbe"]
        await asyncio.sleep(probe.get("initialDelaySeconds", 0) * PROBE_SCALE)
        await self._failed(container, "livenessProbe")
        log.warning("%s/%s: %s failed its liveness probe", self._namespace, self._name, container["name"])
        process.kill()

    async def _failed(self, container: Manifest, name: str) -> None:
        """Return when a probe by gRPC has failed as often in a row as it may."""
        probe: Manifest = container[name]
        failures = 0
        while failures < probe.get("failureThreshold", 3):
            await asyncio.sleep(max(PROBE_SECONDS, probe.get("periodSeconds", 10) * PROBE_SCALE))
            failures = 0 if await self._serves(container, probe) else failures + 1

    async def _serves(self, container: Manifest, probe: Manifest) -> bool:
        asked: Manifest = probe["grpc"]
        return await is_serving(self._address, port_number(container, asked["port"]), asked.get("service") or "")

    async def _is_ready(self, container: Manifest, session: aiohttp.ClientSession) -> bool:
        probe: Manifest = container.get("readinessProbe", {})
        if "httpGet" in probe:
            asked: Manifest = probe["httpGet"]
            number = port_number(container, asked["port"])
            url = f"{asked.get('scheme', 'HTTP').lower()}://{self._address}:{number}{asked.get('path', '/')}"
            try:
                async with session.get(url, ssl=False) as reply:
                    return reply.status < BAD_REQUEST
            except (aiohttp.ClientError, TimeoutError, OSError):
                return False
        if "grpc" in probe:
            return await self._serves(container, probe)
        if "tcpSocket" in probe:
            try:
                _, writer = await asyncio.open_connection(
                    self._address, port_number(container, probe["tcpSocket"]["port"])
                )
            except OSError:
                return False
            writer.close()
        return True

    async def _ended(self, codes: list[int]) -> bool:
        """Whether the restart policy leaves it at that; if so, the pod's phase says how it went."""
        policy = self._pod["spec"].get("restartPolicy", "Always")
        failed = any(codes)
        if policy == "Always" or (policy == "OnFailure" and failed):
            return False
        phase = "Failed" if failed else "Succeeded"
        now = timestamp()
        statuses = [
            {
                **self._container_status(container, 0, ready=False),
                "state": {"running": None, "terminated": {"exitCode": code, "reason": phase, "finishedAt": now}},
            }
            for container, code in zip(self._containers, codes, strict=True)
        ]
        status = {"phase": phase, "containerStatuses": statuses}
        await self._retried(lambda: self._patch(status))
        return True

    async def _report(self, restarts: int, *, ready: bool) -> None:
        word, now = str(ready), timestamp()
        conditions = [
            {"type": each, "status": word, "lastTransitionTime": now} for each in ("Ready", "ContainersReady")
        ]
        gates = [each["conditionType"] for each in listed(self._pod["spec"].get("readinessGates"))]
        conditions += [{"type": gate, "status": "True", "lastTransitionTime": now} for gate in gates]
        containers = self._pod["spec"]["containers"]
        statuses = [self._container_status(container, restarts, ready=ready) for container in containers]
        await self._patch({"conditions": conditions, "containerStatuses": statuses})

    def _container_status(self, container: Manifest, restarts: int, *, ready: bool) -> Manifest:
        return {
            "name": container["name"],
            "image": container["image"],
            "imageID": container["image"],
            "ready": ready,
            "started": ready,
            "restartCount": restarts,
            "state": {"running": {"startedAt": timestamp()}},
        }

    async def _patch(self, status: Manifest) -> None:
        body = {"metadata": {"uid": self._uid}, "status": status}  # never another pod of the same name
        try:
            await self._client.request("PATCH", f"{self._path}/status", body, content_type=STRATEGIC_MERGE)
        except ApiError as error:
            if error.status not in GONE:
                raise


def picked(files: dict[str, bytes], source: Manifest) -> dict[str, bytes]:
    """The files that a volume source names with `items`, or all of them."""
    items = source.get("items")
    return {item["path"]: files[item["key"]] for item in items if item["key"] in files} if items else files


def expanded(text: str, values: Mapping[str, str]) -> str:
    """A container's argument with its $(NAME)s filled in; $$(NAME) stays $(NAME)."""

    def value(found: re.Match[str]) -> str:
        return found[0][1:] if found[0].startswith("$$") else values.get(found[1], found[0])

    return re.sub(r"\$?\$\(([A-Za-z_][A-Za-z0-9_.-]*)\)", value, text)


def mounted(source: Path, root: Path, target: str) -> str:
    """The shell line that makes a file or folder appear inside the root folder."""
    place = root / target.lstrip("/")
    if source.is_symlink():  # /bin and /lib lead into /usr on most machines
        return f"[ -L {place} ] || ln -s {source.readlink()} {shlex.quote(str(place))}"
    make = f"mkdir -p {place}" if source.is_dir() else f"mkdir -p {place.parent} && touch {place}"
    return f"{make} && mount --rbind {shlex.quote(str(source))} {shlex.quote(str(place))}"


def port_number(container: Manifest, port: int | str) -> int:
    named = {each.get("name"): each["containerPort"] for each in listed(container.get("ports"))}
    return port if isinstance(port, int) else named.get(port, 0)


def timestamp() -> str:
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


async def end(processes: list[Process]) -> None:
    """Ask them to end, and kill those that have not after some seconds."""
    alive = [process for process in processes if process.returncode is None]
    for process in alive:
        process.terminate()
    try:
        async with asyncio.timeout(STOP_SECONDS):
            await asyncio.gather(*(process.wait() for process in alive))
    except TimeoutError:
        for process in alive:
            if process.returncode is None:
                process.kill()
                await process.wait()


async def forget_networks(cluster: str) -> None:
    """Remove what real pods of an earlier run of this process have left."""
    await shell(
        f"""
        for name in $(ls /run/netns | grep '^{cluster}\\.' || true); do ip netns delete $name; done
        ip route flush table {REAL_PODS_TABLE} 2>/dev/null || true
        """
    )


async def shell(script: str) -> None:
    process = await asyncio.create_subprocess_exec(
        "sh", "-ec", script, stderr=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.DEVNULL
    )
    _, words = await process.communicate()
    if process.returncode:
        raise FleetError(f"{script.strip().splitlines()[0]} ... failed: {words.decode().strip()}")
