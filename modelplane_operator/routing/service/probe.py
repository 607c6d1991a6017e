"""Send requests to a service the way its clients do: through the gateway, at the published address.

The response may come from an untrusted endpoint: it is limited, read only as far as its origin can be told, and never
shown. Redirects are not followed. No secret is sent, so the server's certificate is not verified, and private
authorities need no setup.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import InitVar, dataclass, field
from typing import Literal

import aiohttp
from yarl import URL

from kubeloop.client.resolver import OwnThreads, Refuse, allow_all
from modelplane_operator.routing.service.answer import GatewayAnswer

CONNECT_SECONDS = 2.0
ANSWER_SECONDS = 4.0  # two of them in a row are an outage, within a quarter of a minute
UNREACHED_SECONDS = 2.0  # how long an unreachable gateway is not tried again, as each try waits for the timeout
PATIENCE = 8.0
AT_ONCE = 16  # parallel lookups; the gateway has one name
DEFAULT_PORTS = {"http": 80, "https": 443}
MOST = 4096  # bytes of a response that are read
PATHS = ("v1/models", "health")
"""Cheap requests for an engine: its list of models or, if it has none, the path of its kubelet probe."""
UNRESOLVED = "does not resolve"
"""The predicate of a name without an address that may be dialled."""
MISSING_KEY = "missing_api_key"  # the key service's error code for a request without a key

_GATEWAY_HEADERS = {"content-length", "content-type", "date", "x-content-type-options", "vary", "connection"}
_GATEWAY_BODIES = {b"", b"404 page not found"}  # the 404 bodies of Envoy and Traefik


@dataclass(frozen=True, slots=True)
class ServiceAddress:
    """The address of a service."""

    address: str
    """The address of the gateway to connect to, whatever the DNS has for the host."""
    scheme: Literal["http", "https"]
    """Scheme of the published address."""
    host: str
    """The host name in requests."""
    port: int
    """Port of the gateway."""
    prefix: str
    """The path of the service."""

    @property
    def gateway(self) -> tuple[str, int]:
        """The gateway to connect to: address and port."""
        return self.address, self.port


@dataclass(frozen=True, slots=True)
class _Unreached:
    """The first and last failed connection to a gateway."""

    first: float
    """Time of the first failure since the last success."""
    last: float
    answer: GatewayAnswer
    """Result of the last failure, which is returned without another try."""


@dataclass(slots=True)
class Asker:
    """Sends requests to services through their gateway."""

    now: Callable[[], float]
    """The clock, in seconds."""
    refuse: InitVar[Refuse] = allow_all
    """Returns why a name with these addresses may not be dialled; empty if it may."""
    _names: OwnThreads = field(init=False)
    _unreached: dict[tuple[str, int], _Unreached] = field(
        default_factory=dict[tuple[str, int], "_Unreached"], init=False
    )
    """The failed connections by gateway."""

    def __post_init__(self, refuse: Refuse) -> None:
        self._names = OwnThreads(at_once=AT_ONCE, refuse=refuse)

    async def ask(self, way: ServiceAddress) -> GatewayAnswer:
        """Return the response of a service, or of the gateway in its place. Does not raise."""
        failure = self._unreached.get(way.gateway)
        if failure and self.now() - failure.last < UNREACHED_SECONDS:
            return failure.answer
        answer = GatewayAnswer()
        for path in PATHS:
            answer = await self.get(way, path)
            if not answer.unrouted:
                break
        if answer.connected:
            self._unreached.pop(way.gateway, None)
        else:
            now, previous = self.now(), self._unreached.get(way.gateway)  # another request may have succeeded meanwhile
            self._unreached[way.gateway] = _Unreached(previous.first if previous else now, now, answer)
        return answer

    def is_unreachable(self, way: ServiceAddress) -> bool:
        """True if the gateway has accepted no connection for a while."""
        failure = self._unreached.get(way.gateway)
        return failure is not None and failure.last - failure.first >= PATIENCE

    async def get(self, way: ServiceAddress, path: str) -> GatewayAnswer:
        """Send one request, and return its result."""
        url = URL.build(scheme=way.scheme, host=way.address, port=way.port, path=f"{way.prefix}{path}", encoded=True)
        host = f"[{way.host}]" if ":" in way.host else way.host
        authority = host if way.port == DEFAULT_PORTS[way.scheme] else f"{host}:{way.port}"
        headers = {"Host": authority, "User-Agent": "modelplane-operator"}
        session = aiohttp.ClientSession(
            # A new connection for each request, as clients have, and so that a hanging one delays no other.
            connector=aiohttp.TCPConnector(force_close=True, resolver=self._names, use_dns_cache=False),
            timeout=aiohttp.ClientTimeout(total=ANSWER_SECONDS, sock_connect=CONNECT_SECONDS),
            cookie_jar=aiohttp.DummyCookieJar(),
            auto_decompress=False,
        )
        name = way.host if way.scheme == "https" and way.host != way.address else None
        pending = session.get(url, headers=headers, allow_redirects=False, ssl=False, server_hostname=name)
        try:
            async with session, pending as response:
                return await _read_response(response)
        except (aiohttp.ConnectionTimeoutError, aiohttp.ClientConnectorError) as error:
            silent = not isinstance(error, aiohttp.ClientConnectorDNSError | aiohttp.ClientSSLError)
            return GatewayAnswer(lack=_describe_error(error), connected=False, silent=silent)
        except aiohttp.ServerDisconnectedError:
            return GatewayAnswer(lack="closes the connection without an answer")  # an endpoint may cause that
        except TimeoutError:
            return GatewayAnswer(lack=f"gives no answer within {ANSWER_SECONDS:g} s", silent=True)
        except aiohttp.ClientOSError:
            return GatewayAnswer(lack="breaks the connection off")
        except (aiohttp.ClientError, ValueError):
            return GatewayAnswer(lack="gives an answer that is no HTTP")


async def _read_response(response: aiohttp.ClientResponse) -> GatewayAnswer:
    """Return the result for a response."""
    match response.status:
        case 401:
            return GatewayAnswer(401, key_missing=_parse_error_code(await _read_beginning(response)) == MISSING_KEY)
        # A gateway's own response has no other headers. Most engines and providers send more.
        case 404 if all(
            name.lower() in _GATEWAY_HEADERS or (name.lower(), value) == ("server", "envoy")
            for name, value in response.headers.items()
        ):
            return GatewayAnswer(404, unrouted=(await _read_beginning(response)).strip() in _GATEWAY_BODIES)
        case status:
            return GatewayAnswer(status)


async def _read_beginning(response: aiohttp.ClientResponse) -> bytes:
    """Return the first bytes of the body."""
    body = b""
    async for chunk in response.content.iter_chunked(MOST):
        body += chunk
        if len(body) >= MOST:
            break
    return body[:MOST]


def _parse_error_code(body: bytes) -> object:
    """Return the code of an error in the format of OpenAI's API; None if the body has another format."""
    try:
        parsed = json.loads(body)
        return parsed["error"]["code"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None


def _describe_error(error: Exception) -> str:
    """Return the predicate of the message about a failed connection."""
    if isinstance(error, aiohttp.ConnectionTimeoutError):
        return f"takes no connection within {CONNECT_SECONDS:g} s"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return UNRESOLVED
    if isinstance(error, aiohttp.ClientSSLError):
        return "breaks the TLS handshake off"
    if isinstance(getattr(error, "os_error", None), ConnectionRefusedError):
        return "refuses the connection"
    return "cannot be connected to"
