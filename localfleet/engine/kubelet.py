"""The part of a kubelet that engine pods need: one task per pod keeps its engine, and its status, at what is true."""

import asyncio
import logging
import os
import signal
import time
from collections.abc import Mapping
from dataclasses import dataclass, field

import aiohttp

from localfleet.engine.engine import Engine
from localfleet.engine.lifecycle import Lives, advance, wake_at
from localfleet.engine.pods import ENGINE, Pod, Termination, has_engine, read_pod
from localfleet.engine.server import Listeners
from localfleet.engine.settings import NODE_DOWN, SettingError, Settings
from localfleet.engine.statuses import read_lives, status_changes, visible
from localfleet.kubeclient import STRATEGIC_MERGE, ApiError, Key, KubeClient, Manifest, Mirror, section

log = logging.getLogger(__name__)

RETRY_SECONDS = 1.0
# how often a draining pod is looked at: its last request ends without an event of its own
DRAIN_POLL_SECONDS = 0.05
# A hook may signal every process that it sees: without a namespace of processes it does not run at all.
IN_A_CONTAINER = ("unshare", "--pid", "--fork", "--kill-child", "--")


@dataclass(slots=True)
class _Watched:
    """One pod's task: its bell, and the engine it keeps."""

    bell: asyncio.Event = field(default_factory=asyncio.Event)
    engine: Engine | None = None
    read: tuple[Manifest, Pod] | None = None
    """The last manifest and what it was read as: most looks come from probes, not from news."""
    told: tuple[object, ...] = ()
    """What the pod's status was last compared with: a probe that finds what it found before needs no comparison."""
    removed: str | None = None
    """The uid of the pod whose end has been said."""
    hook: asyncio.Task[None] | None = None
    """The preStop command of the engine, while it runs and afterwards."""
    termination: Termination | None = None
    """What the pod's first deletion gave it."""


