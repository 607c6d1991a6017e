"""Isolate a tenant's pods on a workload cluster by Pod Security level, NetworkPolicies and a LimitRange.

Their owner is the hub's namespace, as it is for the namespace on the cluster. NetworkPolicies depend on the
cluster's network plugin: without support, everything passes. They do not apply to pods on the host network, which
the operator never creates. A pod's own node always reaches it, so kubelet probes need no rule.
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
"""Labels of the pods of Envoy Gateway's proxies."""
# Clouds give out the identity of the node or pod there: link-local addresses, and some similar ones.
METADATA: Final = (
    *("169.254.0.0/16", "100.100.100.200/32", "168.63.129.16/32", "192.0.0.192/32"),
    *("fd00:ec2::/32", "fd20:ce::/32", "fe80::a9fe:a9fe/128"),
)
"""CIDRs of the metadata services of clouds."""
RANKS: Final = 8  # the picker accepts no more
"""Largest number of ports of a pod."""
DNS_PORT: Final = 53
API_SERVER_PORT: Final = 6443  # external ones are reached like any address
"""Port of an API server that runs on a node of its cluster."""
# With any of these, the namespace needs the level `privileged`.
BEYOND_BASELINE: Final = frozenset(("IPC_LOCK", "NET_RAW", "SYS_NICE", "SYS_PTRACE", "SYS_RESOURCE"))
"""Allowable capabilities that Pod Security's level `baseline` rejects."""
# Small, because it applies to unknown containers, and a pod whose requests fit no node cannot start.
# No ephemeral storage, because some nodes report none.
DEFAULT_REQUEST: Final = Amounts(cpu="100m", memory="256Mi")
"""Requests of containers that have none."""


def render_fences(namespace: str, uid: str, isolation: Isolation) -> tuple[Manifest, ...]:
    """Render the namespace on a cluster that stands for a hub namespace, and its isolation policies."""
    network, limits = isolation.network_policy or NetworkIsolation(), isolation.limit_range or LimitRangeIsolation()
    # The strictest Pod Security level that admits the allowed capabilities. `restricted` is not used: it would reject
    # the many engine images that run as root.
    capabilities = (isolation.pods or PodIsolation()).allowed_capabilities
    level = "baseline" if BEYOND_BASELINE.isdisjoint(capabilities) else "privileged"
    return (
        render_remote_namespace(namespace, uid, level=level),
        *(_render_network_policies(namespace, uid, network) if network.mode == "Enforced" else []),
        *([_render_limit_range(namespace, uid, limits)] if limits.mode == "Enforced" else []),
    )


def _metadata(namespace: str, uid: str, name: str = names.FENCE) -> Manifest:
    """Render the metadata of an isolation policy."""
    return {
        "name": name,
        "namespace": names.remote_namespace(namespace),
        "labels": namespace_labels(namespace, uid),
    }


def _render_network_policies(namespace: str, uid: str, network: NetworkIsolation) -> Iterator[Manifest]:
    """Yield the NetworkPolicies for all pods and for the endpoint pickers.

    Egress is open except for metadata services: engines download models from anywhere, and find each other by
    addresses that are not known in advance.
    """
    blocked = METADATA if network.metadata_service == "Blocked" else ()
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, uid),
        "spec": {
            "podSelector": {},
            "policyTypes": ["Ingress", "Egress"],
            "ingress": [
                {"from": [{"podSelector": {}}]},
                *_admit_gateways(network, SERVING_PORT, last=SERVING_PORT + RANKS - 1),
                *(
                    {"from": [{"namespaceSelector": _namespace_selector(monitoring)}]}
                    for monitoring in network.monitoring_namespaces
                ),
            ],
            "egress": [
                # Some plugins do not match pods by an ipBlock.
                {"to": [{"namespaceSelector": {}}, _ip_block("0.0.0.0/0", blocked), _ip_block("::/0", blocked)]},
                # Nor nodes, which run DNS caches and the API servers of many clusters. A cloud's DNS may
                # have the address of its metadata service.
                {"ports": [_port("UDP", DNS_PORT), _port("TCP", DNS_PORT), _port("TCP", API_SERVER_PORT)]},
            ],
        },
    }
    yield {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": _metadata(namespace, uid, names.PICKER_FENCE),
        "spec": {
            # Pickers of earlier versions have no label of their own, but only engines have the label WORKLOAD.
            "podSelector": {
                "matchExpressions": [
                    {"key": labels.PICKER_APP, "operator": "Exists"},
                    {"key": labels.WORKLOAD, "operator": "DoesNotExist"},
                ]
            },
            "policyTypes": ["Ingress"],
            "ingress": [*_admit_gateways(network, GRPC_PORT)],
        },
    }


def _admit_gateways(network: NetworkIsolation, port: int, *, last: int | None = None) -> Iterator[Manifest]:
    """Yield ingress rules that admit the Envoys of the cluster's gateways."""
    ports = {**_port("TCP", port), **({"endPort": last} if last else {})}
    for gateway in network.gateway_namespaces:
        envoys = {"namespaceSelector": _namespace_selector(gateway), "podSelector": {"matchLabels": ENVOYS}}
        yield {"from": [envoys], "ports": [ports]}


def _namespace_selector(namespace: str) -> Manifest:
    return {"matchLabels": {labels.NAMESPACE_NAME: namespace}}


def _port(protocol: str, port: int) -> Manifest:
    return {"protocol": protocol, "port": port}


def _ip_block(cidr: str, blocked: tuple[str, ...]) -> Manifest:
    """Return an ipBlock of a CIDR without the excluded CIDRs of the same address family."""
    excluded = [item for item in blocked if ip_network(item).version == ip_network(cidr).version]
    return {"ipBlock": {"cidr": cidr, **({"except": excluded} if excluded else {})}}


def _render_limit_range(namespace: str, uid: str, limits: LimitRangeIsolation) -> Manifest:
    """Render a LimitRange that sets default requests only.

    A default memory limit would kill engines, and Kubernetes derives a default limit from every maximum.
    """
    requests = (limits.default_request or DEFAULT_REQUEST).to_manifest()
    return {
        "apiVersion": "v1",
        "kind": "LimitRange",
        "metadata": _metadata(namespace, uid),
        "spec": {"limits": [{"type": "Container", "defaultRequest": requests}]},
    }
