"""A ModelService as it is written: whether anything would answer for it."""

from __future__ import annotations

from kubeloop.verdict import NOTHING, Verdict
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.service.selection import Neighbours, why_none


def judge(new: ModelService, old: ModelService | None, near: Neighbours | None) -> Verdict:
    """`near`: what is in its namespace when it selects no endpoint; None when it selects some."""
    if near is None or (old is not None and old.spec.endpoints == new.spec.endpoints):
        return NOTHING
    return Verdict(warnings=(why_none(new, near),))
