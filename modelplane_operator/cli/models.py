"""For whoever runs models: why one is as it is, what would come of a change, its address, and an answer from it."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from pydantic import ValidationError

from modelplane_operator.api import ModelCache, ModelDeployment, ModelService
from modelplane_operator.api.types import of
from modelplane_operator.cli.chat import Told, chat
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.hub import ask, either, objects, snapshot, told
from modelplane_operator.cli.options import Context, Kubeconfig, Name, Namespace, Output, Watch, hub, place, repeated
from modelplane_operator.cli.output import Exit, Format, No, age, console, structured, table, text
from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.objects import Key
from modelplane_operator.kube.words import counted
from modelplane_operator.planning.answers.forecast import Outcome, drained, edited, forecast, scaled, without
from modelplane_operator.planning.answers.schema import read as read_answer
from modelplane_operator.planning.answers.snapshot import Snapshot, ready
from modelplane_operator.planning.answers.why import Why
from modelplane_operator.planning.answers.why import why as answer


def why(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """Why a model is as it is: its replicas, what it waits for, and what would help."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def read(kube: Kube) -> Why:
        deployment = ModelDeployment.parse(await kube.get(of(ModelDeployment), key))
        services, seen = await objects(kube, ModelService, key.namespace), await snapshot(kube)
        return answer(deployment, services, seen, with_clusters=output is Format.WIDE)

    async def asked(kube: Kube) -> Why:
        return read_answer(Why, await told(kube, key.namespace, ask="Why", modelDeployment=key.name))

    def show() -> None:
        found = ask(target, lambda kube: either(kube, read, asked))
        if output.is_structured:
            structured("Why", found, output)
        else:
            _show_why(found, datetime.now(UTC))
        raise typer.Exit(Exit.YES if found.ready else Exit.NO)

    repeated(show, watch=watch)


def _show_why(found: Why, now: datetime) -> None:
    out, for_ = console(), age(found.since, now)
    state = "[green]Ready[/]" if found.ready else f"[red]not Ready[/] ({found.reason}{f', for {for_}' if for_ else ''})"
    out.print(f"[bold]{text(f'{found.namespace}/{found.name}')}[/] is {state}")
    out.print(text(found.cause))
    for number, help_ in enumerate(found.help):
        out.print(f"{'What would help:' if not number else '             or:'} {text(help_)}")
    if found.replicas:
        rows = [(r.name, r.cluster, r.pool, r.ready, age(r.since, now), r.says) for r in found.replicas]
        out.print("", table(("REPLICA", "CLUSTER", "POOL", "READY", "SINCE", "SAYS"), rows))
    for words in found.weights:
        out.print("", text(words), sep="\n")
    if found.misses and found.waiting:
        out.print("", f"{counted(found.waiting, 'replica')} without a place:", sep="\n")
        rows = [(miss.clusters, miss.nearest, miss.reason, miss.remedy) for miss in found.misses]
        out.print(table(("CLUSTERS", "NEAREST", "WHY NOT", "WHAT WOULD HELP"), rows))
    if found.clusters:
        rows = [(one.name, one.replicas, one.room, one.says, one.remedy) for one in found.clusters]
        out.print("", table(("CLUSTER", "REPLICAS", "ONE MORE", "SAYS", "WHAT WOULD HELP"), rows))
    if found.routes:
        rows = [(route.name, route.url, route.ready, route.says, route.help) for route in found.routes]
        out.print("", table(("SERVICE", "URL", "READY", "SAYS", "WHAT WOULD HELP"), rows))


