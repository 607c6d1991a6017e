"""Turn the credentials of an endpoint into one request header, from a Secret.

The value goes into an HTTPRoute. It is validated here, because an API server's error message would quote it.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass, field

from kubeloop.objects import Manifest
from modelplane_operator.api.model_endpoint import AUTHORIZATION, EndpointCredentials
from modelplane_operator.routing.service.hops import RESERVED

INJECTED = "credential"  # the Secret key from which Envoy Gateway injects a header
LONGEST = 4096  # the Gateway API's limit for a header's value


@dataclass(frozen=True, slots=True)
class Header:
    """A header that is added to requests. Its value is never printed."""

    name: str
    """Name of the header."""
    value: str = field(repr=False)
    """Complete value, with the prefix."""
    secret: str | None = None
    """The Secret with the full value under the key that Envoy Gateway reads; None if there is no such one."""


@dataclass(frozen=True, slots=True)
class NoHeader:
    """The reason why there is no header; the message never holds the value."""

    message: str
    """Problem with the Secret."""
    remedy: str = ""
    """The remedy, if the message does not say it."""

    def __str__(self) -> str:
        """Return the message with the remedy."""
        return f"{self.message}{f': {self.remedy}' if self.remedy else ''}"


def read_credentials(credentials: EndpointCredentials, secret: Manifest | None) -> Header | NoHeader:
    """Return the header with these credentials, or why there is none. `secret` is None if it does not exist."""
    name, key = credentials.secret_ref.name, credentials.secret_ref.key
    if credentials.header.lower().startswith(RESERVED):
        return NoHeader(f"header {credentials.header} is the operator's own: name the one that the provider reads")
    if secret is None:
        return NoHeader(f"Secret {name} does not exist", f"make it, with the credentials under the key {key}")
    data: dict[str, str] = secret.get("data") or {}
    encoded = data.get(key)
    if encoded is None:  # its other keys are not read, so the message cannot list them
        return NoHeader(f"Secret {name} has no key {key}", "put the credentials under it")
    # A Secret that was created from a file ends in a line break.
    content = base64.b64decode(encoded).decode(errors="replace")
    value = content.strip()
    if not value:
        return NoHeader(f"Secret {name} holds nothing under {key}", "put the credentials there")
    default_prefix = "Bearer " if credentials.header.lower() == AUTHORIZATION.lower() else ""
    full_value = f"{default_prefix if credentials.prefix is None else credentials.prefix}{value}"
    max_length = LONGEST - full_value.count("%")  # Envoy Gateway needs each % doubled
    if not full_value.isascii() or not full_value.isprintable() or len(full_value) > max_length:
        return NoHeader(f"Secret {name} holds no valid header value under {key}: write one line of printable ASCII")
    return Header(credentials.header, full_value, name if key == INJECTED and full_value == content else None)
