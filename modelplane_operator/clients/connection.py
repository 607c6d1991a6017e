"""The connection to one cluster: its client, its watches, whether it answers, and how it comes back.

It is rebuilt when the way to the cluster or the user changes, after a 401, and when a cluster answers again that did
not: connections that lived through that may be dead without knowing it. What the watches have seen is kept meanwhile,
and they resume where they were.

A cluster that says what no API server says (`limits.py`) is not asked again for minutes, and longer each time. After
that it has to behave for a while before it counts as there.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, suppress
from dataclasses import dataclass, field, replace

import structlog

from modelplane_operator.api import labels
from modelplane_operator.clients.access import Access, read_token
from modelplane_operator.clients.informer import Index, Informer, Keep
from modelplane_operator.clients.kube import Kube, connect
from modelplane_operator.clients.limits import Limits, Share
from modelplane_operator.clients.reflector import LISTS_AT_ONCE, Reflector
from modelplane_operator.clients.reflector import Pace as WatchPace
from modelplane_operator.clients.store import Store
from modelplane_operator.clients.wire import OnCall, uncounted
from modelplane_operator.kube.backoff import Backoff
from modelplane_operator.kube.errors import ClientError, Defect, Forbidden, Misbehaving, Unauthorized, Unreachable
from modelplane_operator.kube.resources import ResourceType
from modelplane_operator.kube.tokens import Token

STEADY = 3  # so many answers tell how far away a cluster is
INITIAL_SYNCS = 16  # clusters that one process gets to know at once: a thousand would all run into their deadlines
INITIAL_SYNC_SECONDS = 10.0  # then the next one's turn begins, whatever this one still has to say
LOOK_AGAIN = 0.05

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Watched:
    """A type to watch, and the label that its objects must carry; None: all of them."""

    type: ResourceType
    selecting: str | None = labels.OWNER_UID
    indexes: Mapping[str, Index] = field(default_factory=dict[str, Index])
    namespace: str = ""
    """Only the objects of this namespace; empty: of all."""
    bare: bool = False
    """No more than their metadata: of Secrets, say, whose content nobody here needs."""
    keeping: Keep | None = None
    """What is kept of an object, for large ones of which little is needed."""
    ours: bool = False
    """Nobody but us makes such objects: while there are none, no connection is spent on watching them."""
    spare: bool = False
    """A cluster that refuses to show us these is known well enough without."""


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
class Pace:
    """How often a cluster is asked whether it is there, and how long it may take."""

    probe_interval: float = 30.0  # between two questions without cause; a watch that breaks off asks at once
    deadline: float = 3.0
    misses: int = 2  # one lost answer is no outage; the second attempt follows after `again`
    again: float = 1.0
    backoff: Backoff = field(default_factory=lambda: Backoff(first=1.0, longest=15.0))
    rebuild: Backoff = field(default_factory=lambda: Backoff(first=0.5, longest=60.0))
    pause: Backoff = field(default_factory=lambda: Backoff(first=120.0, longest=1800.0))  # of who misbehaves
    probation: float = 20.0  # after that it has to behave for so long
    watch: WatchPace = field(default_factory=WatchPace)


OnHealth = Callable[[str, Health], None]
OnReturn = Callable[[str], None]
OnUnauthorized = Callable[[str], None]


class Connection:
    """One cluster. Somebody has to `run` it."""

    def __init__(
        self,
        name: str,
        access: Access,
        watched: Sequence[Watched],
        store: Store,
        *,
        chance: Callable[[], float],
        pace: Pace | None = None,
        on_call: OnCall = uncounted,
        on_health: OnHealth = lambda _, __: None,
        on_return: OnReturn = lambda _: None,
        on_unauthorized: OnUnauthorized = lambda _: None,
        slots: asyncio.Semaphore | None = None,
        limits: Limits | None = None,
        share: Share | None = None,
    ) -> None:
        """`turn`: whose turn it is to be got to know; the clusters of a fleet share it.

        `on_return` is told when the cluster answers again and can be asked; `on_health` hears of it before that.

        `limits` and `share`: how much the cluster may say, and take of the loop.
        """
        self.name = name
        self.health = Health()
        self._access = access
        self._pace = pace or Pace()
        self._chance = chance
        self._on_call, self._on_health, self._on_return = on_call, on_health, on_return
        self._on_unauthorized = on_unauthorized
        self._now = store.now
        self._slots = slots or asyncio.Semaphore()
        self._limits, self._share = limits, share
        self._offences, self._sound_since = 0, store.now()
        self._kube: Kube | None = None
        self._changed, self._suspected, self._again = asyncio.Event(), asyncio.Event(), asyncio.Event()
        self._informers = {
            one.type: store.open(
                name, one.type, selecting=one.selecting, indexes=one.indexes, bare=one.bare, keeping=one.keeping
            )
            for one in watched
        }
        self._watched = {one.type: one for one in watched}
        self._watches: list[Reflector] = []

    @property
    def server(self) -> str:
        """The address of its API server."""
        return self._access.server

    @property
    def unverified(self) -> str:
        """Why nobody can tell whether it is that cluster who answers; empty when it proves it."""
        return self._access.unverified

    @property
    def token(self) -> Token | None:
        """The token that we have there, when it is one that ends."""
        return read_token(self._access.token)

    @property
    def kube(self) -> Kube:
        """The client; raises at once while the cluster does not answer, so that nobody waits for it."""
        if self.health.error is not None:
            raise self.health.error
        if self._kube is None:
            raise Unreachable(f"cluster {self.name or 'hub'}: not connected yet")
        return self._kube

    def find(self, kind: ResourceType) -> Informer | None:
        """What is watched of a type."""
        return self._informers.get(kind)

    def failing(self, kind: ResourceType) -> ClientError | None:
        """What is wrong at the moment with the watch of a type."""
        return next((watch.failing for watch in self._watches if watch.informer.type == kind), None)

    @property
    def informers(self) -> Sequence[Informer]:
        return tuple(self._informers.values())

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been seen once."""
        return all(
            informer.synced or (self._watched[kind].spare and isinstance(self.failing(kind), Forbidden))
            for kind, informer in self._informers.items()
        )

    @property
    def watches(self) -> Sequence[Reflector]:
        return self._watches

    def look_again(self) -> None:
        """Another process like this one may have written there since we last looked at what we do not watch.

        Until the cluster's turn comes, it counts as not seen.
        """
        for watch in self._watches:
            watch.invalidate()
        self._again.set()

    def update(self, access: Access) -> None:
        """Reach the cluster this way from now on. A renewed token disturbs nothing."""
        before, self._access = self._access, access
        if access == before:
            return
        if self._kube is not None and access.without_token() == before.without_token() and self.health.error is None:
            self._kube.renew(access)
            return
        if (access.server, access.authority) != (before.server, before.authority):
            for informer in self._informers.values():  # it may be another cluster
                informer.distrust()
            self._watches.clear()
        self._changed.set()

    async def run(self) -> None:
        """Stay connected until cancelled; closes all it opened."""
        failures = 0
        while True:
            self._changed.clear()
            contact = self.health.last_contact
            error = await self._connected()
            failures = 1 if self.health.last_contact != contact else failures + 1
            if error is None:
                continue
            self._set(replace(self.health, error=error, misses=self.health.misses + 1, renewing=False))
            if isinstance(error, Unauthorized):
                self._on_unauthorized(self.name)
            pause = self._pace.rebuild.delay(failures, self._chance())
            if isinstance(error, Misbehaving):
                self._offences += 1
                for watch in self._watches:
                    watch.relist()
                pause = self._pace.pause.delay(self._offences, self._chance())
                log.warning("cluster misbehaves", cluster=self.name, error=str(error), pause=round(pause))
            try:
                async with asyncio.timeout(pause):
                    await self._changed.wait()
            except TimeoutError:
                continue

    async def _connected(self) -> ClientError | None:
        """One client's life; answers what ended it, None when it is to be followed by another at once."""
        ended: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as client, asyncio.TaskGroup() as group:

                def start(part: Awaitable[object]) -> None:
                    # No part raises in the group: one that is aborted by an error forgets, before Python 3.13, that it
                    # was cancelled at the same moment.
                    tasks.append(group.create_task(self._reported(part, ended)))

                start(self._changed.wait())
                start(self._initial_sync(client, start))
                error = await ended
                for task in tasks:
                    task.cancel()
                return error
        finally:
            self._kube = None

    async def _initial_sync(self, client: AsyncExitStack, start: Callable[[Awaitable[object]], None]) -> None:
        """Get to know the cluster when its turn has come, and again whenever somebody else may have written there."""
        async with self._slots:
            self._again.clear()
            kube = self._kube = await client.enter_async_context(self._client())
            if self.health.renewing:
                self.health = replace(self.health, renewing=False)
                self._on_return(self.name)
            start(kube.misbehaves())
            start(self._probe(kube))
            for watch in self._with(kube):
                start(watch.run())
            await self._known()
        while True:
            await self._again.wait()
            async with self._slots:
                self._again.clear()
                self._suspected.set()
                for watch in self._watches:
                    watch.look_again()
                await self._known()

    def _client(self) -> AbstractAsyncContextManager[Kube]:
        return connect(self._access, on_call=self._on_call, limits=self._limits, share=self._share)

    async def _known(self) -> None:
        """Wait until the cluster has answered and all was seen there, or that is not to be expected in this turn."""
        began = self._now()
        with suppress(TimeoutError):
            async with asyncio.timeout(INITIAL_SYNC_SECONDS):
                while self.health.error is None and not self._again.is_set():
                    contact = self.health.last_contact
                    if self.synced and contact is not None and contact >= began:
                        return
                    await asyncio.sleep(LOOK_AGAIN)

    async def _reported(self, part: Awaitable[object], ended: asyncio.Future[ClientError | None]) -> None:
        """Run one part of a connection; its end is the connection's."""
        error: ClientError | None = None
        try:
            await part
        except ClientError as caught:
            error = caught
        except Exception as caught:  # a defect of ours at one cluster must not end the others' connections
            log.exception("connection failed", cluster=self.name)
            error = Defect.by(caught)
        if not ended.done():
            ended.set_result(error)

    def _with(self, kube: Kube) -> Sequence[Reflector]:
        """The watches, going on with this client."""
        if not self._watches:
            slots = asyncio.Semaphore(LISTS_AT_ONCE)
            self._watches = [
                Reflector(
                    kube,
                    informer,
                    self._chance,
                    one.namespace,
                    self._pace.watch,
                    on_broken=self._suspected.set,
                    answers=lambda: self.health.error is None,
                    ours=one.ours,
                    on_news=lambda: self._on_health(self.name, self.health),
                    slots=slots,
                    kept=self._kept,
                )
                for one, informer in zip(self._watched.values(), self._informers.values(), strict=True)
            ]
        for watch in self._watches:
            watch.kube = kube
        return self._watches

    def _kept(self) -> int:
        """The bytes that are kept of the cluster. A list under way may only say again what is there."""
        return sum(max(watch.informer.size, watch.reading) for watch in self._watches)

    async def _probe(self, kube: Kube) -> None:
        """Ask again and again whether the cluster is there; ends when it is back, and raises Unauthorized."""
        pace, lately = self._pace, deque[float](maxlen=STEADY)
        while True:
            self._suspected.clear()
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
                wait = pace.again if misses < pace.misses else pace.backoff.delay(misses - 1, self._chance())
                await asyncio.sleep(wait)
                continue
            if was_away := self.health.error is not None:
                self._sound_since = self._now()
                if self._offences:
                    await asyncio.sleep(pace.probation)
            elif self._now() - self._sound_since > pace.pause.longest:
                self._offences = 0
            self._set(Health(last_contact=self._now(), latency=latency, renewing=was_away))
            if was_away:
                return
            with suppress(TimeoutError):
                async with asyncio.timeout(pace.probe_interval * (0.75 + self._chance() / 2)):
                    await self._suspected.wait()

    def _set(self, health: Health) -> None:
        before, self.health = self.health, health
        turned = (before.answers, before.error is None) != (health.answers, health.error is None)
        if turned or _words(before) != _words(health):
            # Of one outage, each attempt may say something else: the log has the first, the condition the latest.
            tell = log.info if turned else log.debug
            tell("cluster health", cluster=self.name, answers=health.answers, error=_words(health))
            self._on_health(self.name, health)


def _words(health: Health) -> str:
    return str(health.error or "")
