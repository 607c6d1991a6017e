"""The content of a certificate as a value: plans decide it, and an executor generates key and certificate."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kubeloop.objects import Key

Usage = Literal["authority", "server", "client"]
"""The purpose of a certificate; "authority" signs others."""


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate to issue with a new key."""

    name: str
    """The name that the certificate proves, or the name of the authority."""
    usage: Usage
    since: datetime
    """The start of the validity."""
    until: datetime
    """The end of the validity."""
    signer: Key | None = None
    """The Secret on the hub with the signing authority. None for a self-signed certificate."""
    trusted: str = ""
    """The PEM certificates that the holder trusts, stored in the same Secret."""
