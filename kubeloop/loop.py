"""How a reconcile runs, the same for every kind: observe, plan, act, report.

    observe   reads what the watches have seen
    plan      decides, as a function of that
    act       writes, each target's steps in a strand of their own, siblings at once, to the strand's first failure
    report    writes the status, once, when it differs; after writes it is judged anew, by what they have changed

What fails becomes the condition `Synced` of the one object that it concerns, and that object is tried again later.
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
from kubeloop.condition_types import Condition, Synced, merge
from kubeloop.errors import ClientError, Conflict, Defect, NotFound, NotLeading
from kubeloop.gauges import Gauge
from kubeloop.invalid import wording
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating
from kubeloop.plan import Failure, Plan
from kubeloop.queue import Done, Failed, Forgotten, Outcome
from kubeloop.reading import Cluster, find, unreadable
from kubeloop.reads import Reads
from kubeloop.repeats import Repeats
from kubeloop.resource import Resource, WrongKindError, of
from kubeloop.status_pace import StatusPace
from kubeloop.strands import OF_A_CLUSTER, Actor, Executors, Turn, ended_by, outcome, told
from kubeloop.types import HUB, ResourceType
from kubeloop.verdict import Verdict

R = TypeVar("R", bound=Resource[Any, Any])
O = TypeVar("O")

QUARANTINED = (
    "The operator's process died twice while it reconciled this object, so the object is left alone: change its spec, "
    "or the annotation {}, to have it tried again"
)
PAUSES = 'The annotation {}="true" pauses it'
QUIET_CONFLICTS = 3  # somebody else wrote at the same time: that is no news, unless it goes on

log = structlog.get_logger()


OnTransition = Callable[[Manifest, Condition | None, Condition], None]
"""Told an object, what one of its conditions was, if it was there, and what has been stored instead."""


def untold(_: Manifest, __: Condition | None, ___: Condition) -> None:
    """For whoever tells nobody."""


@dataclass(frozen=True, slots=True)
class Clients:
    """The world, as a controller reaches it."""

    hub: Cluster
    fleet: Callable[[str], Cluster]
    """The workload cluster of that name; raises Unreachable when we have no connection to one."""
    may_write: Callable[[], None]
    """Raises NotLeading when another operator may be writing."""
    now: Callable[[], datetime]
    on_transition: OnTransition = untold
    executors: Executors = field(kw_only=True)
    """Who carries out the steps of plans."""
    repeats: Repeats = field(default_factory=Repeats)
    """Which defects are in the log already: an object that we fail on is tried again and again."""
    reads: Reads = field(default_factory=Reads)
    """What no watch tells."""
    pace: StatusPace = field(default_factory=StatusPace)
    """When statuses that sum others up were written."""
    printer_columns: Callable[[Manifest, Manifest], Manifest] = lambda _, status: status
    """Adds to the status of an object the fields that `kubectl get` prints."""

    def cluster(self, name: str) -> Cluster:
        return self.hub if name == HUB else self.fleet(name)


@dataclass(frozen=True, slots=True)
class Change:
    """What a watch saw of an object; at least one of the two is there."""

    old: Manifest | None
    new: Manifest | None
    cluster: str = HUB
    """Where that was."""

    def __iter__(self) -> Iterator[Manifest | None]:
        return iter((self.old, self.new))

    @property
    def latest(self) -> Manifest:
        """The object as it is now, or was last."""
        return self.new or self.old or {}


Mapper = Callable[[Change, Cluster], Iterable[Key]]
"""Whom a change of an object concerns; the hub is there to look the others up."""

ConnectionMapper = Callable[[str, Cluster], Iterable[Key]]
"""Whom it concerns that a workload cluster of that name begins or ceases to answer."""

Indexes = Mapping[ResourceType, Mapping[str, Index]]
"""How objects are found, by type, wherever it is watched."""


def nothing(_: Manifest) -> str:
    """For kinds of which a pause holds up everything."""
    return ""


def its_deletion(manifest: Manifest) -> str:
    """For kinds that tenants write, and whose end others wait for."""
    terminating = is_terminating(manifest)
    return "it is being deleted, which a pause does not hold up" if terminating else ""


def nobody(_: str, __: Cluster) -> Iterable[Key]:
    return ()


@dataclass(frozen=True, slots=True)
class Controller(Generic[R, O]):
    """One kind: what to read, what to decide, whose changes concern it, and all that has to be there for that.

    What several controllers share, each of them declares: it is there once.
    """

    kind: type[R]
    observe: Callable[[R, Clients], Awaitable[O]]
    plan: Callable[[O], Plan]
    with_refusals: Callable[[O, Mapping[str, Failure]], O] | None = None
    """What was observed, and what clusters have just refused, by cluster: for a kind whose plan says when each of its
    clusters is asked again. Such a failure then is that cluster's, and the object is not tried later for it."""
    serial: bool = False
    """Whether its objects take turns to decide and to act, because each decision counts on the ones before."""
    sums_up: bool = False
    """Whether its status is of other objects: while only counts move in it, it is written once a second at most."""
    watches: Mapping[ResourceType, Mapper] = field(default_factory=dict[ResourceType, Mapper])
    """Types of the hub whose changes concern objects of this kind."""
    remote_watches: Mapping[ResourceType, Mapper] = field(default_factory=dict[ResourceType, Mapper])
    """The same for types of workload clusters."""
    on_connection: ConnectionMapper = nobody
    while_paused: Callable[[Manifest], str] = nothing
    """What of an object goes on although it is paused, in words; its plan heeds the pause. Empty: it is left alone."""
    concurrency_key: Callable[[Manifest], str] = lambda _: ""
    """What an object's writes depend on, a workload cluster for one: too many of one key do not run at once."""
    watched: tuple[Watched, ...] = ()
    """What is watched of the hub in another way than by its owner's label, whole."""
    watched_remotely: tuple[Watched, ...] = ()
    """What is watched on workload clusters in another way, or although it wakes nobody."""
    indexes: Indexes = field(default_factory=dict[ResourceType, Mapping[str, Index]])
    """How `observe` and the mappers find objects."""
    listeners: tuple[Callable[[Informer], None], ...] = ()
    """Called with each informer of the hub, before anything is in it: for what is kept beside the store."""
    on_health: tuple[OnHealth, ...] = ()
    """Told when a workload cluster begins or ceases to answer, or to serve a type that is watched."""
    on_unauthorized: tuple[OnUnauthorized, ...] = ()
    """Told when a workload cluster does not accept our credentials."""
    executors: Executors = field(default_factory=dict[type[Any], Any])
    """Who carries out the steps of its plans that Kubernetes' own do not cover: of Helm, of a cloud."""
    while_leading: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """Run beside the reconciles, wherever they are, and cancelled with them."""
    review: Callable[[R, R | None, Clients], Awaitable[Verdict]] | None = None
    """What is said of an object that somebody is about to write, and of what it was: by leaders and standbys alike."""
    answers: Callable[[Manifest, Clients], Awaitable[Any]] | None = None
    """What is said to Questions about objects of the kind, given the request of an AdmissionReview."""
    gauges: tuple[Gauge, ...] = ()
    """What Prometheus is told of its objects."""

    @property
    def type(self) -> ResourceType:
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
    """Take one object one step towards its spec. `failures`: how often in a row that has failed before.

    One that is quarantined is left alone, and says so. What is decided and made happens under `lock`; to tell of it,
    it keeps nobody waiting.
    """
    async with lock or nullcontext():
        informer = clients.hub.find(controller.type)
        manifest = informer.latest(key) if informer else None
        if informer is None or manifest is None:
            return Forgotten()
        trouble = informer.trouble(key)
        paused = annotations_of(manifest).get(names().paused) == "true"
        message = controller.while_paused(manifest) if paused else ""
        failed: tuple[Failure, ...] = ()
        if quarantined:
            plan, reason, message = Plan(), Synced.QUARANTINED, QUARANTINED.format(names().retry)
        elif paused and not message:
            plan, reason, message = Plan(), Synced.RECONCILE_PAUSED, _paused(manifest)
        else:
            readable = trouble is None or trouble.rest is None
            plan, failed = await _attempt(controller, manifest, key, clients) if readable else (Plan(), ())
            if trouble and not failed:
                failed = (Failure(None, Defect(trouble.why)),)
            done = Synced.RECONCILE_PAUSED if paused else Synced.RECONCILE_SUCCESS
            reason = Synced.RECONCILE_ERROR if failed or plan.refused else done
            message = f"{PAUSES.format(names().paused)}, but {message}" if paused else ""
    news = [one for one in failed if failures >= QUIET_CONFLICTS or not isinstance(one.error, Conflict)]
    if (failed and not news) or any(isinstance(one.error, NotLeading) for one in failed):
        return Failed()
    try:
        held = await report(
            informer,
            manifest,
            plan,
            clients,
            reason=reason,
            message="; ".join(filter(None, (told(news, to_tenants=bool(key.namespace)), plan.refused))) or message,
            pace=clients.pace if controller.sums_up and not failed else None,
        )
    except ClientError as error:
        return Failed(at_least=error.retry_after)
    except Exception as error:  # noqa: BLE001 - a status that cannot be written is this object's trouble, too
        _tell("report failed", controller, key, clients, error)
        return Failed(terminal=True)
    if failed:
        return outcome(failed)
    return Done(min((one for one in (plan.requeue_after, held) if one is not None), default=None))


