"""A ModelEndpoint as it is written: whether its URL may be dialled."""

from __future__ import annotations

from kubeloop.verdict import NOTHING, Verdict
from kubeloop.words import sentence
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import InvalidUrl, Reach, parse_url


def judge(new: ModelEndpoint, old: ModelEndpoint | None, reach: Reach) -> Verdict:
    """`reach`: where the endpoints of users may lead. What a name resolves to is found out later."""
    if old is not None and old.spec.url == new.spec.url:
        return NOTHING
    found = parse_url(new.spec.url, reach)
    return Verdict((sentence(found.message),)) if isinstance(found, InvalidUrl) else NOTHING
