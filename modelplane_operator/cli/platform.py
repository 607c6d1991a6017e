"""For whoever runs the fleet: its clusters."""

from __future__ import annotations

from collections.abc import Sequence

from modelplane_operator.ask.answers.overview import ClusterSummary, clusters
from modelplane_operator.cli.hub import ask, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Output, Watch, hub, repeated
from modelplane_operator.cli.output import NO_CLUSTERS, Format, shown


def fleet(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """The clusters: how each is, its nodes used and free, and what runs there."""
    target = hub(kubeconfig, context)
    repeated(lambda: _show_fleet(clusters(ask(target, snapshot)), output), watch=watch)


def _show_fleet(found: Sequence[ClusterSummary], output: Format) -> None:
    wide = output is Format.WIDE
    columns = ("CLUSTER", "READY", "SOURCE", "REPLICAS", "NODES USED", "POOLS", *(("TAINTS",) if wide else ()), "NOTE")
    shown("Fleet", found, output, columns, lambda one: _row(one, wide=wide), nothing=NO_CLUSTERS)


def _row(one: ClusterSummary, *, wide: bool) -> Sequence[object]:
    pools = ", ".join(f"{pool.name} {pool.used}/{pool.nodes}" for pool in one.pools)
    last = (one.taints, one.note) if wide else (one.note or one.taints,)
    return (one.name, one.ready, one.source, one.replicas, f"{one.used}/{one.nodes}", pools, *last)
