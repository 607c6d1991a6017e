"""What a kubelet does with one engine pod, as a function of values: containers start, are probed, go down, start again.

`advance` takes the pod, its containers' lives so far and the time, and answers their lives now; `wake_at` says when it
is worth asking again. Nothing here waits or writes.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import Enum, auto

from localfleet.engine.pods import ENGINE, SIDECAR, Container, Pod, Probe, Server
from localfleet.engine.settings import Hang

# The kubelet's own numbers: the first restart is immediate, then 10 s, doubling to 300 s, forgiven after 10 minutes.
FIRST_BACKOFF, LAST_BACKOFF, FORGIVEN_AFTER = 10.0, 300.0, 600.0
KILLED = 137


class Health(Enum):
    """What knocking on an engine's port finds."""

    REFUSED = auto()
    SILENT = auto()
    ANSWERS = auto()


@dataclass(frozen=True, slots=True)
class Exit:
    """How a container's last run ended."""

    code: int
    started_at: float
    finished_at: float


@dataclass(frozen=True, slots=True)
class Probing:
    """One probe's memory: when it is next due, and what it saw in a row."""

    due: float
    passed: bool = False
    successes: int = 0
    failures: int = 0


@dataclass(frozen=True, slots=True)
class Life:
    """One container so far. `started_at` is None while it waits for `restart_at` (None: for ever)."""

    started_at: float | None
    restarts: int = 0
    crashes_in_a_row: int = 0
    restart_at: float | None = None
    last_exit: Exit | None = None
    startup: Probing | None = None
    readiness: Probing | None = None
    liveness: Probing | None = None
    ready: bool = False

    @property
    def started(self) -> bool:
        """Running, and past its startup probe."""
        return self.started_at is not None and (self.startup is None or self.startup.passed)


Lives = dict[str, Life]


def begin(container: Container, now: float, *, scale: float, life: Life | None = None) -> Life:
    """The container starts now, for the first time or again."""
    return replace(
        life or Life(started_at=None),
        started_at=now,
        restart_at=None,
        ready=False,
        startup=_schedule(container.startup, now, scale),
        readiness=_schedule(container.readiness, now, scale),
        liveness=_schedule(container.liveness, now, scale),
    )


def engine_health(pod: Pod, life: Life, now: float) -> Health:
    """What a connection to the engine's port meets."""
    if life.started_at is None or now < life.started_at + pod.settings.startup_seconds:
        return Health.REFUSED
    return Health.SILENT if pod.settings.hang is Hang.EVERYTHING else Health.ANSWERS


def port_health(pod: Pod, lives: Lives, port: int, now: float) -> Health:
    """What a connection to one of the pod's ports meets."""
    match pod.servers.get(port):
        case Server.ENGINE:
            return engine_health(pod, lives[ENGINE], now)
        case Server.SIDECAR:
            return Health.REFUSED if lives[SIDECAR].started_at is None else Health.ANSWERS
        case None:
            return Health.REFUSED


def advance(pod: Pod, lives: Lives, now: float, *, scale: float) -> Lives:
    """The containers' lives at `now`."""
    current = dict(lives)
    for container in pod.containers:
        current[container.name] = _advance_container(pod, container, current, now, scale)
    return current


def wake_at(pod: Pod, lives: Lives) -> float | None:
    """When something can next change by itself; None when only news about the pod can change it."""
    return min(_wakes(pod, lives), default=None)


def crash_due(pod: Pod, life: Life) -> float | None:
    """When the settings take the engine down; None when they do not."""
    asked = pod.settings.crash >= 0 and (pod.settings.crash_times == 0 or life.restarts < pod.settings.crash_times)
    if not asked or life.started_at is None:
        return None
    return life.started_at + pod.settings.startup_seconds + pod.settings.crash_after_seconds


