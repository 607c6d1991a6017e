"""Asks a service by the way that its clients' requests go: through the gateway, at the address that it publishes.

Whose answer it is that comes back is not for us to choose: it is bounded, read only as far as it tells who gave it, and
never shown. Redirects are not followed. No secret is sent, so nobody has to prove anything: a certificate of a private
authority is as good as another.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Literal

import aiohttp
from yarl import URL

from kubeloop.client.resolver import OwnThreads
from modelplane_operator.routing.service.answer import GatewayAnswer

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 5.0
UNREACHED_SECONDS = 2.0  # for so long nobody tries a gateway that has taken no connection: each would wait for it
PATIENCE = 8.0
AT_ONCE = 16  # names that are resolved at once: the gateway has one
DEFAULT_PORTS = {"http": 80, "https": 443}
MOST = 4096  # bytes of an answer that are looked at
PATHS = ("v1/models", "health")
"""What costs an engine nothing: its list of models, and, where it knows none, what its kubelet asks."""
MISSING_KEY = "missing_api_key"  # what the key service says to a request without one

_OF_GATEWAYS = {"content-length", "content-type", "date", "x-content-type-options", "vary", "connection"}
_WORDS_OF_GATEWAYS = {b"", b"404 page not found"}  # Envoy's, and Traefik's


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """How a service is asked."""

    address: str
    """Where the gateway is: what is dialled, whatever the DNS says of the host."""
    scheme: Literal["http", "https"]
    host: str
    """What it is asked for."""
    port: int
    prefix: str
    """Path of the service."""

    @property
    def gateway(self) -> tuple[str, int]:
        return self.address, self.port


@dataclass(frozen=True, slots=True)
class _Unreached:
    first: float
    last: float
    answer: GatewayAnswer


@dataclass(slots=True)
class Asker:
    """Asks services through their gateway."""

    now: Callable[[], float]
    _names: OwnThreads = field(default_factory=lambda: OwnThreads(at_once=AT_ONCE), init=False)
    _unreached: dict[tuple[str, int], _Unreached] = field(
        default_factory=dict[tuple[str, int], "_Unreached"], init=False
    )

    async def ask(self, way: ServiceAddress) -> GatewayAnswer:
        """What a service answers, or the gateway in its stead. Does not raise."""
        before = self._unreached.get(way.gateway)
        if before and self.now() - before.last < UNREACHED_SECONDS:
            return before.answer
        answer = GatewayAnswer()
        for path in PATHS:
            answer = await self._get(way, path)
            if not answer.unrouted:
                break
        if answer.connected:
            self._unreached.pop(way.gateway, None)
        else:
            now, known = self.now(), self._unreached.get(way.gateway)  # another may have been answered meanwhile
            self._unreached[way.gateway] = _Unreached(known.first if known else now, now, answer)
        return answer

    def is_unreachable(self, way: ServiceAddress) -> bool:
        """Whether the gateway has taken nobody's connection for a while."""
        known = self._unreached.get(way.gateway)
        return known is not None and known.last - known.first >= PATIENCE

    async def _get(self, way: ServiceAddress, path: str) -> GatewayAnswer:
        url = URL.build(scheme=way.scheme, host=way.address, port=way.port, path=f"{way.prefix}{path}", encoded=True)
        headers = {"Host": _authority(way), "User-Agent": "modelplane-operator"}
        session = aiohttp.ClientSession(
            # A connection for each: clients have new ones too, and what hangs keeps nobody else's.
            connector=aiohttp.TCPConnector(force_close=True, resolver=self._names, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        name = way.host if way.scheme == "https" and way.host != way.address else None
        asked = session.get(url, headers=headers, allow_redirects=False, ssl=False, server_hostname=name)
        try:
            async with session, asked as response:
                return await _read(response)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            return GatewayAnswer(lack=_words(error), connected=False)
        except aiohttp.ServerDisconnectedError:
            return GatewayAnswer(lack="closes the connection without an answer")  # as an endpoint may have it do
        except TimeoutError:
            return GatewayAnswer(lack=f"gives no answer within {ANSWER_SECONDS:g} s")
        except aiohttp.ClientOSError:
            return GatewayAnswer(lack="breaks the connection off")
        except (aiohttp.ClientError, ValueError):
            return GatewayAnswer(lack="gives an answer that is no HTTP")


def _authority(way: ServiceAddress) -> str:
    host = f"[{way.host}]" if ":" in way.host else way.host
    return host if way.port == DEFAULT_PORTS[way.scheme] else f"{host}:{way.port}"


async def _read(response: aiohttp.ClientResponse) -> GatewayAnswer:
    match response.status:
        case 401:
            return GatewayAnswer(401, key_missing=_code(await _beginning(response)) == MISSING_KEY)
        case 404 if _like_a_gateways(response.headers):
            return GatewayAnswer(404, unrouted=(await _beginning(response)).strip() in _WORDS_OF_GATEWAYS)
        case status:
            return GatewayAnswer(status)


def _like_a_gateways(headers: Mapping[str, str]) -> bool:
    """Whether it has no header but those of a gateway's own answer. Most engines and providers have more."""
    return all(
        name.lower() in _OF_GATEWAYS or (name.lower(), value) == ("server", "envoy") for name, value in headers.items()
    )


async def _beginning(response: aiohttp.ClientResponse) -> bytes:
    read = b""
    async for chunk in response.content.iter_chunked(MOST):
        read += chunk
        if len(read) >= MOST:
            break
    return read[:MOST]


def _code(body: bytes) -> object:
    """The code of an error as OpenAI's API says it."""
    try:
        said = json.loads(body)
        return said["error"]["code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _words(error: Exception) -> str:
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"takes no connection within {CONNECT_SECONDS:g} s"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "does not resolve"
    if isinstance(error, aiohttp.ClientSSLError):
        return "breaks the TLS handshake off"
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return "refuses the connection"
    return "cannot be connected to"
