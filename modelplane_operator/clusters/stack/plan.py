"""The software of one workload cluster: charts in their order, the gateway, and how all of it goes.

It goes from the front: the gateway while Envoy Gateway still runs, which takes its load balancer away; then the charts,
each after those that need it; then the namespaces. Definitions of kinds stay: others may have objects of them.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime

from kubeloop.condition_types import Condition, Ready
from kubeloop.errors import ClientError
from kubeloop.objects import Key, Manifest, is_terminating, key_of
from kubeloop.plan import LET_GO, Apply, Plan, Step, delete, prune
from kubeloop.types import ENVOY_PROXY, GATEWAY, GATEWAY_CLASS, NAMESPACE, POLICIES, RESOURCE_QUOTA, SECRET, type_of
from kubeloop.words import counted
from modelplane_operator.api import labels
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.serving_stack import (
    ComponentStatus,
    Installed,
    ServingStack,
    ServingStackStatus,
    StackGatewayStatus,
)
from modelplane_operator.clusters.cluster.cluster_gateway import HTTPS_PORT, gateway_among
from modelplane_operator.clusters.cluster.plan.connection import verified
from modelplane_operator.clusters.cluster.plan.mutual_tls import Doors, Hub, doors, waits
from modelplane_operator.clusters.stack.chart_states import (
    REQUEUE_AFTER,
    ChartStatus,
    ObservedCharts,
    judge,
    lacking,
    remove,
)
from modelplane_operator.clusters.stack.charts import ENVOY, NAMESPACES
from modelplane_operator.clusters.stack.render import (
    ClusterSoftware,
    parts,
    render_before,
    render_gateway,
    render_namespaces,
)
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES
from modelplane_operator.routing.gateway.render import address_of

CHILDREN = (NAMESPACE, RESOURCE_QUOTA, SECRET, ENVOY_PROXY, GATEWAY_CLASS, *POLICIES, GATEWAY)
"""What we make on the cluster beside charts, each after what it needs; it goes in the reverse order."""

REQUEUE_SOON = 0.5  # until a connection that has just begun has seen everything
UNREADY = 15.0  # until we look again for what no event tells of: pods that come up, devices that are published
NAMED = 3  # of many, in a message
LISTED = 32  # components in a status


@dataclass(frozen=True, slots=True)
class ClusterState:
    """What was seen on the cluster itself."""

    charts: ObservedCharts
    children: tuple[Manifest, ...] = ()
    """What we applied there for this stack."""
    taken: frozenset[str] = frozenset()
    """Namespaces that are somebody else's, and in which we install all the same."""
    definitions: tuple[Manifest, ...] = ()
    """Those of the kinds that the AI gateway needs and no chart brings, but for those that somebody else has made."""
    balancers: tuple[str, ...] = ()
    """Load balancers of the gateway; looked for when the gateway is to go."""
    no_devices: tuple[str, ...] = ()
    """Pools that have nodes, none of which publishes the devices that the pool's class declares."""
    has_devices: bool = field(default=False)
    """Whether another pool's nodes do."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parts of the stack that somebody else has brought, and who that is."""

    @property
    def existing(self) -> ClusterSoftware:
        return ClusterSoftware(self.charts.releases, self.others)


@dataclass(frozen=True, slots=True)
class Observed:
    """A stack and all that was seen of it."""

    stack: ServingStack
    cluster: str
    state: ClusterState | None
    """None while the cluster does not answer, and until all of it has been seen."""
    unreachable: ClientError | None
    """Why it does not answer; None while it does, or while that is being found out."""
    now: datetime
    replicas: tuple[str, ...] = ()
    """The ModelReplicas on the cluster; looked for when the stack is to go."""
    abandoned: bool = field(default=False)
    """Whether somebody has said to let go of the cluster, or nothing leads to it any more."""
    unverified: str | None = None
    """Why nobody can tell whether it is that cluster who answers, empty when it proves it; None while it is not
    connected, and where that is for an InferenceCluster to say."""
    hub: Hub = field(default_factory=Hub)
    """The gateway that alone is to be answered."""
    closed: bool = field(default=True)
    """Whether no request can come to the cluster by http any more."""


def plan(seen: Observed) -> Plan:
    if seen.stack.metadata.deletion_timestamp is not None:
        return _teardown(seen)
    if seen.unreachable is not None:
        words = f"cluster {seen.cluster} does not answer: {seen.unreachable}"
        return Plan(
            status=_as_before(seen, Ready.UNREACHABLE.condition(seen.now, message=words)), failure=seen.unreachable
        )
    if seen.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return _in_service(seen, seen.state)


# In service -----------------------------------------------------------------------------------------------------------


