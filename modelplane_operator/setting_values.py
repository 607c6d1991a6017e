"""Parse values of settings.

Each parser returns the value, or raises ValueError with a message that says what is valid.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from ipaddress import ip_network
from pathlib import Path
from typing import Any

from kubeloop.client.limits import GIB, KIB, MIB
from modelplane_operator.api.bounds import HOST_OR_WILDCARD
from modelplane_operator.api.llm_inference_grant import is_reserved
from modelplane_operator.clouds.gke.session import HOSTS
from modelplane_operator.images import REFERENCE, REGISTRY
from modelplane_operator.routing.endpoint.backend_url import is_own

_UNITS: Mapping[str | None, int] = {None: 1, "Ki": KIB, "Mi": MIB, "Gi": GIB}


def seconds(text: str) -> float:
    """Parse a positive number of seconds."""
    seconds = float(text)
    if not 0 < seconds < 1e6:
        raise ValueError("it must be above 0 and below a million")
    return seconds


def lease(text: str) -> float:
    """Parse the duration of a lease. Its deadline and the interval of its renewals are fractions of it."""
    duration = float(text)
    if not 5 <= duration <= 3600:
        raise ValueError("it must be from 5 to 3600")
    return duration


def factor(text: str) -> float:
    """Parse a factor from 0.1 to 100."""
    factor = float(text)
    if not 0.1 <= factor <= 100:
        raise ValueError("it must be from 0.1 to 100")
    return factor


def amount(text: str) -> str:
    """Parse a number from 0 to 1000, or a percentage from 1% to 100%."""
    match = re.fullmatch(r"(\d{1,4})(%?)", text, re.ASCII)
    if match is None or not (1 <= int(match[1]) <= 100 if match[2] else int(match[1]) <= 1000):
        raise ValueError("it must be a number from 0 to 1000, or a percentage from 1% to 100%")
    return text


def size(text: str) -> int:
    """Parse a size in bytes, or in Kubernetes' notation: 512Ki, 8Mi, 1Gi."""
    match = re.fullmatch(r"([0-9]{1,12})(Ki|Mi|Gi)?", text)
    if match is None or not (size := int(match[1]) * _UNITS[match[2]]):
        raise ValueError("it must be a number of bytes, or one with Ki, Mi or Gi")
    return size


@dataclass(frozen=True, slots=True)
class OneOf:
    """A parser that accepts one of several texts."""

    choices: tuple[str, ...]

    def __call__(self, text: str) -> str:
        if text not in self.choices:
            raise ValueError(f"it must be one of {', '.join(self.choices)}")
        return text


def one_of(*choices: str) -> OneOf:
    return OneOf(choices)


def dns_label(text: str) -> str:
    if not re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", text):
        raise ValueError("it must be a DNS label: lower-case letters, digits and '-'")
    return text


def dns_labels(text: str) -> tuple[str, ...]:
    return tuple(sorted({dns_label(entry.strip()) for entry in text.split(",") if entry.strip()}))


def http(text: str) -> str:
    """Parse an HTTP or HTTPS address."""
    if not re.fullmatch(r"https?://[-a-zA-Z0-9.:\[\]]+(/[-\w./~]*)?", text, re.ASCII):
        raise ValueError("it must be http:// or https:// with a host, and at most a path")
    return text


def registry(text: str) -> str:
    """Parse a registry with an optional path; empty is allowed."""
    if text and not REGISTRY.fullmatch(text):
        raise ValueError("it must be HOST[:PORT][/PATH], without a scheme")
    return text


def image(text: str) -> str:
    """Parse an image with its registry; empty is allowed."""
    if text and not REFERENCE.fullmatch(text):
        raise ValueError("it must be HOST/NAME:TAG, HOST/NAME@sha256:DIGEST, or both")
    return text


def address(text: str) -> tuple[str, int]:
    """Parse a host and a port. An empty host means every address of the machine, IPv4 and IPv6."""
    host, colon, port = text.rpartition(":")
    if not colon or not port.isdigit() or int(port) >= 2**16:
        raise ValueError("it must be HOST:PORT, or :PORT for all addresses")
    return host.strip("[]"), int(port)


def authorities(text: str) -> Path:
    """Return the path of a file with CA certificates. Raise ValueError for an invalid file."""
    try:
        ssl.create_default_context(cafile=text)
    except (OSError, ssl.SSLError) as error:  # an SSLError is an OSError, but its text is OpenSSL's
        reason = "it has no certificates in PEM" if isinstance(error, ssl.SSLError) else error.strerror
        raise ValueError(f"it must be a file with certificates: {reason}") from None
    return Path(text)


def places(text: str) -> tuple[str, ...]:
    """Parse names, `.suffixes` and networks, separated by commas."""
    places = tuple(entry.strip().lower() for entry in text.split(",") if entry.strip())
    for item in places:
        if ":" in item or "/" in item:
            ip_network(item)
    return places


def outside(text: str) -> tuple[str, ...]:
    """Parse the same, without places on the gateway's own machine, which no endpoint may lead to."""
    allowed = places(text)
    if invalid := [item for item in allowed if is_own(item)]:
        raise ValueError(f"{invalid[0]} is on the gateway's own machine, where no endpoint may lead")
    return allowed


def grants(text: str) -> tuple[tuple[str, str], ...]:
    """Parse pairs of namespaces, separated by commas: FROM=TO."""
    pairs = (entry.strip().partition("=") for entry in text.split(",") if entry.strip())
    granted = tuple(sorted({(dns_label(source), dns_label(to)) for source, _, to in pairs}))
    if reserved := [to for _, to in granted if is_reserved(to)]:
        raise ValueError(f"{reserved[0]} is Kubernetes' or the operator's own namespace: models are elsewhere")
    return granted


def hosts(text: str) -> tuple[tuple[str, str], ...]:
    """Parse pairs of a namespace and a host or wildcard, separated by commas: NAMESPACE=HOST."""
    pairs = (entry.strip().partition("=") for entry in text.split(",") if entry.strip())
    granted = tuple(sorted({(dns_label(source), host) for source, _, host in pairs}))
    if invalid := [host for _, host in granted if not re.fullmatch(HOST_OR_WILDCARD, host)]:
        raise ValueError(f"{invalid[0]!r} is no host, and no wildcard such as *.example.com")
    return granted


def endpoints(text: str) -> tuple[tuple[str, str], ...]:
    """Parse services of Google Cloud with their addresses, separated by commas: SERVICE=URL."""
    pairs = [entry.strip().partition("=") for entry in text.split(",") if entry.strip()]
    if unknown := [service for service, _, _ in pairs if service not in HOSTS]:
        raise ValueError(f"{unknown[0]} is none of {', '.join(HOSTS)}")
    return tuple((service, http(url).rstrip("/")) for service, _, url in pairs)


METAVARS: Mapping[Callable[[str], Any], str] = {
    seconds: "SECONDS",
    lease: "SECONDS",
    factor: "FACTOR",
    amount: "AMOUNT",
    size: "SIZE",
    address: "HOST:PORT",
    image: "IMAGE",
    registry: "HOST[/PATH]",
    Path: "PATH",
}
