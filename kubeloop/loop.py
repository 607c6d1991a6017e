"""The reconcile loop, which is the same for every kind:

    observe   read the state from the informers, and from clusters where no watch covers it
    plan      decide what to do, as a pure function of the observation
    act       carry out the steps: one strand for each target, siblings concurrently, up to the strand's first failure
    report    write the status once if it differs; after successful writes, observe and plan again to compute it

A failure becomes the condition `Synced` of the object that it concerns, and only that object is retried.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, nullcontext, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any, Generic, TypeVar, cast

import structlog
from pydantic import ValidationError

from kubeloop.cache.connection import OnUnauthorized
from kubeloop.cache.indexes import Index
from kubeloop.cache.informer import Informer
from kubeloop.cache.prober import OnHealth
from kubeloop.cache.watches import Watched
from kubeloop.client.errors import origin
from kubeloop.condition_types import Condition, Synced, explain_ready, merge
from kubeloop.errors import ClientError, Conflict, Defect, NotFound, NotLeading
from kubeloop.gauges import Gauge
from kubeloop.invalid import describe_invalid
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating
from kubeloop.plan import Failure, Plan
from kubeloop.queue import Done, Failed, Forgotten, Outcome
from kubeloop.reading import Cluster, find, unreadable
from kubeloop.reads import Reads
from kubeloop.repeats import Repeats
from kubeloop.resource import Resource, WrongKindError, of
from kubeloop.status_pace import StatusPace
from kubeloop.step_log import StepLog
from kubeloop.strands import OF_A_CLUSTER, Actor, Executors, StepContext, deadline_at, outcome, summarize
from kubeloop.types import HUB, ResourceType
from kubeloop.verdict import Verdict

R = TypeVar("R", bound=Resource[Any, Any])
O = TypeVar("O")

QUARANTINED = (
    "The operator's process died twice while it reconciled this object, so the object is left alone: change its spec, "
    "or the annotation {}, to have it tried again"
)
PAUSES = 'The annotation {}="true" pauses it'
QUIET_CONFLICTS = 3  # a concurrent writer is normal, so conflicts are reported only after so many failures in a row

log = structlog.get_logger()


OnTransition = Callable[[Manifest, Condition | None, Condition], None]
"""Called with an object, the old value of one of its conditions if it had one, and the stored value."""


def ignore_transition(_: Manifest, __: Condition | None, ___: Condition) -> None:
    """Ignore a transition of a condition."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The clients and caches through which controllers reach the clusters."""

    hub: Cluster
    """The cluster on which the operator runs."""
    fleet: Callable[[str], Cluster]
    """Returns the workload cluster of a name; raises Unreachable if there is no connection to it."""
    may_write: Callable[[], None]
    """Raises NotLeading if another process may hold the lease."""
    now: Callable[[], datetime]
    """Returns the current time."""
    on_transition: OnTransition = ignore_transition
    executors: Executors = field(kw_only=True)
    """The executors of all types of steps."""
    repeats: Repeats = field(default_factory=Repeats)
    """Counts how often each defect was logged, since a broken object is retried again and again."""
    step_log: StepLog = field(default_factory=StepLog)
    """Logs what was written, with a limit for each cluster."""
    reads: Reads = field(default_factory=Reads)
    """Reads, with a short-lived cache, of data that no watch covers."""
    pace: StatusPace = field(default_factory=StatusPace)
    """Limits how often statuses that summarize other objects are written."""
    printer_columns: Callable[[Manifest, Manifest], Manifest] = lambda _, status: status
    """Returns the status of an object with the fields that `kubectl get` prints added."""

    def cluster(self, name: str) -> Cluster:
        """Return the hub for the empty name, or the workload cluster; raises Unreachable without a connection."""
        return self.hub if name == HUB else self.fleet(name)


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a watch observed. At least one of `old` and `new` is set."""

    old: Manifest | None
    new: Manifest | None
    cluster: str = HUB
    """The cluster on which the object changed."""

    def __iter__(self) -> Iterator[Manifest | None]:
        return iter((self.old, self.new))

    @property
    def latest(self) -> Manifest:
        """The object as it is now, or its last version if it was deleted."""
        return self.new or self.old or {}


Mapper = Callable[[Change, Cluster], Iterable[Key]]
"""Returns the keys to enqueue when an object has changed. The hub is passed for lookups."""

ConnectionMapper = Callable[[str, Cluster], Iterable[Key]]
"""Returns the keys to enqueue when a workload cluster becomes reachable or unreachable."""

Indexes = Mapping[ResourceType, Mapping[str, Index]]
"""The indexes of informers by type and name, on every cluster that watches the type."""


def no_message(_: Manifest) -> str:
    """Return no message: a paused object of this kind is not reconciled at all."""
    return ""


def its_deletion(manifest: Manifest) -> str:
    """Return a message if a paused object is being deleted.

    Tenants write this kind, and other objects wait for its deletion.
    """
    terminating = is_terminating(manifest)
    return "it is being deleted, which a pause does not hold up" if terminating else ""


def map_to_nothing(_: str, __: Cluster) -> Iterable[Key]:
    """Return no keys: connections do not concern this kind."""
    return ()


@dataclass(frozen=True, slots=True)
class Controller(Generic[R, O]):
    """The declaration of how one kind is reconciled: functions, watches, indexes and whatever else they need.

    A resource that several controllers share is declared by each of them and created once.
    """

    kind: type[R]
    """The model of the kind."""
    observe: Callable[[R, Clients], Awaitable[O]]
    """Reads what `plan` needs, mostly from informers."""
    plan: Callable[[O], Plan]
    """Returns the plan for an observation, without I/O."""
    with_refusals: Callable[[O, Mapping[str, Failure]], O] | None = None
    """Returns the observation with the failures that clusters have just returned, by cluster. Set by kinds whose plan
    itself schedules the retries of each cluster; such failures then do not back off the object."""
    serial: bool = False
    """True if its objects are planned and written one at a time, because each decision depends on the ones before."""
    sums_up: bool = False
    """True if the status summarizes other objects. While only counts change, it is written once a second at most."""
    watches: Mapping[ResourceType, Mapper] = field(default_factory=dict[ResourceType, Mapper])
    """Mappers for types of the hub whose changes concern objects of this kind."""
    remote_watches: Mapping[ResourceType, Mapper] = field(default_factory=dict[ResourceType, Mapper])
    """Mappers for types of workload clusters."""
    on_connection: ConnectionMapper = map_to_nothing
    """Mapper for changes in the reachability of workload clusters."""
    while_paused: Callable[[Manifest], str] = no_message
    """Returns the message about work on an object that continues during a pause; the plan itself respects the pause.
    Returns an empty message if a paused object is not reconciled at all."""
    concurrency_key: Callable[[Manifest], str] = lambda _: ""
    """Returns a key that the object's writes depend on, such as its cluster. Few objects of one key run at once."""
    watched: tuple[Watched, ...] = ()
    """Watches on the hub that differ from the default, which selects by owner label and keeps full objects."""
    watched_remotely: tuple[Watched, ...] = ()
    """Watches on workload clusters that differ from the default, or whose changes enqueue no key."""
    indexes: Indexes = field(default_factory=dict[ResourceType, Mapping[str, Index]])
    """Indexes that `observe` and the mappers use."""
    listeners: tuple[Callable[[Informer], None], ...] = ()
    """Called with each informer of the hub before it has any objects, for caches derived from it."""
    on_health: tuple[OnHealth, ...] = ()
    """Called when a workload cluster becomes reachable or unreachable, or begins or stops to serve a watched type."""
    on_unauthorized: tuple[OnUnauthorized, ...] = ()
    """Called when a workload cluster rejects our credentials."""
    executors: Executors = field(default_factory=dict[type[Any], Any])
    """Executors of further types of steps, such as those of Helm or of a cloud."""
    while_leading: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """Background tasks that run as long as the process leads, and are cancelled with the reconciles."""
    review: Callable[[R, R | None, Clients], Awaitable[Verdict]] | None = None
    """Returns the verdict of the admission webhook on an object and its old version. Called on leaders and standbys."""
    answers: Callable[[Manifest, Clients], Awaitable[Any]] | None = None
    """Returns the answer to a Question about objects of this kind, given the request of an AdmissionReview."""
    gauges: tuple[Gauge, ...] = ()
    """Prometheus gauges computed from the objects of this kind."""

    @property
    def type(self) -> ResourceType:
        """The resource type of the kind."""
        return of(self.kind)