def _advance_container(pod: Pod, container: Container, lives: Lives, now: float, scale: float) -> Life:
    life = lives[container.name]
    if life.started_at is None:
        if life.restart_at is None or now < life.restart_at:
            return life
        life = begin(container, life.restart_at, scale=scale, life=life)
    due = crash_due(pod, life) if container.name == ENGINE else None
    if due is not None and now >= due:
        return _ended(pod, life, pod.settings.crash, now, scale)
    return _probed(pod, container, {**lives, container.name: life}, now, scale)


def _probed(pod: Pod, container: Container, lives: Lives, now: float, scale: float) -> Life:
    life = lives[container.name]

    def asked(probe: Probe, before: Probing) -> Probing:
        if now < before.due:
            return before
        due = now + probe.period * scale
        if _answers(pod, lives, container, probe, now):
            successes = before.successes + 1
            return Probing(due, passed=before.passed or successes >= probe.successes, successes=successes)
        failures = before.failures + 1
        return Probing(due, passed=before.passed and failures < probe.failures, failures=failures)

    if container.startup and life.startup and not life.startup.passed:
        startup = asked(container.startup, life.startup)
        if startup.failures >= container.startup.failures:
            return _ended(pod, life, KILLED, now, scale)
        if not startup.passed:
            return replace(life, startup=startup)
        life = replace(
            life,
            startup=startup,
            readiness=_schedule(container.readiness, now, scale),
            liveness=_schedule(container.liveness, now, scale),
        )
    if container.liveness and life.liveness:
        liveness = asked(container.liveness, life.liveness)
        if liveness.failures >= container.liveness.failures:
            return _ended(pod, life, KILLED, now, scale)
        life = replace(life, liveness=liveness)
    if container.readiness is None or life.readiness is None:
        return replace(life, ready=True)
    readiness = asked(container.readiness, life.readiness)
    return replace(life, readiness=readiness, ready=readiness.passed)


def _answers(pod: Pod, lives: Lives, container: Container, probe: Probe, now: float) -> bool:
    if container.name not in (ENGINE, SIDECAR) or probe.port is None:
        return True  # not simulated: taken as healthy while it runs
    health = port_health(pod, lives, probe.port, now)
    if probe.path is None:
        return health is not Health.REFUSED
    if pod.servers.get(probe.port) is Server.SIDECAR and health is Health.ANSWERS:
        health = engine_health(pod, lives[ENGINE], now)  # its /health is the engine's, forwarded
    return health is Health.ANSWERS and probe.path.split("?")[0] in PROBE_PATHS


PROBE_PATHS = frozenset({"/health", "/ping", "/version", "/metrics", "/v1/models"})


def _ended(pod: Pod, life: Life, code: int, now: float, scale: float) -> Life:
    assert life.started_at is not None  # noqa: S101 - only running containers end
    lasted = now - life.started_at
    in_a_row = 1 if lasted >= FORGIVEN_AFTER * scale else life.crashes_in_a_row + 1
    wait = 0.0 if in_a_row == 1 else min(FIRST_BACKOFF * 2 ** (in_a_row - 2), LAST_BACKOFF) * scale
    return Life(
        started_at=None,
        restarts=life.restarts + 1 if pod.restarts else life.restarts,
        crashes_in_a_row=in_a_row,
        restart_at=now + wait if pod.restarts else None,
        last_exit=Exit(code, life.started_at, now),
    )


def _schedule(probe: Probe | None, now: float, scale: float) -> Probing | None:
    return probe and Probing(due=now + probe.initial_delay * scale)


def _wakes(pod: Pod, lives: Lives) -> Iterator[float]:
    for container in pod.containers:
        life = lives[container.name]
        if life.started_at is None:
            if life.restart_at is not None:
                yield life.restart_at
            continue
        if container.name == ENGINE and (due := crash_due(pod, life)) is not None:
            yield due
        if life.startup and not life.startup.passed:
            yield life.startup.due
            continue
        yield from (probing.due for probing in (life.readiness, life.liveness) if probing)
