"""Plan the software of one workload cluster: charts in order, the gateway, and the removal of both.

Removal order: the gateway while Envoy Gateway still runs and deletes its load balancer; the charts, each after its
dependants; the namespaces. CustomResourceDefinitions stay, since others may have objects of those kinds.
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
from kubeloop.words import count_of
from modelplane_operator.api import labels
from modelplane_operator.api.reasons import not_ready
from modelplane_operator.api.serving_stack import (
    ComponentStatus,
    GatewayCertified,
    Installed,
    ServingStack,
    ServingStackRollout,
    ServingStackStatus,
    StackGatewayStatus,
)
from modelplane_operator.clusters.cluster.cluster_gateway import HTTPS_PORT, gateway_among
from modelplane_operator.clusters.cluster.plan.connection import server_verified
from modelplane_operator.clusters.cluster.plan.mutual_tls import Hub, Listeners, choose_listeners, waits
from modelplane_operator.clusters.stack.chart_states import (
    REQUEUE_AFTER,
    ChartStatus,
    ObservedCharts,
    compute_chart_status,
    describe_missing,
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
from modelplane_operator.clusters.stack.rollout import (
    POLL,
    UNTIL_TURN,
    Surroundings,
    begin,
    build_condition,
    conclude,
    follow_unreachable,
)
from modelplane_operator.clusters.stack.waves import TURNS
from modelplane_operator.routing.gateway.certificates import is_reported
from modelplane_operator.routing.gateway.gateway_pods import GIVE_ADDRESSES
from modelplane_operator.routing.gateway.render import address_of

CHILDREN = (NAMESPACE, RESOURCE_QUOTA, SECRET, ENVOY_PROXY, GATEWAY_CLASS, *POLICIES, GATEWAY)
"""Types of the objects that the operator creates besides charts, in order of dependency; deleted in reverse."""

REQUEUE_SOON = 0.5  # seconds; the caches of a new connection sync meanwhile
UNREADY = 15.0  # seconds between polls of state without events: pods becoming ready, devices being published
MAX_NAMES = 3  # the number of items in a message
MAX_COMPONENTS = 32  # the maximum number of components in a status


@dataclass(frozen=True, slots=True)
class ClusterState:
    """The state observed on the workload cluster itself."""

    charts: ObservedCharts
    """The Helm releases of the stack."""
    children: tuple[Manifest, ...] = ()
    """The objects that the operator applied there for this stack."""
    rewritten: bool = False
    """True if another client has changed the Secret with the certificate of its gateway."""
    taken: frozenset[str] = frozenset()
    """Namespaces of other owners in which charts are installed nevertheless."""
    definitions: tuple[Manifest, ...] = ()
    """Definitions for the AI gateway that no chart installs and that must be applied."""
    balancers: tuple[str, ...] = ()
    """Load balancers of the gateway; only observed during the removal."""
    no_devices: tuple[str, ...] = ()
    """Pools whose nodes publish none of the devices that the class declares."""
    has_devices: bool = field(default=False)
    """True if the nodes of another pool publish theirs."""
    others: Mapping[str, str] = field(default_factory=dict[str, str])
    """Components that another owner has installed, with that owner."""

    @property
    def existing(self) -> ClusterSoftware:
        """The software that the cluster already has."""
        return ClusterSoftware(self.charts.releases, self.others)


@dataclass(frozen=True, slots=True)
class Observed:
    """A stack with its observed state, on the hub and on the cluster."""

    stack: ServingStack
    """Stack as its spec and its last status describe it."""
    cluster: str
    """The name of the connection to its cluster."""
    state: ClusterState | None
    """The state on the cluster; None while it does not answer, and until all its caches have synced."""
    unreachable: ClientError | None
    """The error of its last probe; None while it answers or has not been probed."""
    now: datetime
    replicas: tuple[str, ...] = ()
    """The ModelReplicas on the cluster; only observed during the deletion."""
    abandoned: bool = field(default=False)
    """True if the user has abandoned the cluster, or its InferenceCluster is deleted."""
    unverified: str | None = None
    """The reason why the server's identity cannot be verified; empty when it can.

    None while there is no connection, and for a stack of an InferenceCluster, which reports it itself.
    """
    hub: Hub = field(default_factory=Hub)
    """The state of the hub's gateway, for mutual TLS."""
    closed: bool = field(default=True)
    """True if no request can arrive at the cluster by http."""
    around: Surroundings = field(default_factory=Surroundings)
    """What the rollout of changed charts depends on."""


