"""Render the objects that manifests would become, on the hub and on clusters; `modelplane render` prints them.

The renderers are the operator's own. Facts that only a cloud, a cluster or the hub knows are replaced by the stand-ins
below, which the output names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, cast

from kubeloop.helm.release import Component
from kubeloop.naming import names as markers
from kubeloop.objects import Key, Manifest
from kubeloop.resource import Resource
from kubeloop.types import HUB
from kubeloop.words import count_of
from modelplane_operator.api import (
    EKSCluster,
    GKECluster,
    InferenceClass,
    InferenceCluster,
    InferenceGateway,
    LLMInference,
    ModelCache,
    ModelDeployment,
    ModelEndpoint,
    ModelReplica,
    ModelService,
    ServingStack,
    names,
)
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.llm_inference import IN_CLUSTER
from modelplane_operator.api.model_deployment import DeployedEngine
from modelplane_operator.api.placement import Claim, EnginePlacement, MemberPlacement, Placement
from modelplane_operator.ask.answers.forecast import apply_edits
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.clouds.eks.render import resources as eks_resources
from modelplane_operator.clouds.eks.render.plan import Facts as EKSFacts
from modelplane_operator.clouds.gke import render as gke
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.render import INFRASTRUCTURE, render_infrastructure
from modelplane_operator.clouds.resources import DesiredResource
from modelplane_operator.clusters.cluster.cluster_gateway import (
    gateway_of,
    render_cluster_gateway,
    render_system_namespace,
)
from modelplane_operator.clusters.stack.render import parts, render_before, render_namespaces, render_stack
from modelplane_operator.images import TESTED
from modelplane_operator.models.cache.cache_sources import claim_of, remote_source
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job, render_volume
from modelplane_operator.models.deployment.render import render_endpoint, render_replica
from modelplane_operator.models.llm_inference.model_memory import memory_need
from modelplane_operator.models.llm_inference.plan import memory_message
from modelplane_operator.models.llm_inference.render import render_in_fleet, render_on_cluster
from modelplane_operator.models.replica.render import (
    BUDGETS,
    EXTENSION_POLICIES,
    LEADER_WORKER_SETS,
    POD_MONITORS,
    ROUTE_FILTERS,
    CannotRender,
    Context,
    Lifecycle,
    operator_settings,
    render_model_replica,
)
from modelplane_operator.routing.endpoint.backend_url import InvalidUrl, parse_url
from modelplane_operator.routing.endpoint.render import requested_name
from modelplane_operator.routing.gateway.render import hub_gateway, render_inference_gateway
from modelplane_operator.routing.gateway.render.software import gateway_parts, render_addresses
from modelplane_operator.routing.service.render import render_model_service
from modelplane_operator.routing.service.weights import Target, select_endpoints, weigh_endpoints
from modelplane_operator.scheduling.prose import summary

CLUSTER: Final = "cluster"
"""Name of the cluster that stands in for the one that the scheduler would choose."""
POOL: Final = "pool"
"""Name of its pool, in which every engine fits."""
DRIVER: Final = "gpu.nvidia.com"
"""DeviceClass of its devices."""
GATEWAY: Final = "gateway.cluster.example"
"""Address of its gateway."""
STORAGE_CLASS: Final = "shared"
"""StorageClass of its ModelCaches."""
IMAGE: Final = "modelplane-operator"
"""Image of the hydrator, which the chart sets."""
UID: Final = "none"
"""Uid of objects that no API server has stored."""
SERVES: Final = frozenset({BUDGETS, EXTENSION_POLICIES, LEADER_WORKER_SETS, POD_MONITORS, ROUTE_FILTERS})
"""Optional APIs that clusters with a serving stack serve."""


@dataclass(frozen=True, slots=True)
class Rendered:
    """The objects that one object becomes at one place."""

    source: str
    """Kind and name of the object."""
    place: str
    """Name of the cluster, or HUB."""
    objects: tuple[Manifest, ...] = ()
    notes: tuple[str, ...] = ()
    """What cannot be written as objects of Kubernetes, and what has no place."""
    complete: bool = True
    """False if a part of it has no place, or cannot be rendered."""


@dataclass(slots=True)
class Renderer:
    """Renders the objects of one file, and what those become in turn."""

    documents: Sequence[Resource[Any, Any]]
    """Parsed objects of any kind."""
    fleet: Snapshot | None = None
    """The hub's clusters and models; None to render for the cluster that stands in."""
    _endpoints: list[ModelEndpoint] = field(default_factory=list[ModelEndpoint], init=False)
    """Endpoints of the file and of its replicas, among which services select."""

    def render(self) -> Iterator[Rendered]:
        """Yield what each document becomes. Services come last, because they need the endpoints."""
        self._endpoints += self._of_kind(ModelEndpoint)
        for document in sorted(self.documents, key=lambda document: isinstance(document, ModelService)):
            yield from self._render(_stored(type(document), document.to_manifest()))

    def _of_kind(self, kind: type[Any]) -> list[Any]:
        """Return the documents of a kind."""
        return [document for document in self.documents if isinstance(document, kind)]

    def _render(self, document: Any) -> Iterator[Rendered]:
        """Yield what an object becomes, and what that becomes in turn."""
        name = f"{document.definition.kind} {document.key}"
        renderers: Mapping[type[Any], Callable[[str, Any], Iterator[Rendered]]] = {
            ModelDeployment: self._render_deployment,
            ModelReplica: self._render_replica,
            ModelEndpoint: self._render_endpoint,
            ModelService: self._render_service,
            ModelCache: self._render_cache,
            LLMInference: self._render_inference,
            InferenceCluster: self._render_cluster,
            InferenceGateway: self._render_gateway,
            ServingStack: self._render_stack,
            EKSCluster: self._render_eks,
            GKECluster: self._render_gke,
        }
        if (kind := cast("type[Any]", type(document))) in renderers:
            yield from renderers[kind](name, document)
        else:
            yield Rendered(name, HUB, notes=("It becomes no other object.",))

    # Models -----------------------------------------------------------------------------------------------------------

    def _render_inference(self, name: str, inference: LLMInference) -> Iterator[Rendered]:
        """Yield the objects of an LLMInference."""
        if inference.spec.placement == "Cluster":
            target = inference.spec.provider_config_name or ""
            place = HUB if target == IN_CLUSTER else target
            yield Rendered(name, place, tuple(render_on_cluster(inference, token=False)))
            return
        need = memory_need(inference)
        if need is None:
            yield Rendered(name, HUB, notes=(memory_message(inference, need),), complete=False)
            return
        deployment, service = render_in_fleet(inference, need.per_gpu)
        yield Rendered(name, HUB, (deployment, service), (memory_message(inference, need),))
        yield from self._render(_stored(ModelDeployment, deployment))
        yield from self._render(_stored(ModelService, service))

    def _render_deployment(self, name: str, deployment: ModelDeployment) -> Iterator[Rendered]:
        """Yield the replicas and endpoints of a ModelDeployment, and what they become."""
        notes, complete = (f"No fleet was read: a cluster named {CLUSTER} stands in, on which everything fits.",), True
        placements: Sequence[Placement] = [_stand_in(deployment, index) for index in range(deployment.spec.replicas)]
        caches: Iterable[ModelCache] = self._of_kind(ModelCache)
        if self.fleet is not None:
            self.fleet = apply_edits(self.fleet, [deployment], caches)
            deployment, caches = self.fleet.deployment[deployment.key], self.fleet.caches
            decision = self.fleet.decide(deployment, self.fleet.fleet())
            placements, notes, complete = decision.placements, (summary(decision),), decision.is_complete
        reference = deployment.replica.model_cache_ref
        key = Key(deployment.key.namespace, reference.name) if reference else None
        cache = next((item for item in caches if item.key == key), None)
        operator = operator_settings(TESTED, Lifecycle())
        replicas: list[ModelReplica] = []
        endpoints: list[ModelEndpoint] = []
        for placement in placements:
            cluster = self._cluster(placement.cluster)
            gateway = cluster.status.gateway if cluster and cluster.status else None
            address, server_name = (gateway.address, gateway.server_name) if gateway else (None, None)
            replicas.append(_stored(ModelReplica, render_replica(deployment, placement, cluster, cache, operator)))
            endpoint = render_endpoint(deployment, placement, address or GATEWAY, server_name or "")
            endpoints.append(_stored(ModelEndpoint, endpoint))
        children = (*replicas, *endpoints)
        yield Rendered(name, HUB, tuple(item.to_manifest() for item in children), notes, complete)
        if self.fleet is not None:  # they take their nodes from the deployments that follow
            present = {replica.key for replica in self.fleet.replicas}
            added = (replica for replica in replicas if replica.key not in present)
            self.fleet = replace(self.fleet, replicas=(*self.fleet.replicas, *added))
        self._endpoints += endpoints
        for item in children:
            yield from self._render(item)

    def _cluster(self, name: str) -> InferenceCluster | None:
        """Return a cluster of the hub; None for the one that stands in."""
        return self.fleet.cluster.get(name) if self.fleet else None

    def _render_replica(self, name: str, replica: ModelReplica) -> Iterator[Rendered]:
        """Yield the objects of a ModelReplica on its cluster."""
        cluster = self._cluster(replica.spec.cluster_name)
        isolation = (cluster.spec.isolation if cluster else None) or Isolation()
        rendered = render_model_replica(replica, Context(UID, SERVES, isolation=isolation, images=TESTED))
        if isinstance(rendered, CannotRender):
            yield Rendered(name, replica.spec.cluster_name, notes=(rendered.message,), complete=False)
            return
        yield Rendered(name, replica.spec.cluster_name, rendered)

    def _render_cache(self, name: str, cache: ModelCache) -> Iterator[Rendered]:
        """Yield the objects of a ModelCache on each cluster that its selector chooses."""
        if claim := claim_of(cache):
            yield Rendered(name, HUB, notes=(f"Its claim {claim} must exist already; nothing is created.",))
            return
        selected = cache.spec.cluster_selector.match_labels if cache.spec.cluster_selector else {}
        places = [CLUSTER]
        if self.fleet is not None:
            clusters = self.fleet.clusters
            places = [c.metadata.name for c in clusters if selected.items() <= c.metadata.labels.items()]
        volume = names.cache_volume(*cache.key)
        objects = (
            render_volume(cache, volume, STORAGE_CLASS, remote_source(cache).size_gib),
            *render_account(cache),
            render_job(cache, volume, Hydrator(IMAGE), attempt=1),
        )
        note = f"StorageClass {STORAGE_CLASS} stands in for the cluster's, and the image for that of the chart."
        for place in places:
            yield Rendered(name, place, objects, (note,))

    # Routes -----------------------------------------------------------------------------------------------------------

    def _render_endpoint(self, name: str, endpoint: ModelEndpoint) -> Iterator[Rendered]:
        """Yield the objects of a ModelEndpoint on the hub."""
        backend = parse_url(endpoint.spec.url)
        if isinstance(backend, InvalidUrl):
            yield Rendered(name, HUB, notes=(f"Its URL cannot be used: {backend.message}.",), complete=False)
            return
        plane = hub_gateway(self._gateway()).plane
        yield Rendered(name, HUB, tuple(plane.render_endpoint(endpoint, backend)))

    def _render_service(self, name: str, service: ModelService) -> Iterator[Rendered]:
        """Yield the routes of a ModelService on the hub."""
        targets: dict[Key, Target] = {}
        for endpoint in self._endpoints:
            backend = parse_url(endpoint.spec.url)
            if not isinstance(backend, InvalidUrl):
                host = requested_name(endpoint.spec.hostname, backend)
                targets[endpoint.key] = Target(backend, path=endpoint.spec.rewrite_path, name=host)
        shares = weigh_endpoints(service, select_endpoints(service, self._endpoints), targets)
        note = f"It leads to {count_of(len(shares), 'endpoint')} of this file; credentials are left out."
        yield Rendered(name, HUB, render_model_service(service, shares, hub_gateway(self._gateway())), (note,))

    def _gateway(self) -> InferenceGateway | None:
        """Return the InferenceGateway of the file, or None for the default."""
        return next(iter(self._of_kind(InferenceGateway)), None)

    def _render_gateway(self, name: str, gateway: InferenceGateway) -> Iterator[Rendered]:
        """Yield the objects and charts of an InferenceGateway on the hub."""
        objects = (*render_addresses(gateway), *render_inference_gateway(gateway))
        yield Rendered(name, HUB, objects, tuple(map(_describe_chart, gateway_parts(gateway))))

    # Clusters ---------------------------------------------------------------------------------------------------------

    def _render_cluster(self, name: str, cluster: InferenceCluster) -> Iterator[Rendered]:
        """Yield the objects of an InferenceCluster on the hub and on the cluster, and what they become."""
        place, source = cluster.metadata.name, cluster.spec.cluster.source
        if source != "Existing" and source not in INFRASTRUCTURE:
            yield Rendered(name, HUB, notes=(f"This operator does not create clusters on {source}.",), complete=False)
            return
        classes = {item.metadata.name: item for item in self._of_kind(InferenceClass)}
        if source in INFRASTRUCTURE:
            try:
                children = render_infrastructure(cluster, classes)
            except CannotMake as error:
                yield Rendered(name, HUB, notes=(f"{error}.",), complete=False)
                return
            yield Rendered(name, HUB, (children,))
            kind = INFRASTRUCTURE[source].kind
            yield from self._render(_stored(kind, children))
        if source in INFRASTRUCTURE or cluster.spec.stack is not None:
            stack = render_stack(cluster)
            yield Rendered(name, HUB, (stack,))
            yield from self._render_stack(f"ServingStack {place}", _stored(ServingStack, stack), place)
        gateway = render_cluster_gateway(cluster, gateway_of(cluster))
        yield Rendered(name, place, (render_system_namespace(cluster), *gateway))

    def _render_stack(self, name: str, stack: ServingStack, place: str = CLUSTER) -> Iterator[Rendered]:
        """Yield the objects and charts of a ServingStack on its cluster."""
        objects = (*render_namespaces(stack), *render_before(stack))
        yield Rendered(name, place, objects, tuple(map(_describe_chart, parts(stack))))

    def _render_eks(self, name: str, cluster: EKSCluster) -> Iterator[Rendered]:
        """Yield the AWS resources of an EKSCluster."""
        region = cluster.spec.region
        zones = dict.fromkeys(zone for pool in cluster.spec.node_pools for zone in pool.zones)
        facts = EKSFacts(tuple(zones) or (f"{region}a", f"{region}b"), "arn:aws:iam::ACCOUNT:role/operator", {})
        yield _render_resources(name, "AWS", lambda: eks_resources(cluster, facts))

    def _render_gke(self, name: str, cluster: GKECluster) -> Iterator[Rendered]:
        """Yield the Google Cloud resources of a GKECluster."""
        yield _render_resources(
            name, "Google Cloud", lambda: gke.resources(cluster, gke.Facts(cluster.spec.project or "PROJECT"))
        )


