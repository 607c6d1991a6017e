"""Read what the hub's gateway counts of requests: of each of its pods, twice a minute, and no more than a few MiB."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Final

import aiohttp
import structlog

from kubeloop.cache.informer import Informer
from kubeloop.client.kube import Kube
from kubeloop.client.limits import MIB
from kubeloop.errors import ClientError
from kubeloop.objects import Key, Section, entries
from kubeloop.resource import of
from kubeloop.types import ENDPOINT_SLICE, ResourceType
from modelplane_operator.api import InferenceGateway, ModelService, names
from modelplane_operator.routing.gateway.render import hub_gateway
from modelplane_operator.routing.service.traffic import COUNTER, Traffic

EVERY: Final = 30.0  # seconds
SECONDS: Final = 5.0  # of one read
LARGEST: Final = 8 * MIB  # of the lines of one answer that count requests; what is beyond it is not read
CHUNK: Final = 65536  # bytes that are read at once, and of the longest line
MOST: Final = 16  # pods of the gateway that are read

log = structlog.get_logger()


@dataclass(slots=True)
class GatewayCounters:
    """The counters of the hub's gateway, and what they say of services."""

    kube_of: Callable[[], Kube]
    now: Callable[[], float]
    wake: Callable[[ResourceType, Key], None]
    traffic: Traffic = field(default_factory=Traffic, init=False)
    _informers: dict[ResourceType, Informer] = field(default_factory=dict[ResourceType, Informer], init=False)

    def add_event_handlers(self, informer: Informer) -> None:
        """Keep the informers of services and of gateways."""
        if informer.type in {of(ModelService), of(InferenceGateway)}:
            self._informers[informer.type] = informer

    async def run(self) -> None:
        """Read until cancelled."""
        while True:
            await asyncio.sleep(EVERY)
            try:
                await self.read()
            except ClientError as error:
                log.debug("counters of the hub gateway not read", error=error.reason)
            except Exception:  # a defect here must not stop the operator
                log.exception("counters of the hub gateway not read")

    async def read(self) -> None:
        """Read the counters once, and wake the services of which they say something else."""
        services, gateways = (self._informers.get(of(kind)) for kind in (ModelService, InferenceGateway))
        gateway = gateways.get(Key("", names.DEFAULT_GATEWAY)) if gateways else None
        keys = services.keys() if services else ()
        if gateway is None or not keys:
            return
        plane = hub_gateway(InferenceGateway.parse(gateway)).plane
        namespace, name = plane.LOAD_BALANCER
        selector = f"kubernetes.io/service-name={name}"
        slices = (await self.kube_of().list(ENDPOINT_SLICE, namespace=namespace, selector=selector)).items
        pods = sorted({address for item in slices for address in _list_addresses(entries(item, "endpoints"))})[:MOST]
        port, path = plane.METRICS
        for pod in pods:
            host = f"[{pod}]" if ":" in pod else pod
            if text := await _fetch(f"http://{host}:{port}{path}"):
                self.traffic.add(pod, text, self.now())
        for key in self.traffic.decide(pods, keys, self.now()):
            self.wake(of(ModelService), key)


def _list_addresses(endpoints: Iterable[Section]) -> Iterator[str]:
    """Yield the addresses of the endpoints of a slice."""
    for endpoint in endpoints:
        yield from endpoint["addresses"]


async def _fetch(url: str) -> str:
    """Return the lines of an answer that count requests of routes; empty without an answer."""
    body = b""
    try:
        async with (
            aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=SECONDS), auto_decompress=False) as session,
            session.get(url, allow_redirects=False, headers={"Accept-Encoding": "identity"}) as answer,
        ):
            if answer.status == 200:
                body = await _select_lines(answer.content)
    except (aiohttp.ClientError, TimeoutError, ValueError) as error:
        log.debug("counters of the hub gateway not read", url=url, error=type(error).__name__)
    return body.decode(errors="replace")


async def _select_lines(content: aiohttp.StreamReader) -> bytes:
    """Return the whole lines that count requests of routes, at most LARGEST bytes of them.

    Gateways write far more lines about other things, some of them for each status that an endpoint chooses to send.
    """
    selected, remainder = bytearray(), b""
    async for chunk in content.iter_chunked(CHUNK):
        *lines, remainder = (remainder + chunk).split(b"\n")
        selected += b"".join(line + b"\n" for line in lines if COUNTER.match(line))
        remainder = remainder if len(remainder) <= CHUNK else b""
        if len(selected) > LARGEST:
            break
    return bytes(selected)
