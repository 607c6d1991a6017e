"""The connection to one cluster: its client and its watches, one life after the other.

It is rebuilt when the way to the cluster or the user changes, after a 401, and when a cluster answers again that did
not: connections that lived through that may be dead without knowing it. What the watches have seen is kept meanwhile,
and they resume where they were.

A cluster that says what no API server says (`limits.py`) is not asked again for minutes, and longer each time.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import AsyncExitStack
from functools import partial

import structlog

from kubeloop.cache.informer import Informer
from kubeloop.cache.initial_sync import InitialSync
from kubeloop.cache.prober import ConnectionPace, Health, OnHealth, Prober
from kubeloop.cache.reflector import Reflector
from kubeloop.cache.store import Store
from kubeloop.cache.turns import follow
from kubeloop.cache.watches import Watched, Watches
from kubeloop.client.access import Access, read_token
from kubeloop.client.channel import OpenChannel, open_channel
from kubeloop.client.kube import Kube, connect
from kubeloop.client.limits import ServerLimits, Share
from kubeloop.client.wire import OnCall, uncounted
from kubeloop.errors import ClientError, Defect, Misbehaving, Unauthorized, Unreachable
from kubeloop.tokens import Token
from kubeloop.types import ResourceType

log = structlog.get_logger()

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
        pace: ConnectionPace | None = None,
        on_call: OnCall = uncounted,
        on_health: OnHealth = lambda _, __: None,
        on_return: OnReturn = lambda _: None,
        on_unauthorized: OnUnauthorized = lambda _: None,
        slots: asyncio.Semaphore | None = None,
        limits: ServerLimits | None = None,
        share: Share | None = None,
        opens: OpenChannel = open_channel,
    ) -> None:
        """`slots`: how many have their initial sync at once; the clusters of a fleet share them.

        `on_return` is told when the cluster answers again and can be asked; `on_health` hears of it before that.

        `limits` and `share`: how much the cluster may say, and take of the loop; `opens`: what carries requests there.
        """
        self.name = name
        self._access = access
        self._pace = pace or ConnectionPace()
        self._chance = chance
        self._on_call, self._on_return, self._on_unauthorized = on_call, on_return, on_unauthorized
        self._limits, self._share, self._opens = limits, share, opens
        self._prober = Prober(name, self._pace, store.now, chance, on_health)
        self._watches = Watches(self._prober, store)
        self._initial_sync = InitialSync(slots or asyncio.Semaphore(), self._prober, self._watches)
        self._kube: Kube | None = None
        self._changed = asyncio.Event()
        self.watch(watched)

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these types, too; to be called before it runs."""
        self._watches.add(watched)

    @property
    def health(self) -> Health:
        return self._prober.health

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
            raise self.health.error.kept()
        if self._kube is None:
            raise Unreachable(f"cluster {self.name or 'hub'}: not connected yet")
        return self._kube

    def find(self, kind: ResourceType) -> Informer | None:
        """What is watched of a type."""
        return self._watches.informers.get(kind)

    def failing(self, kind: ResourceType) -> ClientError | None:
        """What is wrong at the moment with the watch of a type."""
        return self._watches.failing(kind)

    @property
    def informers(self) -> Sequence[Informer]:
        return tuple(self._watches.informers.values())

    @property
    def synced(self) -> bool:
        """Whether all that is watched has been seen once."""
        return self._watches.synced

    @property
    def watches(self) -> Sequence[Reflector]:
        return self._watches.reflectors

    def invalidate(self) -> None:
        """Another process like this one may have written there since we last looked at what we do not watch.

        Until the cluster's turn comes, it counts as not seen.
        """
        for watch in self.watches:
            watch.invalidate()
        self._initial_sync.ask()

    def update(self, access: Access) -> None:
        """Reach the cluster this way from now on. A renewed token disturbs nothing."""
        before, self._access = self._access, access
        if access == before:
            return
        if self._kube is not None and access.without_token() == before.without_token() and self.health.error is None:
            self._kube.renew(access)
            return
        if (access.server, access.authority) != (before.server, before.authority):
            self._watches.distrust()
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
            self._prober.lose(error)
            if isinstance(error, Unauthorized):
                self._on_unauthorized(self.name)
            pause = self._pace.rebuild.delay(failures, self._chance())
            if isinstance(error, Misbehaving):
                self._prober.offences += 1
                for watch in self.watches:
                    watch.relist()
                pause = self._pace.pause.delay(self._prober.offences, self._chance())
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
                start(self._initial_sync.run(partial(self._begin, client, start), self._resync))
                error = await ended
                for task in tasks:
                    task.cancel()
                return error
        finally:
            self._kube = None

    async def _begin(self, client: AsyncExitStack, start: Callable[[Awaitable[object]], None]) -> None:
        """Make a client, and go on with it."""
        kube = self._kube = await client.enter_async_context(
            connect(
                self._access,
                on_call=self._on_call,
                limits=self._limits,
                share=self._share,
                opens=self._opens,
                cluster=self.name or "hub",
            )
        )
        if self._prober.renewed():
            self._on_return(self.name)
        start(kube.misbehaves())
        start(self._prober.run(kube))
        start(follow(self._watches.on(kube)))

    def _resync(self) -> None:
        self._prober.suspected.set()
        for watch in self.watches:
            watch.list_unwatched()

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
