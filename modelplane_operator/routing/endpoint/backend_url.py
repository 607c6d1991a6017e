"""Parse the URL of a ModelEndpoint into a backend, or the reason why it is rejected.

The hub's gateway connects to any URL that a tenant writes. So a URL must have a spelling that all programs parse in the
same way, and must not lead into the hub, to its nodes, to a private network, or to a cloud's metadata service.
Endpoints of replicas may lead to private networks, where clusters' gateways often are. The caller resolves names; a
name may resolve differently when the gateway connects.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cache
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import Literal

from modelplane_operator import addresses
from modelplane_operator.addresses import Address, embedded_addresses, on_own_machine, special
from modelplane_operator.api import names

Scheme = Literal["http", "https"]
Network = IPv4Network | IPv6Network


def address_of(host: str) -> Address | None:
    """Return the host as an IP address; None for a name."""
    try:
        return ip_address(host)
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Backend:
    """A host and port to connect to."""

    scheme: Scheme
    """Scheme by which the gateway connects."""
    host: str
    """A lower-case name without the trailing dot, or an IP address in canonical form."""
    port: int
    """Port of the URL, or the default of its scheme."""

    @property
    def address(self) -> Address | None:
        """The host as an IP address; None for a name."""
        return address_of(self.host)

    @property
    def address_type(self) -> str:
        """The address type of an EndpointSlice."""
        return f"IPv{self.address.version}" if self.address else "FQDN"

    @property
    def dialled(self) -> str:
        """The host with a trailing dot if it is a name, so that no search domain turns it into a Service of the hub."""
        return self.host if self.address else f"{self.host}."

    def __str__(self) -> str:
        """Return the URL without a path. An IPv6 address has brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"


class UrlFault(StrEnum):
    """The kinds of faults in a URL."""

    MALFORMED = "Malformed"
    SCHEME = "Scheme"
    CREDENTIALS = "Credentials"
    HOST = "Host"
    PORT = "Port"
    FORBIDDEN = "Forbidden"


@dataclass(frozen=True, slots=True)
class InvalidUrl:
    """A URL that is rejected. The message never repeats the URL, which may hold a password."""

    fault: UrlFault
    message: str
    """Fault and remedy, for the endpoint's condition."""


@dataclass(frozen=True, slots=True)
class Reach:
    """The operator's settings on where endpoints may lead, besides the fixed rules."""

    allowed: tuple[str, ...] = ()
    """Names, `.suffixes` and networks that are allowed although the rules reject them."""
    refused: tuple[str, ...] = ()
    """Additional rejected ones: the hub's pod and Service networks, and its cluster domain."""
    inward: tuple[tuple[Network, str], ...] = ()
    """Networks reserved for the platform team, each with a description of its addresses."""
    nodes: frozenset[Address] = frozenset()
    """Addresses of the hub's nodes, many of which may be public."""

    def allows(self, host: Address | str) -> bool:
        """True if the settings allow the host whatever the rules say.

        Addresses of the gateway's own machine need an entry for just those, since programs that listen there trust
        local clients.
        """
        is_on_own_machine = not isinstance(host, str) and any(map(on_own_machine, (host, *embedded_addresses(host))))
        return any(_covers(entry, host) for entry in self.allowed if not is_on_own_machine or is_own(entry))

    def of_users(
        self, services: Iterable[Network], pods: Iterable[Network], nodes: frozenset[Address] = frozenset()
    ) -> Reach:
        """Return the settings for users' endpoints, with the hub's networks for Services and pods, and its nodes."""
        hub_networks = [
            *((network, "an address of the hub's Services") for network in services),
            *((network, "an address of the hub's pods") for network in pods),
        ]
        return replace(self, inward=(*hub_networks, *PRIVATE), nodes=nodes)


EVERYWHERE = Reach()
PRIVATE: tuple[tuple[Network, str], ...] = tuple(
    (ip_network(network), words)
    for words, networks in {
        "a private address": ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7", "fec0::/10"),
        "an address within a carrier's or cloud's own network": ("100.64.0.0/10", "192.0.0.0/24", "198.18.0.0/15"),
        "an address that is translated within a network": (str(addresses.TRANSLATED),),
    }.items()
    for network in networks
)
MOST_ADDRESSES = 64  # addresses of one name; no real service has as many

