"""ModelServices, and what is observed of them."""

from __future__ import annotations

import base64
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from hypothesis import strategies as st

from kubeloop.types import HTTP_ROUTE, type_of
from modelplane_operator.api.auth import Auth
from modelplane_operator.api.inference_gateway import InferenceGateway
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService, ModelServiceStatus
from modelplane_operator.routing.gateway import traefik
from modelplane_operator.routing.service.plan import Observed, plan
from tests.support.builders import EPOCH, NAMESPACE
from tests.support.plans import carried_out

Manifest = dict[str, Any]
URL = "http://10.0.0.1/v1"
GONE = EPOCH.isoformat()


def service(*entries: tuple[int, str], terminating: bool = False) -> ModelService:
    """An entry: its weight, and the group of endpoints that it selects."""
    wanted = [{"weight": weight, "selector": {"matchLabels": {"group": group}}} for weight, group in entries]
    metadata = {"name": "test-service", "namespace": NAMESPACE, "uid": "u"}
    when = {"deletionTimestamp": GONE} if terminating else {}
    return ModelService.parse({"metadata": {**metadata, **when}, "spec": {"endpoints": wanted}})


def endpoint(
    name: str, group: str = "a", url: str = URL, *, routed: str | None = "", terminating: bool = False, **spec: Any
) -> ModelEndpoint:
    """An endpoint that has a backend. `routed`: where that leads, if not to its URL; None: it has none yet."""
    metadata = {"name": name, "namespace": NAMESPACE, "labels": {"group": group}}
    status = {} if routed is None else {"routing": {"backendName": "svc", "url": routed or url}}
    when = {"deletionTimestamp": GONE} if terminating else {}
    return ModelEndpoint.parse(
        {"metadata": {**metadata, **when}, "spec": {"url": url, "rewritePath": "/v1/", **spec}, "status": status}
    )


def gateway(address: str | None = "34.55.100.10") -> InferenceGateway:
    spec = {"backend": "Traefik", "traefik": {"version": "40.2.0"}}
    status = {"address": address} if address else {}
    return InferenceGateway.parse({"metadata": {"name": "default"}, "spec": spec, "status": status})


def seen(
    subject: ModelService,
    *endpoints: ModelEndpoint,
    behind: InferenceGateway | None = gateway(),  # noqa: B008 - frozen
    secrets: Mapping[str, Manifest] | None = None,
) -> Observed:
    return Observed(subject, endpoints, secrets or {}, behind, (), recheck=30.0, now=EPOCH)


def written(observed: Observed) -> Observed:
    """The same once the steps of its plan are carried out, and before the gateway has looked at it."""
    return replace(observed, children=carried_out(plan(observed), observed.children))


def judged(observed: Observed, **said: str) -> Observed:
    """The same once the gateway has looked at every route: Accepted and ResolvedRefs, if not said otherwise."""
    aspects = {"Accepted": "True", "ResolvedRefs": "True", **said}
    return replace(observed, children=tuple(judged_child(child, aspects) for child in observed.children))


def judged_child(child: Manifest, aspects: Mapping[str, str]) -> Manifest:
    if type_of(child) != HTTP_ROUTE:
        return child
    generation = child["metadata"]["generation"]
    conditions = [
        {
            "type": name,
            "status": status,
            "reason": f"{name}{status}",
            "message": "why",
            "observedGeneration": generation,
        }
        for name, status in aspects.items()
    ]
    refused = [{**one, "status": "False"} for one in conditions]
    theirs = {"parentRef": {"name": "another"}, "controllerName": traefik.CONTROLLER, "conditions": refused}
    ours = {"parentRef": child["spec"]["parentRefs"][0], "controllerName": traefik.CONTROLLER, "conditions": conditions}
    before = {**ours, "controllerName": "example.com/of-another-hub-gateway", "conditions": refused}
    return {**child, "status": {"parents": [theirs, ours, before]}}


def settled(observed: Observed) -> Observed:
    return judged(written(observed))


def status(observed: Observed) -> ModelServiceStatus:
    found = plan(observed).status
    assert isinstance(found, ModelServiceStatus)
    return found


def keys_of(*secrets: str) -> Auth:
    return Auth.model_validate({"apiKeys": {"secretRefs": [{"name": name} for name in secrets]}})


def secret(**data: str) -> Manifest:
    return {"data": {name: base64.b64encode(value.encode()).decode() for name, value in data.items()}}


endpoints = st.lists(
    st.builds(
        endpoint,
        st.sampled_from([f"e{number}" for number in range(40)]),
        st.sampled_from("ab"),
        routed=st.sampled_from(["", "", None, "https://api.groq.com:8443"]),
        terminating=st.sampled_from([False, False, True]),
    ),
    max_size=40,
    unique_by=lambda one: one.key,
)
