"""Render the objects of a ModelReplica on its workload cluster.

The plan of a replica calls `render_model_replica` with the facts in Context. A new version of the operator must not
restart pods, so it renders replicas of an older pod revision as before.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kubeloop.objects import Manifest
from modelplane_operator.api.isolation import Isolation, PodIsolation
from modelplane_operator.api.model_replica import ModelReplica, PlacedEngine
from modelplane_operator.images import TESTED, Images
from modelplane_operator.models.replica.render.allowed import allow_serving
from modelplane_operator.models.replica.render.budgets import render_budgets
from modelplane_operator.models.replica.render.claims import render_claim_templates
from modelplane_operator.models.replica.render.copies import (
    CopySource,
    describe_excess,
    render_copies,
    sources,
    sources_of,
)
from modelplane_operator.models.replica.render.deployment import render_deployment
from modelplane_operator.models.replica.render.endpoint_picker import picker_pods, render_picker, render_picker_policy
from modelplane_operator.models.replica.render.fences import render_fences
from modelplane_operator.models.replica.render.gang import render_gang
from modelplane_operator.models.replica.render.monitors import render_monitors
from modelplane_operator.models.replica.render.operator_settings import (
    choose_images,
    choose_lifecycle,
    name_rendering,
    operator_settings,
)
from modelplane_operator.models.replica.render.part import Part, engines_without_kv_transfer, misheard, part_of, unheard
from modelplane_operator.models.replica.render.pods import DEFAULT_LIFECYCLE, Lifecycle
from modelplane_operator.models.replica.render.problem import NOT_SERVED, CannotRender, Cause
from modelplane_operator.models.replica.render.revision import REVISION, SECURITY_REVISION
from modelplane_operator.models.replica.render.routing import (
    render_path_filter,
    render_route,
    render_service,
    replica_prefix,
)

__all__ = [
    "BUDGETS",
    "EXTENSION_POLICIES",
    "LEADER_WORKER_SETS",
    "NOT_SERVED",
    "POD_MONITORS",
    "REVISION",
    "ROUTE_FILTERS",
    "SECURITY_REVISION",
    "CannotRender",
    "Cause",
    "Context",
    "CopySource",
    "Lifecycle",
    "engines_without_kv_transfer",
    "misheard",
    "name_rendering",
    "operator_settings",
    "picker_pods",
    "render_model_replica",
    "replica_prefix",
    "sources",
    "sources_of",
    "unheard",
]

LEADER_WORKER_SETS = "leaderworkersets.leaderworkerset.x-k8s.io"
"""Name of the CRD that gangs need."""
POD_MONITORS = "podmonitors.monitoring.coreos.com"
"""Name of the CRD that scraping needs."""
# A kubeconfig from before this version may lack permission for these:
EXTENSION_POLICIES = "envoyextensionpolicies.gateway.envoyproxy.io"
"""Name of the CRD that endpoint pickers need."""
ROUTE_FILTERS = "httproutefilters.gateway.envoyproxy.io"
"""Name of the CRD that restricted paths need."""
BUDGETS = "poddisruptionbudgets.policy"  # every cluster serves it; permission may be missing
"""Name of the API of PodDisruptionBudgets."""


@dataclass(frozen=True, slots=True)
class Context:
    """Facts about the replica's surroundings that rendering needs."""

    namespace_uid: str
    """Uid of the replica's namespace on the hub."""
    serves: frozenset[str]
    """Optional APIs that the cluster serves to the operator: some of BUDGETS, EXTENSION_POLICIES,
    LEADER_WORKER_SETS, POD_MONITORS, ROUTE_FILTERS."""
    referenced: tuple[Manifest, ...] = ()
    """Secrets and ConfigMaps of the replica's namespace on the hub, limited to those that `sources` returns."""
    isolation: Isolation = field(default_factory=Isolation)
    """Isolation settings of the InferenceCluster."""
    images: Images = TESTED
    """Images of the endpoint picker and of the sidecar, for replicas that have recorded none."""
    picker_answers: bool = True
    """True if a pod of the replica's endpoint picker is ready."""

    def filters(self, replica: ModelReplica) -> bool:
        """True if only paths of model APIs lead to the replica. Once they are filtered, they stay filtered."""
        return ROUTE_FILTERS in self.serves or (replica.status is not None and replica.status.paths == "ModelAPIs")

    def has_picker(self, replica: ModelReplica) -> bool:
        """True if an endpoint picker chooses the pod for each request."""
        if EXTENSION_POLICIES not in self.serves:
            return False
        if replica.spec.is_split:
            return True
        serving = replica.spec.serving
        return sum(map(_count_endpoints, replica.spec.engines)) > 1 and (not serving or serving.picker == "Auto")


