"""Emptying a cluster: where each replica goes, the taint, and the wait until it is empty."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from kubeloop.client.kube import Kube
from kubeloop.errors import Conflict
from kubeloop.objects import Key, Manifest, entries
from kubeloop.resource import of
from kubeloop.words import counted
from modelplane_operator.api import InferenceCluster, ModelReplica
from modelplane_operator.ask.answers.documents import DeploymentOutcome
from modelplane_operator.ask.answers.forecast import DRAINED, drained, forecast
from modelplane_operator.cli.answers import show_plan
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.hub import ask, objects, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Output, hub
from modelplane_operator.cli.output import Exit, Format, No, console, structured, text

LOOK_SECONDS = 2.0
TRIES = 5


def drain(
    cluster: Annotated[str, typer.Argument(help="The InferenceCluster.", metavar="CLUSTER", autocompletion=clusters)],
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say where replicas would go; write nothing.")] = False,
    undo: Annotated[bool, typer.Option("--undo", help="Take replicas again.")] = False,
    timeout: Annotated[
        int, typer.Option("--timeout", help="Seconds to wait until it is empty; 0: not at all.", min=0)
    ] = 1800,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Move all replicas off a cluster: a NoExecute taint, which `--undo` takes away."""
    target, out = hub(kubeconfig, context), console()
    key = Key("", cluster)
    say: Callable[[str], None] = (lambda _: None) if output.is_structured else out.print
    if undo:
        ask(target, lambda kube: _taint(kube, key, on=False))
        say(f"{text(cluster)} takes replicas again.")
        _ended(Drain(cluster, drained=False, empty=False, replicas=None, moves=()), output)
        return
    before = ask(target, snapshot)
    if cluster not in before.cluster:
        raise No(f"there is no InferenceCluster {cluster}; there are: {', '.join(sorted(before.cluster)) or 'none'}")
    outcomes = forecast(before, drained(before, cluster), clusters=frozenset((cluster,)))
    if not output.is_structured:
        show_plan(outcomes)
    if dry_run:
        there = sum(one.spec.cluster_name == cluster for one in before.replicas)
        _ended(Drain(cluster, drained=False, empty=not there, replicas=there, moves=outcomes), output)
        raise typer.Exit(Exit.YES if all(one.settled for one in outcomes) else Exit.NO)
    ask(target, lambda kube: _taint(kube, key, on=True))
    say("")
    say(f"{text(cluster)} takes no more replicas.")
    left = ask(target, lambda kube: _emptied(kube, cluster, timeout, say)) if timeout else None
    _ended(Drain(cluster, drained=True, empty=left == 0, replicas=left, moves=outcomes), output)
    if left:
        raise No(
            f"{counted(left, 'replica')} still on {cluster}: make room elsewhere, annotate it "
            f"modelplane.ai/force-drain=true to end them, or take it back by modelplane drain {cluster} --undo"
        )
    if left == 0:
        say(f"{text(cluster)} is empty.")


@dataclass(frozen=True, slots=True)
class Drain:
    """The document of a drain that is over, or was looked at."""

    cluster: str
    drained: bool
    """Whether it has the taint."""
    empty: bool
    replicas: int | None
    """So many are there; None where nobody has looked since."""
    moves: tuple[DeploymentOutcome, ...]
    """What becomes of those that were there."""


def _ended(found: Drain, output: Format) -> None:
    if output.is_structured:
        structured("Drain", found, output)


async def _taint(kube: Kube, key: Key, *, on: bool) -> None:
    """With this one taint, or without; all else stays as somebody wrote it."""
    for attempt in range(TRIES):
        stored = await kube.get(of(InferenceCluster), key)
        changed = with_drain(stored, on=on)
        if changed == stored:
            return
        try:
            await kube.replace(changed)
            return
        except Conflict:
            if attempt == TRIES - 1:
                raise


def with_drain(cluster: Manifest, *, on: bool) -> Manifest:
    others: list[Any] = [one for one in entries(cluster, "spec", "taints") if one.get("key") != DRAINED.key]
    taints = [*others, DRAINED.to_manifest()] if on else others
    spec = {name: value for name, value in cluster["spec"].items() if name != "taints"}
    return {**cluster, "spec": {**spec, "taints": taints} if taints else spec}


async def _emptied(kube: Kube, cluster: str, seconds: int, say: Callable[[str], None]) -> int:
    """How many replicas are left there when there are none, or the time is over; tells each change."""
    before = -1
    until = asyncio.get_running_loop().time() + seconds
    while True:
        left = sum(one.spec.cluster_name == cluster for one in await objects(kube, ModelReplica))
        if left != before:
            say(f"{counted(left, 'replica')} left")
        if not left or asyncio.get_running_loop().time() >= until:
            return left
        before = left
        await asyncio.sleep(LOOK_SECONDS)
