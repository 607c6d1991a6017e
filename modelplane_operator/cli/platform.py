"""Commands for platform teams: the clusters of the fleet."""

from __future__ import annotations

from collections.abc import Sequence

from kubeloop.client.kube import Kube
from modelplane_operator.api import ModelService
from modelplane_operator.ask.answers.overview import ClusterSummary, clusters
from modelplane_operator.cli.hub import ask, objects, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Output, Watch, hub, repeat
from modelplane_operator.cli.output import NO_CLUSTERS, Format, print_items


def fleet(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """List the clusters: state, used and total nodes, replicas, and problems."""
    target = hub(kubeconfig, context)

    async def read(kube: Kube) -> tuple[ClusterSummary, ...]:
        """Read the fleet, and the services, which alone know whether requests to a cluster are answered."""
        return clusters(await snapshot(kube), await objects(kube, ModelService))

    repeat(lambda: _show_fleet(ask(target, read), output), watch=watch)


def _show_fleet(summaries: Sequence[ClusterSummary], output: Format) -> None:
    """Print a table of the clusters."""
    is_wide = output is Format.WIDE
    columns = (
        "CLUSTER",
        "READY",
        "SOURCE",
        "REPLICAS",
        "NODES USED",
        "POOLS",
        *(("TAINTS",) if is_wide else ()),
        "NOTE",
    )
    print_items("Fleet", summaries, output, columns, lambda cluster: _row(cluster, wide=is_wide), nothing=NO_CLUSTERS)


def _row(cluster: ClusterSummary, *, wide: bool) -> Sequence[object]:
    """Return the table row of a cluster."""
    pools = ", ".join(f"{pool.name} {pool.used}/{pool.nodes}" for pool in cluster.pools)
    # The narrow table has one column for both; a problem matters more than a taint.
    last = (cluster.taints, cluster.note) if wide else (cluster.note or cluster.taints,)
    return (
        cluster.name,
        cluster.ready,
        cluster.source,
        cluster.replicas,
        f"{cluster.used}/{cluster.nodes}",
        pools,
        *last,
    )
