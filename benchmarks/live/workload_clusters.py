"""As many workload clusters as one likes, played by one real API server.

`python -m benchmarks.live.workload_clusters --help` says how.

Each cluster is a path of one address, `https://127.0.0.1:PORT/CLUSTER`, and sees the part of the real API server that
is its own: what is in namespaces that end in `--CLUSTER`, and cluster-scoped objects whose names do. That ending is put
on what comes in and taken off what goes out, so that every cluster has a `modelplane-system` of its own. Writes and
single reads go through to the API server, with all that it checks, defaults and stores. Lists and watches are answered
from one watch for each type, as an API server answers from its cache: a thousand clusters cost it no more than one.

Programs that nobody has a machine for are played as well, on these clusters and on the hub: gateway controllers accept
Gateways and routes, and a kubelet makes the pods of a Deployment and says that they are ready.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import random
import re
import resource
import ssl
from collections import defaultdict, deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

import aiohttp
import orjson
from aiohttp import web

from kubeloop.client.sockets import shrink_tls_buffers
from localfleet import http2
from localfleet.kubeclient import MERGE, ApiError, Key, KubeClient, Manifest, Mirror, read_kubeconfig
from modelplane_operator.clusters.cluster import cluster_gateway
from modelplane_operator.routing.gateway import traefik

SEPARATOR = "--"
PATH = re.compile(
    r"/(?P<cluster>[^/]+)"
    r"(?P<root>/api/v1|/apis/[^/]+/[^/]+)(?:/namespaces/(?P<namespace>[^/]+))?/(?P<plural>[^/]+)(?:/(?P<name>[^/]+))?"
)
BOOKMARK_SECONDS = 60.0
REMEMBERED = 2_000  # events of one type on one cluster, for watches that resume
MAXIMUM_BODY = 16 * 1024 * 1024
AT_ONCE = 16  # writes of one player


# Names ---------------------------------------------------------------------------------------------------------------


def outwards(manifest: Manifest, cluster: str) -> None:
    """Give an object of a cluster the name that it has on the real API server."""
    metadata = manifest["metadata"]
    place = "namespace" if metadata.get("namespace") else "name"
    if place in metadata:
        metadata[place] += SEPARATOR + cluster


def inwards(manifest: Manifest) -> str:
    """Give an object of the real API server the name that it has on its cluster; answers which that is, '' if none."""
    metadata = manifest["metadata"]
    place = "namespace" if metadata.get("namespace") else "name"
    name, _, cluster = metadata.get(place, "").rpartition(SEPARATOR)
    if name:
        metadata[place] = name
        return cluster
    return ""


# Lists and watches ---------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Event:
    version: int
    labels: frozenset[str]
    line: bytes

    def matches(self, selector: str) -> bool:
        return not selector or selector in self.labels


@dataclass(slots=True)
class ClusterObjects:
    """The objects of one type on one cluster."""

    objects: dict[tuple[str, str], tuple[frozenset[str], bytes]] = field(default_factory=dict)
    events: deque[Event] = field(default_factory=lambda: deque(maxlen=REMEMBERED))
    lost: int = 0
    """The version up to which events are dropped."""
    listeners: set[asyncio.Queue[Event]] = field(default_factory=set)


@dataclass(slots=True)
class Feed:
    """The objects of one type on all clusters, from one watch of the real API server."""

    client: KubeClient
    path: str
    parts: defaultdict[str, ClusterObjects] = field(default_factory=lambda: defaultdict(ClusterObjects))
    version: int = 0
    missing: ApiError | None = None
    synced: asyncio.Event = field(default_factory=asyncio.Event)

    async def run(self) -> None:
        while True:
            try:
                listing = await self.client.request("GET", self.path)
                break
            except ApiError as error:
                if error.status == 404:
                    self.missing = error
                    self.synced.set()
                    return
                await asyncio.sleep(0.1)  # 429 while it prepares to serve a new type
        for item in listing["items"]:
            self.take("ADDED", item)
        self.version = int(listing["metadata"]["resourceVersion"])
        self.synced.set()
        while True:
            with suppress(aiohttp.ClientError, TimeoutError):
                async for event in self.client.watch(self.path, {"resourceVersion": str(self.version)}):
                    if event["type"] == "ERROR":
                        raise RuntimeError(f"the watch of {self.path} broke: {event['object']}")
                    self.version = int(event["object"]["metadata"]["resourceVersion"])
                    if event["type"] != "BOOKMARK":
                        self.take(event["type"], event["object"])

    def take(self, kind: str, manifest: Manifest) -> None:
        cluster = inwards(manifest)
        if not cluster:
            return
        part, metadata = self.parts[cluster], manifest["metadata"]
        labels, key = frozenset(metadata.get("labels") or ()), (metadata.get("namespace", ""), metadata["name"])
        if kind == "DELETED":
            part.objects.pop(key, None)
        else:
            part.objects[key] = (labels, orjson.dumps(manifest))
        event = Event(
            int(metadata["resourceVersion"]), labels, orjson.dumps({"type": kind, "object": manifest}) + b"\n"
        )
        if len(part.events) == REMEMBERED:
            part.lost = part.events[0].version
        part.events.append(event)
        for listener in part.listeners:
            listener.put_nowait(event)

    def list_objects(self, cluster: str, selector: str) -> bytes:
        items = b",".join(
            whole for labels, whole in self.parts[cluster].objects.values() if not selector or selector in labels
        )
        return b'{"metadata":{"resourceVersion":"%d"},"items":[%s]}' % (self.version, items)

    async def watch_lines(self, cluster: str, selector: str, version: int, seconds: float) -> AsyncIterator[bytes]:
        """Lines, with bookmarks between them; ends after so many seconds."""
        part, queue, now = self.parts[cluster], asyncio.Queue[Event](), asyncio.get_running_loop().time
        if version < part.lost:
            yield b'{"type":"ERROR","object":{"kind":"Status","code":410,"reason":"Expired","message":"too old"}}\n'
            return
        for event in part.events:
            if event.version > version:
                queue.put_nowait(event)
        part.listeners.add(queue)
        try:
            end = now() + seconds
            while (left := end - now()) > 0 or not queue.empty():
                try:
                    async with asyncio.timeout(min(left, BOOKMARK_SECONDS * random.uniform(0.8, 1.0))):  # noqa: S311
                        event = await queue.get()
                except TimeoutError:
                    if queue.empty():  # else a bookmark would say that what has just come has been told
                        bookmark = {"metadata": {"resourceVersion": str(self.version)}}
                        yield orjson.dumps({"type": "BOOKMARK", "object": bookmark}) + b"\n"
                    continue
                if event.matches(selector):
                    yield event.line
        finally:
            part.listeners.discard(queue)


# The address ---------------------------------------------------------------------------------------------------------


class WorkloadClusters:
    """Answers requests to all clusters."""

    def __init__(self, client: KubeClient, group: asyncio.TaskGroup) -> None:
        self._client = client
        self._group = group
        self._feeds: dict[str, Feed] = {}

    async def answer(self, request: web.BaseRequest) -> web.StreamResponse:
        rest = request.path[1:].partition("/")[2]
        if rest == "readyz":
            return web.Response(text="ok")
        if rest == "version":
            return web.json_response({"gitVersion": "v1.36.3"})
        found = PATH.fullmatch(request.path)
        if found is None:
            return web.Response(status=404)
        try:
            if request.method == "GET" and not found["name"]:
                return await self._answer_collection(request, found)
            return await self._forward(request, found)
        except ApiError as error:
            said = {"kind": "Status", "code": error.status, "reason": error.reason, "message": str(error)}
            return web.Response(status=error.status, body=orjson.dumps(said), content_type="application/json")

    async def _answer_collection(self, request: web.BaseRequest, found: re.Match[str]) -> web.StreamResponse:
        path = f"{found['root']}/{found['plural']}"
        if (feed := self._feeds.get(path)) is None:
            feed = self._feeds[path] = Feed(self._client, path)
            self._group.create_task(feed.run(), name=f"feed {path}")
        await feed.synced.wait()
        if feed.missing:
            raise feed.missing
        selector = request.query.get("labelSelector", "")
        if "watch" not in request.query:
            return web.Response(body=feed.list_objects(found["cluster"], selector), content_type="application/json")
        return await self._stream(request, found["cluster"], feed, selector)

    async def _stream(self, request: web.BaseRequest, cluster: str, feed: Feed, selector: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        response.enable_chunked_encoding()
        await response.prepare(request)
        version, seconds = int(request.query["resourceVersion"]), float(request.query["timeoutSeconds"])
        with suppress(ConnectionResetError):  # the client has gone
            async for line in feed.watch_lines(cluster, selector, version, seconds):
                await response.write(line)
        return response

    async def _forward(self, request: web.BaseRequest, found: re.Match[str]) -> web.Response:
        cluster, body = found["cluster"], await request.read()
        manifest = orjson.loads(body) if body else None
        if manifest and request.method in {"PATCH", "PUT", "POST"}:
            outwards(manifest, cluster)
        end = SEPARATOR + cluster
        where = f"/namespaces/{found['namespace']}{end}" if found["namespace"] else ""
        name = f"/{found['name']}{'' if found['namespace'] else end}"
        answer = await self._client.request(
            request.method,
            f"{found['root']}{where}/{found['plural']}{name}",
            manifest,
            content_type=request.headers.get("Content-Type", "application/json"),
            params=dict(request.query),
        )
        if answer.get("kind") != "Status":
            inwards(answer)
        return web.Response(body=orjson.dumps(answer), content_type="application/json")


# Who plays what runs there -------------------------------------------------------------------------------------------

ACCEPTED = {"status": "True", "reason": "Accepted", "message": "", "lastTransitionTime": "2026-01-01T00:00:00Z"}
GATEWAYS = "/apis/gateway.networking.k8s.io/v1"
CONTROLLERS = {"hub": traefik.CONTROLLER, "workload": cluster_gateway.CONTROLLER}


def _conditions(manifest: Manifest, *types: str) -> list[Manifest]:
    generation = manifest["metadata"].get("generation", 1)
    return [{**ACCEPTED, "type": type_, "observedGeneration": generation} for type_ in types]


def gateway_class(manifest: Manifest) -> Manifest:
    return {"conditions": _conditions(manifest, "Accepted")}


def gateway(manifest: Manifest) -> Manifest:
    uid = int(manifest["metadata"]["uid"].replace("-", "")[:6], 16)  # some address, and always the same
    made_up = f"10.{uid >> 16 & 255}.{uid >> 8 & 255}.{uid & 255}"
    return {
        "conditions": _conditions(manifest, "Accepted", "Programmed"),
        "addresses": [{"type": "IPAddress", "value": made_up}],
    }


def route(manifest: Manifest, controller: str) -> Manifest:
    return {
        "parents": [
            {
                "parentRef": manifest["spec"]["parentRefs"][0],
                "controllerName": controller,
                "conditions": _conditions(manifest, "Accepted", "ResolvedRefs"),
            }
        ]
    }


def controllers(name: str) -> Mapping[str, Callable[[Manifest], Manifest]]:
    """Return what makes the status of an object, by the plural of its type, as the controller of that name does."""
    return {
        "gatewayclasses": gateway_class,
        "gateways": gateway,
        "httproutes": partial(route, controller=name),
    }


@dataclass(slots=True, kw_only=True)
class Player:
    """Brings what happens in the objects of one type in line with what they ask for."""

    client: KubeClient
    root: str
    plural: str
    status_of: Callable[[Manifest], Manifest] | None = None
    mirror: Mirror = field(init=False)

    async def run(self) -> None:
        queue: asyncio.Queue[Key] = asyncio.Queue()
        self.mirror = Mirror(self.client, f"{self.root}/{self.plural}", changed=queue.put_nowait)
        async with asyncio.TaskGroup() as group:
            group.create_task(self.mirror.run())
            for _ in range(AT_ONCE):
                group.create_task(self._work(queue))

    async def _work(self, queue: asyncio.Queue[Key]) -> None:
        while True:
            key = await queue.get()
            try:
                await self.play(key, self.mirror.objects.get(key))
            except ApiError as error:
                if error.status not in {404, 409}:
                    raise

    async def play(self, _: Key, manifest: Manifest | None) -> None:
        if manifest is None or self.status_of is None:
            return
        status = self.status_of(manifest)
        if not _has_fields(manifest.get("status") or {}, status):
            await self.client.request(
                "PATCH", f"{self.path_of(manifest)}/status", {"status": status}, content_type=MERGE
            )

    def path_of(self, manifest: Manifest) -> str:
        metadata = manifest["metadata"]
        where = f"/namespaces/{metadata['namespace']}" if metadata.get("namespace") else ""
        return f"{self.root}{where}/{self.plural}/{metadata['name']}"


def _has_fields(status: Manifest, wanted: Manifest) -> bool:
    return all(status.get(name) == value for name, value in wanted.items())


@dataclass(slots=True, kw_only=True)
class Kubelet(Player):
    """Pods of Deployments: there and ready at once."""

    async def play(self, key: Key, manifest: Manifest | None) -> None:
        namespace, name = key
        pods = f"/api/v1/namespaces/{namespace}/pods"
        if manifest is None or manifest["metadata"].get("deletionTimestamp"):
            number = 0
            while True:  # until there is none of that number: ApiError 404
                await self.client.request("DELETE", f"{pods}/{name}-{number}", {"gracePeriodSeconds": 0})
                number += 1
        generation = manifest["metadata"]["generation"]
        if manifest.get("status", {}).get("observedGeneration") == generation:
            return
        copies = manifest["spec"].get("replicas", 1)
        for number in range(copies):
            await self._pod(pods, f"{name}-{number}", manifest["spec"]["template"])
        counts = dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas", "availableReplicas"), copies)
        status = {"status": {"observedGeneration": generation, **counts}}
        await self.client.request("PATCH", f"{self.path_of(manifest)}/status", status, content_type=MERGE)

    async def _pod(self, pods: str, name: str, template: Manifest) -> None:
        body = {"metadata": {**template.get("metadata", {}), "name": name}, "spec": template["spec"]}
        with suppress(ApiError):  # 409: it is there already
            await self.client.request("POST", pods, body)
        await self.client.request("PATCH", f"{pods}/{name}/status", POD_STATUS, content_type=MERGE)


POD_STATUS = {
    "status": {
        "phase": "Running",
        "podIP": "10.1.2.3",
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": "2026-01-01T00:00:00Z"}],
    }
}


# The process ---------------------------------------------------------------------------------------------------------


def _players(clients: Mapping[str, KubeClient]) -> Iterator[Player]:
    for side, client in clients.items():
        for plural, status_of in controllers(CONTROLLERS[side]).items():
            yield Player(client=client, root=GATEWAYS, plural=plural, status_of=status_of)
    yield Kubelet(client=clients["workload"], root="/apis/apps/v1", plural="deployments")


@asynccontextmanager
async def unlimited(kubeconfig: Path) -> AsyncIterator[KubeClient]:
    """Return a client with no limit of connections: each watch holds one."""
    access = read_kubeconfig(kubeconfig)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls, limit=0)) as session:
        yield KubeClient(access, session)


async def run(given: argparse.Namespace) -> None:
    async with AsyncExitStack() as stack:
        clients = {
            name: await stack.enter_async_context(unlimited(path))
            for name, path in (("workload", given.kubeconfig), ("hub", given.hub))
        }
        group = await stack.enter_async_context(asyncio.TaskGroup())
        workload = WorkloadClusters(clients["workload"], group)
        runner = web.ServerRunner(web.Server(workload.answer, access_log=None), handle_signals=False)
        await runner.setup()
        tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
        tls.load_cert_chain(given.certificate)
        server = http2.front(runner.server, tls) if runner.server else None
        await asyncio.get_running_loop().create_server(server, "127.0.0.1", given.port, ssl=tls, backlog=4096)
        for player in _players(clients):
            group.create_task(player.run(), name=player.plural)
        print("ready", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.live.workload_clusters", description=__doc__)
    parser.add_argument("--kubeconfig", type=Path, required=True, help="of the API server that plays all clusters")
    parser.add_argument("--hub", type=Path, required=True, help="kubeconfig of the hub, whose gateway is played too")
    parser.add_argument("--certificate", type=Path, required=True, help="PEM file with certificates and key")
    parser.add_argument("--port", type=int, required=True)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    shrink_tls_buffers()
    gc.disable()  # of a thousand clusters' objects a look for garbage takes seconds, in which no cluster answers
    asyncio.run(run(parser.parse_args()))


if __name__ == "__main__":
    main()
