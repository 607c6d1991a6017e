"""What was seen of a cluster."""

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
"""What we make there, each after what it needs; it goes in the reverse order."""

ON_HUB = (SERVICE, ENDPOINT_SLICE, SERVERS_TRANSPORT, INGRESS_ROUTE)
"""What leads to its gateway from the hub's."""

REQUEUE_SOON = 0.5  # until a connection that has just begun has seen everything
SWEEP = 300.0  # until we look again for what nobody owns
REQUEUE_AFTER = (
    15.0  # until we look again for what no event tells of: an API that is not served, a permission that is given
)


@dataclass(frozen=True, slots=True)
class Registered:
    """Who else has the cluster, or may have it."""

    identity: str = ""
    """By what it is recognized; empty when nothing tells."""
    first: str = ""
    """The InferenceCluster that has it already."""
    unsure: str = ""
    """One that may have it, while that is being found out."""
    later: tuple[str, ...] = ()
    """The uids of those that may have it and come after this one."""
    home: bool = field(default=False)
    """Whether our namespace is there, whoever made it."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What was seen on the cluster itself."""

    version: str
    latency: float | None
    """The seconds that its API server took to answer."""
    apis: frozenset[str]
    """The optional APIs that it serves, by the names that the status has for them."""
    hardware: ObservedHardware | ClientError | None
    """Its nodes and devices; why they cannot be listed; None while they have not been seen."""
    children: tuple[Manifest, ...]
    """What we made there for the cluster."""
    has_namespace: bool
    """Whether somebody else has made our namespace there."""
    others: tuple[str, ...] = ()
    """What we made there for others, models for one, and has to be gone before the cluster: `kind namespace/name`."""
    orphans: tuple[str, ...] | None = None
    """What we made there and nobody on the hub owns any more: `kind namespace/name`; None while nobody has looked."""
    spared: tuple[str, ...] = ()
    """Namespaces of tenants that stay when the cluster goes, since others have something in them."""
    unpermitted: str = ""
    """Why its gateway cannot be made to answer the hub alone."""
    forbidden: frozenset[ResourceType] = frozenset()
    """The types that we may not see there, of those that we make."""
    registered: Registered = field(default_factory=Registered)
    """Whether another InferenceCluster has it."""


@dataclass(frozen=True, slots=True)
class Secrets:
    """The Secrets with kubeconfigs that are to have our finalizer for this cluster, or to lose it."""

    mine: Key | None = None
    """The one it names, when that is there and can be kept."""
    terminating: bool = False
    """Whether that is being deleted, and is there only because it has our finalizer."""
    theirs: bool = False
    """Whether another cluster names it too."""
    unneeded: tuple[Key, ...] = ()
    """Those that have our finalizer and that no cluster names any more."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A cluster and all that was seen of it."""

    cluster: InferenceCluster
    classes: Mapping[str, InferenceClass]
    """Those that its pools name and that exist."""
    replicas: tuple[Key, ...]
    """The ModelReplicas that are placed on it."""
    state: ClusterState | None
    """None while it does not answer, and until all of it has been seen."""
    unreachable: ClientError | None
    """Why it does not answer; None while it does, or while that is being found out."""
    forbidden: ClientError | None
    """Why it does not tell us what is there, though it answers."""
    kubeconfig: ClientError | None
    """What is wrong with its kubeconfig; a connection that is there lives on."""
    connected: bool
    """Whether there is a way to it at all."""
    secrets: Secrets
    now: datetime
    helm: bool = False
    """Whether charts can be installed."""
    stack: Manifest | None = None
    """The ServingStack that we made for the cluster."""
    used_pools: frozenset[str] = frozenset()
    """The pools that those ModelReplicas run on."""
    infrastructure: Manifest | None = None
    """The object of the cloud's own kind that stands for the cluster, where a cloud makes it."""
    problem: str = ""
    """Why that object cannot be brought in line with what is asked for."""
    server: str = ""
    """The address of its API server; empty when there is no way to it."""
    unverified: str = ""
    """Why nobody can tell whether it is that cluster who answers; empty when it proves it."""
    token: Token | None = None
    """The token that we have there, when it is one that ends."""
    token_seen: datetime | None = None
    """When it was first seen here, by our own clock."""
    hub: Hub = field(default_factory=Hub)
    """The gateway that alone is to be answered."""
    answers: bool = field(default=True)
    """Whether the load balancer of its gateway takes connections for https: clouds take their time with a new port."""
    relay: tuple[Manifest, ...] = ()
    """What was made on the hub that leads to the cluster's gateway."""
    plain: int = 0
    """How many ModelEndpoints lead to the cluster by http."""
    settle: timedelta = timedelta(minutes=6)
    """How long after the last of them requests may still come by http, or be answered."""
    hub_gateway: frozenset[str] = frozenset()
    """Of the addresses that its gateway says to have, those that are the hub's own gateway's."""

    @property
    def named(self) -> str:
        """The cluster, as messages name it."""
        return f"cluster {self.cluster.metadata.name}"

    @property
    def removed_pools(self) -> tuple[Section, ...]:
        """The pools of the cloud's object that nobody asks for any more, and that stay while models run on them."""
        if self.cluster.metadata.annotations.get(labels.FORCE_DRAIN) == "true":
            return ()
        kept = self.used_pools - {pool.name for pool in self.cluster.spec.node_pools}
        return tuple(pool for pool in entries(self.infrastructure or {}, "spec", "nodePools") if pool["name"] in kept)
