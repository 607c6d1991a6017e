"""Names that a shell completes, as the hub knows them; none where it cannot be asked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import typer

from modelplane_operator.api import InferenceCluster, Kind, ModelDeployment
from modelplane_operator.api.types import of
from modelplane_operator.cli.hub import ask
from modelplane_operator.cli.kubeconfig import Target, target
from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.errors import ClientError

Completion = Callable[[typer.Context, str], Sequence[str]]


def names(kind: Kind) -> Completion:
    """The names of a kind; of a namespaced one in the namespace that is chosen, or after NAMESPACE/."""

    def complete(context: typer.Context, incomplete: str) -> Sequence[str]:
        given = context.params
        try:
            found = target(Path(given["kubeconfig"]) if given.get("kubeconfig") else None, given.get("context"))
            return ask(found, lambda kube: _listed(kube, given, found, incomplete))
        except (ClientError, OSError, BaseExceptionGroup):
            return ()

    async def _listed(kube: Kube, given: dict[str, str], found: Target, incomplete: str) -> Sequence[str]:
        before, slash, _ = incomplete.partition("/")
        namespaced = of(kind).namespaced
        namespace = (before if slash else given.get("namespace") or found.namespace) if namespaced else ""
        known = (await kube.list(of(kind), namespace=namespace, bare=True)).items
        shown = (f"{before}/{one['metadata']['name']}" if slash else one["metadata"]["name"] for one in known)
        return sorted(one for one in shown if one.startswith(incomplete))

    return complete


models, clusters = names(ModelDeployment), names(InferenceCluster)
