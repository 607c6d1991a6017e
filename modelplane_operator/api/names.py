"""Every derived name, once.

A derived name is a readable part and a hash of everything that makes the object what it is. The namespace is part of
that, and the parts are joined by a character that no name contains, so that different objects have different names
however their namespaces and names are cut. The reference joins with dashes and hashes to five digits: there
`a-b` / `c` and `a` / `b-c` share a volume, and a deployment with a thousand replicas has two of one name.

All names are DNS labels that begin with a letter, since Services demand it, and leave room for what is appended to
them: by us, and by the controllers that make pods.
"""

from __future__ import annotations

import hashlib
import re
from typing import Final

LABEL: Final = 63  # the longest DNS label, and the longest label value
LONG_HASH: Final = 32  # 128 bits: that nobody finds another identity for
HASH: Final = 10  # 40 bits: among a thousand replicas two of one name are as likely as one in two million

SYSTEM_NAMESPACE: Final = "modelplane-system"
PLATFORM_NAMESPACES: Final = ("", SYSTEM_NAMESPACE)
"""The namespaces of children that belong to the platform: none, and that of the platform itself."""
HUB_GATEWAY: Final = "modelplane"
CLUSTER_GATEWAY: Final = "inference-gateway"
FENCE: Final = "modelplane"  # the NetworkPolicy and the LimitRange of a namespace on a workload cluster
PICKER_FENCE: Final = "modelplane-pickers"  # the NetworkPolicy of the endpoint pickers there
DEFAULT_GATEWAY: Final = "default"  # the InferenceGateway that models are served through

# What gateways prove to each other, and nobody resolves.
INTERNAL_DOMAIN: Final = "modelplane.internal"
GATEWAYS_DOMAIN: Final = f"gateways.{INTERNAL_DOMAIN}"
HUB_NAME: Final = f"front-door.{INTERNAL_DOMAIN}"
GATEWAY_AUTHORITY: Final = "modelplane-gateway-authority"
ADMISSION_CERTIFICATE: Final = "modelplane-admission-certificate"
ADMISSION_WEBHOOK: Final = "modelplane-operator"  # its configuration
ADMISSION_SERVICE: Final = f"modelplane-operator-admission.{SYSTEM_NAMESPACE}.svc"
GATEWAY_KEY_PATHS: Final = "modelplane-gateway-key-paths"  # the Secret that signs where the key service is asked
GATEWAY_CERTIFICATE: Final = "modelplane-gateway-certificate"  # a gateway's own, on the hub and on every cluster

_PICKER = "-epp"
# A gang's pods carry `<workload>-<group>-<ten characters>` as a label value; there are at most 64 groups.
_WORKLOAD_ROOM = LABEL - len("-63") - len("-0123456789")


def derive_name(*identity: str, show: str, room: int = LABEL, digits: int = HASH) -> str:
    """A name that shows `show` as far as there is room, and differs whenever the identity does."""
    digest = hashlib.sha256("/".join(identity).encode()).hexdigest()[:digits]
    legal = re.sub(r"[^a-z0-9]+", "-", show.lower()).lstrip("-")
    readable = legal if legal[:1].isalpha() else f"m-{legal}"
    return f"{readable[: room - digits - 1].rstrip('-')}-{digest}"


# On the hub ---------------------------------------------------------------------------------------------------------


def replica(namespace: str, deployment: str, cluster: str, index: int) -> str:
    """A ModelReplica, its ModelEndpoint, its route, and its segment of the URL."""
    room = LABEL - len("-pool")  # which earlier versions appended: names that exist stay as they are
    return derive_name("replica", namespace, deployment, cluster, str(index), show=deployment, room=room)


def endpoint_backend(namespace: str, endpoint: str) -> str:
    """The Service that stands for a ModelEndpoint, and its TLS policy."""
    return derive_name("endpoint", namespace, endpoint, show=endpoint)


def endpoint_slice(service: str, address_type: str) -> str:
    """The EndpointSlice of a Service of ours. Its type cannot change, so that another type is another one."""
    return f"{service}-{address_type.lower()}"  # need not be a DNS label


def service_path(namespace: str, service: str, group: int = 0) -> str:
    """The path under which the hub's gateway knows a service, or a group of its endpoints; `~` is in nobody's name."""
    return f"/{namespace}/{service}~{group}/" if group else f"/{namespace}/{service}/"


def service_route(namespace: str, service: str) -> str:
    """The HTTPRoute of a ModelService, and the Service without endpoints that answers when nothing else can."""
    return derive_name("service", namespace, service, show=service)


def service_relay(namespace: str, service: str) -> str:
    """The Service through which the hub's gateway calls itself for a ModelService with many endpoints."""
    return derive_name("relay", namespace, service, show=service)


