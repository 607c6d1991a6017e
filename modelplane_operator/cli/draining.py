"""Drain a cluster: show where each replica goes, set the taint, and wait until the cluster is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any

import typer

from kubeloop.client.kube import Kube
from kubeloop.objects import Key, Manifest, entries
from kubeloop.resource import of
from kubeloop.words import count_of
from modelplane_operator.api import InferenceCluster, ModelReplica
from modelplane_operator.ask.answers.documents import DeploymentOutcome
from modelplane_operator.ask.answers.forecast import DRAINED, forecast, with_drained
from modelplane_operator.cli.answers import show_plan
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.hub import ask, objects, rewrite, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Exit, Format, No, console, print_structured, text

POLL_SECONDS = 2.0
"""Interval between two reads of the replicas. A drain takes minutes, so a watch is not worth its code."""


def drain(
    cluster: Annotated[str, typer.Argument(help="The InferenceCluster.", metavar="CLUSTER", autocompletion=clusters)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print where replicas would move; write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="End the drain: let the cluster take replicas again.")] = False,
    timeout: Annotated[
        int, typer.Option("--timeout", help="Seconds to wait until the cluster is empty; 0 does not wait.", min=0)
    ] = 1800,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Move all replicas off a cluster, by a NoExecute taint. `--undo` removes the taint."""
    target, out = hub(kubeconfig, context), console()
    key = Key("", cluster)
    say: Callable[[str], None] = (lambda _: None) if output.is_structured else out.print
    if undo:
        ask(target, lambda kube: _taint(kube, key, on=False))
        say(f"{text(cluster)} takes replicas again.")
        _print_result(Drain(cluster, drained=False, empty=False, replicas=None, moves=()), output)
        return
    current = ask(target, snapshot)
    if cluster not in current.cluster:
        raise No(f"there is no InferenceCluster {cluster}; there are: {', '.join(sorted(current.cluster)) or 'none'}")
    outcomes = forecast(current, with_drained(current, cluster), clusters=frozenset((cluster,)))
    if not output.is_structured:
        show_plan(outcomes)
    if dry_run:
        count = sum(item.spec.cluster_name == cluster for item in current.replicas)
        _print_result(Drain(cluster, drained=False, empty=not count, replicas=count, moves=outcomes), output)
        raise typer.Exit(Exit.YES if all(item.settled for item in outcomes) else Exit.NO)
    ask(target, lambda kube: _taint(kube, key, on=True))
    say("")
    say(f"{text(cluster)} takes no more replicas.")
    remaining = ask(target, lambda kube: _wait_until_empty(kube, cluster, timeout, say)) if timeout else None
    _print_result(Drain(cluster, drained=True, empty=remaining == 0, replicas=remaining, moves=outcomes), output)
    if remaining:
        raise No(
            f"{count_of(remaining, 'replica')} still on {cluster}: add capacity elsewhere, force them off with kubectl"
            f" annotate ic {cluster} modelplane.ai/force-drain=true, or undo the drain with modelplane drain {cluster}"
            " --undo"
        )
    if remaining == 0:
        say(f"{text(cluster)} is empty.")


@dataclass(frozen=True, slots=True)
class Drain:
    """The result of a drain or of a dry run, as a document."""

    cluster: str
    """Cluster that the drain is for."""
    drained: bool
    """True if the cluster has the taint."""
    empty: bool
    """True if no replica is on the cluster; also False if they were not counted."""
    replicas: int | None
    """Number of replicas on the cluster; None if they were not counted."""
    moves: tuple[DeploymentOutcome, ...]
    """Outcome of each deployment with replicas on the cluster."""


def _print_result(result: Drain, output: Format) -> None:
    """Print the result for programs. Tables were printed while the drain ran."""
    if output.is_structured:
        print_structured("Drain", result, output)


async def _taint(kube: Kube, key: Key, *, on: bool) -> None:
    """Add or remove the taint of a drain, and keep everything else. A conflict is retried."""
    await rewrite(kube, of(InferenceCluster), key, partial(with_drain, on=on))


def with_drain(cluster: Manifest, *, on: bool) -> Manifest:
    """Return the cluster with or without the taint of a drain."""
    others: list[Any] = [taint for taint in entries(cluster, "spec", "taints") if taint.get("key") != DRAINED.key]
    taints = [*others, DRAINED.to_manifest()] if on else others
    # Without taints the field is removed instead of emptied, so that `--undo` restores the object as it was.
    spec = {name: value for name, value in cluster["spec"].items() if name != "taints"}
    return {**cluster, "spec": {**spec, "taints": taints} if taints else spec}


async def _wait_until_empty(kube: Kube, cluster: str, seconds: int, say: Callable[[str], None]) -> int:
    """Wait until the cluster is empty or the time is over.

    Print each change, and return the number of remaining replicas.
    """
    # No count is negative, so the first count is always printed.
    old = -1
    deadline = asyncio.get_running_loop().time() + seconds
    while True:
        remaining = sum(replica.spec.cluster_name == cluster for replica in await objects(kube, ModelReplica))
        if remaining != old:
            say(f"{count_of(remaining, 'replica')} left")
        if not remaining or asyncio.get_running_loop().time() >= deadline:
            return remaining
        old = remaining
        await asyncio.sleep(POLL_SECONDS)
