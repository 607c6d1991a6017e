"""What a stack's rollout has to know of the hub: the other clusters, whether one may be disturbed, failing services."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from pydantic import ValidationError

from kubeloop.condition_types import Ready
from kubeloop.conditions import condition
from kubeloop.errors import Connecting, Unreachable
from kubeloop.helm.release import Component
from kubeloop.loop import Clients
from kubeloop.objects import Key, Manifest, annotations_of, entries, key_of, labels_of
from kubeloop.reading import Cluster, find
from kubeloop.resource import of
from modelplane_operator.api import InferenceCluster, ModelEndpoint, ModelService, ServingStack, labels
from modelplane_operator.api.maintenance import MaintenanceWindow
from modelplane_operator.api.model_service import Answering
from modelplane_operator.clusters.cluster.connections import cluster_of
from modelplane_operator.clusters.stack.chart_states import ObservedCharts
from modelplane_operator.clusters.stack.rollout import RolloutFleet, Surroundings, build_member, needs_fleet
from modelplane_operator.clusters.stack.waves import TURNS, FleetMember
from modelplane_operator.scheduling.maintenance import describe_windows, find_opening

STACKS, CLUSTERS = of(ServingStack), of(InferenceCluster)
ENDPOINTS, SERVICES = of(ModelEndpoint), of(ModelService)


@dataclass(slots=True)
class StackFleetView:
    """The clusters of the fleet, each computed once for a version of its stack."""

    _members: dict[str, tuple[str, FleetMember | None]] = field(
        default_factory=dict[str, tuple[str, FleetMember | None]], init=False
    )
    """The resourceVersion and the member, by uid of the stack."""

    async def observe(
        self,
        stack: ServingStack,
        name: str,
        components: Sequence[Component],
        charts: ObservedCharts | None,
        clients: Clients,
    ) -> Surroundings:
        """Return the other clusters if the stack waits for its turn, and the state of its own cluster on the hub."""
        hub_cluster = find(clients.hub, CLUSTERS, Key("", name))
        if charts is None or stack.metadata.deletion_timestamp is not None:
            return Surroundings(hub_cluster=hub_cluster)
        rollout = stack.status.rollout if stack.status else None
        has_turn = rollout is not None and rollout.phase in TURNS
        fleet = None
        if needs_fleet(stack, components, charts):
            # A turn counts only if no other operator has given one, which the cache may not show yet.
            stacks = (await clients.hub.kube.list(STACKS)).items if has_turn else clients.hub.find(STACKS) or ()
            fleet = RolloutFleet(name, tuple(self.list_members(stacks, clients)), is_fresh=has_turn)
        failing = tuple(find_failing_services(name, clients.hub)) if fleet or has_turn else ()
        return Surroundings(fleet, hub_cluster, failing)

    def list_members(self, stacks: Iterable[Manifest], clients: Clients) -> Iterator[FleetMember]:
        """Yield the clusters with installed charts. Unreadable stacks are left out: nothing changes there."""
        previous, self._members = self._members, {}
        for manifest in stacks:
            uid, version = manifest["metadata"]["uid"], manifest["metadata"]["resourceVersion"]
            cached_version, member = previous.get(uid, ("", None))
            if cached_version != version:
                try:
                    member = build_member(cluster_of(manifest), ServingStack.parse(manifest))
                except ValidationError:
                    member = None
            self._members[uid] = version, member
            if member is not None:
                yield _complete_member(member, manifest, clients)


def _complete_member(member: FleetMember, stack: Manifest, clients: Clients) -> FleetMember:
    """Return a member with what its InferenceCluster and its connection add."""
    hub_cluster = find(clients.hub, CLUSTERS, Key("", member.cluster))
    objects = (stack, *([hub_cluster] if hub_cluster else []))
    return replace(
        member,
        canary={**labels_of(stack), **labels_of(hub_cluster or {"metadata": {}})}.get(labels.CANARY) == "true",
        ready=member.ready and (hub_cluster is None or condition(hub_cluster, Ready.__name__).is_true),
        available=may_be_disturbed(member.cluster, objects, clients),
        window=describe_closed_windows(hub_cluster, clients.now()) if hub_cluster else "",
    )


def describe_closed_windows(cluster: Manifest, now: datetime) -> str:
    """Return the maintenance windows of an InferenceCluster, as a message; empty while one is open."""
    try:
        windows = [MaintenanceWindow.model_validate(window) for window in entries(cluster, "spec", "maintenance")]
    except ValidationError:
        return ""  # as rolls do: a mistake must not keep a fleet from its security fixes
    is_open = not windows or find_opening(now, windows) == now.replace(second=0, microsecond=0)
    return "" if is_open else describe_windows(windows)


def may_be_disturbed(name: str, objects: Iterable[Manifest], clients: Clients) -> bool:
    """Return whether charts may begin to change on a cluster now: it answers, and neither of its objects is paused."""
    if any(annotations_of(manifest).get(labels.PAUSED) == "true" for manifest in objects):
        return False
    try:
        return clients.fleet(name).health.answers
    except (Connecting, Unreachable):
        return False


def find_failing_services(name: str, hub: Cluster) -> Iterator[str]:
    """Yield the ModelServices whose requests fail and that have an endpoint on the cluster."""
    endpoints = hub.find(ENDPOINTS)
    local = set(endpoints.keys_by("cluster", name)) if endpoints else set[Key]()
    for service in (hub.find(SERVICES) or ()) if local else ():
        degraded = condition(service, Ready.__name__).reason == Ready.DEGRADED.reason
        if degraded or condition(service, Answering.__name__).status == "False":
            namespace = key_of(service).namespace
            if any(Key(namespace, item["name"]) in local for item in entries(service, "status", "endpoints")):
                yield str(key_of(service))
