"""For whoever runs the fleet: its clusters, and the hardware that models may ask for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from modelplane_operator.cli.hub import ask, either, snapshot, told
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, Output, Watch, hub, repeated
from modelplane_operator.cli.output import NO_CLUSTERS, Format, console, shown, text
from modelplane_operator.clients.kube import Kube
from modelplane_operator.planning.answers.hardware import Hardware
from modelplane_operator.planning.answers.hardware import hardware as of_fleet
from modelplane_operator.planning.answers.overview import ClusterState, clusters
from modelplane_operator.planning.answers.schema import read as read_answer


def fleet(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """The clusters: how each is, its nodes used and free, and what runs there."""
    target = hub(kubeconfig, context)
    repeated(lambda: _show_fleet(clusters(ask(target, snapshot)), output), watch=watch)


def _show_fleet(found: Sequence[ClusterState], output: Format) -> None:
    wide = output is Format.WIDE
    columns = ("CLUSTER", "READY", "SOURCE", "REPLICAS", "NODES USED", "POOLS", *(("TAINTS",) if wide else ()), "NOTE")
    shown("Fleet", found, output, columns, lambda one: _row(one, wide=wide), nothing=NO_CLUSTERS)


def _row(one: ClusterState, *, wide: bool) -> Sequence[object]:
    pools = ", ".join(f"{pool.name} {pool.used}/{pool.nodes}" for pool in one.pools)
    last = (one.taints, one.note) if wide else (one.note or one.taints,)
    return (one.name, one.ready, one.source, one.replicas, f"{one.used}/{one.nodes}", pools, *last)


@dataclass(frozen=True, slots=True)
class AllHardware:
    """The document of `hardware`."""

    items: tuple[Hardware, ...]


def hardware(
    namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE
) -> None:
    """Devices that models may ask for, the nodes that have them, and a selector for each to paste."""
    target = hub(kubeconfig, context)

    async def read(kube: Kube) -> Sequence[Hardware]:
        return of_fleet(await snapshot(kube))

    async def asked(kube: Kube) -> Sequence[Hardware]:
        return read_answer(AllHardware, await told(kube, namespace or target.namespace, ask="Hardware")).items

    found = ask(target, lambda kube: either(kube, read, asked))
    columns = ("CLASS", "DEVICE", "PER NODE", "NODES FREE", "CLUSTERS", "WHAT IT IS")
    shown("Hardware", found, output, columns, _of_devices, nothing="no cluster publishes devices: see modelplane fleet")
    if output.is_structured:
        return
    out = console()
    out.print("", "To ask for one, in nodeSelector.devices[].selectors[].cel of a ModelDeployment:")
    for one in found:
        out.print(f"  [bold]{text(one.inference_class)}, {text(one.device)}[/]: {text(one.selector)}")


def _of_devices(one: Hardware) -> Sequence[object]:
    what = ", ".join(f"{name}={value}" for name, value in {**one.capacity, **one.attributes}.items())
    return (one.inference_class, one.device, one.per_node, f"{one.free}/{one.nodes}", ", ".join(one.clusters), what)
