"""What keeps a tenant's pods on a workload cluster to themselves: the namespace's Pod Security level, its NetworkPolicy
and its LimitRange.

They belong to nobody but the hub's namespace, as the namespace on the cluster does. A NetworkPolicy is as good as the
cluster's network plugin: one that knows none lets everything through, and none holds for pods on the host's network,
which we never make. A pod's own node always reaches it, so that the kubelet's probes need no rule.
"""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import ip_network
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.isolation import Isolation, LimitRangeIsolation, NetworkIsolation, PodIsolation
from modelplane_operator.api.shared import Amounts
from modelplane_operator.models.replica.render.endpoint_picker import GRPC_PORT
from modelplane_operator.models.replica.render.part import SERVING_PORT
from modelplane_operator.owned import namespace_labels, render_remote_namespace

ENVOYS: Final = {"app.kubernetes.io/managed-by": "envoy-gateway", "app.kubernetes.io/component": "proxy"}
# Where clouds answer with the identity of the node or of the pod: link-local addresses, and those beside them.
METADATA: Final = (
    *("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    *("fd00:ec2::/32", "fd20:ce::/32", "fe80::a9fe:a9fe/128"),
)
RANKS: Final = 8  # the most ports of a pod that a picker takes
DNS_PORT: Final = 53
API_SERVER_PORT: Final = 6443  # of one on a node of its cluster; others are outside
# Of those that can be asked for, the ones that Pod Security's level `baseline` refuses.
BEYOND_BASELINE: Final = frozenset(("IPC_LOCK", "NET_RAW", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE"))
# Little: it is for containers of which nobody knows anything, and a request that no node has room for starts nothing.
# No disk, of which some nodes count none.
DEFAULT_REQUEST: Final = Amounts(cpu="100m", memory="256Mi")


def render_fences(namespace: str, uid: str, isolation: Isolation) -> tuple[Manifest, ...]:
    """The namespace that holds the objects of a hub namespace on a cluster, and what is around it."""
    network, limits = isolation.network_policy or NetworkIsolation(), isolation.limit_range or LimitRangeIsolation()
    return (
        render_remote_namespace(namespace, uid, level=_level(isolation.pods or PodIsolation())),
        *(_network_policies(namespace, uid, network) if network.mode == "Enforced" else []),
        *([_limit_range(namespace, uid, limits)] if limits.mode == "Enforced" else []),
    )


def _level(pods: PodIsolation) -> str:
    """The strictest level of Pod Security that lets in what pods may have. `restricted` would refuse the many engine
    images that run as root."""
    return "baseline" if BEYOND_BASELINE.isdisjoint(pods.allowed_capabilities) else "privileged"


def _metadata(namespace: str, uid: str, name: str = names.FENCE) -> Manifest:
    return {
        "name": name,
        "namespace": names.remote_namespace(namespace),
        "labels": namespace_labels(namespace, uid),
    }


def _network_policies(namespace: str, uid: str, network: NetworkIsolation) -> Iterator[Manifest]:
    """Engines fetch models from anywhere, and find each other by addresses that nobody knows before."""
    kept_out = METADATA if network.metadata_service == "Blocked" else ()
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, uid),
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": {}}]},
                *_from_gateways(network, SERVING_PORT, last=SERVING_PORT + RANKS - 1),
                *({"from": [{"namespaceSelector": _named(one)}]} for one in network.monitoring_namespaces),
            ],
            "egress": [
                # Some plugins do not count pods among the addresses of a block.
                {"to": [{"namespaceSelector": {}}, _block("0.0.0.0/0", kept_out), _block("::/0", kept_out)]},
                # Nor do they count nodes, where a cache of names and the API server of many clusters are; a cloud's
                # names are where its metadata is.
                {"ports": [_port("UDP", DNS_PORT), _port("TCP", DNS_PORT), _port("TCP", API_SERVER_PORT)]},
            ],
        },
    }
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, uid, names.PICKER_FENCE),
        "spec": {
            # Pickers of before have no label of their own; an engine has one that says that it is an engine.
            "podSelector": {
                "matchExpressions": [
                    {"key": labels.PICKER_APP, "operator": "Exists"},
                    {"key": labels.WORKLOAD, "operator": "DoesNotExist"},
                ]
            },
            "policyTypes": ["Ingress"],
            "ingress": [*_from_gateways(network, GRPC_PORT)],
        },
    }


def _from_gateways(network: NetworkIsolation, port: int, *, last: int | None = None) -> Iterator[Manifest]:
    ports = {**_port("TCP", port), **({"endPort": last} if last else {})}
    for gateway in network.gateway_namespaces:
        envoys = {"namespaceSelector": _named(gateway), "podSelector": {"matchLabels": ENVOYS}}
        yield {"from": [envoys], "ports": [ports]}


def _named(namespace: str) -> Manifest:
    return {"matchLabels": {labels.NAMESPACE_NAME: namespace}}


def _port(protocol: str, port: int) -> Manifest:
    return {"protocol": protocol, "port": port}


def _block(cidr: str, kept_out: tuple[str, ...]) -> Manifest:
    """Everything of one family of addresses, but for some."""
    same = [one for one in kept_out if ip_network(one).version == ip_network(cidr).version]
    return {"ipBlock": {"cidr": cidr, **({"except": same} if same else {})}}


def _limit_range(namespace: str, uid: str, limits: LimitRangeIsolation) -> Manifest:
    """Requests only: a default limit of memory would kill engines, and Kubernetes makes one of every maximum."""
    requests = (limits.default_request or DEFAULT_REQUEST).to_manifest()
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": _metadata(namespace, uid),
        "spec": {"limits": [{"type": "Container", "defaultRequest": requests}]},
    }
