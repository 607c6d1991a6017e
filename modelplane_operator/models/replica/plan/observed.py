"""What is seen of a replica before anything is decided about it."""

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

REQUEUE_SOON = 0.5  # until the first lists of its cluster are in
WORKLOADS = frozenset({DEPLOYMENT, LEADER_WORKER_SET})


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The replica's cluster, as far as it is known at the moment."""

    exists: bool = True
    """Whether there is an InferenceCluster of that name, or a connection left over from one."""
    connected: bool = True
    """Whether what was seen there can be relied on. Otherwise nothing is decided about it."""
    error: ClientError | None = None
    """Why it cannot be reached; None while it can, or while that is being found out."""
    serving: bool = True
    """Whether its gateway answers: models may do so while the API server does not."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A replica and all that was seen of it."""

    replica: ModelReplica
    cluster: ClusterState
    around: Context
    children: tuple[Manifest, ...]
    """What we applied on the cluster for this replica."""
    pods: tuple[Manifest, ...]
    namespace: Manifest | None
    """The namespace on the cluster, when no other replica needs it."""
    fences: tuple[Manifest, ...]
    """What we have put around that namespace; it goes with it."""
    lifecycle: Lifecycle
    now: datetime
    nodes: Unfit = ALL_FIT
    """The nodes of its cluster on which pods do not run, or get no more."""
    held: str = ""
    """Why its workloads are not to be made yet: the weights are not there. What runs already is left to it."""
    of_others: tuple[str, ...] = ()
    """What others have in that namespace, which then stays: nobody else's is deleted with ours."""

    @property
    def routes(self) -> Sequence[Manifest]:
        return [child for child in self.children if type_of(child) == HTTP_ROUTE]

    @property
    def picker_policy(self) -> Manifest | None:
        """What has the cluster's gateway ask the replica's endpoint picker; None where it has none."""
        return next((child for child in self.children if type_of(child) == ENVOY_EXTENSION_POLICY), None)

    @property
    def picker_refusal(self) -> str:
        """Why the cluster's gateway does not ask the endpoint picker, which is there; empty when it does.

        It refuses to ask one that has no pods, too, which says nothing of the gateway.
        """
        return refusal(self.picker_policy) if self.picker_policy and self.picker_answers else ""

    @property
    def picker_answers(self) -> bool:
        """True if a pod of the endpoint picker is ready, of this version's, which the gateway can ask."""
        ours = picker_pods(self.replica).items()
        return any(self.runs(pod) for pod in self.pods if ours <= labels_of(pod).items())

    def is_pickers(self, manifest: Manifest) -> bool:
        """Whether it is the picker's workload, or a pod of it."""
        name = names.picker(self.replica.metadata.name)
        return manifest["metadata"]["name"] == name or labels_of(manifest).get(labels.PICKER_APP) == name

    def runs(self, pod: Manifest) -> bool:
        """Whether a pod is ready, and its node too: of one that is silent, nobody knows."""
        return is_ready(pod) and not self.nodes.under(pod)