async def reconcile(
    controller: Controller[Any, Any],
    key: Key,
    clients: Clients,
    *,
    failures: int = 0,
    lock: AbstractAsyncContextManager[object] | None = None,
    quarantined: bool = False,
) -> Outcome:
    """Reconcile one object once and return the outcome. `failures` is the number of failures in a row so far.

    A quarantined object is not reconciled, and its status says so. Deciding and writing happen under `lock`; reporting
    the status does not, so that it delays no other object.
    """
    async with lock or nullcontext():
        informer = clients.hub.find(controller.type)
        manifest = informer.latest(key) if informer else None
        if informer is None or manifest is None:
            return Forgotten()
        problem = informer.error_of(key)
        paused = annotations_of(manifest).get(names().paused) == "true"
        message = controller.while_paused(manifest) if paused else ""
        failed: tuple[Failure, ...] = ()
        if quarantined:
            plan, reason, message = Plan(), Synced.QUARANTINED, QUARANTINED.format(names().retry)
        elif paused and not message:
            plan, reason, message = Plan(), Synced.RECONCILE_PAUSED, _pause_message(manifest)
        else:
            readable = problem is None or problem.remainder is None
            plan, failed = await _attempt(controller, manifest, key, clients) if readable else (Plan(), ())
            if problem and not failed:
                failed = (Failure(None, Defect(problem.reason)),)
            success_reason = Synced.RECONCILE_PAUSED if paused else Synced.RECONCILE_SUCCESS
            reason = Synced.RECONCILE_ERROR if failed or plan.refused else success_reason
            message = f"{PAUSES.format(names().paused)}, but {message}" if paused else ""
    reported_failures = [item for item in failed if failures >= QUIET_CONFLICTS or not isinstance(item.error, Conflict)]
    if (failed and not reported_failures) or any(isinstance(item.error, NotLeading) for item in failed):
        return Failed()
    try:
        status_wait = await report(
            informer,
            manifest,
            plan,
            clients,
            reason=reason,
            message="; ".join(
                filter(None, (summarize(reported_failures, to_tenants=bool(key.namespace)), plan.refused))
            )
            or message,
            pace=clients.pace if controller.sums_up and not failed else None,
        )
    except ClientError as error:
        return Failed(at_least=error.retry_after)
    except Exception as error:  # noqa: BLE001 - a status that cannot be written is this object's trouble, too
        _log_defect("report failed", controller, key, clients, error)
        return Failed(terminal=True)
    if failed:
        return outcome(failed)
    return Done(min((item for item in (plan.requeue_after, status_wait) if item is not None), default=None))


