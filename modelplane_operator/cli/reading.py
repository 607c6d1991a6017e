"""Compute the answers without the operator: read the hub, and run the scheduler locally.

Users who must not read the hub get the answers from the operator after all, with as much time as it needs.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final, cast

import typer
from pydantic import ValidationError

from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Forbidden
from kubeloop.objects import Key
from kubeloop.resource import of
from modelplane_operator.api import LLMInference, ModelCache, ModelDeployment, ModelEndpoint, ModelService
from modelplane_operator.ask.answers import hardware as of_fleet
from modelplane_operator.ask.answers.documents import (
    AllHardware,
    DeploymentOutcome,
    Explanation,
    Hardware,
    ObjectExplanation,
    Outcomes,
)
from modelplane_operator.ask.answers.forecast import apply_edits, forecast, scale, with_drained, without
from modelplane_operator.ask.answers.schema import read as read_answer
from modelplane_operator.ask.answers.why import explain as answer
from modelplane_operator.ask.answers.why import is_ready
from modelplane_operator.ask.answers.why_objects import explain_object, find_deployments
from modelplane_operator.cli.asking import fetch_answer
from modelplane_operator.cli.hub import ask, deployment_of, either, objects, query_operator, snapshot
from modelplane_operator.cli.kubeconfig import HubTarget
from modelplane_operator.cli.output import FailedError, No

EXPLAINED: Final = 5
"""Number of deployments of a service that are explained, those that are not Ready first."""


def explain_model(target: HubTarget, key: Key, *, with_clusters: bool) -> Explanation:
    """Return the explanation of a deployment. Raise FailedError if it does not exist."""

    async def read_hub(kube: Kube) -> Explanation:
        """Explain the state of a model."""
        deployment = await deployment_of(kube, key)
        services, fleet = await objects(kube, ModelService, key.namespace), await snapshot(kube)
        return answer(deployment, services, fleet, with_clusters=with_clusters)

    async def ask_operator(kube: Kube) -> Explanation:
        """Return the operator's explanation."""
        return read_answer(Explanation, await query_operator(kube, key.namespace, ask="Why", modelDeployment=key.name))

    return ask(target, lambda kube: either(kube, read_hub, ask_operator))


def find_object(target: HubTarget, key: Key, kind: str | None) -> ModelService | LLMInference | None:
    """Return the ModelService or LLMInference to explain; None if it is a ModelDeployment, or may not be read.

    Raise FailedError if there is no object of the name.
    """
    kinds = {model.definition.kind: model for model in (ModelDeployment, ModelService, LLMInference)}
    chosen = [kinds[kind]] if kind else [*kinds.values()]

    async def find(kube: Kube) -> ModelService | LLMInference | None:
        """Read the object of each kind until there is one."""
        for model in chosen:
            try:
                manifest = await kube.find(of(model), key)
            except Forbidden:
                if model is ModelDeployment:
                    return None  # the operator may explain it
                if kind:
                    raise
                continue
            if manifest is not None:
                return None if model is ModelDeployment else cast("Any", model).parse(manifest)
        names = [model.definition.kind for model in chosen]
        plurals = ",".join(of(model).plural for model in chosen)
        text = f"{', '.join(names[:-1])} or {names[-1]}" if len(names) > 1 else names[0]
        raise FailedError(f"there is no {text} {key}: kubectl get {plurals} -n {key.namespace} lists those that exist")

    return ask(target, find)


def explain_other(target: HubTarget, item: ModelService | LLMInference) -> ObjectExplanation:
    """Return the explanation of a ModelService or LLMInference, with those of its first deployments."""
    namespace = item.key.namespace

    async def read_namespace(kube: Kube) -> tuple[Any, Any, Any]:
        """Return the services, endpoints and deployments of the namespace."""
        kinds = (ModelService, ModelEndpoint, ModelDeployment)
        services, endpoints, deployments = [await objects(kube, kind, namespace) for kind in kinds]
        return services, endpoints, deployments

    services, endpoints, deployments = ask(target, read_namespace)
    found = sorted(find_deployments(item, deployments), key=lambda deployment: is_ready(deployment.conditions))
    explanations = list[Explanation]()
    for deployment in found[:EXPLAINED]:
        response = fetch_answer(target, namespace, ask="Why", modelDeployment=deployment.key.name)
        # Without the operator and without permissions on the fleet, the object's own conditions have to do.
        with suppress(No, FailedError, ClientError):
            explanations.append(
                read_answer(Explanation, response)
                if response is not None
                else explain_model(target, deployment.key, with_clusters=False)
            )
    return explain_object(item, services, endpoints, explanations)


