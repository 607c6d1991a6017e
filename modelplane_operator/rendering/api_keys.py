"""API keys: whose are asked for, where the hub's gateway asks about them, and what is kept of a key.

The gateway asks the key service about each request, at a path that names the Secrets; the client's own path has no part
in it. Traefik does so by a ForwardAuth, Envoy Gateway by its ExtAuth (docs/decisions/0054).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Mapping, Sequence
from typing import Final

from modelplane_operator.api.auth import Auth
from modelplane_operator.api.model_endpoint import AUTHORIZATION
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.kube.objects import Key, Manifest

PREFIX: Final = "/keys/"
LONGEST: Final = 4096  # of a key
MOST: Final = 256  # keys of a Secret
LARGEST: Final = 64 * 1024  # bytes of their names and their content, as the Secret has it
SECRETS: Final = 8  # that one request is checked against; the schema's bound
ANSWER: Final = 4096  # the most that the key service says
API_KEY: Final = "x-api-key"
KEY_HEADERS: Final = (AUTHORIZATION, API_KEY)
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


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """Return the keys that a request carries: as clients for OpenAI's API send them, and as those for Anthropic's."""
    bearer = headers.get(AUTHORIZATION, "")
    keys = (bearer[len(_SCHEME) :] if bearer.lower().startswith(_SCHEME) else "", headers.get(API_KEY, ""))
    return [key.strip() for key in keys if key.strip()]


def withheld(credentials: str | None, *, guarded: bool) -> list[str]:
    """Return the headers with a client's key that an endpoint does not get, given the header of its own credentials.

    Nobody gets a key that was for us, or the client's beside its own.
    """
    own = (credentials or "").lower()
    return [name for name in KEY_HEADERS if name.lower() != own] if own or guarded else []


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