async def _attempt(
    controller: Controller[Any, Any], manifest: Manifest, key: Key, clients: Clients
) -> tuple[Plan, tuple[Failure, ...]]:
    """Observe, plan and act; return the plan and the failures.

    Errors are returned, since they concern this object only.
    """
    plan, wrote = Plan(), False
    deadline = asyncio.get_running_loop().time() + OF_A_CLUSTER if controller.concurrency_key(manifest) else None

    def may_write() -> None:
        """Check the lease before a write, and note that there was one."""
        nonlocal wrote
        clients.may_write()
        wrote = True

    async def observe_and_plan(resource: Resource[Any, Any], refusals: Mapping[str, Failure]) -> Plan:
        """Observe and plan, with the failures of clusters taken into account if the kind supports that."""
        async with deadline_at(deadline):
            observed = await controller.observe(resource, clients)
        plan = controller.plan(controller.with_refusals(observed, refusals) if controller.with_refusals else observed)
        for cluster, error in plan.defects.items():
            unreadable(cluster, error, clients.repeats)
        return plan

    try:
        resource, beyond = _parse(controller.kind, manifest)
        plan = await observe_and_plan(resource, {})
        if beyond:
            return replace(plan, steps=()), (Failure(None, Defect(beyond)),)
        step_context = StepContext(controller.type, key, clients.cluster, may_write)
        failed = await Actor(step_context, clients.executors, deadline, clients.step_log).act(plan.steps)
        for failure in failed:
            if isinstance(failure.error.__cause__, Exception) and isinstance(failure.error, Defect):
                _log_defect("reconcile failed", controller, key, clients, failure.error.__cause__)
        for cluster, failure in _failures_by_cluster(failed).items():  # tenants' statuses omit the server's message
            if so_far := clients.repeats.worth(("write failed", controller.type.kind, cluster, type(failure.error))):
                log_fields = {"kind": controller.type.kind, "key": str(key), "cluster": cluster}
                log.warning("write failed on a cluster", **log_fields, so_far=so_far, error=str(failure))
        refusals = _failures_by_cluster(failed if controller.with_refusals else ())
        failed = tuple(failure for failure in failed if failure not in refusals.values())
        if (refusals or (wrote and not failed)) and (live := find(clients.hub, controller.type, key)) is not None:
            # The informer contains our writes already, so the status of the new state is written once, not twice.
            plan = replace(await observe_and_plan(controller.kind.parse(live), refusals), steps=plan.steps)
        return plan, (*failed, Failure(None, plan.failure, planned=True)) if plan.failure else failed
    except ClientError as error:
        return plan, (Failure(None, error),)
    except (ValidationError, WrongKindError) as error:
        return plan, (Failure(None, Defect(f"the object cannot be read: {describe_invalid(error)}")),)
    except Exception as error:  # noqa: BLE001 - a defect in one object's path must not end the operator
        _log_defect("reconcile failed", controller, key, clients, error)
        return plan, (Failure(None, Defect.by(error)),)


