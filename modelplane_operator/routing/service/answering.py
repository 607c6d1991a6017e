"""Evaluate the operator's requests through the gateway: does a service respond?

One failed request is no outage: routes change, pods are replaced, packets get lost. A service that was Ready loses that
only after several failures in a row, and a new leader keeps the last result of the old one.
"""

from __future__ import annotations

from typing import Final

from kubeloop.condition_types import Ready, is_true
from modelplane_operator.api.model_service import Answering, AuthReady, ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service.answer import GatewayAnswer

OK: Final = range(200, 400)
FAULTS: Final = range(500, 600)


def evaluate(answer: GatewayAnswer, *, guarded: bool) -> tuple[Answering, str]:
    """Return the result of one request.

    `guarded`: True if the gateway should require an API key, which the request does not have.
    """
    if not answer.connected:
        return Answering.GATEWAY_UNREACHABLE, f"The operator's own connection fails: the hub's gateway {answer.lack}"
    if not answer.status:
        return Answering.NOT_ANSWERED, f"Requests fail: the hub's gateway {answer.lack}"
    if answer.unrouted:
        return (
            Answering.NOT_ANSWERED,
            "Requests fail with 404: the hub's gateway, or a cluster's, has not loaded the route",
        )
    if not guarded and answer.status in FAULTS:
        return Answering.NOT_ANSWERED, f"Requests fail with {answer.status}"
    if not guarded:
        # without the HTTP status, which differs between endpoints and would change the condition each time
        return Answering.ANSWERED, ""
    if answer.key_missing:
        return (
            Answering.KEY_ASKED,
            "The gateway requires an API key, as it should; the operator sent none, so its check went no further",
        )
    if answer.status in OK:
        return (
            Answering.NOT_ANSWERED,
            f"Requests without an API key get {answer.status}: the gateway does not require one",
        )
    message = f"Requests fail: without an API key they get {answer.status}, and not the key service's 401"
    return Answering.NOT_ANSWERED, message


def compute_answering(service: ModelService, check: Checked[GatewayAnswer], *, guarded: bool) -> tuple[Answering, str]:
    """Return the Answering reason and message of a service with routes, by the last requests and the last status."""
    reason, message = evaluate(check.answer, guarded=guarded) if check.answer else (Answering.ASKING, "")
    if reason.status == "True" or check.failing:
        return reason, message
    if is_true(service.conditions, Ready):
        previous = next((item for item in service.conditions if item.type == Answering.__name__), None)
        previous_reason = next(
            (item for item in Answering if previous and item.reason == previous.reason), Answering.ASKING
        )
        return previous_reason, (previous.message if previous else None) or ""
    return Answering.ASKING, ""  # the first requests of a new service fail until its gateway has loaded the route


def find_key_service_problem(check: Checked[GatewayAnswer], reason: Answering) -> AuthReady | None:
    """Return the problem of the key service, if that is why a guarded service does not respond; else None.

    A request without a key reaches no further than the key service.
    """
    answer = check.answer
    if reason is not Answering.NOT_ANSWERED or answer is None or answer.unrouted:
        return None
    if answer.status in OK:
        return AuthReady.NOT_ENFORCED
    return AuthReady.KEY_SERVICE_UNAVAILABLE if answer.status in FAULTS or not answer.status else None