def _count_endpoints(engine: PlacedEngine) -> int:
    """Return the number of pod ports of an engine that serve requests."""
    workers = sum(member.worker.nodes if member.worker else 1 for member in engine.members if member.role == "Worker")
    return engine.copies * engine.ranks * (1 + (workers if engine.workers_serve else 0))


def render_model_replica(
    replica: ModelReplica, context: Context, *, lifecycle: Lifecycle = DEFAULT_LIFECYCLE
) -> tuple[Manifest, ...] | CannotRender:
    """Return the objects of a replica in the order in which to apply them, or why they cannot be rendered.

    `lifecycle` are the times of its engines, if the replica has recorded none.
    """
    if problem := _find_problem(replica, context):
        return problem
    lifecycle, images = choose_lifecycle(replica, lifecycle), choose_images(replica, context.images)
    parts: list[tuple[PlacedEngine, Part]] = []
    for engine in replica.spec.engines:
        part = part_of(replica, engine, images)
        if isinstance(part, CannotRender):
            return part
        parts.append((engine, part))
    return (
        *render_fences(replica.key.namespace, context.namespace_uid, context.isolation),
        *render_copies(replica, context.referenced),
        *(
            template
            for engine in replica.spec.engines
            for member in engine.members
            for template in render_claim_templates(replica, engine, member)
        ),
        *(
            # a LeaderWorkerSet if it has several members, else a Deployment
            (render_gang if len(engine.members) > 1 else render_deployment)(
                replica, engine, part, lifecycle.of(replica, engine)
            )
            for engine, part in parts
        ),
        *_render_front(replica, context),
        *(render_budgets(replica, picked=context.has_picker(replica)) if BUDGETS in context.serves else ()),
        *(render_monitors(replica, picked=context.has_picker(replica)) if POD_MONITORS in context.serves else ()),
    )


def _find_problem(replica: ModelReplica, context: Context) -> CannotRender | None:
    """Return the reason why the replica cannot be rendered, or None."""
    if excess := describe_excess(replica, context.referenced):
        return CannotRender(
            Cause.TOO_MUCH_TO_COPY, f"the Secrets and ConfigMaps that its engines name have {excess}: name fewer keys"
        )
    for engine in replica.spec.engines:
        for member in engine.members:
            if member.template.spec is None:
                return CannotRender(
                    Cause.NO_POD,
                    f"the {member.role} of engine {engine.name} has no pod: write `template.spec` with a container "
                    "called engine",
                )
        if len(engine.members) > 1 and LEADER_WORKER_SETS not in context.serves:
            return CannotRender(
                Cause.NO_LEADER_WORKER_SET,
                f"engine {engine.name} is a gang, and cluster {replica.spec.cluster_name} does not serve "
                f"{LEADER_WORKER_SETS}: install LeaderWorkerSet there",
            )
    if replica.spec.is_split and not context.has_picker(replica):
        return CannotRender(
            Cause.NO_PICKER,
            f"serving mode PrefillDecode needs an endpoint picker, and cluster {replica.spec.cluster_name} does not"
            f" serve {EXTENSION_POLICIES} to the operator: install Envoy Gateway 1.8 or newer there, give the"
            " operator's account permission for that kind, or use mode Unified",
        )
    return None


def _render_front(replica: ModelReplica, context: Context) -> Sequence[Manifest]:
    """Render what requests pass on their way to the pods. The route is last, so that its backends exist before it.

    In mode Unified, the route bypasses the picker while no picker is ready: the gateway would reject every request.
    """
    has_picker, filtered = context.has_picker(replica), context.filters(replica)
    if replica.spec.serving:
        # The cluster may allow less than when the replica was created.
        serving = allow_serving(replica.spec.serving, context.isolation.pods or PodIsolation())
        replica = replica.model_copy(update={"spec": replica.spec.model_copy(update={"serving": serving})})
    return [
        *(
            (*render_picker(replica, choose_images(replica, context.images)), render_picker_policy(replica))
            if has_picker
            else ()
        ),
        render_service(replica),
        *([render_path_filter(replica)] if filtered else []),
        render_route(
            replica,
            has_picker=has_picker,
            picked=has_picker and (context.picker_answers or replica.spec.is_split),
            filtered=filtered,
        ),
    ]
