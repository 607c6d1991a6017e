"""NetworkPolicies by the semantics that Kubernetes documents, and who may reach whom on a cluster with two tenants.

The pairs are judged twice: by `allows`, and on a network of Linux's where an agent enforces the policies.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address, ip_network

from modelplane_operator.api import labels, names
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.models.replica.render.fences import ENVOYS, render_fences
from tests.support.manifests import Manifest

TENANT, OTHER = "team-a", "team-b"
METADATA = ("169.254.169.254", "169.254.170.23", "100.100.100.200", "168.63.129.16", "fd00:ec2::254", "fe80::a9fe:a9fe")
SERVED, PICKED, NAMES, BETWEEN_ENGINES, API = 8000, 9002, 53, 5557, 6443


@dataclass(frozen=True, slots=True)
class Peer:
    """An end of a connection: a pod, or with no namespace an address outside the network of pods."""

    name: str
    namespace: str = ""
    labels: Mapping[str, str] = field(default_factory=dict[str, str])
    address: str = ""
    """Of a pod, what the cluster gives it; `allows` asks for that of other peers alone."""


@dataclass(frozen=True, slots=True)
class Attempt:
    """A connection that somebody tries to make, and whether that is to work."""

    source: str
    target: str
    port: int
    allowed: bool
    protocol: str = "TCP"


def peers(node: str) -> Mapping[str, Peer]:
    """Return who there is on a cluster of two tenants, by name. `node`: its address."""
    ours, theirs = names.remote_namespace(TENANT), names.remote_namespace(OTHER)
    everybody = (
        Peer("engine", ours, {labels.WORKLOAD: "model-0"}),
        Peer("second-engine", ours, {labels.WORKLOAD: "model-0"}),
        Peer("picker", ours, {labels.PICKER_APP: "model-0-epp"}),
        Peer("engine-of-another", theirs, {labels.WORKLOAD: "model-0"}),
        Peer("gateway", "envoy-gateway-system", ENVOYS),
        Peer("beside-the-gateway", "envoy-gateway-system", {"app": "other"}),
        Peer("monitoring", "monitoring"),
        Peer("stranger", "default"),
        Peer("dns", "kube-system", {"k8s-app": "kube-dns"}),
        Peer("node", address=node),
        Peer("metadata", address="169.254.169.254"),
        Peer("world", address="203.0.113.7"),
    )
    return {peer.name: peer for peer in everybody}


ATTEMPTS = (
    Attempt("engine-of-another", "engine", SERVED, allowed=False),
    Attempt("engine-of-another", "engine", BETWEEN_ENGINES, allowed=False),
    Attempt("engine-of-another", "picker", PICKED, allowed=False),
    Attempt("engine", "engine-of-another", SERVED, allowed=False),
    Attempt("engine", "metadata", 80, allowed=False),
    Attempt("picker", "metadata", 80, allowed=False),
    Attempt("stranger", "engine", SERVED, allowed=False),
    Attempt("stranger", "picker", PICKED, allowed=False),
    Attempt("beside-the-gateway", "engine", SERVED, allowed=False),
    Attempt("gateway", "engine", BETWEEN_ENGINES, allowed=False),
    Attempt("gateway", "engine", PICKED, allowed=False),
    Attempt("gateway", "engine", SERVED, allowed=True),
    Attempt("gateway", "engine", SERVED + 7, allowed=True),
    Attempt("gateway", "picker", PICKED, allowed=True),
    Attempt("picker", "engine", SERVED, allowed=True),
    Attempt("engine", "second-engine", BETWEEN_ENGINES, allowed=True),
    Attempt("monitoring", "engine", BETWEEN_ENGINES, allowed=True),
    Attempt("engine", "dns", NAMES, allowed=True),
    Attempt("engine", "dns", NAMES, allowed=True, protocol="UDP"),
    Attempt("engine", "world", 443, allowed=True),
    Attempt("engine", "node", API, allowed=True),
    Attempt("stranger", "metadata", 80, allowed=True),  # it is no tenant's pod, and none of our policies is about it
    Attempt("node", "engine", SERVED, allowed=True),  # a kubelet's probes
)


def fences(isolation: Isolation | None = None) -> tuple[Manifest, ...]:
    """Return what the operator puts around both tenants' namespaces on a cluster."""
    around = isolation or Isolation()
    return tuple(made for tenant in (TENANT, OTHER) for made in render_fences(tenant, f"uid-of-{tenant}", around))


def allows(policies: Iterable[Manifest], source: Peer, target: Peer, port: int, protocol: str = "TCP") -> bool:
    """Return whether a connection is let through: by the source's egress, and by the target's ingress.

    A pod's own node reaches it always. A pod is open in a direction until a policy of that direction selects it;
    then it is open to what any rule of those policies names.
    """
    known = tuple(policies)
    if source.name == "node" and target.namespace:
        return True
    for peer, other, direction, key in ((source, target, "Egress", "to"), (target, source, "Ingress", "from")):
        about = [*_selecting(known, peer, direction)]
        let_in = (
            key not in rule or any(_is(named, one["metadata"]["namespace"], other) for named in rule[key])
            for one in about
            for rule in one["spec"].get(direction.lower(), [])
            if _has_port(rule, port, protocol)
        )
        if about and not any(let_in):
            return False
    return True


def _selecting(policies: Iterable[Manifest], pod: Peer, direction: str) -> Iterator[Manifest]:
    for policy in policies:
        spec = policy["spec"]
        same = pod.namespace == policy["metadata"]["namespace"]
        if same and direction in spec["policyTypes"] and _selects(spec["podSelector"], pod.labels):
            yield policy


def _has_port(rule: Manifest, port: int, protocol: str) -> bool:
    """Whether a rule is about that port; without ports it is about all."""
    return "ports" not in rule or any(
        named["protocol"] == protocol
        and named.get("port", port) <= port <= named.get("endPort", named.get("port", port))
        for named in rule["ports"]
    )


def _is(named: Manifest, home: str, other: Peer) -> bool:
    """Whether a peer of a rule is that one. A block is of addresses outside: plugins differ about pods in it."""
    if "ipBlock" in named and not other.namespace:
        block = named["ipBlock"]
        within = [ip_address(other.address) in ip_network(one) for one in (block["cidr"], *block.get("except", []))]
        return within[0] and not any(within[1:])
    if "ipBlock" in named or not other.namespace:
        return False
    of_namespace = {labels.NAMESPACE_NAME: other.namespace}
    here = (
        _selects(named["namespaceSelector"], of_namespace) if "namespaceSelector" in named else other.namespace == home
    )
    return here and _selects(named.get("podSelector", {}), other.labels)


def _selects(selector: Manifest, found: Mapping[str, str]) -> bool:
    needs = {"Exists": lambda key: key in found, "DoesNotExist": lambda key: key not in found}
    return all(found.get(key) == value for key, value in selector.get("matchLabels", {}).items()) and all(
        needs[one["operator"]](one["key"]) for one in selector.get("matchExpressions", [])
    )
