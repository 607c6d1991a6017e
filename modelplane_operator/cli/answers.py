"""Commands that show the scheduler's knowledge: `why`, `plan` and `hardware`.

They query the operator, which has the fleet in memory. If it does not respond, they read the hub (`reading`).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
from rich.console import Console

from kubeloop.objects import Key
from kubeloop.words import count_of
from modelplane_operator.ask.answers.documents import (
    AllHardware,
    DeploymentOutcome,
    Explanation,
    Hardware,
    ObjectExplanation,
    Others,
    Outcomes,
)
from modelplane_operator.ask.answers.schema import read
from modelplane_operator.cli.asking import fetch_answer
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.options import (
    Context,
    Explainable,
    Kubeconfig,
    Namespace,
    Output,
    Watch,
    hub,
    load_documents,
    place,
    repeat,
    split_type,
)
from modelplane_operator.cli.output import Exit, Format, age, console, print_items, print_structured, table, text

ANSWERS: Final = "Available"  # the reason of Ready while all replicas respond
READ: Final = ("ModelDeployment", "ModelCache")
"""Kinds that are read from a file; no others matter to the scheduler."""


def why(
    name: Explainable,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """Explain the state of a model or service: its parts, what it waits for, and what would help."""
    target = hub(kubeconfig, context)
    kind, name = split_type(name)
    key = Key(*place(name, namespace, target))

    def show() -> None:
        """Print the current explanation, and exit with its code."""
        explanation = _fetch_explanation(target, key, output, kind)
        if output.is_structured:
            print_structured("Why", explanation, output)
        elif isinstance(explanation, ObjectExplanation):
            show_object(explanation, datetime.now(UTC))
        else:
            show_explanation(explanation, datetime.now(UTC))
        raise typer.Exit(Exit.YES if explanation.ready else Exit.NO)

    repeat(show, watch=watch)


def _fetch_explanation(
    target: HubTarget, key: Key, output: Format, kind: str | None
) -> Explanation | ObjectExplanation:
    """Return the operator's explanation of a deployment, or compute it here, as for other kinds.

    Without a kind, it is the deployment of that name, or else the service or the inference. The operator does not
    describe each cluster, so the wide format always computes it.
    """
    is_wide, is_deployment = output is Format.WIDE, kind in {None, "ModelDeployment"}
    if (
        is_deployment
        and not is_wide
        and (response := fetch_answer(target, key.namespace, ask="Why", modelDeployment=key.name)) is not None
    ):
        return read(Explanation, response)
    from modelplane_operator.cli import reading  # noqa: PLC0415 - not needed when the operator responds

    if kind != "ModelDeployment" and (other := reading.find_object(target, key, kind)) is not None:
        return reading.explain_other(target, other)
    return reading.explain_model(target, key, with_clusters=is_wide)


def show_object(explanation: ObjectExplanation, now: datetime) -> None:
    """Print an explanation of a service or an inference as text and a table."""
    out, duration = console(), age(explanation.since, now)
    reason = f"[red]not Ready[/] ({text(explanation.reason)}{f', for {duration}' if duration else ''})"
    name = f"{explanation.object_kind} {explanation.namespace}/{explanation.name}"
    out.print(f"[bold]{text(name)}[/] is {'[green]Ready[/]' if explanation.ready else reason}")
    out.print(text(explanation.cause))
    _print_help(out, explanation.help)
    if explanation.url:
        out.print("", f"URL: {text(explanation.url)}", sep="\n")
    if explanation.parts:
        rows = [(part.object_kind, part.name, part.ready, part.says) for part in explanation.parts]
        out.print("", table(("KIND", "NAME", "READY", "SAYS"), rows))


def _print_help(out: Console, help_texts: Iterable[str], indent: str = "") -> None:
    """Print what would help, a line for each change."""
    for number, help_ in enumerate(help_texts):
        out.print(f"{indent}{'What would help:' if not number else '             or:'} {text(help_)}")


def show_explanation(explanation: Explanation, now: datetime) -> None:
    """Print an explanation as text and tables."""
    out, duration = console(), age(explanation.since, now)
    state = f"[red]not Ready[/] ({text(explanation.reason)}{f', for {duration}' if duration else ''})"
    # `ready` is also False while the scheduler's decision has open points, although every replica responds.
    if explanation.ready or explanation.reason == ANSWERS:
        state = "[green]Ready[/]" if explanation.ready else "[yellow]Ready, but on the wrong cluster[/]"
    out.print(f"[bold]{text(f'{explanation.namespace}/{explanation.name}')}[/] is {state}")
    out.print(text(explanation.cause))
    _print_help(out, explanation.help)
    if explanation.replicas:
        rows = [(r.name, r.cluster, r.pool, r.ready, age(r.since, now), r.says) for r in explanation.replicas]
        out.print("", table(("REPLICA", "CLUSTER", "POOL", "READY", "SINCE", "SAYS"), rows))
    for line in explanation.weights:
        out.print("", text(line), sep="\n")
    if explanation.misses and explanation.waiting:
        out.print("", f"{count_of(explanation.waiting, 'replica')} without a place:", sep="\n")
        rows = [(miss.clusters, miss.nearest, miss.reason, miss.remedy) for miss in explanation.misses]
        out.print(table(("CLUSTERS", "NEAREST", "WHY NOT", "WHAT WOULD HELP"), rows))
    if explanation.clusters:
        rows = [
            (summary.name, summary.replicas, summary.room, summary.says, summary.remedy)
            for summary in explanation.clusters
        ]
        out.print("", table(("CLUSTER", "REPLICAS", "ONE MORE", "SAYS", "WHAT WOULD HELP"), rows))
    if explanation.routes:
        rows = [(route.name, route.url, route.ready, route.says, route.help) for route in explanation.routes]
        out.print("", table(("SERVICE", "URL", "READY", "SAYS", "WHAT WOULD HELP"), rows))


def plan(
    name: Annotated[str | None, typer.Argument(help="A ModelDeployment, with --replicas.", metavar="[NAME]")] = None,
    file: Annotated[
        Path | None, typer.Option("-f", "--filename", help="Manifests to plan; - reads standard input.")
    ] = None,
    replicas: Annotated[
        int | None, typer.Option("--replicas", help="Plan NAME with this many replicas.", min=0)
    ] = None,
    without_: Annotated[
        str | None, typer.Option("--without", help="Plan without this cluster.", autocompletion=clusters)
    ] = None,
    drain: Annotated[
        str | None, typer.Option("--drain", help="Plan a drain of this cluster.", autocompletion=clusters)
    ] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Show what the scheduler would do after a change. Nothing is written."""
    options = [option for option in (file, replicas, without_, drain) if option is not None]
    if len(options) != 1 or (name is None) != (replicas is None):
        raise typer.BadParameter("give one of -f FILE, NAME --replicas N, --without CLUSTER and --drain CLUSTER")
    target = hub(kubeconfig, context)
    documents = _read_documents(file, namespace or target.namespace) if file else ()
    key = Key(*place(name or "", namespace, target))
    result = _fetch_plan(target, key, file, documents, replicas, without_, drain)
    if output.is_structured:
        print_structured("Plan", result, output)
    else:
        show_plan(result.items, result.others)
    raise typer.Exit(Exit.YES if result.settled else Exit.NO)