async def _attempt(
    controller: Controller[Any, Any], manifest: Manifest, key: Key, clients: Clients
) -> tuple[Plan, tuple[Failure, ...]]:
    """Observe, plan and act. What fails is a value: one object's trouble is not another's."""
    plan, wrote = Plan(), False
    end = asyncio.get_running_loop().time() + OF_A_CLUSTER if controller.concurrency_key(manifest) else None

    def may_write() -> None:
        nonlocal wrote
        clients.may_write()
        wrote = True

    async def decided(resource: Resource[Any, Any], refusals: Mapping[str, Failure]) -> Plan:
        async with ended_by(end):
            observed = await controller.observe(resource, clients)
        plan = controller.plan(controller.with_refusals(observed, refusals) if controller.with_refusals else observed)
        for cluster, error in plan.defects.items():
            unreadable(cluster, error, clients.repeats)
        return plan

    try:
        resource, beyond = _read(controller.kind, manifest)
        plan = await decided(resource, {})
        if beyond:
            return replace(plan, steps=()), (Failure(None, Defect(beyond)),)
        turn = Turn(controller.type, key, clients.cluster, may_write)
        failed = await Actor(turn, clients.executors, end).act(plan.steps)
        for one in failed:
            if isinstance(one.error.__cause__, Exception) and isinstance(one.error, Defect):
                _tell("reconcile failed", controller, key, clients, one.error.__cause__)
        for cluster, one in _refusals(failed).items():  # statuses that tenants read do not have its words
            if so_far := clients.repeats.worth(("write failed", controller.type.kind, cluster, type(one.error))):
                told_by = {"kind": controller.type.kind, "key": str(key), "cluster": cluster}
                log.warning("write failed on a cluster", **told_by, so_far=so_far, error=str(one))
        refusals = _refusals(failed if controller.with_refusals else ())
        failed = tuple(one for one in failed if one not in refusals.values())
        if (refusals or (wrote and not failed)) and (live := find(clients.hub, controller.type, key)) is not None:
            # What we wrote is seen at once, so the status tells of after it: one write, not one of before, too.
            plan = replace(await decided(controller.kind.parse(live), refusals), steps=plan.steps)
        return plan, (*failed, Failure(None, plan.failure, planned=True)) if plan.failure else failed
    except ClientError as error:
        return plan, (Failure(None, error),)
    except (ValidationError, WrongKindError) as error:
        return plan, (Failure(None, Defect(f"the object cannot be read: {wording(error)}")),)
    except Exception as error:  # noqa: BLE001 - a defect in one object's path must not end the operator
        _tell("reconcile failed", controller, key, clients, error)
        return plan, (Failure(None, Defect.by(error)),)


