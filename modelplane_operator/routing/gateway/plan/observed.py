"""The observed state of an InferenceGateway: the input of its plan."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from kubeloop.objects import Manifest
from modelplane_operator.api import labels, names
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.clusters.stack.chart_states import ObservedCharts
from modelplane_operator.routing.gateway.data_plane import EVERYTHING, Allowed


@dataclass(frozen=True, slots=True)
class Observed:
    """An InferenceGateway with its observed objects and software."""

    gateway: InferenceGateway
    """InferenceGateway as its spec and its last status describe it."""
    children: tuple[Manifest, ...]
    """Objects on the hub that the operator applied for it, without Secrets."""
    namespace: bool
    """True if the namespace of its Gateway exists."""
    now: datetime
    secrets: tuple[Manifest, ...] = ()
    """The Secrets with its certificates and authorities."""
    fault: str = ""
    """The reason why the Secret of the hub gateway does not hold the certificate that the operator issued."""
    charts: ObservedCharts | None = None
    """Its Helm releases; None without Helm, in which case the following fields are not observed."""
    taken: frozenset[str] = frozenset()
    """Namespaces of other owners in which charts are installed nevertheless."""
    definitions: tuple[Manifest, ...] = ()
    """Definitions of the Gateway API that must be applied."""
    balancer: str = ""
    """The load balancer, while it is being deleted."""
    allowed: Allowed = EVERYTHING
    """The permissions that the hub's settings give the software."""
    key_paths: Manifest | None = None
    """The Secret that signs the paths of the key service."""
    unsigned: bool = False
    """True if guards of ModelServices use an unsigned path."""

    @property
    def served(self) -> bool:
        """True if models are served through this InferenceGateway."""
        return self.gateway.key.name == names.DEFAULT_GATEWAY

    @property
    def has_finalizer(self) -> bool:
        """True if it has the operator's finalizer."""
        return labels.FINALIZER in self.gateway.metadata.finalizers

    @property
    def installs(self) -> bool:
        """True if the operator installs the software. Foreign software that was there first stays so."""
        return self.charts is not None and (self.has_finalizer or not self.children or bool(self.charts.releases))