def service_guard(namespace: str, service: str) -> str:
    """The Middleware by which Traefik asks the key service for a ModelService.

    Traefik knows it as `<namespace>-<name>`, which a service of namespace `a` called `b-c` has in common with one of
    `a-b` called `c`: what tells them apart is the digest alone, and tenants choose names.
    """
    return derive_name("guard", namespace, service, show=service, digits=LONG_HASH)


def service_keys(namespace: str, service: str) -> str:
    """The Backend by which Envoy Gateway asks the key service for a ModelService."""
    return derive_name("service", namespace, service, "keys", show=f"{service}-keys")


def route_part(route: str, number: int) -> str:
    """The HTTPRoute that holds what one of them has no room for; number 0 is the route itself."""
    return f"{route}-{number}" if number else route  # need not be a DNS label


def provider_config(cluster: str) -> str:
    """What an InferenceCluster publishes as its handle."""
    return _from_cluster(cluster, "cluster-kubeconfig")


def kubeconfig(cluster: str) -> str:
    """The kubeconfig of a cluster that a cloud makes."""
    return _from_cluster(cluster, "kubeconfig")


def serving_stack(cluster: str) -> str:
    """The ServingStack of an InferenceCluster."""
    return _from_cluster(cluster, "serving-stack")


def on_cloud(cluster: str, uid: str, *parts: str, room: int = LABEL) -> str:
    """What a cloud calls a cluster that we make there, or a part of it.

    The uid is in it, so that two hubs that share an account, and a cluster that is made anew while its namesake goes,
    do not meet.
    """
    return derive_name("cloud", uid, *parts, show="-".join((cluster, *parts)), room=room)


def registration(uid: str) -> str:
    """The Secret by which an InferenceCluster of that uid is told from others that may have its cluster."""
    return f"registration-{uid}"


def gateway_authority(number: int) -> str:
    """The Secret with an authority that gateways trust."""
    return f"{GATEWAY_AUTHORITY}-{number}"


def server_name(cluster: str) -> str:
    """What the gateway of a cluster proves to be, whatever its address."""
    label = (
        cluster
        if re.fullmatch(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?", cluster)
        else derive_name("gateway", cluster, show=cluster)
    )
    return f"{label}.{GATEWAYS_DOMAIN}"


def gateway_relay(cluster: str) -> str:
    """What leads from the hub to the gateway of a cluster."""
    return derive_name("gateway-relay", cluster, show=f"gateway-{cluster}")


def _from_cluster(cluster: str, part: str) -> str:
    """A name that the reference gives too, for what administrators look up by name.

    One variable part and a fixed one cannot be cut in two ways, so that its form is as good as ours.
    """
    full = f"{cluster}-{part}"
    digest = hashlib.sha256(full.encode()).hexdigest()[:5]
    return f"{full[:57].rstrip('-.')}-{digest}"


# On a workload cluster ----------------------------------------------------------------------------------------------


def remote_namespace(namespace: str) -> str:
    """Where the objects of a hub namespace live on every workload cluster."""
    plain = f"modelplane-{namespace}"
    if plain == SYSTEM_NAMESPACE or len(plain) > LABEL:  # a tenant called `system` must not land among our own
        return derive_name("namespace", namespace, show=plain)
    return plain


def workload(replica: str, engine: str) -> str:
    """The Deployment or LeaderWorkerSet of an engine.

    Never the replica's own name: a LeaderWorkerSet makes a Service with its name, if that is free.
    """
    return derive_name("workload", replica, engine, show=f"{replica}-{engine}", room=_WORKLOAD_ROOM)


def claim_template(replica: str, engine: str, role: str, requests: str) -> str:
    """The ResourceClaimTemplate of an engine's member. It cannot change, so that other requests are another one."""
    return derive_name("claims", replica, engine, role, requests, show=f"{replica}-{engine}-{role}")


def name_of_copy(replica: str, use: str, name: str) -> str:
    """The copy of a Secret or ConfigMap that a replica's engines name: one per replica, so that it goes with it."""
    return derive_name("copy", replica, use, name, show=f"{replica}-{name}")


def picker(replica: str) -> str:
    """The endpoint picker of a replica, and everything it needs."""
    return f"{replica}{_PICKER}"


def is_picker(name: str) -> bool:
    """Whether something is called as an endpoint picker is."""
    return name.endswith(_PICKER)


def cache_volume(namespace: str, cache: str, content: str = "") -> str:
    """The volume of a ModelCache; of what it was changed to since, with its content."""
    return derive_name("cache", namespace, cache, *filter(None, [content]), show=f"modelcache-{cache}")


def hydration(namespace: str, cache: str, content: str) -> str:
    """The Job that fills a volume of a ModelCache with that content, and all that it needs."""
    return derive_name("hydration", namespace, cache, content, show=f"hydrate-{cache}", room=_WORKLOAD_ROOM)