def _refusals(failed: Iterable[Failure]) -> Mapping[str, Failure]:
    """What clusters have failed in, by cluster; what is tried again soon from what is seen by then is none of it."""
    return {
        one.step.target: one
        for one in failed
        if one.step and one.step.target != HUB and not isinstance(one.error, Conflict | NotLeading)
    }


def _tell(what: str, controller: Controller[Any, Any], key: Key, clients: Clients, error: Exception) -> None:
    """Log a defect of ours with where it arose, and again when it has happened twice as often."""
    kind = controller.type.kind
    if so_far := clients.repeats.worth((what, kind, type(error), origin(error))):
        log.error(what, kind=kind, key=str(key), so_far=so_far, exc_info=error)


def _read(kind: type[Resource[Any, Any]], manifest: Manifest) -> tuple[Resource[Any, Any], str]:
    """The object, and what of it is beyond the bounds of its kind: it was stored before them, or they were taken away.

    Nothing new is made for such an object, and what is there stays. One that is on its way out may go.
    """
    try:
        return kind.admitted(manifest), ""
    except ValidationError as error:
        resource = kind.parse(manifest)
        if resource.metadata.deletion_timestamp:
            return resource, ""
        return resource, f"Nothing is changed until the object keeps to the bounds of its kind: {wording(error)}"


