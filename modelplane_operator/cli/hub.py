"""What the command reads of the hub, and the ways in which that fails."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Iterator
from datetime import UTC, datetime
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import OF_HUB
from kubeloop.client.subresources import question
from kubeloop.errors import ClientError, Forbidden, NotFound
from kubeloop.objects import Key
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica
from modelplane_operator.ask.answers.documents import QUESTION
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.output import FailedError, No

T = TypeVar("T")


def ask(target: HubTarget, question: Callable[[Kube], Awaitable[T]]) -> T:
    """Connect, ask, and disconnect; raises ClientError."""

    async def run() -> T:
        async with connect(target.access, limits=OF_HUB) as hub:
            return await question(hub)

    try:
        return asyncio.run(run())
    except BaseExceptionGroup as errors:  # of lists that are read at once, each fails for the same reason
        raise next((one for one in _each(errors) if isinstance(one, ClientError | No | FailedError)), errors) from None


async def objects(hub: Kube, kind: Any, namespace: str = "") -> tuple[Any, ...]:
    """All of a kind, where they can be read; what cannot be read by this version is passed over."""
    listing = await hub.list(of(kind), namespace=namespace)
    return tuple(one for one in (_parsed(kind, manifest) for manifest in listing.items) if one is not None)


async def deployment_of(hub: Kube, key: Key) -> ModelDeployment:
    """The ModelDeployment that somebody has named; raises FailedError where there is none."""
    try:
        return ModelDeployment.parse(await hub.get(of(ModelDeployment), key))
    except NotFound:
        there = f"kubectl get modeldeployments -n {key.namespace} lists those that are there"
        raise FailedError(f"there is no ModelDeployment {key}: {there}") from None


async def snapshot(hub: Kube) -> Snapshot:
    """The fleet, and all that is placed on it."""
    kinds: tuple[Kind, ...] = (InferenceCluster, ModelReplica, ModelDeployment, ModelCache)
    async with asyncio.TaskGroup() as group:
        clusters, replicas, deployments, caches = (group.create_task(objects(hub, kind)) for kind in kinds)
    return Snapshot(clusters.result(), replicas.result(), deployments.result(), caches.result(), datetime.now(UTC))


async def of_namespace(hub: Kube, namespace: str) -> Snapshot:
    """What somebody may read who has one namespace."""
    replicas, deployments = await objects(hub, ModelReplica, namespace), await objects(hub, ModelDeployment, namespace)
    return Snapshot((), replicas, deployments, (), datetime.now(UTC))


def _parsed(kind: Any, manifest: Any) -> Any:
    try:
        return kind.parse(manifest)
    except ValidationError:
        return None


async def told(hub: Kube, namespace: str, **spec: object) -> Any:
    """What the operator answers to a question about one namespace, for who may not read the fleet."""
    found = await question(hub, QUESTION, namespace, {name: one for name, one in spec.items() if one is not None})
    if found is None:
        raise No(NOBODY)
    return found


NOBODY = (
    "you may not read the whole fleet, and the operator of this hub answers no questions: have the platform team "
    "switch on admission.webhook of its chart"
)


async def either(kube: Kube, read: Callable[[Kube], Awaitable[T]], asked: Callable[[Kube], Awaitable[T]]) -> T:
    """By reading the hub; where that is forbidden, by asking the operator."""
    try:
        return await read(kube)
    except (Forbidden, BaseExceptionGroup) as errors:  # what else broke off with a list that is refused tells nothing
        first = next((one for one in _each(errors) if isinstance(one, Forbidden)), None)
        if first is None:
            raise
    try:
        return await asked(kube)
    except NotFound:
        raise first from None


def _each(error: Any) -> Iterator[Any]:
    """The errors of a group, or the one that is none."""
    if not isinstance(error, BaseExceptionGroup):
        yield error
        return
    for one in cast("BaseExceptionGroup[Any]", error).exceptions:
        yield from _each(one)
