"""ModelEndpoint: what to read and who wakes it."""

from __future__ import annotations

from modelplane_operator.api.base import Key
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.clients.resources import BACKEND_TLS_POLICY, ENDPOINT_SLICE, SECRET, SERVICE
from modelplane_operator.clients.secrets import Originals
from modelplane_operator.controllers.loop import Clients, Controller
from modelplane_operator.controllers.reading import applied
from modelplane_operator.controllers.wiring import owner_of_kind
from modelplane_operator.planning.model_endpoint import Observed, plan
from modelplane_operator.rendering.backend_url import Reach

CHILDREN = (SERVICE, ENDPOINT_SLICE, BACKEND_TLS_POLICY)


def controller(reach: Reach, originals: Originals) -> Controller[ModelEndpoint, Observed]:
    """The controller, given where endpoints may lead and how Secrets are read."""

    async def observe(endpoint: ModelEndpoint, clients: Clients) -> Observed:
        policies, credentials = clients.hub.find(BACKEND_TLS_POLICY), endpoint.spec.credentials
        secret = Key(endpoint.key.namespace, credentials.secret_ref.name) if credentials else None
        return Observed(
            endpoint,
            tuple(applied(clients.hub, CHILDREN, endpoint.metadata.uid or "")),
            reach,
            tls_policies=policies is not None and policies.served,
            secret=await originals.find(SECRET, secret) if secret else None,
            recheck=originals.recheck,
            now=clients.now(),
        )

    woken_by = dict.fromkeys(CHILDREN, owner_of_kind(ModelEndpoint.definition.kind))
    return Controller(ModelEndpoint, observe, plan, woken_by=woken_by)
