"""API keys: the Secrets that a service requires keys from, the path of the key service, and hashes of keys.

The gateway queries the key service for each request, at a path with the names of the Secrets; the client's path is not
part of it. Traefik uses a ForwardAuth, Envoy Gateway an ExtAuth (docs/internals/decisions/0054).

The path ends in an HMAC that only the operator and the key service can compute, so that responses are given only about
Secrets that a ModelService references. The HMAC's key is the private key of a certificate, in a Secret of its own.
Paths from older versions have no HMAC: they are accepted until no guard has one, and then for as long as gateways may
need to follow.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Final
from urllib.parse import urlsplit

from kubeloop.objects import Key, Manifest, annotations_of, section
from modelplane_operator.api import labels, names
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.model_endpoint import AUTHORIZATION
from modelplane_operator.api.model_service import ModelService

PREFIX: Final = "/keys/"
PATHS: Final = Key(names.SYSTEM_NAMESPACE, names.GATEWAY_KEY_PATHS)
FOLLOWED: Final = timedelta(minutes=10)  # with a thousand routes, Traefik takes minutes to load a change
LONGEST: Final = 4096  # the maximum length of a key
MOST: Final = 256  # the maximum number of keys in a Secret
LARGEST: Final = 64 * 1024  # bytes of names and base64 content of a Secret
SECRETS: Final = 8  # the maximum number of Secrets for one service, as in the schema
ANSWER: Final = 4096  # the maximum size of the key service's response
API_KEY: Final = "x-api-key"
KEY_HEADERS: Final = (AUTHORIZATION, API_KEY)
_SCHEME: Final = "bearer "


def required_secrets(service: ModelService, default: Auth | None) -> tuple[str, ...] | None:
    """Return the Secrets of which a request needs a key; None if no key is required."""
    auth = service.spec.auth or default
    if auth is None or auth.mode == "None":
        return None
    return tuple(ref.name for ref in auth.api_keys.secret_refs) if auth.api_keys else ()


def path_of(namespace: str, secrets: Sequence[str], signing: str = "") -> str:
    """Return the path of the key service for these Secrets; `signing`: see `signing_key`.

    A key service of an older version takes the signature for one more Secret, which does not exist.
    """
    path = f"{PREFIX}{'/'.join((namespace, *secrets))}"
    return f"{path}/{_sign(path, signing)}" if signing else path


def secrets_at(path: str, signing: str = "") -> tuple[Key, ...]:
    """Return the Secrets that a path names; none in namespaces of Kubernetes or of the operator."""
    unsigned_path = path.rpartition("/")[0] if is_signed(path, signing) else path
    namespace, *secrets = unsigned_path.removeprefix(PREFIX).split("/", SECRETS + 1)
    if namespace == names.SYSTEM_NAMESPACE or namespace.startswith("kube-"):
        return ()
    return tuple(Key(namespace, name) for name in secrets[:SECRETS])


def is_signed(path: str, signing: str) -> bool:
    """True if the operator has written that path."""
    unsigned_path, _, signature = path.rpartition("/")
    return bool(signing) and hmac.compare_digest(
        signature.encode(errors="replace"), _sign(unsigned_path, signing).encode()
    )


def _sign(path: str, signing: str) -> str:
    """Return the HMAC of a path."""
    return hmac.digest(signing.encode(), path.encode(errors="replace"), "sha256").hex()


def signing_key(secret: Manifest | None) -> str:
    """Return the key that signs paths, from its Secret; empty if there is none."""
    return str(section(secret or {}, "data").get("tls.key", ""))


def read_unsigned_until(secret: Manifest) -> datetime | None:
    """Return when unsigned paths cease to be accepted; None while there are guards with such paths."""
    try:
        until = datetime.fromisoformat(annotations_of(secret).get(labels.UNSIGNED_UNTIL, ""))
    except ValueError:
        return None
    return until if until.tzinfo else None


def has_unsigned(guards: Iterable[Manifest], signing: str) -> bool:
    """True if one of the guards of ModelServices uses an unsigned path."""
    return any(path is not None and not is_signed(path, signing) for path in map(_get_guard_path, guards))


def _get_guard_path(guard: Manifest) -> str | None:
    """Return the path at which a Middleware or SecurityPolicy queries the key service; None if it does not."""
    traefik_address = section(guard, "spec", "forwardAuth").get("address")
    envoy_path = section(guard, "spec", "extAuth", "http").get("pathOverride")
    return urlsplit(str(traefik_address)).path if traefik_address else str(envoy_path) if envoy_path else None


def keys_of(headers: Mapping[str, str]) -> list[str]:
    """Return the keys in a request's headers, as clients of OpenAI's API send them, and as those of Anthropic's do."""
    bearer = headers.get(AUTHORIZATION, "")
    keys = (bearer[len(_SCHEME) :] if bearer.lower().startswith(_SCHEME) else "", headers.get(API_KEY, ""))
    return [key.strip() for key in keys if key.strip()]


def withheld(credentials: str | None, *, guarded: bool) -> list[str]:
    """Return the headers with a client's key that are removed before a request goes to an endpoint.

    An endpoint never gets a key for the hub, nor a client's key besides its own credentials.
    """
    own_header = (credentials or "").lower()
    return [name for name in KEY_HEADERS if name.lower() != own_header] if own_header or guarded else []


def digest(key: str) -> bytes:
    """Return the hash of a key, which is kept instead of the key."""
    return hashlib.sha256(key.encode(errors="surrogateescape")).digest()


def find_exceeded_limit(secret: Manifest) -> str:
    """Return the limit for API keys that a Secret exceeds, as text; empty if it exceeds none."""
    data: dict[str, str] = secret.get("data") or {}
    if len(data) > MOST:
        return f"{len(data)} entries, and {MOST} are allowed"
    size = sum(len(name) + len(value) for name, value in data.items())
    return f"{size // 1024} KiB, and {LARGEST // 1024} are allowed" if size > LARGEST else ""


def digests(secret: Manifest) -> frozenset[bytes]:
    """Return the hash of each key in a Secret; none if the Secret exceeds a limit, which is checked before decoding.

    Values that no header can carry are skipped; the last line break of a file is removed.
    """
    if find_exceeded_limit(secret):
        return frozenset()
    data: dict[str, str] = secret.get("data") or {}
    values = (base64.b64decode(value).decode(errors="replace").strip() for value in data.values())
    return frozenset(
        digest(key) for key in values if key and key.isascii() and key.isprintable() and len(key) <= LONGEST
    )


def matches(key: str, hashes: Collection[bytes]) -> bool:
    """True if the key is one of those hashed.

    The time that this takes may reveal parts of hashes, but no key can be derived from them.
    """
    return digest(key) in hashes
