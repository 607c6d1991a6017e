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
from modelplane_operator.planning.answers.schema import read as read_answer
from modelplane_operator.planning.answers.snapshot import Snapshot, ready


@dataclass(frozen=True, slots=True)
class PoolState:
    name: str
    nodes: int
    used: int


@dataclass(frozen=True, slots=True)
class ClusterState:
    """One cluster of the fleet."""

    name: str
    ready: bool
    reason: str
    source: str
    replicas: int
    nodes: int
    used: int
    pools: tuple[PoolState, ...]
    taints: str
    note: str


def fleet(
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """The clusters: how each is, its nodes used and free, and what runs there."""
    target = hub(kubeconfig, context)
    repeated(lambda: _show_fleet(states(ask(target, snapshot)), output), watch=watch)


def _show_fleet(clusters: Sequence[ClusterState], output: Format) -> None:
    wide = output is Format.WIDE
    columns = ("CLUSTER", "READY", "SOURCE", "REPLICAS", "NODES USED", "POOLS", *(("TAINTS",) if wide else ()), "NOTE")
    shown("Fleet", clusters, output, columns, lambda one: _row(one, wide=wide), nothing=NO_CLUSTERS)


def _row(one: ClusterState, *, wide: bool) -> Sequence[object]:
    pools = ", ".join(f"{pool.name} {pool.used}/{pool.nodes}" for pool in one.pools)
    last = (one.taints, one.note) if wide else (one.note or one.taints,)
    return (one.name, one.ready, one.source, one.replicas, f"{one.used}/{one.nodes}", pools, *last)


def states(seen: Snapshot) -> tuple[ClusterState, ...]:
    model, counts = seen.fleet(), dict[str, int]()
    for replica in seen.replicas:
        counts[replica.spec.cluster_name] = counts.get(replica.spec.cluster_name, 0) + 1
    found: list[ClusterState] = []
    for cluster in sorted(seen.clusters, key=lambda one: one.metadata.name):
        site, state = model.site(cluster.metadata.name), ready(cluster.conditions)
        pools = site.cluster.pools if site else None
        states = (
            tuple(
                PoolState(name, nodes, nodes - free)
                for name, nodes, free in zip(pools.names, pools.nodes, site.free, strict=True)
            )
            if site and pools
            else ()
        )
        good = state is not None and state.status == "True"
        found.append(
            ClusterState(
                name=cluster.metadata.name,
                ready=good,
                reason=state.reason if state else "",
                source=cluster.spec.cluster.source,
                replicas=counts.get(cluster.metadata.name, 0),
                nodes=sum(pool.nodes for pool in states),
                used=sum(pool.used for pool in states),
                pools=states,
                taints=", ".join(f"{one.key}:{one.effect}" for one in cluster.spec.taints),
                note="" if good else f"{state.reason}: {state.message}" if state else "not looked at yet",
            )
        )
    return tuple(found)


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
