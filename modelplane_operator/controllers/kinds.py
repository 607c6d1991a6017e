"""Which kinds the operator runs: one line for each, and what they need beside their controllers."""

from __future__ import annotations

from modelplane_operator.controllers.world import Kinds, World


def kinds(_: World) -> Kinds:
    return Kinds()
