"""The loop: three mirrors ring a set's bell, and one task per set takes it a step further."""

import asyncio
import logging
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import assert_never

import aiohttp

from localfleet.kubeclient import MERGE, ApiError, Key, KubeClient, Manifest, Mirror, entries, section
from localfleet.leaderworkerset.groups import NAME, LeaderWorkerSet, read_groups, read_set
from localfleet.leaderworkerset.plan import Create, Delete, Step, status, steps

log = logging.getLogger(__name__)

SETS = "/apis/leaderworkerset.x-k8s.io/v1/leaderworkersets"
RETRY_SECONDS = 1.0


@dataclass(frozen=True, slots=True)
class _Place:
    """Where a pod belongs: its set, and its leader when it is a worker."""

    set: Key
    uid: str
    leader: str | None


class Controller:
    """Keeps every LeaderWorkerSet of one cluster at what its spec says."""

    def __init__(self, client: KubeClient) -> None:
        self._client = client
        self.sets = Mirror(client, SETS, changed=self._ring)
        self.pods = Mirror(client, "/api/v1/pods", changed=self._pod_changed, params={"labelSelector": NAME})
        self.services = Mirror(client, "/api/v1/services", changed=self._service_changed)
        self._bells: dict[Key, asyncio.Event] = {}
        self._pods_of: dict[Key, _Place] = {}
        self._bereaved: set[str] = set()
        self._tasks: asyncio.TaskGroup | None = None

    async def run(self) -> None:
        """Watch and keep, for ever."""
        async with asyncio.TaskGroup() as self._tasks:
            for mirror in (self.pods, self.services):
                self._tasks.create_task(mirror.run())
                await mirror.synced.wait()  # a set must not be planned over pods that were not looked at
            self._tasks.create_task(self.sets.run())

    def _ring(self, key: Key) -> None:
        assert self._tasks is not None  # noqa: S101 - mirrors run inside run()
        if bell := self._bells.get(key):
            bell.set()
        elif key in self.sets.objects:
            self._bells[key] = bell = asyncio.Event()
            self._tasks.create_task(self._keep(key, bell))

    def _pod_changed(self, key: Key) -> None:
        if pod := self.pods.objects.get(key):
            metadata = section(pod, "metadata")
            owners = [owner["uid"] for owner in entries(metadata, "ownerReferences") if owner["kind"] == "Pod"]
            of = key[0], section(metadata, "labels").get(NAME, "")
            place = self._pods_of.get(key)
            if place and place.uid != metadata["uid"]:
                self._mourn(place)
            self._pods_of[key] = _Place(of, metadata["uid"], owners[0] if owners else None)
            self._ring(of)
        elif place := self._pods_of.pop(key, None):
            self._mourn(place)
            self._ring(place.set)

    def _mourn(self, place: _Place) -> None:
        """A pod has gone: remember a worker by its leader, and forget a leader's losses with the leader."""
        self._bereaved.discard(place.uid)
        if place.leader is not None:
            self._bereaved.add(place.leader)
            if all(other.uid != place.leader for other in self._pods_of.values()):
                self._bereaved.discard(place.leader)  # the leader went first

    def _service_changed(self, key: Key) -> None:
        namespace, name = key
        for owner in ((namespace, name), (namespace, name.rpartition("-")[0])):
            if owner in self._bells:
                self._ring(owner)

    async def _keep(self, key: Key, bell: asyncio.Event) -> None:
        while manifest := self.sets.objects.get(key):
            bell.clear()
            try:
                await self._reconcile(manifest)
            except ApiError as error:
                if error.status not in (404, 409):  # somebody was faster: the watch will say so
                    log.warning("set %s/%s: %s", *key, error)
                await self._pause(bell)
            except (aiohttp.ClientError, TimeoutError, OSError) as error:
                log.info("set %s/%s: %s", *key, error or type(error).__name__)
                await self._pause(bell)
            else:
                await bell.wait()
        del self._bells[key]

    async def _pause(self, bell: asyncio.Event) -> None:
        try:
            async with asyncio.timeout(RETRY_SECONDS):
                await bell.wait()
        except TimeoutError:
            pass

    async def _reconcile(self, manifest: Manifest) -> None:
        wanted = read_set(manifest)
        pods = [pod for key, pod in self.pods.objects.items() if key[0] == wanted.namespace]
        groups = read_groups(wanted, pods)
        services = frozenset(name for namespace, name in self.services.objects if namespace == wanted.namespace)
        for step in steps(wanted, groups, services, self._bereaved):
            await self._act(wanted, step)
        before = section(manifest, "status")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        after = status(wanted, groups, before, now)
        if after != before:
            path = f"{SETS.removesuffix('/leaderworkersets')}/namespaces/{wanted.namespace}/leaderworkersets"
            body = {"metadata": {"uid": wanted.uid}, "status": after}
            written = await self._client.request("PATCH", f"{path}/{wanted.name}/status", body, content_type=MERGE)
            self.sets.note(written)

    async def _act(self, wanted: LeaderWorkerSet, step: Step) -> None:
        match step:
            case Create(resource, manifest):
                path = f"/api/v1/namespaces/{wanted.namespace}/{resource}"
                made = await self._client.request("POST", path, manifest)
                # our own writes count at once, or the next look would make them again
                (self.pods if resource == "pods" else self.services).note(made)
            case Delete(name, uid):
                path = f"/api/v1/namespaces/{wanted.namespace}/pods/{name}"
                await self._client.request("DELETE", path, {"preconditions": {"uid": uid}})
            case _:
                assert_never(step)
