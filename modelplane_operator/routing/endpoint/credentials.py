"""What an endpoint's credentials become: one header, made from a Secret.

The value goes into an HTTPRoute. What an API server would refuse there is found out here: its refusal would quote it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from kubeloop.objects import Manifest
from modelplane_operator.api.model_endpoint import AUTHORIZATION, EndpointCredentials
from modelplane_operator.routing.service.hops import RESERVED

INJECTED = "credential"  # the key of a Secret that Envoy Gateway injects from
LONGEST = 4096  # of a header's value, by the Gateway API


@dataclass(frozen=True, slots=True)
class Header:
    """A header that a request gets. Its value is never printed."""

    name: str
    value: str = field(repr=False)
    secret: str | None = None
    """The Secret that holds the whole value, and under the key from which Envoy Gateway takes it by itself."""


@dataclass(frozen=True, slots=True)
class NoHeader:
    """Why there is none; the message never holds the value."""

    message: str
    remedy: str = ""
    """What to do, where the message does not say it."""

    def __str__(self) -> str:
        return f"{self.message}{f': {self.remedy}' if self.remedy else ''}"


def read_credentials(credentials: EndpointCredentials, secret: Manifest | None) -> Header | NoHeader:
    """The header that carries these credentials, given the Secret; None when there is no such Secret."""
    name, key = credentials.secret_ref.name, credentials.secret_ref.key
    if credentials.header.lower().startswith(RESERVED):
        return NoHeader(f"header {credentials.header} is the operator's own: name the one that the provider reads")
    if secret is None:
        return NoHeader(f"Secret {name} does not exist", f"make it, with the credentials under the key {key}")
    data: dict[str, str] = secret.get("data") or {}
    encoded = data.get(key)
    if encoded is None:  # which others it has is not known: no more than this one is read
        return NoHeader(f"Secret {name} has no key {key}", "put the credentials under it")
    # A file that became a Secret ends in a line break.
    held = base64.b64decode(encoded).decode(errors="replace")
    value = held.strip()
    if not value:
        return NoHeader(f"Secret {name} holds nothing under {key}", "put the credentials there")
    whole = f"{_prefix(credentials)}{value}"
    room = LONGEST - whole.count("%")  # Envoy Gateway wants each one twice
    if not whole.isascii() or not whole.isprintable() or len(whole) > room:
        return NoHeader(f"Secret {name} holds no header's value under {key}: that is one line of printable ASCII")
    return Header(credentials.header, whole, name if key == INJECTED and whole == held else None)


def _prefix(credentials: EndpointCredentials) -> str:
    if credentials.prefix is not None:
        return credentials.prefix
    return "Bearer " if credentials.header.lower() == AUTHORIZATION.lower() else ""
