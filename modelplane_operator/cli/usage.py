"""Commands that show who uses how much of the fleet: `top models` and `top clusters`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from kubeloop.client.kube import Kube
from modelplane_operator.ask.answers.overview import clusters as clusters_of
from modelplane_operator.ask.answers.overview import models as states
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.hub import ask, either, of_namespace, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, Output, Watch, hub, repeat
from modelplane_operator.cli.output import NO_CLUSTERS, Format, print_items

top = typer.Typer(
    name="top",
    help="List models or clusters by how much of the fleet they use, largest first.",
    no_args_is_help=True,
    add_completion=False,
)


@dataclass(frozen=True, slots=True)
class ModelUse:
    """Nodes and replicas of one model."""

    namespace: str
    name: str
    ready: int
    """Number of replicas that are Ready."""
    replicas: int
    """Number of existing replicas, also those that start or end."""
    desired: int
    """Number of replicas in the spec."""
    nodes: int
    """Number of nodes that all its replicas use."""
    clusters: int
    """Number of clusters that have its replicas."""


@top.command("models")
def models(
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """List models by the nodes that their replicas use, in one namespace or in all that you may read."""
    target = hub(kubeconfig, context)
    own = namespace or target.namespace

    async def read(kube: Kube) -> Snapshot:
        """Read the fleet, or only the namespace that the user has chosen."""
        return await (of_namespace(kube, own) if namespace else snapshot(kube))

    def show() -> None:
        uses = usage_by_model(ask(target, lambda kube: either(kube, read, lambda kube: of_namespace(kube, own))))
        print_items(
            "TopModels",
            uses,
            output,
            ("NAMESPACE", "MODEL", "READY", "NODES", "CLUSTERS"),
            lambda item: (item.namespace, item.name, f"{item.ready}/{item.desired}", item.nodes, item.clusters),
            nothing="there is no ModelDeployment: create one as in docs/install.md",
        )

    repeat(show, watch=watch)


def usage_by_model(snapshot: Snapshot) -> Sequence[ModelUse]:
    """Return the use of each model, the most nodes first."""
    uses = (
        ModelUse(
            state.namespace, state.name, state.running, state.replicas, state.desired, state.nodes, len(state.clusters)
        )
        for state in states(snapshot)
    )
    return sorted(uses, key=lambda state: (-state.nodes, state.namespace, state.name))


@top.command("clusters")
def clusters(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """List clusters by the share of their nodes in use."""
    target = hub(kubeconfig, context)

    def show() -> None:
        summaries = sorted(
            clusters_of(ask(target, snapshot)), key=lambda item: (-item.used / max(item.nodes, 1), item.name)
        )
        print_items(
            "TopClusters",
            summaries,
            output,
            ("CLUSTER", "NODES USED", "NODES", "IN USE", "REPLICAS"),
            lambda item: (item.name, item.used, item.nodes, f"{100 * item.used // max(item.nodes, 1)}%", item.replicas),
            nothing=NO_CLUSTERS,
        )

    repeat(show, watch=watch)