def plan(observed: Observed) -> Plan:
    """Return the plan of a stack: install and upgrade its software, or remove it."""
    if observed.stack.metadata.deletion_timestamp is not None:
        return _plan_teardown(observed)
    if observed.unreachable is not None:
        message = f"cluster {observed.cluster} does not answer: {observed.unreachable}"
        return Plan(
            status=_keep_status(observed, Ready.UNREACHABLE.condition(observed.now, message=message)),
            failure=observed.unreachable,
        )
    if observed.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return _plan_in_service(observed, observed.state)


# In service -----------------------------------------------------------------------------------------------------------


def _plan_in_service(observed: Observed, state: ClusterState) -> Plan:
    """Return the plan of a stack whose cluster answers."""
    stack, charts = observed.stack, state.charts
    components = parts(stack, state.existing)
    step = begin(stack, components, charts, observed.around, observed.now)
    statuses = compute_chart_status(components, charts, step.hold)
    removals = {
        key: remove(key, charts)
        for key in sorted(charts.releases - {component.release.key for component in components})
    }
    listeners = _choose_doors(observed, state)
    fatal_problems = [
        *describe_missing(chart_status for chart_status in statuses if chart_status.part.needed),
        *_find_gateway_problems(observed, statuses, state, listeners),
    ]
    minor_problems = [*describe_missing(chart_status for chart_status in statuses if not chart_status.part.needed)]
    # Without devices no model runs, unless another pool has some.
    if state.no_devices:
        (minor_problems if state.has_devices else fatal_problems).append(
            f"no node publishes the devices of pool {', '.join(state.no_devices)}"
        )
    # First the failures, for which others wait.
    failures = describe_missing(chart_status for chart_status in statuses if chart_status.state == "Failed")
    problems = dict.fromkeys((*failures, *fatal_problems, *minor_problems))
    installed = _build_installed(observed, statuses, [message for message, _ in removals.values()])
    needed = {chart_status.part.name for chart_status in statuses if chart_status.part.needed}
    needed |= {
        name
        for chart_status in statuses
        if chart_status.part.needed and not chart_status.runs
        for name in chart_status.part.after
    }
    failed = any(
        chart_status.state == "Failed" and not chart_status.runs and chart_status.part.name in needed
        for chart_status in statuses
    )
    cause = installed if failed else Installed.INSTALLING.condition(observed.now)
    ready = (Ready.DEGRADED if minor_problems else Ready.AVAILABLE).condition(
        observed.now, message="; ".join(minor_problems)
    )
    certified = (GatewayCertified.REPLACED if listeners.replaced else GatewayCertified.ISSUED).condition(
        observed.now, message=listeners.replaced
    )
    if fatal_problems:
        ready = not_ready(ServingStack.definition.kind, cause, "; ".join(problems))
    elif listeners.replaced:
        ready = not_ready(ServingStack.definition.kind, certified)
    address = _get_gateway_address(state)
    gateway = (
        StackGatewayStatus(address=address, server_name=listeners.server_name, http=listeners.http) if address else None
    )
    rollout = conclude(step, statuses, ready, observed.around, observed.now)
    status = ServingStackStatus(
        conditions=(
            installed,
            build_condition(rollout, step.waits_for, observed.now),
            *([certified] if listeners.https else ()),
            ready,
            *_build_verified(observed),
        ),
        gateway=gateway,
        components=tuple(_build_component_statuses(statuses, state, removals))[:MAX_COMPONENTS],
        rollout=rollout,
    )
    waits = [chart_status.requeue_after for chart_status in statuses if chart_status.requeue_after is not None]
    waits += [UNREADY] if problems else []
    waits += [REQUEUE_SOON] if listeners.replaced else []
    waits += [REQUEUE_AFTER] if removals else []
    if rollout.phase in {*TURNS, "Waiting", "Failed"}:
        # A stored turn, and a failure, have their effect in the next reconcile.
        unchanged = stack.status is not None and rollout == stack.status.rollout
        polls = {"Failed": [], "Waiting": [UNTIL_TURN]}.get(rollout.phase, [POLL])
        waits += polls if unchanged else [REQUEUE_SOON]
    steps = (*_build_steps(observed, state, statuses), *(step for _, step in removals.values() if step))
    return Plan(steps, status, requeue_after=min(waits, default=None))


def _build_steps(observed: Observed, state: ClusterState, statuses: Iterable[ChartStatus]) -> Iterator[Step]:
    """Yield the steps, each after those it needs: namespaces, charts, and the gateway once Envoy Gateway runs."""
    stack, cluster, desired_doors = observed.stack, observed.cluster, _choose_doors(observed, state)
    prerequisites = (*render_namespaces(stack, state.existing), *render_before(stack, state.existing))
    gateway = render_gateway(stack, state.children, https=desired_doors.https, http=desired_doors.http)
    for manifest in (*state.definitions, *prerequisites):
        if not (manifest["kind"] == "Namespace" and manifest["metadata"]["name"] in state.taken):
            yield Apply(manifest, cluster)
    for chart_status in statuses:
        if chart_status.step is not None:
            yield chart_status.step
    if all(chart_status.runs for chart_status in statuses if chart_status.part.name == ENVOY):
        reported = stack.status is not None and is_reported(
            stack.status.conditions, GatewayCertified.REPLACED, observed.now
        )
        yield from desired_doors.steps(reported=reported)
        for manifest in gateway:
            yield Apply(manifest, cluster)
        # Namespaces stay until the stack is removed: users may have objects in them.
        prunable = (child for child in state.children if type_of(child) not in {NAMESPACE, SECRET})
        yield from prune(prunable, (*prerequisites, *gateway), owner=stack.metadata.uid or "", cluster=cluster)


