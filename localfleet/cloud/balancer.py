"""Load balancers: addresses for Services of that type, and the connections made to them.

Cluster addresses of Services are served in the same way, on every port that nothing else in the cluster's network
listens on. Connections are spread in turn over the endpoints that are ready.
"""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import itertools
import logging
import socket
from collections.abc import Iterator

from localfleet.cloud.work import Queue, listed
from localfleet.forwarder import serve
from localfleet.kubeclient import MERGE, Key, KubeClient, Manifest, Mirror

log = logging.getLogger(__name__)
SERVICE_NAME = "kubernetes.io/service-name"
Address = tuple[str, int]


class Balancer:
    """Every Service of one cluster."""

    def __init__(self, client: KubeClient, pool: str) -> None:
        self._client = client
        self._pool = ipaddress.ip_network(pool)
        self._queue: Queue[Key] = Queue()
        self._services = Mirror(client, "/api/v1/services", changed=self._queue.add)
        self._slices = Mirror(client, "/apis/discovery.k8s.io/v1/endpointslices", changed=lambda _: None)
        self._servers: dict[Key, dict[Address, asyncio.Server]] = {}
        self._turn = itertools.count()

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._slices.run())
            group.create_task(self._services.run())
            group.create_task(self._queue.work(self._look))

    async def _look(self, key: Key) -> None:
        service = self._services.objects.get(key)
        if service is not None and service["spec"].get("type") == "LoadBalancer" and not given(service):
            service = await self._give_address(service)
        wanted = dict(served(service)) if service is not None else {}
        open_now = self._servers.setdefault(key, {})
        for address in open_now.keys() - wanted.keys():
            open_now.pop(address).close()
        for address in wanted.keys() - open_now.keys():
            server = await self._listen(key, address, wanted[address])
            if server is not None:
                open_now[address] = server
        if not open_now:
            del self._servers[key]

    async def _give_address(self, service: Manifest) -> Manifest:
        taken = {address for other in self._services.objects.values() for address in given(other)}
        asked = service["spec"].get("loadBalancerIP")
        free = (str(host) for host in self._pool.hosts() if str(host) not in taken)
        address = asked if asked and asked not in taken else next(free)
        metadata = service["metadata"]
        path = f"/api/v1/namespaces/{metadata['namespace']}/services/{metadata['name']}/status"
        status = {"status": {"loadBalancer": {"ingress": [{"ip": address, "ipMode": "VIP"}]}}}
        changed = await self._client.request("PATCH", path, status, content_type=MERGE)
        self._services.note(changed)
        return changed

    async def _listen(self, key: Key, address: Address, port_name: str) -> asyncio.Server | None:
        listener = socket.socket(socket.AF_INET)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.setblocking(False)  # noqa: FBT003 - the standard library's own signature
        try:
            listener.bind(address)
        except OSError as error:
            listener.close()
            if error.errno != errno.EADDRINUSE:
                raise
            log.warning("%s of %s is not served: the port is taken in this cluster's network", address, key)
            return None
        listener.listen(512)
        return await serve(listener, lambda: self._endpoint(key, port_name))

    def _endpoint(self, key: Key, port_name: str) -> Address | None:
        ready = sorted(self._endpoints(key, port_name))
        return ready[next(self._turn) % len(ready)] if ready else None

    def _endpoints(self, key: Key, port_name: str) -> Iterator[Address]:
        namespace, name = key
        for (where, _), each in self._slices.objects.items():
            if where == namespace and each["metadata"].get("labels", {}).get(SERVICE_NAME) == name:
                ports = [port["port"] for port in listed(each.get("ports")) if port.get("name", "") == port_name]
                for endpoint in listed(each.get("endpoints")):
                    if ports and endpoint.get("conditions", {}).get("ready", True):
                        yield endpoint["addresses"][0], ports[0]


def given(service: Manifest) -> list[str]:
    """The load-balancer addresses that a Service has."""
    ingress = listed(service.get("status", {}).get("loadBalancer", {}).get("ingress"))
    return [each["ip"] for each in ingress if "ip" in each]


def served(service: Manifest) -> Iterator[tuple[Address, str]]:
    """Every address and port of a Service, and the name of the port."""
    spec = service["spec"]
    cluster_addresses = [spec["clusterIP"]] if spec.get("clusterIP", "None") not in {"None", ""} else []
    for port in listed(spec.get("ports")):
        if port.get("protocol", "TCP") == "TCP":
            for address in (*cluster_addresses, *given(service)):
                yield (address, port["port"]), port.get("name", "")
