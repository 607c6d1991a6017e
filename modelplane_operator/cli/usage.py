"""Who uses how much of the fleet: `top models` and `top clusters`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import typer

from kubeloop.client.kube import Kube
from modelplane_operator.ask.answers.overview import clusters as clusters_of
from modelplane_operator.ask.answers.overview import models as states
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.hub import ask, either, of_namespace, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, Output, Watch, hub, repeated
from modelplane_operator.cli.output import NO_CLUSTERS, Format, shown

top = typer.Typer(
    name="top", help="Who uses how much of the fleet, the most first.", no_args_is_help=True, add_completion=False
)


@dataclass(frozen=True, slots=True)
class ModelUse:
    """What the replicas of one model take."""

    namespace: str
    name: str
    ready: int
    replicas: int
    desired: int
    nodes: int
    clusters: int


@top.command("models")
def models(
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """Models by the nodes that their replicas take; of one namespace where it is named, or no more may be read."""
    target = hub(kubeconfig, context)
    own = namespace or target.namespace

    async def read(kube: Kube) -> Snapshot:
        return await (of_namespace(kube, own) if namespace else snapshot(kube))

    def show() -> None:
        found = used(ask(target, lambda kube: either(kube, read, lambda kube: of_namespace(kube, own))))
        shown(
            "TopModels",
            found,
            output,
            ("NAMESPACE", "MODEL", "READY", "NODES", "CLUSTERS"),
            lambda one: (one.namespace, one.name, f"{one.ready}/{one.desired}", one.nodes, one.clusters),
            nothing="there is no ModelDeployment: docs/install.md says how one is made",
        )

    repeated(show, watch=watch)


def used(seen: Snapshot) -> Sequence[ModelUse]:
    """The most nodes first."""
    found = (
        ModelUse(one.namespace, one.name, one.running, one.replicas, one.desired, one.nodes, len(one.clusters))
        for one in states(seen)
    )
    return sorted(found, key=lambda one: (-one.nodes, one.namespace, one.name))


@top.command("clusters")
def clusters(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """Clusters by how much of them is in use."""
    target = hub(kubeconfig, context)

    def show() -> None:
        found = sorted(clusters_of(ask(target, snapshot)), key=lambda one: (-one.used / max(one.nodes, 1), one.name))
        shown(
            "TopClusters",
            found,
            output,
            ("CLUSTER", "NODES USED", "NODES", "IN USE", "REPLICAS"),
            lambda one: (one.name, one.used, one.nodes, f"{100 * one.used // max(one.nodes, 1)}%", one.replicas),
            nothing=NO_CLUSTERS,
        )

    repeated(show, watch=watch)
