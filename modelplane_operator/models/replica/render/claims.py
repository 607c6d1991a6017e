"""The devices of a member: a template from which every pod gets a claim of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeloop.objects import Manifest
from modelplane_operator.api import names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember, ResolvedRequest
from modelplane_operator.owned import on_cluster, owner_labels

LARGEST_CLAIM: Final = 32  # devices: what Kubernetes allocates for one claim
CLAIM: Final = "devices"


def pod_claims(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> dict[str, str]:
    """What each claim of a pod is called in the pod, and the template that it is made from."""
    claims = _claims(member.device_requests)
    return {
        f"{CLAIM}-{number}" if number else CLAIM: _template_name(replica, engine, member, requests)
        for number, requests in enumerate(claims)
    }


def render_claim_templates(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> tuple[Manifest, ...]:
    """The ResourceClaimTemplates of a member: none when it claims nothing, one unless it claims very much."""
    claims = _claims(member.device_requests)
    templates = {_template_name(replica, engine, member, requests): requests for requests in claims}
    return tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": on_cluster(replica, name),
            "spec": {
                "metadata": {"labels": owner_labels(replica)},  # a claim that cannot be met is found by them
                "spec": {"devices": {"requests": list(requests)}},
            },
        }
        for name, requests in templates.items()
    )


def _template_name(
    replica: ModelReplica, engine: PlacedEngine, member: PlacedMember, requests: Sequence[Manifest]
) -> str:
    content = "/".join(map(str, requests))
    return names.claim_template(replica.metadata.name, engine.name, member.role.lower(), content)


def _claims(requests: Sequence[ResolvedRequest]) -> Sequence[Sequence[Manifest]]:
    """The requests, by the claims that are made of them. Nothing ties devices of one claim together, so that those of
    two are as good; a request for more than a claim holds stands in several."""
    claims: list[list[Manifest]] = []
    room = 0
    for request in requests:
        left = request.count
        while left:
            part = min(left, LARGEST_CLAIM)
            if part > room:
                claims.append([])
                room = LARGEST_CLAIM
            claims[-1].append(_request(request, part))
            room, left = room - part, left - part
    return claims


def _request(request: ResolvedRequest, count: int) -> Manifest:
    selectors = [{"cel": {"expression": selector.cel}} for selector in request.selectors if selector.cel]
    return {
        "name": request.name,
        "exactly": {
            "deviceClassName": request.device_class_name,
            "allocationMode": "ExactCount",
            "count": count,
            **({"selectors": selectors} if selectors else {}),
        },
    }
