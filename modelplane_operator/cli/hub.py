"""Read the hub for the commands, and report failures."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import OF_HUB
from kubeloop.client.subresources import question
from kubeloop.errors import ClientError, Conflict, Forbidden, NotFound
from kubeloop.objects import Key, Manifest, annotations_of
from kubeloop.resource import of
from kubeloop.types import ResourceType
from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.output import FailedError, No

T = TypeVar("T")


def ask(target: HubTarget, question: Callable[[Kube], Awaitable[T]]) -> T:
    """Connect to the hub, run a function with its client, and disconnect. Raise ClientError."""

    async def run() -> T:
        async with connect(target.access, limits=OF_HUB) as hub:
            return await question(hub)

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as errors:  # lists that are read in parallel all fail for the same reason
        raise next(
            (error for error in _flatten(errors) if isinstance(error, ClientError | No | FailedError)), errors
        ) from None


async def objects(hub: Kube, kind: Any, namespace: str = "") -> tuple[Any, ...]:
    """Return all objects of a kind that can be parsed. Others, of newer versions, are skipped."""
    listing = await hub.list(of(kind), namespace=namespace)
    parsed: list[Any] = []
    for manifest in listing.items:
        with suppress(ValidationError):
            parsed.append(kind.parse(manifest))
    return tuple(parsed)


async def deployment_of(hub: Kube, key: Key) -> ModelDeployment:
    """Return a ModelDeployment. Raise FailedError if it does not exist."""
    try:
        return ModelDeployment.parse(await hub.get(of(ModelDeployment), key))
    except NotFound:
        hint = f"kubectl get modeldeployments -n {key.namespace} lists those that exist"
        raise FailedError(f"there is no ModelDeployment {key}: {hint}") from None


async def snapshot(hub: Kube) -> Snapshot:
    """Read the fleet and all placements."""
    kinds: tuple[Kind, ...] = (InferenceCluster, ModelReplica, ModelDeployment, ModelCache)
    async with asyncio.TaskGroup() as group:
        clusters, replicas, deployments, caches = (group.create_task(objects(hub, kind)) for kind in kinds)
    return Snapshot(clusters.result(), replicas.result(), deployments.result(), caches.result(), datetime.now(UTC))


async def of_namespace(hub: Kube, namespace: str) -> Snapshot:
    """Read the objects of one namespace, for users without access to the fleet."""
    replicas, deployments = await objects(hub, ModelReplica, namespace), await objects(hub, ModelDeployment, namespace)
    return Snapshot((), replicas, deployments, (), datetime.now(UTC))


async def query_operator(hub: Kube, namespace: str, **spec: object) -> Any:
    """Return the operator's answer to a question about a namespace, for users who must not read the fleet.

    Raise No without one.
    """
    result = await question(
        hub, QUESTION, namespace, {name: value for name, value in spec.items() if value is not None}
    )
    if result is None:
        raise No(NO_ANSWER)
    return result


NO_ANSWER = (
    "you cannot list the whole fleet, and the operator of this hub answers no questions: have the platform team "
    "set admission.webhook of its chart to true"
)


async def either(kube: Kube, read: Callable[[Kube], Awaitable[T]], ask: Callable[[Kube], Awaitable[T]]) -> T:
    """Read the hub; if that is forbidden, query the operator instead."""
    try:
        return await read(kube)
    except (
        Forbidden,
        BaseExceptionGroup,
    ) as errors:  # other lists were cancelled when the first was rejected, and say nothing
        # TaskGroup wraps the errors of parallel lists in a group.
        first = next((error for error in _flatten(errors) if isinstance(error, Forbidden)), None)
        if first is None:
            raise
    try:
        return await ask(kube)
    except NotFound:
        # The hub does not serve the question, so the missing permission is the user's actual problem.
        raise first from None


TRIES = 5
"""Maximum attempts to write an object. The operator writes the status of the same object."""


async def rewrite(kube: Kube, kind: ResourceType, key: Key, change: Callable[[Manifest], Manifest]) -> None:
    """Read an object and write it back with a change, unless it has that already. A conflict is retried."""
    for attempt in range(TRIES):
        stored = await kube.get(kind, key)
        changed = change(stored)
        if changed == stored:
            return
        try:
            await kube.replace(changed)
        except Conflict:
            if attempt == TRIES - 1:
                raise
        else:
            return


def annotate(annotations: Mapping[str, str | None], stored: Manifest) -> Manifest:
    """Return an object with these annotations, and without those that are None."""
    merged = {name: value for name, value in {**annotations_of(stored), **annotations}.items() if value is not None}
    return {**stored, "metadata": {**stored["metadata"], "annotations": merged}}


def _flatten(error: Any) -> Iterator[Any]:
    """Yield the errors of a group, or the error itself if it is no group."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for inner in cast("BaseExceptionGroup[Any]", error).exceptions:
        yield from _flatten(inner)