def _fetch_plan(
    target: HubTarget,
    key: Key,
    file: Path | None,
    documents: Sequence[dict[str, Any]],
    replicas: int | None,
    without_: str | None,
    drain: str | None,
) -> Outcomes:
    """Query the operator for the outcomes of a change. If it does not respond, compute them here."""
    match documents:
        case () if replicas is not None:
            response = fetch_answer(target, key.namespace, ask="Plan", modelDeployment=key.name, replicas=replicas)
        case ():
            response = fetch_answer(target, key.namespace, ask="Plan", without=without_, drain=drain)
        case [{"kind": "ModelDeployment", "metadata": {"namespace": str(namespace)}} as only]:
            response = fetch_answer(target, namespace, ask="Plan", manifest=json.dumps(only, default=str))
        case [{"metadata": {"namespace": namespace}}, *_]:  # they depend on each other
            combined = {"kind": "List", "items": documents}
            response = fetch_answer(target, str(namespace), ask="Plan", manifest=json.dumps(combined, default=str))
        case _:
            response = None
    if response is not None:
        return read(Outcomes, response)
    from modelplane_operator.cli import reading  # noqa: PLC0415 - not needed when the operator responds

    if without_ or drain:
        return reading.forecast_move(target, key.namespace, without_, drain)
    return reading.forecast_plan(target, reading.parse_documents(file, documents) if file else (), key, replicas)


