"""Names that a shell completes, as the hub knows them; none where it cannot be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import typer

Completion = Callable[[typer.Context, str], Sequence[str]]


def models(context: typer.Context, incomplete: str) -> Sequence[str]:
    """Of ModelDeployments, in the namespace that is chosen, or after NAMESPACE/."""
    from modelplane_operator.api import ModelDeployment  # noqa: PLC0415 - no command needs it to begin
    from modelplane_operator.cli.known import names  # noqa: PLC0415 - the same

    return names(ModelDeployment, context.params, incomplete)


def clusters(context: typer.Context, incomplete: str) -> Sequence[str]:
    """Of InferenceClusters."""
    from modelplane_operator.api import InferenceCluster  # noqa: PLC0415 - no command needs it to begin
    from modelplane_operator.cli.known import names  # noqa: PLC0415 - the same

    return names(InferenceCluster, context.params, incomplete)