def plan(
    name: Annotated[str | None, typer.Argument(help="A ModelDeployment, with --replicas.", metavar="[NAME]")] = None,
    file: Annotated[Path | None, typer.Option("-f", "--filename", help="What to apply; - is standard input.")] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="How many replicas NAME is to have.", min=0)
    ] = None,
    without_: Annotated[
        str | None, typer.Option("--without", help="A cluster that is to be gone.", autocompletion=clusters)
    ] = None,
    drain: Annotated[
        str | None, typer.Option("--drain", help="A cluster that is to be drained.", autocompletion=clusters)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """What the scheduler would do with a change; nothing is written."""
    given = [one for one in (file, replicas, without_, drain) if one is not None]
    if len(given) != 1 or (name is None) != (replicas is None):
        raise typer.BadParameter("say one of -f FILE, NAME --replicas N, --without CLUSTER and --drain CLUSTER")
    target = hub(kubeconfig, context)
    if without_ or drain:
        outcomes = _moved(ask(target, snapshot), without_, drain)
    else:
        where = Key(*place(name or "", namespace, target))
        documents = _read(file, namespace or target.namespace) if file else ()
        outcomes = ask(target, lambda kube: _planned(kube, documents, where, replicas))
    if output.is_structured:
        structured("Plan", outcomes, output)
    else:
        show_plan(outcomes)
    raise typer.Exit(Exit.YES if all(one.settled for one in outcomes) else Exit.NO)


def _moved(before: Snapshot, without_: str | None, drain: str | None) -> Sequence[Outcome]:
    cluster = without_ or drain or ""
    _there(cluster, before)
    after = without(before, cluster) if without_ else drained(before, cluster)
    return forecast(before, after, clusters=frozenset((cluster,)))


async def _planned(
    kube: Kube, documents: Sequence[ModelDeployment | ModelCache], where: Key, replicas: int | None
) -> Sequence[Outcome]:
    """Of the deployments of a file, or of one that is there with so many replicas."""

    async def read(kube: Kube) -> Sequence[Outcome]:
        before = await snapshot(kube)
        wanted = documents or [_scaled(where, before, replicas or 0)]
        deployments = [one for one in wanted if isinstance(one, ModelDeployment)]
        after = edited(before, deployments, (one for one in wanted if isinstance(one, ModelCache)))
        return forecast(before, after, asked=[one.key for one in deployments])

    async def asked(kube: Kube) -> Sequence[Outcome]:
        if not documents:
            said = await told(kube, where.namespace, ask="Plan", modelDeployment=where.name, replicas=replicas)
            return read_answer(Outcomes, said).items
        found = list[Outcome]()
        for one in documents:
            if isinstance(one, ModelDeployment):  # each for itself: what is asked for is not there to be counted on
                said = await told(
                    kube, one.key.namespace, ask="Plan", manifest=json.dumps(one.to_manifest(), default=str)
                )
                found += read_answer(Outcomes, said).items
        return found

    return await either(kube, read, asked)


@dataclass(frozen=True, slots=True)
class Outcomes:
    """The document of a plan."""

    items: tuple[Outcome, ...]


def _there(cluster: str, seen: Snapshot) -> None:
    if cluster not in seen.cluster:
        known = ", ".join(sorted(seen.cluster)) or "none"
        raise typer.BadParameter(f"there is no InferenceCluster {cluster}; there are: {known}")


def _scaled(key: Key, seen: Snapshot, replicas: int) -> ModelDeployment:
    if key not in seen.deployment:
        raise typer.BadParameter(f"there is no ModelDeployment {key}")
    return scaled(seen.deployment[key], replicas)


def _read(file: Path, namespace: str) -> Sequence[ModelDeployment | ModelCache]:
    """The deployments and caches of a file; what else is in it decides nothing."""
    kinds: dict[str, Any] = {one.definition.kind: one for one in (ModelDeployment, ModelCache)}
    try:
        source = sys.stdin.read() if str(file) == "-" else file.read_text()
        documents: list[Any] = [one for one in yaml.safe_load_all(source) if isinstance(one, dict)]
    except (OSError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    found: list[Any] = []
    for document in documents:
        if (kind := kinds.get(str(document.get("kind")))) is None:
            continue
        document["metadata"] = {"namespace": namespace, **(document.get("metadata") or {})}
        try:
            found.append(kind.parse(document))
        except (ValidationError, ValueError) as error:
            raise typer.BadParameter(f"{file}: {document['metadata'].get('name')}: {error}") from None
    if not any(isinstance(one, ModelDeployment) for one in found):
        raise typer.BadParameter(f"{file} has no ModelDeployment")
    return found


def show_plan(outcomes: Iterable[Outcome]) -> None:
    out, any_ = console(), False
    for one in outcomes:
        if any_:
            out.print("")
        any_ = True
        mark = "[green]✓[/]" if one.settled else "[red]✗[/]"
        out.print(f"{mark} [bold]{text(f'{one.namespace}/{one.name}')}[/]: {text(one.decision)}")
        for place_ in one.added:
            out.print(f"  [green]+ {text(place_)}[/]")
        for words in one.weights:
            out.print(f"  {text(words)}")
        for gone in one.removed:
            out.print(f"  [red]- {text(gone.name)} on {text(gone.cluster)}[/]: {text(gone.why)}")
        for restarted in one.restarted:
            out.print(f"  [yellow]~ {text(restarted)}[/]: takes another shape, which restarts it")
        for stuck in one.stuck:
            out.print(
                f"  [red]! {text(stuck.name)} on {text(stuck.cluster)}[/] finds no other place: {text(stuck.why)}"
            )
        if one.waiting:
            out.print(f"  [red]! {counted(one.waiting, 'replica')} without a place[/]")
        for number, help_ in enumerate(one.help):
            out.print(f"  {'What would help:' if not number else '             or:'} {text(help_)}")
    if not any_:
        out.print("Nothing would change.")


def url(
    name: Annotated[str, typer.Argument(help="A ModelService, or a ModelDeployment behind one.", metavar="NAME")],
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """The address under which a model answers."""
    sys.stdout.write(f"{_address(name, namespace, context, kubeconfig)}\n")


def ask_model(
    name: Annotated[str, typer.Argument(help="A ModelService, or a ModelDeployment behind one.", metavar="NAME")],
    prompt: Annotated[str, typer.Argument(help="What to say.")],
    model: Annotated[str | None, typer.Option("--model", help="The model, where several answer.")] = None,
    key: Annotated[str | None, typer.Option("--key", help="An API key.", envvar="MODELPLANE_API_KEY")] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
) -> None:
    """One answer of a model, as it comes, and how long it took."""
    address, began = _address(name, namespace, context, kubeconfig), time.monotonic()
    out = console()

    def on_text(piece: str) -> None:
        out.print(text(piece) if piece.strip() else piece, end="", soft_wrap=True)
        sys.stdout.flush()

    spoken: Told = chat(address, prompt, model=model, key=key, on_text=on_text, now=time.monotonic)
    out.print("")
    first = f"first token after {spoken.first - began:.2f} s, " if spoken.first is not None else ""
    sys.stderr.write(f"{spoken.model}: {first}all {spoken.pieces} pieces after {spoken.last - began:.2f} s\n")


def _address(name: str, namespace: str | None, context: str | None, kubeconfig: Path | None) -> str:
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> _Found:
        services = await objects(kube, ModelService, key.namespace)
        exact = [one for one in services if one.key == key]
        if exact or await kube.find(of(ModelDeployment), key) is None:
            return _Found(exact, exists=bool(exact))
        seen = await snapshot(kube)
        led = {route.name for route in answer(seen.deployment[key], services, seen).routes}
        return _Found([one for one in services if one.key.name in led], exists=True)

    found = ask(target, question)
    for service in found.services:
        if service.status and service.status.address:
            return service.status.address
    if not found.exists:
        raise No(f"there is no ModelService and no ModelDeployment {key}: kubectl get ms,md -n {key.namespace}")
    if not found.services:
        raise No(f"no ModelService leads to {key}: write one that selects modelplane.ai/deployment={key.name}")
    state = ready(found.services[0].conditions)
    raise No(f"ModelService {found.services[0].key} has no address yet: {(state and state.message) or 'wait a moment'}")


@dataclass(frozen=True)
class _Found:
    services: Sequence[ModelService]
    exists: bool