def _in_service(seen: Observed, state: ClusterState) -> Plan:
    stack, charts = seen.stack, state.charts
    wanted = parts(stack, state.existing)
    statuses = judge(wanted, charts)
    removals = {key: remove(key, charts) for key in sorted(charts.releases - {part.release.key for part in wanted})}
    opened = _doors(seen, state)
    closing = [
        *lacking(one for one in statuses if one.part.needed),
        *_gateway_problems(seen, statuses, state, opened),
    ]
    degrading = [*lacking(one for one in statuses if not one.part.needed)]
    (degrading if state.has_devices else closing).extend(_device_problems(state))
    problems = [*closing, *degrading]
    installed = _installed(seen, statuses, [words for words, _ in removals.values()])
    failed = any(one.state == "Failed" and not one.runs and one.part.needed for one in statuses)
    why = installed if failed else Installed.INSTALLING.condition(seen.now)
    ready = (Ready.DEGRADED if degrading else Ready.AVAILABLE).condition(seen.now, message="; ".join(degrading))
    if closing:
        ready = not_ready(ServingStack.definition.kind, why, "; ".join(problems))
    address = _address(state)
    gateway = StackGatewayStatus(address=address, server_name=opened.server_name, http=opened.http) if address else None
    status = ServingStackStatus(
        conditions=(
            installed,
            ready,
            *_verified(seen),
        ),
        gateway=gateway,
        components=(*(_reported(one, charts) for one in statuses), *_present(state), *_removed(removals))[:LISTED],
    )
    waits = [one.requeue_after for one in statuses if one.requeue_after is not None]
    waits += [UNREADY] if problems else []
    waits += [REQUEUE_AFTER] if removals else []
    steps = (*_steps(seen, state, statuses), *(step for _, step in removals.values() if step))
    return Plan(steps, status, requeue_after=min(waits, default=None))


def _steps(seen: Observed, state: ClusterState, statuses: Iterable[ChartStatus]) -> Iterator[Step]:
    """What to write, each after what it needs: namespaces, charts, and the gateway once something can run it."""
    stack, cluster, opened = seen.stack, seen.cluster, _doors(seen, state)
    before = (*render_namespaces(stack, state.existing), *render_before(stack, state.existing))
    gateway = render_gateway(stack, state.children, https=opened.https, http=opened.http)
    for manifest in (*state.definitions, *before):
        if not (manifest["kind"] == "Namespace" and manifest["metadata"]["name"] in state.taken):
            yield Apply(manifest, cluster)
    for one in statuses:
        if one.step is not None:
            yield one.step
    if all(one.runs for one in statuses if one.part.name == ENVOY):
        yield from opened.issued()
        for manifest in gateway:
            yield Apply(manifest, cluster)
        # Namespaces stay until all of the stack goes: others may have put something into them.
        spare = (child for child in state.children if type_of(child) not in {NAMESPACE, SECRET})
        yield from prune(spare, (*before, *gateway), owner=stack.metadata.uid or "", cluster=cluster)


def _doors(seen: Observed, state: ClusterState) -> Doors:
    stack = seen.stack
    known = stack.status.gateway.server_name if stack.status and stack.status.gateway else None
    ports = {listener.port for listener in stack.spec.gateway.listeners} if stack.spec.gateway else set[int]()
    hub = Hub() if HTTPS_PORT in ports else seen.hub
    found = doors(stack, seen.cluster, hub, state.children, seen.now, known, closed=seen.closed)
    return replace(found, http=found.http or bool(ports))  # what is asked for by name is not taken away


def _gateway_problems(
    seen: Observed, statuses: Iterable[ChartStatus], state: ClusterState, opened: Doors
) -> Iterator[str]:
    if all(one.runs for one in statuses if one.part.name == ENVOY) and not _address(state):
        waiting = f"the gateway of cluster {seen.cluster} has no address yet: {GIVE_ADDRESSES}"
        yield waits(seen.hub.why) if opened.shut else waiting


def _device_problems(state: ClusterState) -> Iterator[str]:
    if state.no_devices:
        yield f"no node publishes the devices of pool {', '.join(state.no_devices)}"


def _address(state: ClusterState) -> str | None:
    gateway = gateway_among(state.children)
    return address_of(gateway) if gateway else None


def _present(state: ClusterState) -> Iterator[ComponentStatus]:
    for name, whose in state.others.items():
        yield ComponentStatus(name=name, state="Present", message=f"the cluster has it from {whose}"[:2048])


def _removed(removals: Mapping[Key, tuple[str, Step | None]]) -> Iterator[ComponentStatus]:
    """Releases that are no longer wanted, until they are gone: so it stays known where they are (`homes`)."""
    for release, (words, _) in removals.items():
        yield ComponentStatus(name=str(release), state="Uninstalling", message=words[:2048])


def homes(stack: ServingStack) -> frozenset[str]:
    """The namespaces where releases of the stack can be: where its charts go, and where some still have to go."""
    last = stack.status.components if stack.status else ()
    named = (one.name.partition("/") for one in last)
    before = (namespace for namespace, slash, _ in named if slash)
    return frozenset((*NAMESPACES, *(part.release.key.namespace for part in parts(stack)), *before))


