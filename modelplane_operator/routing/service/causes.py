"""Explain in the status of a service why requests fail, and which part of it is missing."""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.condition_types import Ready
from kubeloop.words import count_of
from modelplane_operator.api import names
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import AuthReady, ModelService
from modelplane_operator.routing.endpoint.plan import DOUBT
from modelplane_operator.routing.service.weights import WeightedEndpoint

MAX_NAMES = 3  # the number of items of a kind in a message


def describe_cause(routed: Sequence[WeightedEndpoint], auth: tuple[AuthReady, str] | None) -> str:
    """Return why requests fail, as the end of a sentence: the first endpoint that has a problem, or where to look."""
    if auth and auth[0].status != "True":
        return f". {auth[1]}"
    for member in routed:
        ready = next((item for item in member.endpoint.conditions if item.type == Ready.__name__), None)
        message = (ready.message if ready else None) or ""
        problem = message.partition(DOUBT)[2] if ready and ready.status == "True" else message
        if ready and (problem or ready.status != "True"):
            return f": endpoint {_describe_endpoint(member)}: {problem or ready.reason}"
    if len(routed) == 1:
        return f": endpoint {_describe_endpoint(routed[0])} takes connections, so look at the log of the server there"
    return f": {count_of(len(routed), 'endpoint')} take connections, so look at the logs of the servers there"


def _describe_endpoint(member: WeightedEndpoint) -> str:
    """Return the name of an endpoint and where it leads."""
    return f"{member.endpoint.key.name} ({member.target.backend})"


def describe_gateway(*, exists: bool) -> str:
    """Return what is missing of the hub gateway."""
    name = f"InferenceGateway {names.DEFAULT_GATEWAY}"
    if not exists:
        return f"{name} does not exist: create it, as models get no requests without it"
    return f"Starting (waiting for: {name} to have an address; see its condition Ready)"


def describe_partial(
    service: ModelService, groups: Sequence[Sequence[ModelEndpoint]], routed: Sequence[WeightedEndpoint]
) -> str:
    """Return the message with the entries that have no usable endpoint; empty if there are none."""
    routed_keys = {member.endpoint.key for member in routed}
    empty_entries = [
        ",".join(f"{name}={value}" for name, value in sorted(entry.selector.match_labels.items())) or "every endpoint"
        for entry, group in zip(service.spec.endpoints, groups, strict=True)
        if not any(endpoint.key in routed_keys for endpoint in group)
    ]
    if not empty_entries:
        return ""
    total, suffix = (
        len(groups),
        f", and {len(empty_entries) - MAX_NAMES} more" if len(empty_entries) > MAX_NAMES else "",
    )
    examples = "; ".join(empty_entries[:MAX_NAMES])
    entries = count_of(total, "entry", "entries")
    return (
        f"{total - len(empty_entries)} of {entries} with an endpoint that can answer. Without one: {examples}{suffix}"
    )
