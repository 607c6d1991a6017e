"""Probes whether a cluster answers, and keeps the result as its health.

A cluster counts as unreachable after two failed probes. After an offence it has to behave for a while before it counts
as reachable again.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace

import structlog

from kubeloop.backoff import Backoff
from kubeloop.cache.reflector import WatchPace
from kubeloop.client.kube import Kube
from kubeloop.errors import ClientError, Forbidden, Unauthorized

STEADY = 3  # responses from which the latency is taken

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Health:
    """The health of a cluster. Times are of the process's monotonic clock."""

    error: ClientError | None = None
    """The reason why the cluster counts as unreachable; None if it is reachable or was not probed yet."""
    last_contact: float | None = None
    """The time of the last response."""
    latency: float | None = None
    """The lowest of the last response times, in seconds, since the latest may include a busy moment."""
    misses: int = 0
    """The number of consecutive probes without a response."""
    renewing: bool = False
    """True if the cluster is reachable again and the new client for it is not ready yet."""

    @property
    def answers(self) -> bool:
        return self.error is None and self.last_contact is not None


@dataclass(frozen=True, slots=True)
class ConnectionPace:
    """The times of probes and reconnects, in seconds."""

    probe_interval: float = 30.0  # between routine probes; a watch that breaks triggers one at once
    deadline: float = 3.0
    misses: int = 2  # failed probes until the cluster counts as unreachable; `retry` seconds apart
    retry: float = 1.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=15.0))
    rebuild: Backoff = field(default_factory=lambda: Backoff(first=0.5, longest=60.0))
    pause: Backoff = field(default_factory=lambda: Backoff(first=120.0, longest=1800.0))  # after an offence
    probation: float = 20.0  # after that pause, until the cluster counts as reachable
    watch: WatchPace = field(default_factory=WatchPace)


OnHealth = Callable[[str, Health], None]
"""Called with the name and the health of a cluster."""


@dataclass(slots=True)
class Prober:
    """Probes one cluster with its current client. `jitter` returns random numbers from 0 to 1."""

    cluster: str
    pace: ConnectionPace
    now: Callable[[], float]
    jitter: Callable[[], float]
    on_health: OnHealth
    health: Health = field(default_factory=Health, init=False)
    suspected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """An event to set when the cluster may be unreachable: it is then probed at once."""
    offences: int = field(default=0, init=False)
    """The number of offences since the cluster last behaved for long."""
    _sound_since: float = field(init=False)
    """The time since which the cluster has been reachable."""

    def __post_init__(self) -> None:
        self._sound_since = self.now()

    def tell(self) -> None:
        """Report the health to `on_health`."""
        self.on_health(self.cluster, self.health)

    def lose(self, error: ClientError) -> None:
        """Mark the cluster as unreachable, because a client has ended with this error."""
        self._set_health(replace(self.health, error=error, misses=self.health.misses + 1, renewing=False))

    def on_new_client(self) -> bool:
        """Note that there is a new client; return True if that ends an outage."""
        old, self.health = self.health, replace(self.health, renewing=False)
        return old.renewing

    async def run(self, kube: Kube) -> None:
        """Probe the cluster until it is reachable again after an outage; raises Unauthorized."""
        pace, latencies = self.pace, deque[float](maxlen=STEADY)
        while True:
            self.suspected.clear()
            try:
                latencies.append(await kube.ping(deadline=pace.deadline))
                while len(latencies) < STEADY:  # the first response includes the time to connect
                    latencies.append(await kube.ping(deadline=pace.deadline))
                latency = min(latencies)
            except Unauthorized:
                raise
            except Forbidden:
                latency = None  # reachable and authenticated
            except ClientError as error:
                misses = self.health.misses + 1
                self._set_health(
                    replace(self.health, misses=misses, error=error if misses >= pace.misses else self.health.error)
                )
                wait = pace.retry if misses < pace.misses else pace.backoff.delay(misses - 1, self.jitter())
                await asyncio.sleep(wait)
                continue
            if was_away := self.health.error is not None:
                self._sound_since = self.now()
                if self.offences:
                    await asyncio.sleep(pace.probation)
            elif self.now() - self._sound_since > pace.pause.longest:
                self.offences = 0
            self._set_health(Health(last_contact=self.now(), latency=latency, renewing=was_away))
            if was_away:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.probe_interval * (0.75 + self.jitter() / 2)):
                    await self.suspected.wait()

    def _set_health(self, health: Health) -> None:
        """Set the health, and log and report it if it changed."""
        if health.error:
            health.error.without_details()
        old, self.health = self.health, health
        answers_changed = (old.answers, old.error is None) != (health.answers, health.error is None)
        if answers_changed or _error_text(old) != _error_text(health):
            # Attempts during one outage may fail differently: the first is logged at info, later ones at debug.
            log_at_level = log.info if answers_changed else log.debug
            log_at_level("cluster health", cluster=self.cluster, answers=health.answers, error=_error_text(health))
            self.tell()


def _error_text(health: Health) -> str:
    """Return the text of the error, or an empty string."""
    return str(health.error or "")