def _stored(kind: type[Any], manifest: Manifest) -> Any:
    """Parse an object as if an API server had stored it."""
    return kind.parse({**manifest, "metadata": {**manifest["metadata"], "uid": UID}})


def _stand_in(deployment: ModelDeployment, index: int) -> Placement:
    """Return a placement on the cluster that stands in."""
    return Placement(CLUSTER, index, tuple(_stand_in_engine(engine) for engine in deployment.replica.engines))


def _stand_in_engine(engine: DeployedEngine) -> EnginePlacement:
    """Return an engine's placement in the pool that stands in."""
    members = (
        MemberPlacement(
            member.role,
            POOL,
            1,
            tuple(
                Claim(device.name, DRIVER, device.count, tuple(selector.cel or "" for selector in device.selectors))
                for device in (member.node_selector.devices if member.node_selector else ())
            ),
        )
        for member in engine.members
    )
    return EnginePlacement(engine.name, tuple(members))


def _describe_chart(component: Component) -> str:
    """Return the Helm chart of a component."""
    release = component.release
    return f"Helm release {release.key}: chart {release.chart} {release.version} of {release.repository}"


def _render_resources(name: str, cloud: str, render: Callable[[], Iterable[DesiredResource]]) -> Rendered:
    """Return a cloud's resources, or why they cannot be created."""
    try:
        entries = tuple(render())
    except CannotMake as error:
        return Rendered(name, HUB, notes=(f"{error}.",), complete=False)
    return Rendered(name, HUB, notes=tuple(f"{cloud}: {item.kind} {item.key}" for item in entries))


def plain(value: Any) -> Any:
    """Return an object without what the operator finds its own objects by, so that it leaves alone a person's copy."""
    if isinstance(value, list | tuple):
        return [plain(part) for part in cast("Iterable[Any]", value)]
    if not isinstance(value, dict):
        return value
    own = {markers().owner_kind, markers().owner_namespace, markers().owner_name, markers().owner_uid}
    entries: Manifest = {}
    for name, part in cast(Manifest, value).items():
        if name == "labels" and isinstance(part, dict):
            remaining = {key: text for key, text in cast(Manifest, part).items() if key not in own}
            entries |= {name: remaining} if remaining else {}
        elif name not in {"ownerReferences", "finalizers", "uid"}:
            entries[name] = plain(part)
    return entries
