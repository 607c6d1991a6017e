"""The same answers without an operator that gives them: by reading the hub, and asking the scheduler here.

Who may not read the hub has them from the operator after all, which then has as long as it takes.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import typer
from pydantic import ValidationError

from kubeloop.client.kube import Kube
from kubeloop.objects import Key
from modelplane_operator.api import ModelCache, ModelDeployment, ModelService
from modelplane_operator.ask.answers import hardware as of_fleet
from modelplane_operator.ask.answers.documents import AllHardware, DeploymentOutcome, Hardware, Outcomes, Why
from modelplane_operator.ask.answers.forecast import drained, edited, forecast, scaled, without
from modelplane_operator.ask.answers.schema import read as read_answer
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.ask.answers.why import why as answer
from modelplane_operator.cli.hub import ask, deployment_of, either, objects, snapshot, told
from modelplane_operator.cli.kubeconfig import HubTarget


def why(target: HubTarget, key: Key, *, with_clusters: bool) -> Why:
    async def read(kube: Kube) -> Why:
        deployment = await deployment_of(kube, key)
        services, seen = await objects(kube, ModelService, key.namespace), await snapshot(kube)
        return answer(deployment, services, seen, with_clusters=with_clusters)

    async def asked(kube: Kube) -> Why:
        return read_answer(Why, await told(kube, key.namespace, ask="Why", modelDeployment=key.name))

    return ask(target, lambda kube: either(kube, read, asked))


def hardware(target: HubTarget, namespace: str) -> Sequence[Hardware]:
    async def read(kube: Kube) -> Sequence[Hardware]:
        return of_fleet.hardware(await snapshot(kube))

    async def asked(kube: Kube) -> Sequence[Hardware]:
        return read_answer(AllHardware, await told(kube, namespace, ask="Hardware")).items

    return ask(target, lambda kube: either(kube, read, asked))


def moved(target: HubTarget, namespace: str, without_: str | None, drain: str | None) -> Outcomes:
    """What becomes of the replicas of a cluster that goes, or is drained."""
    cluster = without_ or drain or ""

    async def read(kube: Kube) -> Outcomes:
        before = await snapshot(kube)
        _there(cluster, before)
        after = without(before, cluster) if without_ else drained(before, cluster)
        return Outcomes(forecast(before, after, clusters=frozenset((cluster,))))

    async def asked(kube: Kube) -> Outcomes:
        return read_answer(Outcomes, await told(kube, namespace, ask="Plan", without=without_, drain=drain))

    return ask(target, lambda kube: either(kube, read, asked))


def planned(
    target: HubTarget, documents: Sequence[ModelDeployment | ModelCache], where: Key, replicas: int | None
) -> Outcomes:
    """Of the deployments of a file, or of one that is there with so many replicas."""

    async def read(kube: Kube) -> Outcomes:
        before = await snapshot(kube)
        wanted = documents or [_scaled(where, before, replicas or 0)]
        deployments = [one for one in wanted if isinstance(one, ModelDeployment)]
        after = edited(before, deployments, (one for one in wanted if isinstance(one, ModelCache)))
        return Outcomes(forecast(before, after, asked=[one.key for one in deployments]))

    async def asked(kube: Kube) -> Outcomes:
        if not documents:
            said = await told(kube, where.namespace, ask="Plan", modelDeployment=where.name, replicas=replicas)
            return read_answer(Outcomes, said)
        found = list[DeploymentOutcome]()
        for one in documents:
            if isinstance(one, ModelDeployment):  # each for itself: what is asked for is not there to be counted on
                said = await told(
                    kube, one.key.namespace, ask="Plan", manifest=json.dumps(one.to_manifest(), default=str)
                )
                found += read_answer(Outcomes, said).items
        return Outcomes(tuple(found))

    return ask(target, lambda kube: either(kube, read, asked))


def _there(cluster: str, seen: Snapshot) -> None:
    if cluster not in seen.cluster:
        known = ", ".join(sorted(seen.cluster)) or "none"
        raise typer.BadParameter(f"there is no InferenceCluster {cluster}; there are: {known}")


def _scaled(key: Key, seen: Snapshot, replicas: int) -> ModelDeployment:
    if key not in seen.deployment:
        raise typer.BadParameter(f"there is no ModelDeployment {key}")
    return scaled(seen.deployment[key], replicas)


def parsed(file: Path, documents: Sequence[dict[str, Any]]) -> Sequence[ModelDeployment | ModelCache]:
    """Each as its kind; raises BadParameter."""
    kinds: dict[str, Any] = {one.definition.kind: one for one in (ModelDeployment, ModelCache)}
    found: list[Any] = []
    for document in documents:
        try:
            found.append(kinds[document["kind"]].parse(document))
        except (ValidationError, ValueError) as error:
            raise typer.BadParameter(f"{file}: {document['metadata'].get('name')}: {error}") from None
    if not any(isinstance(one, ModelDeployment) for one in found):
        raise typer.BadParameter(f"{file} has no ModelDeployment")
    return found
