"""Commands for model owners: a model's replicas and pods, its Events, and the logs of its engines.

Replicas and Events are read from the hub, pods and logs from the workload clusters (`workload`), which the user may
not be able to reach. `tree` then shows the reason instead of the pods; `logs` fails.
"""

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
from modelplane_operator.ask.answers.why import Explanation, ReplicaState
from modelplane_operator.ask.answers.why import explain as answer
from modelplane_operator.cli.hub import ask, deployment_of, either, objects, query_operator, snapshot
from modelplane_operator.cli.options import Context, Kubeconfig, Name, Namespace, Output, Watch, hub, place, repeat
from modelplane_operator.cli.output import Format, No, age, console, print_structured, table, text
from modelplane_operator.cli.workload import PodState, connect_to_cluster, pods, pods_of


@dataclass(frozen=True, slots=True)
class Branch:
    """A replica with its pods."""

    replica: ReplicaState
    """State of the replica according to the hub."""
    pods: tuple[PodState, ...]
    """Pods of its engines; empty if they cannot be read."""
    note: str
    """Reason why its pods cannot be read."""


def tree(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
    watch: Watch = False,
) -> None:
    """Print a model with its replicas, their clusters and pods, and the services that route to it."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def read_hub(kube: Kube) -> Explanation:
        """Compute the explanation from objects of the hub."""
        services = await objects(kube, ModelService, key.namespace)
        return answer(await deployment_of(kube, key), services, await snapshot(kube))

    async def ask_operator(kube: Kube) -> Explanation:
        """Return the operator's explanation, for users who must not read the fleet."""
        return read_answer(Explanation, await query_operator(kube, key.namespace, ask="Why", modelDeployment=key.name))

    async def read_all(kube: Kube) -> tuple[Explanation, Sequence[Branch]]:
        """Read the explanation of a model, and the pods of its replicas from their clusters."""
        explanation = await either(kube, read_hub, ask_operator)
        by_name = {
            replica_state.metadata.name: replica_state
            for replica_state in await objects(kube, ModelReplica, key.namespace)
        }
        # A replica can end between the two reads.
        existing = [replica_state for replica_state in explanation.replicas if replica_state.name in by_name]
        pairs = zip(
            existing,
            await asyncio.gather(*(pods_of(kube, by_name[replica_state.name]) for replica_state in existing)),
            strict=True,
        )
        return explanation, [
            Branch(replica_state, *((), pods_or_note) if isinstance(pods_or_note, str) else (tuple(pods_or_note), ""))
            for replica_state, pods_or_note in pairs
        ]

    def show() -> None:
        explanation, branches = ask(target, read_all)
        if output.is_structured:
            print_structured("Tree", branches, output)
        else:
            console().print(_draw(explanation, branches, datetime.now(UTC)))

    repeat(show, watch=watch)


def _draw(explanation: Explanation, branches: Sequence[Branch], now: datetime) -> Tree:
    """Return the tree of a deployment, its replicas and their pods."""
    state = "Ready" if explanation.ready else explanation.reason
    root = Tree(f"[bold]ModelDeployment {text(f'{explanation.namespace}/{explanation.name}')}[/]  {text(state)}")
    for branch in branches:
        replica = branch.replica
        location = f"on {replica.cluster}/{replica.pool}"
        state_text = "Ready" if replica.ready else replica.says
        node = root.add(
            f"ModelReplica {text(replica.name)} {text(location)}  {text(state_text)}  {age(replica.since, now)}"
        )
        for pod in branch.pods:
            description = (
                f"Pod {pod.name}, engine {pod.engine}, node {pod.node or '-'}  {'Ready' if pod.ready else pod.phase}"
            )
            node.add(text(f"{description}, restarted {pod.restarts} times" if pod.restarts else description))
        if branch.note:
            node.add(text(f"pods cannot be listed: {branch.note}"))
    if explanation.waiting:
        root.add(
            text(f"{explanation.waiting} without a place: modelplane why {explanation.namespace}/{explanation.name}")
        )
    for route in explanation.routes:
        root.add(f"ModelService {text(route.name)} {text(route.url)}  {text('Ready' if route.ready else route.says)}")
    return root


@dataclass(frozen=True, slots=True)
class Happening:
    """An Event of one of a model's objects."""

    last: str
    """Time of the last occurrence, as the API server formats it."""
    type: str
    """`Normal` or `Warning`."""
    reason: str
    """Reason in CamelCase, for programs."""
    object: str
    """Kind and name of the object, separated by a slash."""
    count: int
    """Number of occurrences that its reporter has counted in this Event."""
    message: str
    """Text of its last occurrence."""


