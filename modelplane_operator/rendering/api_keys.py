"""API keys: whose are asked for, where the hub's gateway asks about them, and what is kept of a key.

The gateway asks the key service about each request, at a path that names the Secrets; the client's own path has no part
in it. Traefik does so by a ForwardAuth, Envoy Gateway by its ExtAuth (docs/decisions/0054).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Sequence
from typing import Final

from modelplane_operator.api.auth import Auth
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.kube.objects import Key, Manifest

PREFIX: Final = "/keys/"
LONGEST: Final = 4096  # of a key
MOST: Final = 256  # keys of a Secret
LARGEST: Final = 64 * 1024  # bytes of their names and their content, as the Secret has it
SECRETS: Final = 8  # that one request is checked against; the schema's bound
ANSWER: Final = 4096  # the most that the key service says
_SCHEME: Final = "bearer "


def asked_of(service: ModelService, default: Auth | None) -> tuple[str, ...] | None:
    """The Secrets of which a request has to have a key; None: whoever asks is answered."""
    auth = service.spec.auth or default
    if auth is None or auth.mode == "None":
        return None
    return tuple(ref.name for ref in auth.api_keys.secret_refs) if auth.api_keys else ()


def path_of(namespace: str, secrets: Sequence[str]) -> str:
    """Where the key service is asked about keys of these Secrets."""
    return f"{PREFIX}{'/'.join((namespace, *secrets))}"


def secrets_at(path: str) -> tuple[Key, ...]:
    """The Secrets that a path names; none when it names none."""
    namespace, *secrets = path.removeprefix(PREFIX).split("/", SECRETS + 1)
    return tuple(Key(namespace, name) for name in secrets[:SECRETS])


def sent(header: str) -> str | None:
    """The key that an Authorization header carries."""
    return header[len(_SCHEME) :].strip() or None if header.lower().startswith(_SCHEME) else None


def digest(key: str) -> bytes:
    """What is kept of a key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def beyond(secret: Manifest) -> str:
    """What of a Secret is too much for it to be one of API keys; empty when nothing is."""
    data: dict[str, str] = secret.get("data") or {}
    if len(data) > MOST:
        return f"{len(data)} entries, and {MOST} are allowed"
    size = sum(len(name) + len(value) for name, value in data.items())
    return f"{size // 1024} KiB, and {LARGEST // 1024} are allowed" if size > LARGEST else ""


def digests(secret: Manifest) -> frozenset[bytes]:
    """Of each key that a Secret holds: none of one that holds too much, which is told before anything is decoded.

    What no header can carry is none; a file's last line break is no part of it.
    """
    if beyond(secret):
        return frozenset()
    data: dict[str, str] = secret.get("data") or {}
    held = (base64.b64decode(value).decode(errors="replace").strip() for value in data.values())
    return frozenset(digest(key) for key in held if key and key.isascii() and key.isprintable() and len(key) <= LONGEST)


def matches(key: str, known: Collection[bytes]) -> bool:
    """Whether a key is among those known. How long that takes tells something of hashes, from which no key follows."""
    return digest(key) in known
