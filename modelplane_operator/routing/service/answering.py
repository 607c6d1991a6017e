"""What follows from a request of the operator's through the gateway: whether a service answers, and since when not.

One request that fails is no outage: routes change, pods are replaced, packets get lost. So of a service that was Ready
it counts only when several in a row have failed; and an operator that begins takes the word of the one before.
"""

from __future__ import annotations

from typing import Final

from kubeloop.condition_types import Ready, is_true
from modelplane_operator.api.model_service import Answering, AuthReady, ModelService
from modelplane_operator.routing.checked import Checked
from modelplane_operator.routing.service.answer import GatewayAnswer

OK: Final = range(200, 400)
FAULTS: Final = range(500, 600)


def judge(answer: GatewayAnswer, *, guarded: bool) -> tuple[Answering, str]:
    """What one request tells. `guarded`: API keys are asked for, and the request has none."""
    if not answer.connected:
        return Answering.GATEWAY_UNREACHABLE, f"From the operator's point of view the gateway {answer.lack}"
    if not answer.status:
        return Answering.NOT_ANSWERED, f"The gateway {answer.lack}"
    if answer.unrouted:
        return Answering.NOT_ANSWERED, "The gateway knows no such path (404): it, or that of a cluster, lacks the route"
    if not guarded and answer.status in FAULTS:
        return Answering.NOT_ANSWERED, f"Requests are answered with {answer.status}"
    if not guarded:
        return Answering.ANSWERED, ""  # without the status: endpoints differ, and each would be news
    if answer.key_missing:
        return Answering.KEY_ASKED, "The gateway asks for an API key, so what is behind it was not asked"
    if answer.status in OK:
        return Answering.NOT_ANSWERED, f"Requests without an API key are answered with {answer.status}"
    words = f"Requests without an API key are answered with {answer.status}, and not with the key service's 401"
    return Answering.NOT_ANSWERED, words


def answering(service: ModelService, asked: Checked[GatewayAnswer], *, guarded: bool) -> tuple[Answering, str]:
    """Whether a service with routes answers, given what was said of it last."""
    reason, words = judge(asked.answer, guarded=guarded) if asked.answer else (Answering.ASKING, "")
    if reason.status == "True" or asked.failing:
        return reason, words
    if is_true(service.conditions, Ready):
        known = next((one for one in service.conditions if one.type == Answering.__name__), None)
        said = next((one for one in Answering if known and one.reason == known.reason), Answering.ASKING)
        return said, (known.message if known else None) or ""
    return Answering.ASKING, ""  # what the first requests of a new service meet with is its gateway on the way


def unguarded(asked: Checked[GatewayAnswer], reason: Answering) -> AuthReady | None:
    """What is wrong with how keys are checked, when that is what keeps a guarded service from being answered.

    Without a key a request gets no further than to the key service.
    """
    answer = asked.answer
    if reason is not Answering.NOT_ANSWERED or answer is None or answer.unrouted:
        return None
    if answer.status in OK:
        return AuthReady.NOT_ENFORCED
    return AuthReady.KEY_SERVICE_UNAVAILABLE if answer.status in FAULTS or not answer.status else None
