"""Roll models: let the operator change pods that an older operator, or one with other settings, rendered."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Annotated

import typer

from kubeloop.client.kube import Kube
from kubeloop.objects import Key
from kubeloop.resource import of
from kubeloop.words import count_of
from modelplane_operator.api import ModelDeployment, ModelReplica, labels
from modelplane_operator.api.model_replica import OutdatedPods
from modelplane_operator.cli.completion import models
from modelplane_operator.cli.hub import annotate, ask, deployment_of, objects, rewrite
from modelplane_operator.cli.options import Context, Kubeconfig, Namespace, Output, hub, place
from modelplane_operator.cli.output import Format, No, console, print_structured, text


def roll(
    name: Annotated[
        str, typer.Argument(help="The ModelDeployment, or NAMESPACE/NAME.", metavar="[NAME]", autocompletion=models)
    ] = "",
    all_models: Annotated[
        bool,
        typer.Option("--all", help="Every deployment with outdated pods: of the namespace with -n, or of the hub."),
    ] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print what would change in pods; write nothing.")] = False,
    now: Annotated[bool, typer.Option("--now", help="Do not wait for maintenance windows.")] = False,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Change the outdated pods of a model, one replica after the other, as the running operator renders them."""
    if all_models == bool(name):
        raise typer.BadParameter("give the name of a ModelDeployment, or --all")
    target = hub(kubeconfig, context)
    key = None if all_models else Key(*place(name, namespace, target))
    outdated_models = ask(target, lambda kube: _find_outdated(kube, key, namespace or ""))
    if not outdated_models:
        subject = f"{key} has" if key else "no deployment has"
        raise No(f"{subject} {'no ' if key else ''}outdated pods: nothing to roll")
    if not dry_run:
        ask(target, lambda kube: _annotate(kube, outdated_models, suffix=labels.ROLL_NOW if now else ""))
    if output.is_structured:
        print_structured("Roll", Roll(rolled=not dry_run, models=tuple(outdated_models)), output)
        return
    out = console()
    for model in outdated_models:
        verb = "would change" if dry_run else "changes in turn"
        out.print(f"{text(f'{model.namespace}/{model.name}')}: {count_of(model.replicas, 'replica')} {verb}")
        for change in model.changes:
            out.print(f"  {text(change)}")


@dataclass(frozen=True, slots=True)
class OutdatedModel:
    """A deployment with outdated pods, as a document."""

    namespace: str
    name: str
    replicas: int
    """Number of replicas with outdated pods."""
    rendering: str
    """Name of the rendering that they get."""
    changes: tuple[str, ...]
    """Fields of their pods that change."""


@dataclass(frozen=True, slots=True)
class Roll:
    """The result of the command, as a document."""

    rolled: bool
    """True if the deployments were annotated; False for a dry run."""
    models: tuple[OutdatedModel, ...]
    """Deployments with outdated pods."""


async def _find_outdated(kube: Kube, key: Key | None, namespace: str) -> Sequence[OutdatedModel]:
    """Return one deployment, or all of a namespace or of the hub, as far as they have outdated pods."""
    if key:
        await deployment_of(kube, key)
    outdated: dict[Key, list[OutdatedPods]] = {}
    for replica in await objects(kube, ModelReplica, key.namespace if key else namespace):
        owner = Key(replica.key.namespace, replica.metadata.labels.get(labels.DEPLOYMENT, ""))
        if replica.status and replica.status.outdated and owner == (key or owner):
            outdated.setdefault(owner, []).append(replica.status.outdated)
    return [
        OutdatedModel(
            *owner,
            len(pods),
            pods[0].rendering,
            tuple(dict.fromkeys(change for item in pods for change in item.changes)),
        )
        for owner, pods in sorted(outdated.items())
    ]


async def _annotate(kube: Kube, outdated_models: Sequence[OutdatedModel], *, suffix: str) -> None:
    """Annotate deployments with the rendering that their pods get, and a suffix. A conflict is retried."""
    for model in outdated_models:
        annotations = {labels.ROLL: f"{model.rendering}{suffix}"}
        await rewrite(kube, of(ModelDeployment), Key(model.namespace, model.name), partial(annotate, annotations))