class Kubelet:
    """Every engine pod of one cluster."""

    def __init__(self, client: KubeClient, *, cluster: str, defaults: Settings, scale: float) -> None:
        self.pods = Mirror(client, "/api/v1/pods", changed=self._pod_changed)
        self.nodes = Mirror(client, "/api/v1/nodes", changed=self._node_changed)
        self._client = client
        self._cluster = cluster
        self._defaults = defaults
        self._scale = scale
        self._by_address: dict[str, Engine] = {}
        self._watched: dict[Key, _Watched] = {}
        self._down: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._listeners: Listeners | None = None

    def find(self, address: str) -> Engine | None:
        """The engine that lives at an address."""
        return self._by_address.get(address)

    async def run(self, listeners: Listeners) -> None:
        """Mirror pods and nodes and keep every engine pod, for ever."""
        self._listeners = listeners
        async with asyncio.TaskGroup() as self._tasks:
            self._tasks.create_task(self.nodes.run())
            await self.nodes.synced.wait()
            self._tasks.create_task(self.pods.run())

    def _pod_changed(self, key: Key) -> None:
        assert self._tasks is not None  # noqa: S101 - mirrors run inside run()
        if watched := self._watched.get(key):
            watched.bell.set()
        elif (manifest := self.pods.objects.get(key)) and has_engine(manifest):
            self._watched[key] = watched = _Watched()
            self._tasks.create_task(self._keep(key, watched))

    def _node_changed(self, key: Key) -> None:
        node = self.nodes.objects.get(key)
        down = section(node or {}, "metadata", "annotations").get(NODE_DOWN) == "true"
        if down == (key[1] in self._down):
            return
        self._down ^= {key[1]}
        for watched in self._watched.values():
            if watched.engine is not None and watched.engine.pod.node == key[1]:
                watched.bell.set()

    async def _keep(self, key: Key, watched: _Watched) -> None:
        while manifest := self.pods.objects.get(key):
            watched.bell.clear()
            wait = await self._step(watched, manifest)
            try:
                async with asyncio.timeout(wait):
                    await watched.bell.wait()
            except TimeoutError:
                pass
        self._retire(watched)
        del self._watched[key]

    async def _step(self, watched: _Watched, manifest: Manifest) -> float | None:
        """Bring one pod up to now; answer the seconds after which it wants another look."""
        if watched.read is None or watched.read[0] is not manifest:
            watched.read = manifest, self._read(manifest)
        pod = watched.read[1]
        if watched.engine is not None and watched.engine.pod.uid != pod.uid:
            self._retire(watched)
        try:
            if pod.running and pod.address is not None:
                return await self._step_running(watched, pod, pod.address, manifest)
            if pod.termination is not None and pod.node and pod.node not in self._down:
                await self._remove(watched, pod, manifest)  # it never got to run
        except ApiError as error:
            if error.status not in (404, 409):  # gone, or another pod by now: the watch will say so
                log.warning("pod %s/%s: %s", pod.namespace, pod.name, error)
            return RETRY_SECONDS
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            log.info("pod %s/%s: %s", pod.namespace, pod.name, error or type(error).__name__)
            return RETRY_SECONDS
        return None

    async def _step_running(self, watched: _Watched, pod: Pod, address: str, manifest: Manifest) -> float | None:
        now = time.time()
        if watched.engine is None:
            lives = read_lives(pod, manifest["status"], now, scale=self._scale)
            watched.engine = self._by_address[address] = Engine(pod, lives, self._cluster)
            for port in pod.servers:
                await self._open(port)
        engine = watched.engine
        if pod.node in self._down:
            engine.update(pod, engine.lives, node_down=True)
            return None
        lives = advance(pod, engine.lives, now, scale=self._scale)
        engine.update(pod, lives, node_down=False)
        if pod.termination is not None:
            if self._terminated(watched, engine, pod.termination, now):
                await self._remove(watched, pod, manifest)
                return None
            await self._tell(watched, pod, lives, manifest, now)
            return DRAIN_POLL_SECONDS
        await self._tell(watched, pod, lives, manifest, now)
        wake = wake_at(pod, lives)
        return None if wake is None else max(0.0, wake - time.time())

    def _read(self, manifest: Manifest) -> Pod:
        try:
            return read_pod(manifest, defaults=self._defaults)
        except SettingError as error:
            log.warning("settings of %s are ignored: %s", manifest["metadata"]["name"], error)
            return read_pod(_without_settings(manifest), defaults=self._defaults)

    def _terminated(self, watched: _Watched, engine: Engine, termination: Termination, now: float) -> bool:
        """Take a deleted pod's engine through its grace period; True once it has ended."""
        watched.termination = termination = watched.termination or termination
        runs = engine.lives[ENGINE].started_at is not None
        if watched.hook is None and engine.pod.hook and runs:
            assert self._tasks is not None  # noqa: S101 - a kubelet steps inside run()
            watched.hook = self._tasks.create_task(run_hook(engine.pod, self._hosts(engine.pod)))
        hooked = watched.hook is not None and watched.hook.done()
        if (hooked or not runs or now >= termination.stop_at) and not engine.draining:
            engine.drain()
        if now >= termination.deadline:
            engine.cut()
            return True
        return engine.draining and not engine.busy

    def _hosts(self, pod: Pod) -> Mapping[str, str]:
        """Where the names lead that a container of the pod knows others by: to itself, and to pods with a subdomain."""
        names = {"127.0.0.1": pod.address or ""}
        for (namespace, name), other in self.pods.objects.items():
            if (subdomain := section(other, "spec").get("subdomain")) and (
                address := section(other, "status").get("podIP")
            ):
                names[f"{name}.{subdomain}.{namespace}"] = address
        return names

    async def _remove(self, watched: _Watched, pod: Pod, manifest: Manifest) -> None:
        """Say that nothing of the pod runs any more, once: its object goes when nobody's finalizer holds it.

        Where one does, its phase says so too: what pods held, devices for one, is free again by that.
        """
        if watched.removed != pod.uid:
            if manifest["metadata"].get("finalizers"):
                ended = {"metadata": {"uid": pod.uid}, "status": {"phase": "Succeeded"}}
                path = f"{_path(pod)}/status"
                await self._client.request("PATCH", path, ended, content_type=STRATEGIC_MERGE)
            body = {"gracePeriodSeconds": 0, "preconditions": {"uid": pod.uid}}
            await self._client.request("DELETE", _path(pod), body)
            watched.removed = pod.uid

    async def _tell(self, watched: _Watched, pod: Pod, lives: Lives, manifest: Manifest, now: float) -> None:
        """Write what the pod's status does not say yet."""
        told = manifest["metadata"]["resourceVersion"], pod.termination, visible(lives)
        if told == watched.told:
            return
        if changes := status_changes(pod, lives, manifest["status"], now):
            body = {"metadata": {"uid": pod.uid}, "status": changes}
            written = await self._client.request("PATCH", f"{_path(pod)}/status", body, content_type=STRATEGIC_MERGE)
            self.pods.note(written)
        watched.told = told

    async def _open(self, port: int) -> None:
        assert self._listeners is not None  # noqa: S101 - set by run()
        try:
            await self._listeners.open(port)
        except OSError as error:
            log.warning("a pod declares port %d, which cannot be opened: %s", port, error)

    def _retire(self, watched: _Watched) -> None:
        if watched.hook is not None:
            watched.hook.cancel()
        watched.hook = watched.termination = None
        engine, watched.engine = watched.engine, None
        if engine is None:
            return
        engine.draining = True
        engine.cut()
        if engine.pod.address is not None and self._by_address.get(engine.pod.address) is engine:
            del self._by_address[engine.pod.address]


async def run_hook(pod: Pod, hosts: Mapping[str, str]) -> None:
    """Run a pod's preStop command to its end, in a process namespace of its own, as it runs in a container.

    All pods share the network here, so that names of pods, and the loopback, are replaced by their addresses.
    """
    line = [hosts.get(word, word) for word in pod.hook]
    env = {"PATH": os.environ["PATH"], **{name: hosts.get(value, value) for name, value in pod.env.items()}}
    process = await asyncio.create_subprocess_exec(*IN_A_CONTAINER, *line, env=env, start_new_session=True)
    try:
        code = await process.wait()
    except asyncio.CancelledError:
        os.killpg(process.pid, signal.SIGKILL)
        await process.wait()
        raise
    if code:
        log.warning("pod %s/%s: the preStop hook failed with %d", pod.namespace, pod.name, code)


def _path(pod: Pod) -> str:
    return f"/api/v1/namespaces/{pod.namespace}/pods/{pod.name}"


def _without_settings(manifest: Manifest) -> Manifest:
    containers = [
        {key: value for key, value in container.items() if key not in ("args", "command")}
        for container in manifest["spec"]["containers"]
    ]
    return {
        **manifest,
        "metadata": {**manifest["metadata"], "annotations": {}},
        "spec": {**manifest["spec"], "containers": containers},
    }
