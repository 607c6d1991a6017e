"""The cluster's name server: answers for Services, as CoreDNS does, to the pods that run for real.

Only what those pods ask is spoken: one question, IPv4 addresses, over UDP.
"""

from __future__ import annotations

import asyncio
import ipaddress
import struct
from typing import cast

from localfleet.cloud.work import listed
from localfleet.kubeclient import KubeClient, Mirror

SERVER = "169.254.1.1"  # every real pod's next hop (network.py)
DOMAIN = "svc.cluster.local"
HEADER = struct.Struct("!6H")
POINTER_TO_QUESTION = 0xC000 | HEADER.size
A, INTERNET = 1, 1
AUTHORITATIVE_ANSWER, NO_SUCH_NAME = 0x8580, 0x8583
TTL_SECONDS = 5


class Names:
    """Every Service of one cluster, by name."""

    def __init__(self, client: KubeClient) -> None:
        self._services = Mirror(client, "/api/v1/services", changed=lambda _: None)
        self._slices = Mirror(client, "/apis/discovery.k8s.io/v1/endpointslices", changed=lambda _: None)

    async def run(self) -> None:
        loop = asyncio.get_running_loop()
        transport, _ = await loop.create_datagram_endpoint(lambda: Answers(self), local_addr=(SERVER, 53))
        try:
            async with asyncio.TaskGroup() as group:
                group.create_task(self._services.run())
                group.create_task(self._slices.run())
        finally:
            transport.close()

    def addresses(self, name: str) -> list[str] | None:
        """The addresses behind a name; None when there is no such name."""
        host, _, rest = name.lower().rstrip(".").partition(".")
        namespace, _, domain = rest.partition(".")
        service = self._services.objects.get((namespace, host)) if domain == DOMAIN else None
        if service is None:
            return None
        if service["spec"].get("clusterIP", "None") not in {"None", ""}:
            return [service["spec"]["clusterIP"]]
        return [
            endpoint["addresses"][0]
            for (where, _), each in self._slices.objects.items()
            if where == namespace and each["metadata"].get("labels", {}).get("kubernetes.io/service-name") == host
            for endpoint in listed(each.get("endpoints"))
        ]


class Answers(asyncio.DatagramProtocol):
    """Answers each datagram by one."""

    def __init__(self, names: Names) -> None:
        self._names = names

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.DatagramTransport", transport)  # asyncio's own contract for such protocols

    def datagram_received(self, data: bytes, addr: tuple[str, int]) -> None:
        answer = answered(data, self._names)
        if answer is not None:
            self._transport.sendto(answer, addr)


def answered(query: bytes, names: Names) -> bytes | None:
    """The reply to a query; None for what is no query of ours."""
    if len(query) < HEADER.size or HEADER.unpack_from(query)[2] != 1:
        return None
    identity = HEADER.unpack_from(query)[0]
    labels, place = list[str](), HEADER.size
    while place < len(query) and (length := query[place]):
        labels.append(query[place + 1 : place + 1 + length].decode("ascii", "replace"))
        place += 1 + length
    question = query[HEADER.size : place + 5]
    if len(question) < 5:
        return None
    (kind,) = struct.unpack_from("!H", query, place + 1)
    found = names.addresses(".".join(labels))
    addresses = found if found and kind == A else []
    flags = NO_SUCH_NAME if found is None else AUTHORITATIVE_ANSWER
    answers = b"".join(
        struct.pack("!HHHIH", POINTER_TO_QUESTION, A, INTERNET, TTL_SECONDS, 4) + ipaddress.ip_address(address).packed
        for address in addresses
    )
    return HEADER.pack(identity, flags, 1, len(addresses), 0, 0) + question + answers
