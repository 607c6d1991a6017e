"""What a certificate is to say: which is decided in one place, and carried out where keys are made."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from kubeloop.objects import Key

Usage = Literal["authority", "server", "client"]


@dataclass(frozen=True, slots=True)
class Certificate:
    """A certificate to be made, with a key of its own."""

    name: str
    """The name that it proves; of an authority, what it is called."""
    usage: Usage
    since: datetime
    until: datetime
    signer: Key | None = None
    """The Secret on the hub with the authority that signs it. Without one it signs itself: an authority, or what nobody
    verifies."""
    trusted: str = ""
    """The certificates that its holder trusts, in PEM: stored beside it."""
