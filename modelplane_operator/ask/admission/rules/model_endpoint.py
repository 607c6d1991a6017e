"""Review a ModelEndpoint: may its URL be dialled?"""

from __future__ import annotations

from kubeloop.verdict import NOTHING, Verdict
from kubeloop.words import sentence
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.routing.endpoint.backend_url import InvalidUrl, Reach, parse_url


def judge(new: ModelEndpoint, old: ModelEndpoint | None, reach: Reach) -> Verdict:
    """Return the verdict. `reach` restricts users' endpoints. The addresses of a host name are checked later."""
    if old is not None and old.spec.url == new.spec.url:
        return NOTHING
    url = parse_url(new.spec.url, reach)
    return Verdict((sentence(url.message),)) if isinstance(url, InvalidUrl) else NOTHING