def events(
    name: Name,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Output = Format.TABLE,
) -> None:
    """Print the Events of a model, its replicas and the services that route to it, newest last."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> tuple[Happening, ...]:
        """Return the Events of all objects of the model, the oldest first."""
        deployment = await deployment_of(kube, key)
        replicas = await objects(kube, ModelReplica, key.namespace)
        services = await objects(kube, ModelService, key.namespace)
        endpoints = await objects(kube, ModelEndpoint, key.namespace)
        fleet = Snapshot((), replicas, (deployment,), (), datetime.now(UTC))
        # An Event has no reference to the deployment, so the names of its objects are collected first.
        own = {item.metadata.name for item in fleet.owned.get(key, ())}
        routes = {item.name for item in answer(deployment, services, fleet).routes}
        involved = {("ModelDeployment", key.name), *(("ModelReplica", item) for item in own)}
        involved |= {("ModelService", item) for item in routes}
        involved |= {("ModelEndpoint", item.key.name) for item in endpoints if item.key.name in own}
        happenings = (await kube.list(EVENT, namespace=key.namespace)).items
        return tuple(
            sorted(
                (_to_happening(item) for item in happenings if _read_involved(item) in involved),
                key=lambda item: item.last,
            )
        )

    happenings = ask(target, question)
    if output.is_structured:
        print_structured("Events", happenings, output)
    elif not happenings:
        console().print(f"There are no Events of {key}: API servers delete them after an hour. See modelplane why.")
    else:
        rows = [(item.last, item.type, item.reason, item.object, item.count, item.message) for item in happenings]
        console().print(table(("LAST SEEN", "TYPE", "REASON", "OBJECT", "COUNT", "MESSAGE"), rows))


def _read_involved(event: Manifest) -> tuple[str, str]:
    """Return the kind and the name of the object that an Event is about."""
    involved = section(event, "involvedObject")
    return str(involved.get("kind")), str(involved.get("name"))


def _to_happening(event: Manifest) -> Happening:
    """Convert an Event. Reporters that use events.k8s.io set `eventTime` instead of `lastTimestamp`, and no count."""
    last = event.get("lastTimestamp") or event.get("eventTime") or section(event, "metadata").get("creationTimestamp")
    return Happening(
        last=str(last or ""),
        type=str(event.get("type") or ""),
        reason=str(event.get("reason") or ""),
        object="/".join(_read_involved(event)),
        count=int(event.get("count") or 1),
        message=str(event.get("message") or ""),
    )


class LogFormat(StrEnum):
    """Formats of log lines. YAML and tables do not suit a stream."""

    TEXT = "text"
    JSON = "json"


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a log, with its pod."""

    replica: str
    """Name of the ModelReplica."""
    cluster: str
    pod: str
    """Name of the pod on this cluster."""
    engine: str
    text: str
    """Content without the newline. Bytes that are no UTF-8 are replaced."""


def logs(
    name: Name,
    replica: Annotated[
        str | None, typer.Option("--replica", help="Only this replica: its name, or its cluster.")
    ] = None,
    engine: Annotated[str | None, typer.Option("--engine", help="Only this engine.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Keep printing new lines.")] = False,
    previous: Annotated[
        bool, typer.Option("-p", "--previous", help="Logs of the previous containers, before their restart.")
    ] = False,
    tail: Annotated[int | None, typer.Option("--tail", help="Print only this many last lines.", min=0)] = None,
    namespace: Namespace = None,
    context: Context = None,
    kubeconfig: Kubeconfig = None,
    output: Annotated[
        LogFormat, typer.Option("-o", "--output", help="Plain lines, or a JSON object per line.")
    ] = LogFormat.TEXT,
) -> None:
    """Print the logs of a model's engines on all clusters."""
    target = hub(kubeconfig, context)
    key = Key(*place(name, namespace, target))

    async def question(kube: Kube) -> None:
        """Find the model's replicas, and print the logs of each in parallel."""
        deployment = await deployment_of(kube, key)
        replicas = await objects(kube, ModelReplica, key.namespace)
        fleet = Snapshot((), replicas, (deployment,), (), datetime.now(UTC))
        selected = [
            item for item in fleet.owned.get(key, ()) if replica in {None, item.metadata.name, item.spec.cluster_name}
        ]
        if not selected:
            raise No(
                f"{key} has no replica{f' {replica}' if replica else ''}: modelplane why {key} says what it waits for"
            )
        async with asyncio.TaskGroup() as group:
            for item in selected:
                group.create_task(
                    _print_logs(
                        kube,
                        item,
                        engine,
                        output,
                        prefix=len(selected) > 1,
                        follow=follow,
                        previous=previous,
                        tail=tail,
                    )
                )

    ask(target, question)


async def _print_logs(
    hub_: Kube, replica: ModelReplica, engine: str | None, output: LogFormat, *, prefix: bool, **log_options: Any
) -> None:
    """Print the logs of a replica's pods. If there are several pods, each line begins with the pod's name."""
    async with connect_to_cluster(hub_, replica.spec.cluster_name) as cluster:
        pod_states = [pod_state for pod_state in await pods(cluster, replica) if engine in {None, pod_state.engine}]
        if not pod_states:
            raise No(
                f"{replica.key} has no pods{f' of engine {engine}' if engine else ''} on {replica.spec.cluster_name}"
            )
        namespace = names.remote_namespace(replica.key.namespace)
        with_prefix = prefix or len(pod_states) > 1

        async def one_pod(pod: PodState) -> None:
            """Print the lines of one pod's log."""
            async with aclosing(logs_of(cluster, Key(namespace, pod.name), pod.containers[0], **log_options)) as lines:
                async for line in lines:
                    content = bytes(line).decode(errors="replace")
                    if (
                        sys.stdout.isatty()
                    ):  # other users' prompts may contain control characters; a file gets them unchanged
                        content = legible(content)
                    if output is LogFormat.JSON:
                        log_line = Line(replica.metadata.name, replica.spec.cluster_name, pod.name, pod.engine, content)
                        content = json.dumps(document("Line", log_line))
                    sys.stdout.write(
                        f"{pod.name}: {content}\n" if with_prefix and output is LogFormat.TEXT else f"{content}\n"
                    )
                    sys.stdout.flush()

        async with asyncio.TaskGroup() as group:
            for pod in pod_states:
                # All pods at the same time: `--follow` never ends for the first one.
                group.create_task(one_pod(pod))
