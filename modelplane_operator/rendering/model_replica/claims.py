"""The devices of a member: a template from which every pod gets a claim of its own."""

from __future__ import annotations

from modelplane_operator.api import names
from modelplane_operator.api.model import Manifest
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember, ResolvedRequest
from modelplane_operator.rendering.owned import on_cluster, owner_labels


def claim_template_name(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> str:
    requests = "/".join(str(_request(request)) for request in member.device_requests)
    return names.claim_template(replica.metadata.name, engine.name, member.role.lower(), requests)


def render_claim_template(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> Manifest:
    """The ResourceClaimTemplate of a member that claims devices."""
    return {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaimTemplate",
        "metadata": on_cluster(replica, claim_template_name(replica, engine, member)),
        "spec": {
            "metadata": {"labels": owner_labels(replica)},  # a claim that cannot be met is found by them
            "spec": {"devices": {"requests": [_request(request) for request in member.device_requests]}},
        },
    }


def _request(request: ResolvedRequest) -> Manifest:
    selectors = [{"cel": {"expression": selector.cel}} for selector in request.selectors if selector.cel]
    return {
        "name": request.name,
        "exactly": {
            "deviceClassName": request.device_class_name,
            "allocationMode": "ExactCount",
            "count": request.count,
            **({"selectors": selectors} if selectors else {}),
        },
    }
