"""Reviews, one for each kind that people write."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final

from modelplane_operator.api import (
    InferenceClass,
    InferenceCluster,
    ModelCache,
    ModelDeployment,
    ModelEndpoint,
    ModelService,
)
from modelplane_operator.api.types import of
from modelplane_operator.controllers import inference_class
from modelplane_operator.controllers.fleet_view import FleetView
from modelplane_operator.controllers.model_service import neighbours, selected
from modelplane_operator.kube.resources import ResourceType
from modelplane_operator.planning import admission
from modelplane_operator.planning.admission.verdict import Verdict
from modelplane_operator.rendering.backend_url import Reach
from modelplane_operator.runtime.loop import Clients, Controller
from modelplane_operator.scheduling import budget

Review = Callable[[Any, Any, Clients], Awaitable[Verdict]]

BUSY: Final = Verdict(
    warnings=("These selectors take long to try on the whole fleet: what the scheduler decides is told in conditions",)
)


def of_kinds(fleet: FleetView, reach: Reach) -> Mapping[ResourceType, Callable[[Controller[Any, Any]], Review]]:
    """How the review of a kind is made, given its controller."""
    of_users = reach.of_users((), ())  # the hub's own ranges are found out when the endpoint is reconciled

    async def of_class(new: InferenceClass, old: InferenceClass | None, clients: Clients) -> Verdict:
        seen = await inference_class.observe(new, clients)
        return admission.inference_class.judge(new, old, seen.users)

    async def of_cluster(new: InferenceCluster, old: InferenceCluster | None, clients: Clients) -> Verdict:
        classes = clients.hub.find(of(InferenceClass))
        known = {key.name for key in classes.keys()} if classes else set[str]()  # noqa: SIM118 - an informer is no dict
        return admission.inference_cluster.judge(new, old, known, fleet.model.site(new.metadata.name))

    async def of_cache(new: ModelCache, old: ModelCache | None, _: Clients) -> Verdict:
        return admission.model_cache.judge(new, old, (one.metadata.labels for one in fleet.clusters.values()))

    async def of_endpoint(new: ModelEndpoint, old: ModelEndpoint | None, _: Clients) -> Verdict:
        return admission.model_endpoint.judge(new, old, of_users)

    async def of_service(new: ModelService, old: ModelService | None, clients: Clients) -> Verdict:
        found = next(iter(selected(new, clients.hub)), None)
        return admission.model_service.judge(new, old, None if found else neighbours(new, clients.hub))

    return {
        of(ModelDeployment): lambda one: deployments(one, fleet),
        of(InferenceClass): lambda _: of_class,
        of(InferenceCluster): lambda _: of_cluster,
        of(ModelCache): lambda _: of_cache,
        of(ModelEndpoint): lambda _: of_endpoint,
        of(ModelService): lambda _: of_service,
    }


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