# Cluster names and loopback. A name without a dot resolves to a Service in the gateway's namespace.
INTERNAL_NAMES = (
    *("localhost", ".localhost", ".localdomain", "svc", ".svc", "cluster.local", ".cluster.local"),
    f".{names.INTERNAL_DOMAIN}",
)
METADATA = (
    *("metadata.google.internal", "metadata.goog", "metadata.azure.internal", "instance-data.ec2.internal"),
    *map(str, addresses.METADATA),
)
_LOOPBACK = tuple(map(ip_network, ("127.0.0.0/8", "0.0.0.0/8", "::/127", "::127.0.0.0/104", "::ffff:127.0.0.0/104")))

_URL = re.compile(r"(?P<scheme>[a-z][a-z0-9+.-]*)://(?P<authority>[^/?#\\\s]*)(?P<rest>([/?#][!-~]*)?)", re.IGNORECASE)
_AUTHORITY = re.compile(r"(?P<host>\[[^\[\]@]*\]|[^\[\]:@]*)(:(?P<port>[^:]*))?")
_LABEL = r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?"
_NAME = re.compile(rf"(?=.{{1,253}}$){_LABEL}(\.{_LABEL})*")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")
DEFAULT_PORTS: dict[Scheme, int] = {"http": 80, "https": 443}


def parse_url(url: str, reach: Reach = EVERYWHERE) -> Backend | InvalidUrl:
    """Return the backend of a URL, or why it is rejected. The path does not matter."""
    backend = read_url(url)
    if isinstance(backend, Backend) and (rejection := _reject(backend.address or backend.host, reach)):
        return InvalidUrl(UrlFault.FORBIDDEN, rejection)
    return backend


def read_url(url: str) -> Backend | InvalidUrl:
    """Return the backend of a URL without checking where it leads."""
    parts = _URL.fullmatch(url)
    if parts is None or not url.isascii():
        return InvalidUrl(UrlFault.MALFORMED, "it is no URL: write it as https://host or https://host:port")
    scheme: Scheme
    match parts["scheme"].lower():
        case "http":
            scheme = "http"
        case "https":
            scheme = "https"
        case unsupported:
            return InvalidUrl(UrlFault.SCHEME, f"scheme {unsupported} is not served: write http or https")
    if "@" in parts["authority"]:
        return InvalidUrl(UrlFault.CREDENTIALS, "it holds a user name or password: take out everything up to the `@`")
    authority = _AUTHORITY.fullmatch(parts["authority"])
    if authority is None:
        return InvalidUrl(UrlFault.MALFORMED, "its host cannot be read: an IPv6 address stands in square brackets")
    port = _parse_port(authority["port"], DEFAULT_PORTS[scheme])
    if isinstance(port, InvalidUrl):
        return port
    host = _parse_host(authority["host"])
    if isinstance(host, InvalidUrl):
        return host
    return Backend(scheme, str(host), port)


def path_of(url: str) -> str:
    """Return the path of a URL; empty if it is only `/`, or if the URL is malformed."""
    parts = _URL.fullmatch(url)
    path = re.split("[?#]", parts["rest"], maxsplit=1)[0] if parts else ""
    return "" if path == "/" else path


def check_resolved(name: str, addresses: Collection[Address], reach: Reach) -> InvalidUrl | None:
    """Return why a name is rejected, given its addresses; None if it is allowed."""
    if reach.allows(name):
        return None
    if len(addresses) > MOST_ADDRESSES or any(_reject(address, reach) for address in addresses):
        return leads_nowhere(name)
    return None


