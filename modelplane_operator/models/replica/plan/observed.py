"""Hold what the plan of a ModelReplica reads, gathered by its controller."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from kubeloop.errors import ClientError
from kubeloop.objects import Manifest, labels_of
from kubeloop.types import DEPLOYMENT, ENVOY_EXTENSION_POLICY, HTTP_ROUTE, LEADER_WORKER_SET, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.replica.plan.nodes import Unfit
from modelplane_operator.models.replica.plan.symptoms import ALL_FIT, is_ready, refusal
from modelplane_operator.models.replica.render import Context, Lifecycle, picker_pods

REQUEUE_SOON = 0.5
"""Seconds to wait for the first lists of a cluster."""
WORKLOADS = frozenset({DEPLOYMENT, LEADER_WORKER_SET})
"""Types of the objects that own an engine's pods."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The connection to the replica's cluster at the moment of the plan."""

    exists: bool = True
    """True if there is an InferenceCluster of that name, or a connection that remains from one."""
    connected: bool = True
    """True if the informers of the cluster can be relied on. Otherwise the plan decides nothing from them."""
    error: ClientError | None = None
    """Reason why the cluster is unreachable; None while it is reachable or not yet probed."""
    serving: bool = True
    """True if the gateway of the cluster answers: models may serve while the API server does not."""
    silence: str = ""
    """Why no request reaches the replica through that gateway, as a message; empty while they do."""


@dataclass(frozen=True, slots=True)
class Awaited:
    """Weights that are not complete on a cluster yet."""

    message: str
    """How far they are, and what is wrong."""
    reason: str = ""
    """Reason why they do not come without help; "" while they are on their way."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A replica, its objects and pods on its cluster, and the state of that cluster."""

    replica: ModelReplica
    """Replica as its spec and its last status describe it."""
    cluster: ClusterState
    """State of the connection to the replica's cluster."""
    around: Context
    """Facts that rendering needs: the tenant's namespace, optional APIs, copied objects, isolation and images."""
    children: tuple[Manifest, ...]
    """Objects that the operator applied on the cluster for this replica."""
    pods: tuple[Manifest, ...]
    """Pods on the cluster that carry the replica's labels."""
    namespace: Manifest | None
    """The namespace on the cluster if no other replica needs it, else None."""
    fences: tuple[Manifest, ...]
    """Isolation policies that the operator applied in that namespace; they go with it."""
    lifecycle: Lifecycle
    """Times that an engine has to start, drain and end."""
    now: datetime
    nodes: Unfit = ALL_FIT
    """Nodes of the cluster's pools that are not ready or are cordoned."""
    awaited: Awaited | None = None
    """Weights that workloads wait for, or None. Existing workloads stay."""
    of_others: tuple[str, ...] = ()
    """Foreign objects in the namespace, as `kind name`. The namespace stays while there are any."""

    @property
    def routes(self) -> Sequence[Manifest]:
        """Return the HTTPRoutes of the replica."""
        return [child for child in self.children if type_of(child) == HTTP_ROUTE]

    @property
    def picker_policy(self) -> Manifest | None:
        """Return the policy that makes the cluster's gateway ask the endpoint picker, or None without one."""
        return next((child for child in self.children if type_of(child) == ENVOY_EXTENSION_POLICY), None)

    @property
    def picker_refusal(self) -> str:
        """Return why the gateway does not ask a ready endpoint picker; "" if it does.

        A gateway also rejects a picker that has no pods. That says nothing about the gateway, so it counts as "".
        """
        return refusal(self.picker_policy) if self.picker_policy and self.picker_answers else ""

    @property
    def picker_answers(self) -> bool:
        """True if a pod of the endpoint picker, with the labels of this version, is ready."""
        own_labels = picker_pods(self.replica).items()
        return any(self.runs(pod) for pod in self.pods if own_labels <= labels_of(pod).items())

    def is_pickers(self, manifest: Manifest) -> bool:
        """True if an object is the endpoint picker's workload or one of its pods."""
        name = names.picker(self.replica.metadata.name)
        return manifest["metadata"]["name"] == name or labels_of(manifest).get(labels.PICKER_APP) == name

    def runs(self, pod: Manifest) -> bool:
        """True if a pod and its node are ready. The state of a pod on a silent node is unknown."""
        return is_ready(pod) and not self.nodes.under(pod)
