"""For whoever runs models: what belongs to one, down to its pods, what happened to it, and what its engines log."""

from __future__ import annotations

import asyncio
import json
import sys
from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Annotated, Any

import typer
from rich.tree import Tree

from kubeloop.client.kube import Kube
from kubeloop.client.subresources import logs as logs_of
from kubeloop.objects import Key, Manifest, section
from kubeloop.types import EVENT
from kubeloop.words import legible
from modelplane_operator.api import ModelEndpoint, ModelReplica, ModelService, names
from modelplane_operator.ask.answers.schema import document
from modelplane_operator.ask.answers.schema import read as read_answer
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import ReplicaState, Why
from modelplane_operator.ask.answers.why import why as answer
from modelplane_operator.cli.hub import ask, deployment_of, either, objects, snapshot, told
from modelplane_operator.cli.options import Context, Kubeconfig, Name, Namespace, Output, Watch, hub, place, repeated
from modelplane_operator.cli.output import Format, No, age, console, structured, table, text
from modelplane_operator.cli.workload import PodState, pods, pods_of, reached


@dataclass(frozen=True, slots=True)
class Branch:
    """A replica with its pods."""

    replica: ReplicaState
    pods: tuple[PodState, ...]
    note: str
    """Why its pods are not seen."""


def tree(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """A model, its replicas, their clusters and pods, and the services that lead to it."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def read(kube: Kube) -> Why:
        services = await objects(kube, ModelService, key.namespace)
        return answer(await deployment_of(kube, key), services, await snapshot(kube))

    async def asked(kube: Kube) -> Why:
        return read_answer(Why, await told(kube, key.namespace, ask="Why", modelDeployment=key.name))

    async def question(kube: Kube) -> tuple[Why, Sequence[Branch]]:
        found = await either(kube, read, asked)
        by_name = {one.metadata.name: one for one in await objects(kube, ModelReplica, key.namespace)}
        there = [one for one in found.replicas if one.name in by_name]
        pairs = zip(there, await asyncio.gather(*(pods_of(kube, by_name[one.name]) for one in there)), strict=True)
        return found, [Branch(one, *((), it) if isinstance(it, str) else (tuple(it), "")) for one, it in pairs]

    def show() -> None:
        found, branches = ask(target, question)
        if output.is_structured:
            structured("Tree", branches, output)
        else:
            console().print(_drawn(found, branches, datetime.now(UTC)))

    repeated(show, watch=watch)


def _drawn(found: Why, branches: Sequence[Branch], now: datetime) -> Tree:
    state = "Ready" if found.ready else found.reason
    root = Tree(f"[bold]ModelDeployment {text(f'{found.namespace}/{found.name}')}[/]  {text(state)}")
    for branch in branches:
        one = branch.replica
        where = f"on {one.cluster}/{one.pool}"
        said = "Ready" if one.ready else one.says
        node = root.add(f"ModelReplica {text(one.name)} {text(where)}  {text(said)}  {age(one.since, now)}")
        for pod in branch.pods:
            words = (
                f"Pod {pod.name}, engine {pod.engine}, node {pod.node or '-'}  {'Ready' if pod.ready else pod.phase}"
            )
            node.add(text(f"{words}, restarted {pod.restarts} times" if pod.restarts else words))
        if branch.note:
            node.add(text(f"pods are not seen: {branch.note}"))
    if found.waiting:
        root.add(text(f"{found.waiting} without a place: modelplane why {found.namespace}/{found.name}"))
    for route in found.routes:
        root.add(f"ModelService {text(route.name)} {text(route.url)}  {text('Ready' if route.ready else route.says)}")
    return root


@dataclass(frozen=True, slots=True)
class Happening:
    """An Event of one of a model's objects."""

    last: str
    type: str
    reason: str
    object: str
    count: int
    message: str


def events(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """What happened to a model, its replicas and the services that lead to it, the latest last."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> tuple[Happening, ...]:
        deployment = await deployment_of(kube, key)
        replicas = await objects(kube, ModelReplica, key.namespace)
        services = await objects(kube, ModelService, key.namespace)
        endpoints = await objects(kube, ModelEndpoint, key.namespace)
        seen = Snapshot((), replicas, (deployment,), (), datetime.now(UTC))
        mine = {one.metadata.name for one in seen.owned.get(key, ())}
        routes = {one.name for one in answer(deployment, services, seen).routes}
        about = {("ModelDeployment", key.name), *(("ModelReplica", one) for one in mine)}
        about |= {("ModelService", one) for one in routes}
        about |= {("ModelEndpoint", one.key.name) for one in endpoints if one.key.name in mine}
        found = (await kube.list(EVENT, namespace=key.namespace)).items
        return tuple(sorted((_happening(one) for one in found if _about(one) in about), key=lambda one: one.last))

    found = ask(target, question)
    if output.is_structured:
        structured("Events", found, output)
    elif not found:
        console().print(
            f"Nothing was told of {key} lately: an API server keeps Events for an hour. See modelplane why."
        )
    else:
        rows = [(one.last, one.type, one.reason, one.object, one.count, one.message) for one in found]
        console().print(table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"), rows))


def _about(event: Manifest) -> tuple[str, str]:
    involved = section(event, "involvedObject")
    return str(involved.get("kind")), str(involved.get("name"))


def _happening(event: Manifest) -> Happening:
    last = event.get("lastTimestamp") or event.get("eventTime") or section(event, "metadata").get("creationTimestamp")
    return Happening(
        last=str(last or ""),
        type=str(event.get("type") or ""),
        reason=str(event.get("reason") or ""),
        object="/".join(_about(event)),
        count=int(event.get("count") or 1),
        message=str(event.get("message") or ""),
    )


class LogFormat(StrEnum):
    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a log, and whose."""

    replica: str
    cluster: str
    pod: str
    engine: str
    text: str


def logs(
    name: Name,
    replica: Annotated[str | None, typer.Option("--replica", help="One replica, by its name or cluster.")] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="One engine.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on as lines come.")] = False,
    previous: Annotated[bool, typer.Option("-p", "--previous", help="Of the containers that ended before.")] = False,
    tail: Annotated[int | None, typer.Option("--tail", help="No more than the last lines.", min=0)] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Annotated[
        LogFormat, typer.Option("-o", "--output", help="Lines as they are, or a JSON object for each.")
    ] = LogFormat.TEXT,
) -> None:
    """What a model's engines log, from whichever clusters they run on."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> None:
        deployment = await deployment_of(kube, key)
        replicas = await objects(kube, ModelReplica, key.namespace)
        seen = Snapshot((), replicas, (deployment,), (), datetime.now(UTC))
        mine = [one for one in seen.owned.get(key, ()) if replica in {None, one.metadata.name, one.spec.cluster_name}]
        if not mine:
            raise No(
                f"{key} has no replica{f' {replica}' if replica else ''}: modelplane why {key} says what it waits for"
            )
        async with asyncio.TaskGroup() as group:
            for one in mine:
                group.create_task(
                    _copy(kube, one, engine, output, prefix=len(mine) > 1, follow=follow, previous=previous, tail=tail)
                )

    ask(target, question)


async def _copy(
    hub_: Kube, replica: ModelReplica, engine: str | None, output: LogFormat, *, prefix: bool, **how: Any
) -> None:
    """Print what the pods of a replica log, each line after its pod's name where there are several."""
    async with reached(hub_, replica.spec.cluster_name) as cluster:
        found = [one for one in await pods(cluster, replica) if engine in {None, one.engine}]
        if not found:
            raise No(
                f"{replica.key} has no pods{f' of engine {engine}' if engine else ''} on {replica.spec.cluster_name}"
            )
        namespace = names.remote_namespace(replica.key.namespace)
        many = prefix or len(found) > 1

        async def one_pod(pod: PodState) -> None:
            async with aclosing(logs_of(cluster, Key(namespace, pod.name), pod.containers[0], **how)) as lines:
                async for line in lines:
                    said = bytes(line).decode(errors="replace")
                    if sys.stdout.isatty():  # prompts of whomever are among it; a file has it as it is
                        said = legible(said)
                    if output is LogFormat.JSON:
                        told = Line(replica.metadata.name, replica.spec.cluster_name, pod.name, pod.engine, said)
                        said = json.dumps(document("Line", told))
                    sys.stdout.write(f"{pod.name}: {said}\n" if many and output is LogFormat.TEXT else f"{said}\n")
                    sys.stdout.flush()

        async with asyncio.TaskGroup() as group:
            for pod in found:
                group.create_task(one_pod(pod))
