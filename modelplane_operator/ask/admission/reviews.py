"""Reviews, one for each kind that people write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from kubeloop.loop import Clients, Controller
from kubeloop.reading import children
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
from modelplane_operator.routing.service.controller import is_made, neighbours, selected
from modelplane_operator.scheduling import budget

Review = Callable[[Any, Any, Clients], Awaitable[Verdict]]

SEEN: Final = 0.3
"""Seconds within which what was just written is mostly seen here; less than the API server waits for a review."""
WAITING: Final = 4  # services at a time, of the 16 reviews that run at once: the others are warned of without a wait
BUSY: Final = Verdict(
    warnings=("These selectors take long to try on the whole fleet: what the scheduler decides is told in conditions",)
)


def of_kinds(
    fleet: FleetView, reach: Reach, controllers: Mapping[ResourceType, Controller[Any, Any]]
) -> Mapping[ResourceType, Review]:
    """The reviews, given the controllers of all kinds."""
    of_users = reach.of_users((), ())  # the hub's own ranges are found out when the endpoint is reconciled

    async def of_class(new: InferenceClass, old: InferenceClass | None, clients: Clients) -> Verdict:
        seen = await inference_class.observe(new, clients)
        return admission.inference_class.judge(new, old, seen.users)

    async def of_cluster(new: InferenceCluster, old: InferenceCluster | None, clients: Clients) -> Verdict:
        classes = clients.hub.find(of(InferenceClass))
        known = {key.name for key in classes.keys()} if classes else set[str]()  # noqa: SIM118 - an informer is no dict
        return admission.inference_cluster.judge(new, old, known, fleet.model.info(new.metadata.name))

    async def of_cache(new: ModelCache, old: ModelCache | None, _: Clients) -> Verdict:
        return admission.model_cache.judge(new, old, (one.metadata.labels for one in fleet.clusters.values()))

    async def of_endpoint(new: ModelEndpoint, old: ModelEndpoint | None, _: Clients) -> Verdict:
        return admission.model_endpoint.judge(new, old, of_users)

    of_deployment = deployments(controllers[of(ModelDeployment)], fleet)

    async def of_inference(new: LLMInference, _: LLMInference | None, clients: Clients) -> Verdict:
        if new.spec.placement != "Fleet":
            return NOTHING  # where it leads is found out by connecting, for which a webhook has no time
        need = memory_need(new)
        if need is None:
            return admission.llm_inference.judge(new, need, NOTHING)
        made, *_rest = render_in_fleet(new, need.per_gpu)
        uid, home = new.metadata.uid or "", (new.key.namespace,)
        there = next(children(clients.hub, (of(ModelDeployment),), uid, home), None)
        old = ModelDeployment.parse(there) if there else None
        would = ModelDeployment.parse({**there, "spec": made["spec"]} if there else made)
        return admission.llm_inference.judge(new, need, await of_deployment(would, old, clients))

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
    """By what answers for it now, or in a moment: of one `kubectl apply` the ModelDeployment may not be seen yet."""
    waiting = 0

    async def review(new: ModelService, old: ModelService | None, clients: Clients) -> Verdict:
        nonlocal waiting

        def answered() -> bool:
            return any(selected(new, clients.hub)) or is_made(new, clients.hub)

        if waiting < WAITING and not answered():
            waiting += 1
            try:
                await asyncio.sleep(SEEN)
            finally:
                waiting -= 1
        return admission.model_service.judge(new, old, None if answered() else neighbours(new, clients.hub))

    return review


def deployments(controller: Controller[Any, Any], fleet: FleetView) -> Review:
    """By what the controller itself would observe. Of selectors that take long, one deployment's are tried at a time:
    a thread is not ended by an API server that has ceased to wait."""
    trying: asyncio.Task[None] | None = None

    async def review(new: ModelDeployment, old: ModelDeployment | None, clients: Clients) -> Verdict:
        nonlocal trying
        selectors, devices = budget.texts(new.replica), fleet.model.devices
        if not budget.at_once(selectors, devices):
            if trying is not None and not trying.done():
                return BUSY
            trying = asyncio.create_task(asyncio.to_thread(budget.prepare, selectors, devices))
            await asyncio.shield(trying)
        return admission.model_deployment.judge(await controller.observe(new, clients), old)

    return review
