"""API keys: whose are asked for, where the hub's gateway asks about them, and what is kept of a key.

The gateway asks the key service about each request, at a path that names the Secrets; the client's own path has no part
in it. Traefik does so by a ForwardAuth, Envoy Gateway by its ExtAuth (docs/decisions/0054).

The path ends in an HMAC that only the operator and the key service can make, so that an answer is given about Secrets
that a ModelService names, and about no others. Its key is made with a certificate's, in a Secret of its own. Paths of
before this have none: they are answered until no guard has one, and for as long again as gateways may take to follow.
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
FOLLOWED: Final = timedelta(minutes=10)  # a Traefik with a thousand routes takes minutes
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


def path_of(namespace: str, secrets: Sequence[str], signing: str = "") -> str:
    """Where the key service is asked about keys of these Secrets; `signing`: see `signing_of`.

    A key service of before takes what is at the end for the name of one more Secret, which there is not.
    """
    path = f"{PREFIX}{'/'.join((namespace, *secrets))}"
    return f"{path}/{_signature(path, signing)}" if signing else path


def secrets_at(path: str, signing: str = "") -> tuple[Key, ...]:
    """The Secrets that a path names; none when it names none, or those of Kubernetes or the operator."""
    named = path.rpartition("/")[0] if is_signed(path, signing) else path
    namespace, *secrets = named.removeprefix(PREFIX).split("/", SECRETS + 1)
    if namespace == names.SYSTEM_NAMESPACE or namespace.startswith("kube-"):
        return ()
    return tuple(Key(namespace, name) for name in secrets[:SECRETS])


def is_signed(path: str, signing: str) -> bool:
    """True if the operator has written that path."""
    named, _, signature = path.rpartition("/")
    return bool(signing) and hmac.compare_digest(
        signature.encode(errors="replace"), _signature(named, signing).encode()
    )


def _signature(path: str, signing: str) -> str:
    return hmac.digest(signing.encode(), path.encode(errors="replace"), "sha256").hex()


def signing_of(secret: Manifest | None) -> str:
    """Return what paths are signed by, of the Secret that has it; empty when there is none."""
    return str(section(secret or {}, "data").get("tls.key", ""))


def unsigned_until(secret: Manifest) -> datetime | None:
    """Return when paths cease to be answered that are not signed; None while guards with such paths are left."""
    try:
        until = datetime.fromisoformat(annotations_of(secret).get(labels.UNSIGNED_UNTIL, ""))
    except ValueError:
        return None
    return until if until.tzinfo else None


def has_unsigned(guards: Iterable[Manifest], signing: str) -> bool:
    """True if one of the guards of ModelServices asks at a path that is not signed."""
    return any(path is not None and not is_signed(path, signing) for path in map(_asked_at, guards))


def _asked_at(guard: Manifest) -> str | None:
    """Return the path at which a Middleware or SecurityPolicy asks; None when it does not ask."""
    traefiks = section(guard, "spec", "forwardAuth").get("address")
    envoys = section(guard, "spec", "extAuth", "http").get("pathOverride")
    return urlsplit(str(traefiks)).path if traefiks else str(envoys) if envoys else None


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
