"""What the scheduler knows: why a model is as it is, what would come of a change, and what hardware there is.

The operator is asked, which has the fleet at hand; where it does not answer, the hub is read (`reading`).
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Final, cast

import typer
import yaml

from kubeloop.objects import Key
from kubeloop.words import counted
from modelplane_operator.ask.answers.documents import AllHardware, DeploymentOutcome, Hardware, Others, Outcomes, Why
from modelplane_operator.ask.answers.schema import read
from modelplane_operator.cli.asking import answered
from modelplane_operator.cli.completion import clusters
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.options import Context, Kubeconfig, Name, Namespace, Output, Watch, hub, place, repeated
from modelplane_operator.cli.output import Exit, Format, age, console, shown, structured, table, text

ANSWERS: Final = "Available"  # the reason of Ready while all replicas answer
READ: Final = ("ModelDeployment", "ModelCache")
"""Of a file; what else is in it decides nothing."""


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

    def show() -> None:
        found = _why(target, key, output)
        if output.is_structured:
            structured("Why", found, output)
        else:
            show_why(found, datetime.now(UTC))
        raise typer.Exit(Exit.YES if found.ready else Exit.NO)

    repeated(show, watch=watch)


def _why(target: HubTarget, key: Key, output: Format) -> Why:
    wide = output is Format.WIDE
    if not wide and (said := answered(target, key.namespace, ask="Why", modelDeployment=key.name)) is not None:
        return read(Why, said)
    from modelplane_operator.cli import reading  # noqa: PLC0415 - where the operator answers, nobody waits for it

    return reading.why(target, key, with_clusters=wide)


def show_why(found: Why, now: datetime) -> None:
    out, for_ = console(), age(found.since, now)
    state = f"[red]not Ready[/] ({text(found.reason)}{f', for {for_}' if for_ else ''})"
    if found.ready or found.reason == ANSWERS:
        state = "[green]Ready[/]" if found.ready else "[yellow]Ready, and not where it should be[/]"
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
    documents = _documents(file, namespace or target.namespace) if file else ()
    where = Key(*place(name or "", namespace, target))
    found = _planned(target, where, file, documents, replicas, without_, drain)
    if output.is_structured:
        structured("Plan", found, output)
    else:
        show_plan(found.items, found.others)
    raise typer.Exit(Exit.YES if found.settled else Exit.NO)


def _planned(
    target: HubTarget,
    where: Key,
    file: Path | None,
    documents: Sequence[dict[str, Any]],
    replicas: int | None,
    without_: str | None,
    drain: str | None,
) -> Outcomes:
    match documents:
        case () if replicas is not None:
            said = answered(target, where.namespace, ask="Plan", modelDeployment=where.name, replicas=replicas)
        case ():
            said = answered(target, where.namespace, ask="Plan", without=without_, drain=drain)
        case [{"kind": "ModelDeployment", "metadata": {"namespace": str(own)}} as only]:
            said = answered(target, own, ask="Plan", manifest=json.dumps(only, default=str))
        case [{"metadata": {"namespace": own}}, *_]:  # they count on each other
            several = {"kind": "List", "items": documents}
            said = answered(target, str(own), ask="Plan", manifest=json.dumps(several, default=str))
        case _:
            said = None
    if said is not None:
        return read(Outcomes, said)
    from modelplane_operator.cli import reading  # noqa: PLC0415 - where the operator answers, nobody waits for it

    if without_ or drain:
        return reading.moved(target, where.namespace, without_, drain)
    return reading.planned(target, reading.parsed(file, documents) if file else (), where, replicas)


def _documents(file: Path, namespace: str) -> Sequence[dict[str, Any]]:
    """The deployments and caches of a file."""
    try:
        source = sys.stdin.read() if str(file) == "-" else file.read_text()
        every = cast("list[object]", [*yaml.load_all(source, Loader=yaml.CSafeLoader)])
    except (OSError, yaml.YAMLError) as error:
        raise typer.BadParameter(f"{file}: {error}") from None
    documents = (cast("dict[str, Any]", one) for one in every if isinstance(one, dict))
    wanted = [one for one in documents if one.get("kind") in READ]
    return [{**one, "metadata": {"namespace": namespace, **(one.get("metadata") or {})}} for one in wanted]


def show_plan(outcomes: Iterable[DeploymentOutcome], others: Others | None = None) -> None:
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
    if others:
        out.print(*([""] if any_ else []), str(others), sep="\n")
    elif not any_:
        out.print("Nothing would change.")


def hardware(
    namespace: Namespace = None, context: Context = None, kubeconfig: Kubeconfig = None, output: Output = Format.TABLE
) -> None:
    """Devices that models may ask for, the nodes that have them, and a selector for each to paste."""
    found = _hardware(hub(kubeconfig, context), namespace)
    columns = ("CLASS", "DEVICE", "PER NODE", "NODES FREE", "CLUSTERS", "WHAT IT IS")
    shown("Hardware", found, output, columns, _of_devices, nothing="no cluster publishes devices: see modelplane fleet")
    if output.is_structured:
        return
    out = console()
    out.print("", "To ask for one, in nodeSelector.devices[].selectors[].cel of a ModelDeployment:")
    for one in found:
        out.print(f"  [bold]{text(one.inference_class)}, {text(one.device)}[/]: {text(one.selector)}")


def _hardware(target: HubTarget, namespace: str | None) -> Sequence[Hardware]:
    own = namespace or target.namespace
    if (said := answered(target, own, ask="Hardware")) is not None:
        return read(AllHardware, said).items
    from modelplane_operator.cli import reading  # noqa: PLC0415 - where the operator answers, nobody waits for it

    return reading.hardware(target, own)


def _of_devices(one: Hardware) -> Sequence[object]:
    what = ", ".join(f"{name}={value}" for name, value in {**one.capacity, **one.attributes}.items())
    return (one.inference_class, one.device, one.per_node, f"{one.free}/{one.nodes}", ", ".join(one.clusters), what)