def hardware(target: HubTarget, namespace: str) -> Sequence[Hardware]:
    """Return the devices of the fleet, or those that the operator lists for the namespace."""

    async def read_hub(kube: Kube) -> Sequence[Hardware]:
        """List the devices of the fleet."""
        return of_fleet.hardware(await snapshot(kube))

    async def ask_operator(kube: Kube) -> Sequence[Hardware]:
        """Return the operator's list of devices."""
        return read_answer(AllHardware, await query_operator(kube, namespace, ask="Hardware")).items

    return ask(target, lambda kube: either(kube, read_hub, ask_operator))


def forecast_move(target: HubTarget, namespace: str, without_: str | None, drain: str | None) -> Outcomes:
    """Return what happens to the replicas of a cluster that is removed or drained."""
    cluster = without_ or drain or ""

    async def read_hub(kube: Kube) -> Outcomes:
        """Run the scheduler with and without the cluster. Raise BadParameter if it does not exist."""
        current = await snapshot(kube)
        if cluster not in current.cluster:
            names = ", ".join(sorted(current.cluster)) or "none"
            raise typer.BadParameter(f"there is no InferenceCluster {cluster}; there are: {names}")
        after = without(current, cluster) if without_ else with_drained(current, cluster)
        return Outcomes(forecast(current, after, clusters=frozenset((cluster,))))

    async def ask_operator(kube: Kube) -> Outcomes:
        """Return the operator's outcomes of the move."""
        return read_answer(Outcomes, await query_operator(kube, namespace, ask="Plan", without=without_, drain=drain))

    return ask(target, lambda kube: either(kube, read_hub, ask_operator))


def forecast_plan(
    target: HubTarget, documents: Sequence[ModelDeployment | ModelCache], where: Key, replicas: int | None
) -> Outcomes:
    """Return the outcomes for the deployments of a file, or for an existing one with another number of replicas."""

    async def read_hub(kube: Kube) -> Outcomes:
        """Run the scheduler before and after the edits. Raise BadParameter if there is no deployment of this name."""
        current = await snapshot(kube)
        if not documents and where not in current.deployment:
            raise typer.BadParameter(f"there is no ModelDeployment {where}")
        changed = documents or [scale(current.deployment[where], replicas or 0)]
        deployments = [document for document in changed if isinstance(document, ModelDeployment)]
        after = apply_edits(
            current, deployments, (document for document in changed if isinstance(document, ModelCache))
        )
        return Outcomes(forecast(current, after, changed=[document.key for document in deployments]))

    async def ask_operator(kube: Kube) -> Outcomes:
        """Return the operator's outcomes, those of each deployment by a question of its own."""
        if not documents:
            response = await query_operator(
                kube, where.namespace, ask="Plan", modelDeployment=where.name, replicas=replicas
            )
            return read_answer(Outcomes, response)
        outcomes = list[DeploymentOutcome]()
        for document in documents:
            if isinstance(
                document, ModelDeployment
            ):  # one by one: the operator does not count on deployments that do not exist yet
                response = await query_operator(
                    kube, document.key.namespace, ask="Plan", manifest=json.dumps(document.to_manifest(), default=str)
                )
                outcomes += read_answer(Outcomes, response).items
        return Outcomes(tuple(outcomes))

    return ask(target, lambda kube: either(kube, read_hub, ask_operator))


def parse_documents(file: Path, documents: Sequence[dict[str, Any]]) -> Sequence[ModelDeployment | ModelCache]:
    """Parse each document as its kind. Raise BadParameter."""
    kinds: dict[str, Any] = {model.definition.kind: model for model in (ModelDeployment, ModelCache)}
    models: list[Any] = []
    for document in documents:
        try:
            # An unlisted kind cannot occur here: the documents were filtered by READ.
            models.append(kinds[document["kind"]].parse(document))
        except (ValidationError, ValueError) as error:
            raise typer.BadParameter(f"{file}: {document['metadata'].get('name')}: {error}") from None
    return models