def leads_nowhere(name: str) -> InvalidUrl:
    """Return the error for a name, the same whether it does not exist or leads to an internal address.

    Otherwise tenants would learn the names that only the hub's own name servers know.
    """
    return InvalidUrl(
        UrlFault.FORBIDDEN,
        f"{name} does not lead to 1 to {MOST_ADDRESSES} public addresses: correct the name, or, for a host of your own"
        " network, have it added to the operator's setting allow-endpoints",
    )


def _parse_port(text: str | None, default: int) -> int | InvalidUrl:
    """Return the port, or why it is invalid."""
    if not text:
        return default
    if not re.fullmatch(r"[0-9]{1,5}", text) or not 0 < int(text) < 2**16:
        return InvalidUrl(UrlFault.PORT, "its port is not a number from 1 to 65535")
    return int(text)


def _parse_host(text: str) -> Address | str | InvalidUrl:
    """Return the host as an address or a name, or why it is invalid."""
    if text.startswith("["):
        try:
            address = IPv6Address(text[1:-1])
        except ValueError:
            return InvalidUrl(UrlFault.HOST, "its IPv6 address cannot be read")
        if address.scope_id is not None:
            return InvalidUrl(
                UrlFault.HOST,
                "its IPv6 address has a zone, which is valid on one machine only: leave out everything from the `%`",
            )
        if address.ipv4_mapped is not None:
            return InvalidUrl(UrlFault.HOST, "its IPv6 address stands for an IPv4 address: write that one")
        return address
    name = text.lower().removesuffix(".")
    if not _NAME.fullmatch(name):
        return InvalidUrl(UrlFault.HOST, "its host is no DNS name: letters, digits, '-' and '.'; others in Punycode")
    if _NUMBER.fullmatch(name.rsplit(".", 1)[-1]):
        try:
            return IPv4Address(name)
        except ValueError:
            return InvalidUrl(UrlFault.HOST, "its IPv4 address must be four decimal numbers without leading zeros")
    return name


def _reject(host: Address | str, reach: Reach) -> str:
    """Return why the host is rejected; empty if it is allowed."""
    if reach.allows(host):
        return ""
    equivalents = (host, *embedded_addresses(host)) if not isinstance(host, str) else (host,)
    if any(_covers(entry, equivalent) for entry in reach.refused for equivalent in equivalents):
        return f"{host} is excluded by the operator's setting refuse-endpoints"
    if any(_covers(entry, equivalent) for entry in METADATA for equivalent in equivalents):
        return f"{host} is a cloud's metadata service, which gives out credentials: use another host"
    if isinstance(host, str):
        if "." not in host or any(_covers(entry, host) for entry in INTERNAL_NAMES):
            return f"{host} is a name inside the cluster or on the machine: write a full name from outside"
        return ""
    descriptions = (
        special(equivalent) or _reject_inward(equivalent, reach)
        for equivalent in equivalents
        if not isinstance(equivalent, str)
    )
    return next((f"{host} is {description}" for description in descriptions if description), "")


def _reject_inward(address: Address, reach: Reach) -> str:
    """Return the description of a reserved address, with the remedy; empty if the address is not reserved."""
    node = "an address of one of the hub's nodes" if address in reach.nodes else ""
    words = node or next((words for network, words in reach.inward if address in network), "")
    return (
        f"{words}: use another host, or have this one added to the operator's setting allow-endpoints" if words else ""
    )


def is_own(place: str) -> bool:
    """True if a name, a `.suffix` or a network is of the gateway's own machine."""
    try:
        network = ip_network(place)
    except ValueError:
        return f".{place.strip('.')}".endswith(".localhost")
    return any(network[0] in loopback and network[-1] in loopback for loopback in _LOOPBACK)


def _covers(entry: str, host: Address | str) -> bool:
    """True if an entry of a list (a name, a `.suffix` or a network) matches the host."""
    if isinstance(host, str):
        return host == entry or (entry.startswith(".") and host.endswith(entry))
    network = _parse_network(entry)
    return network is not None and host in network


@cache
def _parse_network(entry: str) -> Network | None:
    """Return an entry of a list as a network; None for a name. Lists come from settings, so the cache stays small."""
    try:
        return ip_network(entry)
    except ValueError:
        return None