def _paused(manifest: Manifest) -> str:
    """What holds an object up, and of which of its generations the rest of its status is."""
    told = (one for one in _known(manifest.get("status") or {}) if one.type != Synced.__name__)
    last = max((one.observed_generation or 0 for one in told), default=0)
    before = f"its status is of generation {last}" if last else "nothing was done for it before"
    return f"{PAUSES.format(names().paused)}; {before}"


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
    """Write the status when it differs from the one that is there; answers for how many seconds it is held back."""
    live = informer.latest(Key(observed["metadata"].get("namespace") or "", observed["metadata"]["name"]))
    if live is None or live["metadata"]["uid"] != observed["metadata"]["uid"]:
        return None
    generation, now = observed["metadata"].get("generation"), clients.now().replace(microsecond=0)
    synced = reason.condition(now, message=message, generation=generation)
    known_status: Manifest = live.get("status") or {}
    reported = plan.status.conditions if plan.status else ()
    known = {one.type: one for one in _known(known_status)}
    before = known if reason is Synced.RECONCILE_ERROR else {}
    conditions = merge(known.values(), (*(_judged(one, generation, before.get(one.type)) for one in reported), synced))
    rest = plan.status.to_manifest() if plan.status else known_status
    status = clients.printer_columns(
        observed, {**rest, "conditions": [condition.to_manifest() for condition in conditions]}
    )
    if status == known_status:
        return None
    clock, uid = asyncio.get_running_loop().time(), live["metadata"]["uid"]
    if pace and (seconds := pace.wait(live, status, clock)):
        return seconds
    clients.may_write()
    try:
        stored = await clients.hub.kube.replace_status({**live, "status": status})
    except NotFound:
        return None  # it went in the meantime
    informer.written(stored)
    if pace:
        pace.written(uid, clock)
    for condition in reversed(conditions):  # of those with one reason the first is told, and `Ready` says most
        if condition != (was := known.get(condition.type)):
            clients.on_transition(stored, was, condition)
    return None


def _known(status: Manifest) -> list[Condition]:
    """The conditions that are there; one that cannot be read is written anew."""
    known: list[Condition] = []
    for condition in cast(list[Any], status.get("conditions") or []):
        with suppress(ValidationError):
            known.append(Condition.model_validate(condition))
    return known


def _judged(condition: Condition, generation: int | None, before: Condition | None) -> Condition:
    """The condition with the generation that it is of. What is `True` while a write fails is of that of `before`."""
    if condition.observed_generation is not None or generation is None:
        return condition
    known = before.observed_generation if before and condition.status == "True" else None
    return condition.model_copy(update={"observed_generation": min(known or generation, generation)})
