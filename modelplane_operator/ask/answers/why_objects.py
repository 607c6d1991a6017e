"""Explain the state of a ModelService or an LLMInference: what it needs, what is missing, and what would help."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kubeloop.words import sentence
from modelplane_operator.api import LLMInference, ModelDeployment, ModelEndpoint, ModelService, labels
from modelplane_operator.api.remedies import remedy
from modelplane_operator.ask.answers.documents import Explanation, NeededObject, ObjectExplanation
from modelplane_operator.ask.answers.fixes import MOST
from modelplane_operator.ask.answers.snapshot import ready
from modelplane_operator.ask.answers.why import (
    STARTING,
    describe_missing_routes,
    describe_pause,
    is_ready,
    ready_message,
    selects,
)

Explained = ModelService | LLMInference


def find_deployments(item: Explained, deployments: Iterable[ModelDeployment]) -> Sequence[ModelDeployment]:
    """Return the deployments that a service selects, or the one of an LLMInference."""
    if isinstance(item, ModelService):
        return [deployment for deployment in deployments if selects(item, deployment, ())]
    return [deployment for deployment in deployments if deployment.key == item.key and item.spec.placement == "Fleet"]


def explain_object(
    item: Explained,
    services: Iterable[ModelService],
    endpoints: Iterable[ModelEndpoint],
    explanations: Sequence[Explanation],
) -> ObjectExplanation:
    """Return the explanation of an object, with those of its deployments."""
    kind, state = item.definition.kind, ready(item.conditions)
    parts = [
        NeededObject(
            "ModelDeployment", explanation.name, explanation.ready, "" if explanation.ready else explanation.reason
        )
        for explanation in explanations
    ]
    if isinstance(item, ModelService):
        deployed = {explanation.name for explanation in explanations}
        parts += (_describe(endpoint) for endpoint in endpoints if _is_external(item, endpoint, deployed))
    else:
        parts += (_describe(service) for service in services if service.key == item.key)
    failing = next(
        (explanation for explanation in explanations if not explanation.ready or not explanation.desired), None
    )
    pause, resume = describe_pause(item)
    clauses = [pause, *(describe_missing_routes(item) if isinstance(item, ModelService) else ())]
    if failing is not None and not is_ready(item.conditions):
        # The parent's own message only repeats that a part is not Ready; the part has the cause.
        clauses.insert(0, f"ModelDeployment {failing.name}: {failing.cause}")
    else:
        clauses.insert(0, (state.message or state.reason) if state else STARTING)
    return ObjectExplanation(
        object_kind=kind,
        namespace=item.key.namespace,
        name=item.key.name,
        ready=is_ready(item.conditions),
        reason=state.reason if state else "NotReconciled",
        since=state.last_transition_time if state else None,
        cause=sentence(*clauses),
        help=tuple(dict.fromkeys(filter(None, (resume, *_advise(item, failing)))))[:MOST],
        url=((item.status.address if isinstance(item, ModelService) else item.status.url) if item.status else "") or "",
        parts=tuple(parts),
    )


def _advise(item: Explained, failing: Explanation | None) -> Iterable[str]:
    """Yield what helps the deployment that is not Ready, or else the remedies of the object's own conditions."""
    if is_ready(item.conditions):
        return
    if failing is not None:
        yield from failing.help
        yield f"See more of it: modelplane why {failing.namespace}/{failing.name}"
        return
    conditions = [condition for condition in item.conditions if condition.status != "True"]
    # Ready repeats the reason of another condition where it can, so its remedy is the most specific one.
    for condition in sorted(conditions, key=lambda condition: condition.type != "Ready"):
        yield remedy(item.definition.kind, condition)


def _is_external(service: ModelService, endpoint: ModelEndpoint, deployed: set[str]) -> bool:
    """True if the service selects an endpoint that belongs to none of the explained deployments."""
    carried = endpoint.metadata.labels
    return carried.get(labels.DEPLOYMENT) not in deployed and any(
        entry.selector.match_labels.items() <= carried.items() for entry in service.spec.endpoints
    )


def _describe(item: ModelEndpoint | ModelService) -> NeededObject:
    """Return an object as a part."""
    return NeededObject(item.definition.kind, item.key.name, is_ready(item.conditions), ready_message(item.conditions))
