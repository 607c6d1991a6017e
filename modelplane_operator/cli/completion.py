"""Shell completion of names on the hub. Nothing is completed while the hub cannot be read."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

Completion = Callable[[typer.Context, str], Sequence[str]]
"""Function that returns the names for an incomplete word, given the options before it."""


def models(context: typer.Context, incomplete: str) -> Sequence[str]:
    """Complete ModelDeployments in the chosen namespace, or after `NAMESPACE/`."""
    from modelplane_operator.api import ModelDeployment  # noqa: PLC0415 - imported late: slows down every command otherwise
    from modelplane_operator.cli.known import names  # noqa: PLC0415 - the same

    return names(ModelDeployment, context.params, incomplete)


def clusters(context: typer.Context, incomplete: str) -> Sequence[str]:
    """Complete InferenceClusters."""
    from modelplane_operator.api import InferenceCluster  # noqa: PLC0415 - imported late: slows down every command otherwise
    from modelplane_operator.cli.known import names  # noqa: PLC0415 - the same

    return names(InferenceCluster, context.params, incomplete)