def _choose_doors(observed: Observed, state: ClusterState) -> Listeners:
    """Return the desired listeners of the gateway."""
    stack = observed.stack
    previous_name = stack.status.gateway.server_name if stack.status and stack.status.gateway else None
    ports = {listener.port for listener in stack.spec.gateway.listeners} if stack.spec.gateway else set[int]()
    hub = Hub() if HTTPS_PORT in ports else observed.hub
    desired = choose_listeners(
        stack,
        observed.cluster,
        hub,
        state.children,
        observed.now,
        previous_name,
        closed=observed.closed,
        rewritten=state.rewritten,
    )
    return replace(desired, http=desired.http or bool(ports))  # listeners in the spec are never removed


def _find_gateway_problems(
    observed: Observed, statuses: Iterable[ChartStatus], state: ClusterState, opened: Listeners
) -> Iterator[str]:
    """Yield the problem of a gateway without an address, once Envoy Gateway runs."""
    if all(
        chart_status.runs for chart_status in statuses if chart_status.part.name == ENVOY
    ) and not _get_gateway_address(state):
        message = f"the gateway of cluster {observed.cluster} has no address yet: {GIVE_ADDRESSES}"
        yield waits(observed.hub.reason) if opened.shut else message


def _get_gateway_address(state: ClusterState) -> str | None:
    """Return the address of the gateway; None while it has none."""
    gateway = gateway_among(state.children)
    return address_of(gateway) if gateway else None


def _build_component_statuses(
    statuses: Iterable[ChartStatus], state: ClusterState, removals: Mapping[Key, tuple[str, Step | None]]
) -> Iterator[ComponentStatus]:
    """Yield the status of each chart, of what another owner has installed, and of releases being uninstalled."""
    for chart_status in statuses:
        yield _build_component_status(chart_status, state.charts)
    for name, owner in state.others.items():
        yield ComponentStatus(name=name, state="Present", message=f"already installed by {owner}"[:2048])
    # They keep the namespaces of these releases known (`homes`).
    for release, (message, _) in removals.items():
        yield ComponentStatus(name=str(release), state="Uninstalling", message=message[:2048])


def homes(stack: ServingStack) -> frozenset[str]:
    """Return the namespaces that may have releases of the stack: those of its charts, and of releases to uninstall."""
    last = stack.status.components if stack.status else ()
    split_names = (component.name.partition("/") for component in last)
    previous = (namespace for namespace, slash, _ in split_names if slash)
    return frozenset((*NAMESPACES, *(item.release.key.namespace for item in parts(stack)), *previous))


def _build_component_status(chart_status: ChartStatus, charts: ObservedCharts) -> ComponentStatus:
    """Return the status of a component."""
    deployed = charts.find_deployed(chart_status.part.release.key)
    content = charts.contents.get((deployed.release, deployed.number)) if deployed else None
    return ComponentStatus(
        name=chart_status.part.name,
        state=chart_status.state,
        version=content.version[:128] if content else None,  # cut, since a hostile cluster may report any text
        digest=(content.archive or None) if content else None,
        message=chart_status.message[:2048] or None,
    )


def _build_installed(observed: Observed, statuses: Iterable[ChartStatus], removals: Sequence[str]) -> Condition:
    """Return the Installed condition, for the charts with the most serious state."""
    by_reason = {
        Installed.FAILED: [chart_status for chart_status in statuses if chart_status.state == "Failed"],
        Installed.ROLLED_BACK: [
            chart_status for chart_status in statuses if chart_status.state in {"RollingBack", "RolledBack"}
        ],
        Installed.INSTALLING: [
            chart_status for chart_status in statuses if not chart_status.runs or chart_status.state == "Installing"
        ],
        Installed.UPGRADING: [
            chart_status for chart_status in statuses if chart_status.state in {"Upgrading", "Waiting"}
        ],
    }
    for reason, statuses_of_reason in by_reason.items():
        if statuses_of_reason:
            messages = [
                f"chart {chart_status.part.name}: {chart_status.message or chart_status.state.lower()}"
                for chart_status in statuses_of_reason
            ]
            return reason.condition(observed.now, message="; ".join(messages))
    if removals:
        return Installed.UPGRADING.condition(observed.now, message="; ".join(removals))
    return Installed.INSTALLED.condition(observed.now)


