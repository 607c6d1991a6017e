"""The observed state of an InferenceCluster: the input of its plan.

The controller creates it in each reconcile. A field that could not be observed has a value of its own, such as None:
the plan must not take it for an empty list.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta

from kubeloop.errors import ClientError
from kubeloop.objects import Key, Manifest, Section, entries
from kubeloop.tokens import Token
from kubeloop.types import (
    ENDPOINT_SLICE,
    ENVOY_PROXY,
    GATEWAY,
    GATEWAY_CLASS,
    INGRESS_ROUTE,
    NAMESPACE,
    POLICIES,
    SECRET,
    SERVERS_TRANSPORT,
    SERVICE,
    ResourceType,
)
from modelplane_operator.api import labels
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.clusters.cluster.plan.hardware import ObservedHardware
from modelplane_operator.clusters.cluster.plan.mutual_tls import Hub

CHILDREN = (NAMESPACE, SECRET, ENVOY_PROXY, GATEWAY_CLASS, *POLICIES, GATEWAY)
"""Types of the objects that the operator creates on the cluster, in order of dependency; deleted in reverse."""

ON_HUB = (SERVICE, ENDPOINT_SLICE, SERVERS_TRANSPORT, INGRESS_ROUTE)
"""Types of the hub's objects that route from the hub's gateway to the cluster's."""

REQUEUE_SOON = 0.5  # seconds; the caches of a new connection sync meanwhile
SWEEP = 300.0  # seconds between sweeps for orphaned objects
REQUEUE_AFTER = 15.0  # seconds between polls of state without events: APIs not yet served, permissions not yet granted


@dataclass(frozen=True, slots=True)
class Registered:
    """The other InferenceClusters that are, or may be, the same cluster."""

    identity: str = ""
    """The identity of the cluster, from its own objects; empty when it cannot be read."""
    first: str = ""
    """The name of the InferenceCluster that already has the cluster."""
    unsure: str = ""
    """The name of an earlier InferenceCluster that may have it, while that is being checked."""
    later: tuple[str, ...] = ()
    """The uids of InferenceClusters that may have it and rank after this one."""
    home: bool = field(default=False)
    """True if the operator's namespace exists on the cluster, with any owner."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state observed on the workload cluster itself."""

    version: str
    """The Kubernetes version of the cluster."""
    latency: float | None
    """Seconds that the API server took to respond."""
    apis: frozenset[str]
    """The optional APIs that it serves, by their names in the status."""
    hardware: ObservedHardware | ClientError | None
    """Nodes and devices; the error if they cannot be listed; None while they have not been listed."""
    children: tuple[Manifest, ...]
    """The objects that the operator applied there for the cluster."""
    has_namespace: bool
    """True if the operator's namespace was created by another owner."""
    rewritten: bool = False
    """True if another client has changed the Secret with the certificate of the cluster's gateway."""
    others: tuple[str, ...] = ()
    """Objects of models and other owners that must be deleted before the cluster is released: `kind namespace/name`."""
    orphans: tuple[str, ...] | None = None
    """The operator's objects without an owner on the hub: `kind namespace/name`; None before the first sweep."""
    spared: tuple[str, ...] = ()
    """Tenant namespaces that stay when the cluster is released, since they hold foreign objects."""
    unpermitted: str = ""
    """The reason why mutual TLS cannot be set up for the gateway; empty when it can."""
    forbidden: frozenset[ResourceType] = frozenset()
    """Child types that the operator has no permission to read there."""
    registered: Registered = field(default_factory=Registered)
    """The other InferenceClusters of the same cluster."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The kubeconfig Secrets that should get the finalizer for this cluster, or lose it."""

    own: Key | None = None
    """The referenced Secret, if it exists and can be kept."""
    terminating: bool = False
    """True if the referenced Secret is being deleted and only the operator's finalizer keeps it."""
    is_shared: bool = False
    """True if another cluster references the same Secret."""
    unneeded: tuple[Key, ...] = ()
    """Secrets with the finalizer that no cluster references now."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster with its observed state, on the hub and on the cluster."""

    cluster: InferenceCluster
    """Cluster as its spec and its last status describe it."""
    classes: Mapping[str, InferenceClass]
    """The existing InferenceClasses of its pools, by name."""
    replicas: tuple[Key, ...]
    """The ModelReplicas placed on it."""
    state: ClusterState | None
    """The state on the cluster; None while it does not answer, and until all its caches have synced."""
    unreachable: ClientError | None
    """The error of its last probe; None while it answers or has not been probed."""
    forbidden: ClientError | None
    """The error of a cluster that answers but denies access."""
    kubeconfig: ClientError | None
    """The error in its kubeconfig; an existing connection stays open."""
    connected: bool
    """True if there is a connection to it."""
    secrets: Secrets
    """The kubeconfig Secrets that concern the cluster's finalizers."""
    now: datetime
    """The time of the reconcile, in full seconds."""
    helm: bool = False
    """True if the operator can install charts."""
    stack: Manifest | None = None
    """The ServingStack that the operator created for the cluster."""
    used_pools: frozenset[str] = frozenset()
    """Names of the pools on which those ModelReplicas run."""
    infrastructure: Manifest | None = None
    """The cloud's object for the cluster (EKSCluster, for example); None if no cloud creates it."""
    problem: str = ""
    """The reason why the cloud's object cannot be brought in line with the spec."""
    server: str = ""
    """The URL of its API server; empty without a connection."""
    unverified: str = ""
    """The reason why the server's identity cannot be verified; empty when it can."""
    token: Token | None = None
    """The operator's token for the cluster, if it expires."""
    token_observed_at: datetime | None = None
    """The time at which the token was first observed, by the operator's clock."""
    hub: Hub = field(default_factory=Hub)
    """The state of the hub's gateway, for mutual TLS."""
    answers: bool = field(default=True)
    """True if the gateway's load balancer accepts https connections: clouds need minutes to open a new port."""
    silence: str = ""
    """That the cluster's gateway gives no answer, although it did, as a message; empty if it answers."""
    relay: tuple[Manifest, ...] = ()
    """The applied objects on the hub that route to the cluster's gateway."""
    plain: int = 0
    """The number of ModelEndpoints that lead to the cluster by http."""
    settle: timedelta = timedelta(minutes=6)
    """The time after the last of them has switched for which requests may still use http."""
    hub_gateway: frozenset[str] = frozenset()
    """The addresses of the cluster's gateway that belong to the hub's own gateway."""

    @property
    def display_name(self) -> str:
        """The cluster's name in messages."""
        return f"cluster {self.cluster.metadata.name}"

    @property
    def removed_pools(self) -> tuple[Section, ...]:
        """The pools of the cloud's object that the spec no longer has, kept while models run on them."""
        if self.cluster.metadata.annotations.get(labels.FORCE_DRAIN) == "true":
            return ()
        retained = self.used_pools - {pool.name for pool in self.cluster.spec.node_pools}
        return tuple(
            pool for pool in entries(self.infrastructure or {}, "spec", "nodePools") if pool["name"] in retained
        )
