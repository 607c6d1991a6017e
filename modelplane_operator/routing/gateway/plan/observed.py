"""What was seen of an InferenceGateway."""

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
    """An InferenceGateway, what surrounds it, and its software."""

    gateway: InferenceGateway
    children: tuple[Manifest, ...]
    namespace: bool
    """Whether the namespace of its Gateway exists."""
    now: datetime
    secrets: tuple[Manifest, ...] = ()
    """Those that hold its certificates."""
    charts: ObservedCharts | None = None
    """None where somebody else installs the software: then nothing of the following was looked for."""
    taken: frozenset[str] = frozenset()
    """Namespaces that are somebody else's, and in which we install all the same."""
    definitions: tuple[Manifest, ...] = ()
    """Those of the Gateway API's kinds that are to be applied."""
    balancer: str = ""
    """The load balancer, while it is being taken away."""
    allowed: Allowed = EVERYTHING
    key_paths: Manifest | None = None
    """The Secret that signs where the key service is asked."""
    unsigned: bool = False
    """Whether guards of ModelServices ask at a path that is not signed."""

    @property
    def served(self) -> bool:
        """Whether models are served through this one."""
        return self.gateway.key.name == names.DEFAULT_GATEWAY

    @property
    def held(self) -> bool:
        return labels.FINALIZER in self.gateway.metadata.finalizers

    @property
    def installs(self) -> bool:
        """Whether what answers requests is ours. What was there before Helm was is somebody else's, and stays so."""
        return self.charts is not None and (self.held or not self.children or bool(self.charts.releases))