def _keep_status(observed: Observed, ready: Condition) -> ServingStackStatus:
    """Return the last status with a new Ready condition."""
    last = observed.stack.status or ServingStackStatus()
    kept_types = {Installed.__name__, ServingStackRollout.__name__}
    retained = [item for item in last.conditions if item.type in kept_types]
    rollout = last.rollout
    if rollout is not None and observed.stack.metadata.deletion_timestamp is None:
        rollout = follow_unreachable(observed.stack, rollout, observed.now)
        if rollout != last.rollout:
            message = f"cluster {observed.cluster} does not answer"
            retained = [item for item in retained if item.type == Installed.__name__]
            retained.append(build_condition(rollout, message, observed.now))
    return last.model_copy(update={"conditions": (*retained, ready, *_build_verified(observed)), "rollout": rollout})


def _build_verified(observed: Observed) -> Iterator[Condition]:
    """Yield the ServerVerified condition of a standalone stack."""
    if observed.unverified is not None:
        yield server_verified(observed.unverified, observed.now)


# Removal -------------------------------------------------------------------------------------------------------


def _plan_teardown(observed: Observed) -> Plan:
    """Return the plan of a stack that is being deleted: wait for replicas, then remove its software."""
    if labels.FINALIZER not in observed.stack.metadata.finalizers:
        return Plan()  # nothing was created there, or all of it has been deleted
    if observed.replicas:
        first_names = ", ".join(observed.replicas[:MAX_NAMES]) + (", ..." if len(observed.replicas) > MAX_NAMES else "")
        return _build_deletion_plan(
            observed, f"waiting for {count_of(len(observed.replicas), 'replica')} on {observed.cluster}: {first_names}"
        )
    if observed.unreachable is not None:
        if observed.abandoned:
            return Plan((LET_GO,))
        message = (
            f'cluster {observed.cluster} does not answer; annotate the stack with {labels.ABANDON}="true" to leave it'
        )
        return replace(
            _build_deletion_plan(observed, f"{message}: {observed.unreachable}"), failure=observed.unreachable
        )
    if observed.state is None:
        return Plan(requeue_after=REQUEUE_SOON)
    return _uninstall(observed, observed.state)


def _uninstall(observed: Observed, state: ClusterState) -> Plan:
    """Return the plan with the next step of the removal; the finalizer is removed when nothing remains."""
    remaining = sorted(state.children, key=lambda child: CHILDREN.index(type_of(child)), reverse=True)
    gateway_objects = [
        child for child in remaining if type_of(child) in {*POLICIES, GATEWAY, GATEWAY_CLASS, ENVOY_PROXY}
    ]
    if gateway_objects and (type_of(gateway_objects[0]) == GATEWAY or not state.balancers):
        return _delete_and_wait(observed, gateway_objects[0])
    if state.balancers and (remaining or state.charts.releases):  # otherwise they belong to another stack's gateway
        return _build_deletion_plan(observed, f"load balancer {', '.join(state.balancers)} is being deleted")
    if state.charts.releases:
        terminating = [remove(key, state.charts) for key in _find_independent_releases(observed.stack, state.charts)]
        return _build_deletion_plan(
            observed, "; ".join(message for message, _ in terminating), *(step for _, step in terminating if step)
        )
    if remaining:
        return _delete_and_wait(observed, *remaining)
    return Plan((LET_GO,))


def _find_independent_releases(stack: ServingStack, charts: ObservedCharts) -> Iterator[Key]:
    """Return the releases that no other remaining release depends on."""
    by_name = {component.name: component for component in parts(stack, ClusterSoftware(charts.releases))}
    installed = [component for component in by_name.values() if component.release.key in charts.releases]
    needed = {by_name[name].release.key for component in installed for name in component.after}
    return (key for key in sorted(charts.releases) if key not in needed)


def _delete_and_wait(observed: Observed, *terminating: Manifest) -> Plan:
    """Return the plan that deletes the objects and waits for them."""
    steps = [delete(child, cluster=observed.cluster) for child in terminating if not is_terminating(child)]
    names = ", ".join(f"{child['kind']} {key_of(child)}" for child in terminating)
    return _build_deletion_plan(observed, f"waiting for deletions: {names}", *steps)


def _build_deletion_plan(observed: Observed, message: str, *steps: Step) -> Plan:
    """Return the plan of a step of the removal, with its message."""
    deleting = Ready.DELETING.condition(observed.now, message=message)
    return Plan(steps, _keep_status(observed, deleting), requeue_after=REQUEUE_AFTER)