def _failures_by_cluster(failed: Iterable[Failure]) -> Mapping[str, Failure]:
    """Return the failures on workload clusters by cluster.

    Conflicts and lost leases are left out, as they are retried soon anyway.
    """
    return {
        failure.step.target: failure
        for failure in failed
        if failure.step and failure.step.target != HUB and not isinstance(failure.error, Conflict | NotLeading)
    }


def _log_defect(event: str, controller: Controller[Any, Any], key: Key, clients: Clients, error: Exception) -> None:
    """Log an internal error with its origin, and again each time the number of its occurrences has doubled."""
    kind = controller.type.kind
    if so_far := clients.repeats.worth((event, kind, type(error), origin(error))):
        log.error(event, kind=kind, key=str(key), so_far=so_far, exc_info=error)


def _parse(kind: type[Resource[Any, Any]], manifest: Manifest) -> tuple[Resource[Any, Any], str]:
    """Parse an object; return it and a message if it violates the bounds of its kind.

    That happens to objects that were stored before a bound existed, or while it was not enforced. Nothing is changed
    for such an object, but it may be deleted.
    """
    try:
        return kind.parse_bounded(manifest), ""
    except ValidationError as error:
        resource = kind.parse(manifest)
        if resource.metadata.deletion_timestamp:
            return resource, ""
        return (
            resource,
            f"Nothing is changed until the object keeps to the bounds of its kind: {describe_invalid(error)}",
        )


def _pause_message(manifest: Manifest) -> str:
    """Return the message of a paused object: the pause, and the generation that the rest of its status describes."""
    conditions = (
        condition for condition in _read_conditions(manifest.get("status") or {}) if condition.type != Synced.__name__
    )
    last = max((condition.observed_generation or 0 for condition in conditions), default=0)
    progress = f"its status is of generation {last}" if last else "nothing was done for it before"
    return f"{PAUSES.format(names().paused)}; {progress}"


async def report(
    informer: Informer,
    observed: Manifest,
    plan: Plan,
    clients: Clients,
    *,
    reason: Synced,
    message: str,
    pace: StatusPace | None,
) -> float | None:
    """Write the status if it differs from the stored one, and call `on_transition` for each condition that changed.

    Return the seconds to wait if `pace` postpones the write, else None. An object that was deleted meanwhile is
    skipped.
    """
    live = informer.latest(Key(observed["metadata"].get("namespace") or "", observed["metadata"]["name"]))
    if live is None or live["metadata"]["uid"] != observed["metadata"]["uid"]:
        return None
    generation, now = observed["metadata"].get("generation"), clients.now().replace(microsecond=0)
    synced = reason.condition(now, message=message, generation=generation)
    previous_status: Manifest = live.get("status") or {}
    reported = plan.status.conditions if plan.status else ()
    previous = {reported_condition.type: reported_condition for reported_condition in _read_conditions(previous_status)}
    still_true = previous if reason is Synced.RECONCILE_ERROR else {}
    conditions = explain_ready(
        merge(
            previous.values(),
            (
                *(
                    _with_generation(reported_condition, generation, still_true.get(reported_condition.type))
                    for reported_condition in reported
                ),
                synced,
            ),
        )
    )
    base = plan.status.to_manifest() if plan.status else previous_status
    status = clients.printer_columns(
        observed, {**base, "conditions": [condition.to_manifest() for condition in conditions]}
    )
    if status == previous_status:
        return None
    now_monotonic, uid = asyncio.get_running_loop().time(), live["metadata"]["uid"]
    if pace and (seconds := pace.wait(live, status, now_monotonic)):
        return seconds
    clients.may_write()
    try:
        stored = await clients.hub.kube.replace_status({**live, "status": status})
    except NotFound:
        return None  # it was deleted in the meantime
    informer.on_write(stored)
    if pace:
        pace.on_write(uid, now_monotonic)
    for condition in reversed(conditions):  # the first with a reason becomes the Event; `Ready` is the most useful
        if condition != (old := previous.get(condition.type)):
            clients.on_transition(stored, old, condition)
    return None


def _read_conditions(status: Manifest) -> list[Condition]:
    """Return the conditions of a status. Unreadable ones are left out, so that they are written again."""
    conditions: list[Condition] = []
    for condition in cast(list[Any], status.get("conditions") or []):
        with suppress(ValidationError):
            conditions.append(Condition.model_validate(condition))
    return conditions


def _with_generation(condition: Condition, generation: int | None, old: Condition | None) -> Condition:
    """Return the condition with its observedGeneration set.

    While a write fails, a condition that stays `True` keeps the generation of its old value, so that `kubectl wait`
    does not take it for the result of the new spec.
    """
    if condition.observed_generation is not None or generation is None:
        return condition
    old_generation = old.observed_generation if old and condition.status == "True" else None
    return condition.model_copy(update={"observed_generation": min(old_generation or generation, generation)})
