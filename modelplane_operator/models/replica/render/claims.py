"""Render the ResourceClaimTemplates of an engine's member; each pod gets claims of its own from them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from kubeloop.objects import Manifest
from kubeloop.ownership import owner_labels
from modelplane_operator.api import names
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine, PlacedMember, ResolvedRequest
from modelplane_operator.owned import on_cluster

LARGEST_CLAIM: Final = 32  # the API's AllocationResultsMaxSize
"""Number of devices that Kubernetes allocates for one claim."""
CLAIM: Final = "devices"
"""Name of a pod's first claim."""


def pod_claims(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> dict[str, str]:
    """Return the templates of a pod's claims by the name of each claim in the pod."""
    claims = _split_into_claims(member.device_requests)
    return {
        f"{CLAIM}-{number}" if number else CLAIM: _name_template(replica, engine, member, requests)
        for number, requests in enumerate(claims)
    }


def render_claim_templates(replica: ModelReplica, engine: PlacedEngine, member: PlacedMember) -> tuple[Manifest, ...]:
    """Render the templates of a member: none without device requests, several if they exceed LARGEST_CLAIM."""
    claims = _split_into_claims(member.device_requests)
    templates = {_name_template(replica, engine, member, requests): requests for requests in claims}
    return tuple(
        {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": on_cluster(replica, name),
            "spec": {
                "metadata": {
                    "labels": owner_labels(replica)
                },  # claims that cannot be allocated are found by these labels
                "spec": {"devices": {"requests": list(requests)}},
            },
        }
        for name, requests in templates.items()
    )


def _name_template(
    replica: ModelReplica, engine: PlacedEngine, member: PlacedMember, requests: Sequence[Manifest]
) -> str:
    """Return the name of a template, which depends on its content: templates are immutable."""
    content = "/".join(map(str, requests))
    return names.claim_template(replica.metadata.name, engine.name, member.role.lower(), content)


def _split_into_claims(requests: Sequence[ResolvedRequest]) -> Sequence[Sequence[Manifest]]:
    """Distribute device requests over claims. A request that exceeds one claim is split over several.

    Any split is valid, because no request ties devices of one claim together.
    """
    claims: list[list[Manifest]] = []
    free = 0
    for request in requests:
        remaining = request.count
        while remaining:
            count = min(remaining, LARGEST_CLAIM)
            if count > free:
                claims.append([])
                free = LARGEST_CLAIM
            claims[-1].append(_render_request(request, count))
            free, remaining = free - count, remaining - count
    return claims


def _render_request(request: ResolvedRequest, count: int) -> Manifest:
    """Render a request of a claim for `count` devices."""
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