def _read_documents(file: Path, namespace: str) -> Sequence[dict[str, Any]]:
    """Return the deployments and caches in a file, with the default namespace.

    Raise BadParameter for an invalid file.
    """
    documents = cast("list[dict[str, Any]]", load_documents(file))
    relevant = [document for document in documents if document.get("kind") in READ]
    if not any(document["kind"] == "ModelDeployment" for document in relevant):
        raise typer.BadParameter(f"{file} has no ModelDeployment")
    read_documents = list[dict[str, Any]]()
    for document in relevant:
        metadata: dict[str, Any] = document.get("metadata") or {}
        # Templates often leave `namespace: null`, which means the default one, as for kubectl.
        metadata = {**metadata, "namespace": metadata.get("namespace") or namespace}
        read_documents.append({**document, "metadata": metadata})
    return read_documents


def show_plan(outcomes: Iterable[DeploymentOutcome], others: Others | None = None) -> None:
    """Print the outcome of each deployment."""
    out, has_printed = console(), False
    for outcome in outcomes:
        if has_printed:
            out.print("")
        has_printed = True
        # Names, messages and advice come from the hub, so each one is escaped by `text` before it reaches Rich's
        # markup.
        symbol = "[green]✓[/]" if outcome.settled else "[red]✗[/]"
        out.print(f"{symbol} [bold]{text(f'{outcome.namespace}/{outcome.name}')}[/]: {text(outcome.decision)}")
        for location in outcome.added:
            out.print(f"  [green]+ {text(location)}[/]")
        for line in outcome.weights:
            out.print(f"  {text(line)}")
        for removal in outcome.removed:
            out.print(f"  [red]- {text(removal.name)} on {text(removal.cluster)}[/]: {text(removal.why)}")
        for restarted in outcome.restarted:
            out.print(f"  [yellow]~ {text(restarted)}[/]: its pods change, so it restarts")
        for blocked in outcome.stuck:
            out.print(
                f"  [red]! {text(blocked.name)} on {text(blocked.cluster)}[/] fits nowhere else: {text(blocked.why)}"
            )
        if outcome.waiting:
            out.print(f"  [red]! {count_of(outcome.waiting, 'replica')} without a place[/]")
        _print_help(out, outcome.help, "  ")
    if others:
        out.print(*([""] if has_printed else []), str(others), sep="\n")
    elif not has_printed:
        out.print("Nothing would change.")


def hardware(
    namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE
) -> None:
    """List devices that models can request, the nodes that have them, and a selector to paste for each."""
    devices = _fetch_hardware(hub(kubeconfig, context), namespace)
    columns = ("CLASS", "DEVICE", "PER NODE", "NODES FREE", "CLUSTERS", "WHAT IT IS")
    print_items(
        "Hardware", devices, output, columns, _device_row, nothing="no cluster publishes devices: see modelplane fleet"
    )
    if output.is_structured:
        return
    out = console()
    out.print("", "To ask for one, in nodeSelector.devices[].selectors[].cel of a ModelDeployment:")
    for device in devices:
        out.print(f"  [bold]{text(device.inference_class)}, {text(device.device)}[/]: {text(device.selector)}")


def _fetch_hardware(target: HubTarget, namespace: str | None) -> Sequence[Hardware]:
    """Return the devices from the operator, or compute them here."""
    own_namespace = namespace or target.namespace
    if (response := fetch_answer(target, own_namespace, ask="Hardware")) is not None:
        return read(AllHardware, response).items
    from modelplane_operator.cli import reading  # noqa: PLC0415 - not needed when the operator responds

    return reading.hardware(target, own_namespace)


def _device_row(item: Hardware) -> Sequence[object]:
    """Return the table row of a device."""
    description = ", ".join(f"{name}={value}" for name, value in {**item.capacity, **item.attributes}.items())
    return (
        item.inference_class,
        item.device,
        item.per_node,
        f"{item.free}/{item.nodes}",
        ", ".join(item.clusters),
        description,
    )
