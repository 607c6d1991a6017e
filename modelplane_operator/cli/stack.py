"""Commands for the rollout of changed charts over the fleet: `stack status`, `stack resume` and `stack abort`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Annotated

import typer

from kubeloop.client.kube import Kube
from kubeloop.objects import Key
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, ServingStack, labels
from modelplane_operator.api.serving_stack import RolloutPhase, ServingStackRollout, StackRollout
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.hub import annotate, ask, objects, rewrite
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.options import Context, Kubeconfig, Output, Watch, hub, repeat
from modelplane_operator.cli.output import Format, No, console, print_items, print_structured, text
from modelplane_operator.clusters.cluster.connections import cluster_of
from modelplane_operator.clusters.stack.rollout import GATE

ORDER: Sequence[RolloutPhase] = ("Failed", "Upgrading", "Watching", "Waiting", "Aborted", "Done")
"""The phases in the order of the table: what needs attention first."""

Cluster = Annotated[
    str,
    typer.Argument(
        help="The InferenceCluster; without one, the whole fleet.", metavar="[CLUSTER]", autocompletion=clusters
    ),
]

stack = typer.Typer(
    name="stack",
    help="Show, resume or abort the rollout of changed charts over the fleet.",
    no_args_is_help=True,
    add_completion=False,
)


@dataclass(frozen=True, slots=True)
class ClusterRollout:
    """The rollout of changed charts on one cluster, as a document."""

    cluster: str
    wave: int | None
    """1 for canaries, or for the first cluster if there are none; 2 for all others. None if nothing changed there."""
    phase: str
    remaining: int | None
    """Seconds until the cluster has been healthy for long enough; None if it is not watched, or not healthy."""
    changes: tuple[str, ...]
    """Charts with their versions before and after."""
    message: str
    """What the cluster waits for, or why it failed."""


@dataclass(frozen=True, slots=True)
class StackDecision:
    """The result of `resume` or `abort`, as a document."""

    clusters: tuple[str, ...]
    """Clusters whose ServingStack was annotated."""


@dataclass(frozen=True, slots=True)
class ReportedRollout:
    """The rollout of a stack, as the hub has it."""

    key: Key
    cluster: str
    canary: bool
    rollout: StackRollout
    message: str


@stack.command("status")
def status(
    context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE, watch: Watch = False
) -> None:
    """List the clusters: wave, phase, the rest of the gate, charts before and after, and what they wait for."""
    target = hub(kubeconfig, context)

    def show() -> None:
        """Print the table once."""
        print_items(
            "StackRollout",
            describe(ask(target, _read), datetime.now(UTC)),
            output,
            ("CLUSTER", "WAVE", "PHASE", "GATE", "CHANGES", "MESSAGE"),
            lambda row: (
                row.cluster,
                row.wave,
                row.phase,
                f"{row.remaining}s" if row.remaining is not None else "",
                ", ".join(row.changes),
                row.message,
            ),
            nothing="no ServingStack has reported a rollout: see kubectl get servingstacks -A",
        )

    repeat(show, watch=watch)


@stack.command("resume")
def resume(
    cluster: Cluster = "", context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE
) -> None:
    """Let a stopped or aborted rollout go on: clusters that failed try again, the others wait for their turn."""
    target = hub(kubeconfig, context)
    selected = _select(target, cluster, {"Failed", "Aborted"}, "failed or aborted")
    attempt = datetime.now(UTC).isoformat(timespec="seconds")
    for item in selected:
        _annotate(target, item.key, {labels.KEEP_CHARTS: None, labels.RETRY: attempt})
    _print_decision(selected, "changes its charts when its turn comes", output)


@stack.command("abort")
def abort(
    cluster: Cluster = "", context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE
) -> None:
    """Keep the old charts on clusters that wait or have failed, until their stacks ask for others than now."""
    target = hub(kubeconfig, context)
    selected = _select(target, cluster, {"Waiting", "Failed"}, "waiting or failed")
    for item in selected:
        _annotate(target, item.key, {labels.KEEP_CHARTS: item.rollout.target})
    _print_decision(selected, "keeps its charts", output)


async def _read(kube: Kube) -> Sequence[ReportedRollout]:
    """Return the rollouts that stacks have reported."""
    marks = {item.metadata.name: item.metadata.labels for item in await objects(kube, InferenceCluster)}
    reported: list[ReportedRollout] = []
    for item in await objects(kube, ServingStack):
        if item.status is None or (rollout := item.status.rollout) is None:
            continue
        name = cluster_of(item.to_manifest())
        canary = {**item.metadata.labels, **marks.get(name, {})}.get(labels.CANARY) == "true"
        message = next(
            (condition.message for condition in item.conditions if condition.type == ServingStackRollout.__name__), ""
        )
        reported.append(ReportedRollout(item.key, name, canary, rollout, message or ""))
    return reported


def describe(reported: Sequence[ReportedRollout], now: datetime) -> Sequence[ClusterRollout]:
    """Return a document about each cluster, those that need attention first."""
    changed = [item for item in reported if item.rollout.changes]
    canaries = {item.cluster for item in changed if item.canary}
    # A waiting cluster has not had its turn, and their names decide among them.
    by_turn = sorted(
        changed,
        key=lambda item: (
            (True, "", item.cluster)
            if item.rollout.phase in {"Waiting", "Aborted"}
            else (False, item.rollout.since.isoformat(), item.cluster)
        ),
    )
    first = canaries or {item.cluster for item in by_turn[:1]}
    rows = [
        ClusterRollout(
            item.cluster,
            (1 if item.cluster in first else 2) if item.rollout.changes else None,
            item.rollout.phase,
            max(0, int((item.rollout.healthy_since + GATE - now).total_seconds()))
            if item.rollout.phase == "Watching" and item.rollout.healthy_since
            else None,
            tuple(
                f"{change.name} {change.previous or '?'} -> {change.version}"
                if change.previous != change.version
                else f"{change.name} values"
                for change in item.rollout.changes
            ),
            item.message,
        )
        for item in reported
    ]
    positions = {phase: position for position, phase in enumerate(ORDER)}
    return sorted(rows, key=lambda row: (positions.get(row.phase, -1), row.cluster))


def _select(target: HubTarget, cluster: str, phases: set[str], adjective: str) -> Sequence[ReportedRollout]:
    """Return the rollouts in these phases, of one cluster or of all; raise No if there is none."""
    reported = ask(target, _read)
    if cluster and cluster not in {item.cluster for item in reported}:
        names = ", ".join(sorted(item.cluster for item in reported)) or "none"
        raise No(f"cluster {cluster} has reported no rollout; those that have: {names}")
    selected = [item for item in reported if item.rollout.phase in phases and cluster in {"", item.cluster}]
    if not selected:
        subject = f"the rollout on {cluster} is not" if cluster else "no rollout is"
        raise No(f"{subject} {adjective}: see modelplane stack status")
    return sorted(selected, key=lambda item: item.cluster)


def _annotate(target: HubTarget, key: Key, annotations: Mapping[str, str | None]) -> None:
    """Set annotations of a stack, and remove those with None. A conflict is retried."""
    ask(target, lambda kube: rewrite(kube, of(ServingStack), key, partial(annotate, annotations)))


def _print_decision(selected: Sequence[ReportedRollout], verb: str, output: Format) -> None:
    """Print what was decided for each cluster."""
    if output.is_structured:
        print_structured("StackDecision", StackDecision(tuple(item.cluster for item in selected)), output)
        return
    for item in selected:
        console().print(f"{text(item.cluster)} {verb}.")
