"""ModelEndpoints, and what is observed of them."""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from typing import Any

from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import EVERYWHERE, Reach
from modelplane_operator.routing.endpoint.plan import Observed, plan
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.gateway.data_plane import DataPlane
from tests.support.builders import EPOCH, NAMESPACE
from tests.support.plans import carried_out

Manifest = dict[str, Any]

IP = "http://34.55.100.10/v1"


def endpoint(url: str, *, terminating: bool = False, **spec: Any) -> ModelEndpoint:
    metadata = {"name": "together", "namespace": NAMESPACE, "uid": "u"}
    when = {"deletionTimestamp": EPOCH.isoformat()} if terminating else {}
    return ModelEndpoint.parse({"metadata": {**metadata, **when}, "spec": {"url": url, **spec}})


def seen(
    subject: ModelEndpoint,
    *children: Manifest,
    plane: DataPlane = traefik,
    reach: Reach = EVERYWHERE,
    tls_policies: bool = True,
    secret: Manifest | None = None,
    routes: tuple[str, ...] = (),
    now: datetime = EPOCH,
) -> Observed:
    return Observed(subject, children, plane, reach, tls_policies, secret, recheck=30.0, routes=routes, now=now)


def settled(observed: Observed) -> Observed:
    """The same once the steps of its plan are carried out."""
    return replace(observed, children=carried_out(plan(observed), observed.children))
