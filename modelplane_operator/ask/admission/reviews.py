"""Build the review function of each kind that users write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any, Final

from pydantic import ValidationError

from kubeloop.loop import Clients, Controller
from kubeloop.objects import Key
from kubeloop.reading import find, list_children
from kubeloop.resource import of
from kubeloop.types import ResourceType
from kubeloop.verdict import NOTHING, Verdict
from modelplane_operator.api import (
    InferenceClass,
    InferenceCluster,
    LLMInference,
    ModelCache,
    ModelDeployment,
    ModelEndpoint,
    ModelService,
)
from modelplane_operator.ask.admission import rules as admission
from modelplane_operator.clusters.class_ import controller as inference_class
from modelplane_operator.models.deployment.fleet_view import FleetView
from modelplane_operator.models.llm_inference.model_memory import memory_need
from modelplane_operator.models.llm_inference.render import render_in_fleet
from modelplane_operator.routing.endpoint.backend_url import Reach
from modelplane_operator.routing.service.controller import is_made, neighbours, select_endpoints
from modelplane_operator.scheduling import budget

Review = Callable[[Any, Any, Clients], Awaitable[Verdict]]
"""A function of the new object, the old object or None, and the clients."""

PROPAGATION: Final = 0.3
"""Seconds after which the informers usually have an object that was just written; less than the API server's
timeout."""
WAITING: Final = 4  # of 16 concurrent reviews; others warn without waiting
"""Number of reviews of ModelServices that may wait at a time."""
BUSY: Final = Verdict(
    warnings=("These selectors take too long to try on the whole fleet: conditions will have the scheduler's decision",)
)
"""Verdict while another review evaluates slow selectors."""


def of_kinds(
    fleet: FleetView, reach: Reach, controllers: Mapping[ResourceType, Controller[Any, Any]]
) -> Mapping[ResourceType, Review]:
    """Return the reviews by type, given the controllers of all kinds."""
    user_reach = reach.of_users((), ())  # the hub's own ranges are discovered when the endpoint is reconciled

    async def of_class(new: InferenceClass, old: InferenceClass | None, clients: Clients) -> Verdict:
        observed = await inference_class.observe(new, clients)
        return admission.inference_class.judge(new, old, observed.users)

    async def of_cluster(new: InferenceCluster, old: InferenceCluster | None, clients: Clients) -> Verdict:
        by_name: dict[str, InferenceClass | None] = {}
        for name in sorted({pool.class_name for pool in new.spec.node_pools}):
            if (manifest := find(clients.hub, of(InferenceClass), Key("", name))) is not None:
                by_name[name] = None
                with suppress(ValidationError):
                    by_name[name] = InferenceClass.parse(manifest)
        return admission.inference_cluster.judge(new, old, by_name, fleet.model.info(new.metadata.name))

    async def of_cache(new: ModelCache, old: ModelCache | None, _: Clients) -> Verdict:
        return admission.model_cache.judge(new, old, (cluster.metadata.labels for cluster in fleet.clusters.values()))

    async def of_endpoint(new: ModelEndpoint, old: ModelEndpoint | None, _: Clients) -> Verdict:
        return admission.model_endpoint.judge(new, old, user_reach)

    of_deployment = deployments(controllers[of(ModelDeployment)], fleet)

    async def of_inference(new: LLMInference, _: LLMInference | None, clients: Clients) -> Verdict:
        if new.spec.placement != "Fleet":
            return NOTHING  # resolving the target needs a connection, for which a webhook has no time
        need = memory_need(new)
        if need is None:
            return admission.llm_inference.judge(new, need, NOTHING)
        rendered, *_service = render_in_fleet(new, need.per_gpu)
        uid, namespaces = new.metadata.uid or "", (new.key.namespace,)
        existing = next(list_children(clients.hub, (of(ModelDeployment),), uid, namespaces), None)
        old = ModelDeployment.parse(existing) if existing else None
        # It would get a uid of its own; no replica has the LLMInference's as that of its owner.
        metadata = existing["metadata"] if existing else {**rendered["metadata"], "uid": uid}
        proposed = ModelDeployment.parse({**(existing or rendered), "metadata": metadata, "spec": rendered["spec"]})
        return admission.llm_inference.judge(new, need, await of_deployment(proposed, old, clients))

    return {
        of(ModelDeployment): of_deployment,
        of(InferenceClass): of_class,
        of(InferenceCluster): of_cluster,
        of(LLMInference): of_inference,
        of(ModelCache): of_cache,
        of(ModelEndpoint): of_endpoint,
        of(ModelService): services(),
    }


def services() -> Review:
    """Return the review of ModelServices, which warns if a service selects no endpoint.

    It may wait a moment: one `kubectl apply` may write the service before the informer has the ModelDeployment.
    """
    waiting = 0

    async def review(new: ModelService, old: ModelService | None, clients: Clients) -> Verdict:
        nonlocal waiting

        def has_endpoints() -> bool:
            return any(select_endpoints(new, clients.hub)) or is_made(new, clients.hub)

        if waiting < WAITING and not has_endpoints():
            waiting += 1
            try:
                await asyncio.sleep(PROPAGATION)
            finally:
                waiting -= 1
        return admission.model_service.judge(new, old, None if has_endpoints() else neighbours(new, clients.hub))

    return review


def deployments(controller: Controller[Any, Any], fleet: FleetView) -> Review:
    """Return the review of ModelDeployments, which decides from what the controller observes.

    Slow selectors are evaluated for one deployment at a time, because a thread continues after the API server's
    timeout.
    """
    evaluation: asyncio.Task[None] | None = None

    async def review(new: ModelDeployment, old: ModelDeployment | None, clients: Clients) -> Verdict:
        nonlocal evaluation
        selectors, devices = budget.texts(new.replica), fleet.model.devices
        if not budget.at_once(selectors, devices):
            if evaluation is not None and not evaluation.done():
                return BUSY
            evaluation = asyncio.create_task(asyncio.to_thread(budget.prepare, selectors, devices))
            await asyncio.shield(evaluation)
        return admission.model_deployment.check(await controller.observe(new, clients), old)

    return review
