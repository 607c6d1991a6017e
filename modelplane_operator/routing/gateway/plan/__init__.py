"""Plan the hub gateway: the Gateway to which all models' routes attach and, with Helm, its software."""

from __future__ import annotations

from kubeloop.plan import Plan
from modelplane_operator.routing.gateway.plan.gateway import serve
from modelplane_operator.routing.gateway.plan.observed import Observed as Observed
from modelplane_operator.routing.gateway.plan.software import install, leave, teardown


def plan(seen: Observed) -> Plan:
    """Return the plan of an InferenceGateway: install and serve, or remove."""
    if seen.gateway.metadata.deletion_timestamp is None:
        served = serve(seen)
        return install(seen, seen.charts, served) if seen.charts and seen.served and seen.installs else served
    if seen.charts is None:
        return leave(seen) if seen.held else serve(seen)
    return teardown(seen, seen.charts) if seen.held else Plan()
