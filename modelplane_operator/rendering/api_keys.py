"""API keys: whose are asked for, how the hub's gateway is told, and what is kept of a key.

The gateway asks the key service about each request, at a path that names the Secrets; the client's own path has no part
in it. Traefik does so by a ForwardAuth, Envoy Gateway by its ExtAuth (docs/decisions/0054).
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Collection, Iterator, Sequence
from ipaddress import IPv4Address, IPv6Address, ip_address
from typing import Final, assert_never

from modelplane_operator.api import names
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.model_endpoint import AUTHORIZATION
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.kube.objects import Key, Manifest
from modelplane_operator.rendering.inference_gateway import HubGateway
from modelplane_operator.rendering.owned import on_hub

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


def render_guard(
    service: ModelService, secrets: Sequence[str], routes: Sequence[str], door: HubGateway
) -> Iterator[Manifest]:
    """What has the gateway ask the key service before these routes lead anywhere."""
    name, path = names.service_route(*service.key), path_of(service.key.namespace, secrets)
    host, port = door.keys
    match door.plane.dialect:
        case "GatewayAPI":
            asked = {
                "address": f"http://{_in_url(host)}:{port}{path}",
                "authRequestHeaders": [AUTHORIZATION],
                "trustForwardHeader": False,
                "maxResponseBodySize": ANSWER,
            }
            yield {
                "apiVersion": "traefik.io/v1alpha1",
                "kind": "Middleware",
                "metadata": on_hub(service, name),
                "spec": {"forwardAuth": asked},
            }
        case "EnvoyGateway":
            backend = names.service_keys(*service.key)
            yield {
                "apiVersion": "gateway.envoyproxy.io/v1alpha1",
                "kind": "Backend",
                "metadata": on_hub(service, backend),
                "spec": {"endpoints": [_endpoint(host, port)]},
            }
            reference = {"group": "gateway.envoyproxy.io", "kind": "Backend", "name": backend, "port": port}
            yield {
                "apiVersion": "gateway.envoyproxy.io/v1alpha1",
                "kind": "SecurityPolicy",
                "metadata": on_hub(service, name),
                "spec": {
                    "targetRefs": [
                        {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": route} for route in routes
                    ],
                    "extAuth": {
                        "failOpen": False,
                        "statusOnError": 503,
                        "timeout": "5s",
                        "headersToExtAuth": [AUTHORIZATION],
                        "http": {"backendRefs": [reference], "pathOverride": path},
                    },
                },
            }
        case _:
            assert_never(door.plane.dialect)


def _in_url(host: str) -> str:
    """The key service's host as Traefik is told it. A name is whole, else four with search domains are asked for first;
    an address with a dot behind it is looked up as a name, and there is none.
    """
    address = _address(host)
    if address is None:
        return f"{host.rstrip('.')}."
    return f"[{address}]" if address.version == 6 else str(address)


def _endpoint(host: str, port: int) -> Manifest:
    if _address(host) is None:
        return {"fqdn": {"hostname": host, "port": port}}
    return {"ip": {"address": host, "port": port}}


def _address(host: str) -> IPv4Address | IPv6Address | None:
    try:
        return ip_address(host)
    except ValueError:
        return None


def guarded(service: Key, rules: Sequence[Manifest], door: HubGateway) -> list[Manifest]:
    """The rules, each behind the guard. Envoy Gateway's policy names the routes, and not the other way round."""
    if door.plane.dialect == "EnvoyGateway":
        return [*rules]
    reference = {"group": "traefik.io", "kind": "Middleware", "name": names.service_route(*service)}
    first = {"type": "ExtensionRef", "extensionRef": reference}
    return [{**rule, "filters": [first, *rule.get("filters", ())]} for rule in rules]


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
