"""Plan the hub gateway: the Gateway to which all models' routes attach and, with Helm, its software."""

from __future__ import annotations

from kubeloop.plan import Plan
from modelplane_operator.routing.gateway.plan.gateway import serve
from modelplane_operator.routing.gateway.plan.observed import Observed as Observed
from modelplane_operator.routing.gateway.plan.software import install, leave, teardown


def plan(observed: Observed) -> Plan:
    """Return the plan of an InferenceGateway: install and serve, or remove."""
    if observed.gateway.metadata.deletion_timestamp is None:
        served = serve(observed)
        return (
            install(observed, observed.charts, served)
            if observed.charts and observed.served and observed.installs
            else served
        )
    if observed.charts is None:
        return leave(observed) if observed.has_finalizer else serve(observed)
    return teardown(observed, observed.charts) if observed.has_finalizer else Plan()
