"""Whether a cluster answers: how it is asked, and what is known of it at the moment.

It is asked twice before it counts as away. One that has misbehaved has to behave for a while before it counts as there.
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

STEADY = 3  # so many answers tell how far away a cluster is

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Health:
    """What is known of a cluster at the moment. Times are of the process's own clock, which only moves forward."""

    error: ClientError | None = None
    """Why it is taken not to be there; None while it is, or was never asked."""
    last_contact: float | None = None
    """When it last answered."""
    latency: float | None = None
    """The seconds that took, or one of the last answers before it: a busy moment is no distance."""
    misses: int = 0
    """How often in a row it has not answered."""
    renewing: bool = False
    """Whether it answers again, and the client that may be asked is only being made."""

    @property
    def answers(self) -> bool:
        return self.error is None and self.last_contact is not None


@dataclass(frozen=True, slots=True)
class ConnectionPace:
    """How often a cluster is asked whether it is there, and how long it may take."""

    probe_interval: float = 30.0  # between two questions without cause; a watch that breaks off asks at once
    deadline: float = 3.0
    misses: int = 2  # one lost answer is no outage; the second attempt follows after `retry`
    retry: float = 1.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=15.0))
    rebuild: Backoff = field(default_factory=lambda: Backoff(first=0.5, longest=60.0))
    pause: Backoff = field(default_factory=lambda: Backoff(first=120.0, longest=1800.0))  # of who misbehaves
    probation: float = 20.0  # after that it has to behave for so long
    watch: WatchPace = field(default_factory=WatchPace)


OnHealth = Callable[[str, Health], None]


@dataclass(slots=True)
class Prober:
    """Probes one cluster, with one client after the other. `chance` gives numbers from 0 to 1."""

    cluster: str
    pace: ConnectionPace
    now: Callable[[], float]
    chance: Callable[[], float]
    on_health: OnHealth
    health: Health = field(default_factory=Health, init=False)
    suspected: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """To be set by whoever has cause to doubt that the cluster is there: it is asked at once."""
    offences: int = field(default=0, init=False)
    """How often it has misbehaved, until it has behaved for long."""
    _sound_since: float = field(init=False)

    def __post_init__(self) -> None:
        self._sound_since = self.now()

    def tell(self) -> None:
        """Tell how the cluster is, as that, or what of it can be seen, is news."""
        self.on_health(self.cluster, self.health)

    def lose(self, error: ClientError) -> None:
        """Take the cluster not to be there, as a client of it has ended by this error."""
        self._set(replace(self.health, error=error, misses=self.health.misses + 1, renewing=False))

    def renewed(self) -> bool:
        """There is a new client. Whether that ends an outage."""
        was, self.health = self.health, replace(self.health, renewing=False)
        return was.renewing

    async def run(self, kube: Kube) -> None:
        """Ask again and again whether the cluster is there; ends when it is back, and raises Unauthorized."""
        pace, lately = self.pace, deque[float](maxlen=STEADY)
        while True:
            self.suspected.clear()
            try:
                lately.append(await kube.ping(deadline=pace.deadline))
                while len(lately) < STEADY:  # the first answer took the time of connecting, too
                    lately.append(await kube.ping(deadline=pace.deadline))
                latency = min(lately)
            except Unauthorized:
                raise
            except Forbidden:
                latency = None  # it is there, and knows who we are
            except ClientError as error:
                misses = self.health.misses + 1
                self._set(
                    replace(self.health, misses=misses, error=error if misses >= pace.misses else self.health.error)
                )
                wait = pace.retry if misses < pace.misses else pace.backoff.delay(misses - 1, self.chance())
                await asyncio.sleep(wait)
                continue
            if was_away := self.health.error is not None:
                self._sound_since = self.now()
                if self.offences:
                    await asyncio.sleep(pace.probation)
            elif self.now() - self._sound_since > pace.pause.longest:
                self.offences = 0
            self._set(Health(last_contact=self.now(), latency=latency, renewing=was_away))
            if was_away:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.probe_interval * (0.75 + self.chance() / 2)):
                    await self.suspected.wait()

    def _set(self, health: Health) -> None:
        if health.error:
            health.error.kept()
        before, self.health = self.health, health
        turned = (before.answers, before.error is None) != (health.answers, health.error is None)
        if turned or _words(before) != _words(health):
            # Of one outage, each attempt may say something else: the log has the first, the condition the latest.
            tell = log.info if turned else log.debug
            tell("cluster health", cluster=self.cluster, answers=health.answers, error=_words(health))
            self.tell()


def _words(health: Health) -> str:
    return str(health.error or "")