def _reported(one: ChartStatus, charts: ObservedCharts) -> ComponentStatus:
    deployed = charts.deployed(one.part.release.key)
    held = charts.contents.get((deployed.release, deployed.number)) if deployed else None
    return ComponentStatus(
        name=one.part.name,
        state=one.state,
        version=held.version[:128] if held else None,  # the cluster may say anything
        digest=(held.archive or None) if held else None,
        message=one.message[:2048] or None,
    )


def _installed(seen: Observed, statuses: Iterable[ChartStatus], removals: Sequence[str]) -> Condition:
    """What most needs to be known, of all charts."""
    said = {
        Installed.FAILED: [one for one in statuses if one.state == "Failed"],
        Installed.ROLLED_BACK: [one for one in statuses if one.state in {"RollingBack", "RolledBack"}],
        Installed.INSTALLING: [one for one in statuses if not one.runs or one.state == "Installing"],
        Installed.UPGRADING: [one for one in statuses if one.state in {"Upgrading", "Waiting"}],
    }
    for reason, concerned in said.items():
        if concerned:
            words = [f"chart {one.part.name}: {one.message or one.state.lower()}" for one in concerned]
            return reason.condition(seen.now, message="; ".join(words))
    if removals:
        return Installed.UPGRADING.condition(seen.now, message="; ".join(removals))
    return Installed.INSTALLED.condition(seen.now)


def _as_before(seen: Observed, ready: Condition) -> ServingStackStatus:
    """The status with what was known last, but for `Ready`."""
    last = seen.stack.status or ServingStackStatus()
    kept = (known for known in last.conditions if known.type == Installed.__name__)
    return last.model_copy(update={"conditions": (*kept, ready, *_verified(seen))})


def _verified(seen: Observed) -> Iterator[Condition]:
    if seen.unverified is not None:
        yield verified(seen.unverified, seen.now)


# On its way out -------------------------------------------------------------------------------------------------------


def _teardown(seen: Observed) -> Plan:
    if labels.FINALIZER not in seen.stack.metadata.finalizers:
        return Plan()  # nothing was ever made there, or all of it is gone
    if seen.replicas:
        some = ", ".join(seen.replicas[:NAMED]) + (", ..." if len(seen.replicas) > NAMED else "")
        return _leaving(seen, f"waiting for {counted(len(seen.replicas), 'replica')} on {seen.cluster}: {some}")
    if seen.unreachable is not None:
        if seen.abandoned:
            return Plan((LET_GO,))
        words = f'cluster {seen.cluster} does not answer; annotate the stack with {labels.ABANDON}="true" to leave it'
        return replace(_leaving(seen, f"{words}: {seen.unreachable}"), failure=seen.unreachable)
    if seen.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return _uninstalled(seen, seen.state)


def _uninstalled(seen: Observed, state: ClusterState) -> Plan:
    """One step back: what nothing else that is left needs. When nothing is left, let go."""
    left = sorted(state.children, key=lambda child: CHILDREN.index(type_of(child)), reverse=True)
    front = [child for child in left if type_of(child) in {*POLICIES, GATEWAY, GATEWAY_CLASS, ENVOY_PROXY}]
    if front and (type_of(front[0]) == GATEWAY or not state.balancers):
        return _deleting(seen, front[0])
    if state.balancers and (left or state.charts.releases):  # else it is that of another stack's gateway
        return _leaving(seen, f"load balancer {', '.join(state.balancers)} is being taken away")
    if state.charts.releases:
        terminating = [remove(key, state.charts) for key in _last_ones(seen.stack, state.charts)]
        return _leaving(seen, "; ".join(words for words, _ in terminating), *(step for _, step in terminating if step))
    if left:
        return _deleting(seen, *left)
    return Plan((LET_GO,))


def _last_ones(stack: ServingStack, charts: ObservedCharts) -> Iterator[Key]:
    """The releases that no other one that is left needs."""
    known = {part.name: part for part in parts(stack, ClusterSoftware(charts.releases))}
    installed = [part for part in known.values() if part.release.key in charts.releases]
    needed = {known[name].release.key for part in installed for name in part.after}
    return (key for key in sorted(charts.releases) if key not in needed)


def _deleting(seen: Observed, *terminating: Manifest) -> Plan:
    steps = [delete(child, cluster=seen.cluster) for child in terminating if not is_terminating(child)]
    names = ", ".join(f"{child['kind']} {key_of(child)}" for child in terminating)
    return _leaving(seen, f"waiting for what is being deleted: {names}", *steps)


def _leaving(seen: Observed, words: str, *steps: Step) -> Plan:
    deleting = Ready.DELETING.condition(seen.now, message=words)
    return Plan(steps, _as_before(seen, deleting), requeue_after=REQUEUE_AFTER)
