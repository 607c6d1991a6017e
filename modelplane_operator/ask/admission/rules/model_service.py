"""Review a ModelService: does it select any endpoint?"""

from __future__ import annotations

from kubeloop.verdict import NOTHING, Verdict
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.service.selection import Neighbours, explain_no_endpoints


def judge(new: ModelService, old: ModelService | None, near: Neighbours | None) -> Verdict:
    """Return the verdict. `near` are the objects in its namespace if it selects no endpoint, else None."""
    if near is None or (old is not None and old.spec.endpoints == new.spec.endpoints):
        return NOTHING
    return Verdict(warnings=(explain_no_endpoints(new, near),))
