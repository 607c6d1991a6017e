"""The connection to one cluster: a client with watches, which is replaced when it no longer works.

A new client is made when the address or the user changes, after a 401, and when a cluster becomes reachable again,
because connections that survived an outage may be dead. The informers are kept meanwhile, and watches resume.

A cluster that sends more than its limits allow, or other things than an API server sends (`limits.py`), is not used for
minutes, and longer each time.
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
from kubeloop.client.wire import OnCall, ignore_count
from kubeloop.errors import ClientError, Defect, Misbehaving, Unauthorized, Unreachable
from kubeloop.tokens import Token
from kubeloop.types import ResourceType

log = structlog.get_logger()

OnReturn = Callable[[str], None]
"""Called with the name of a cluster that is reachable again."""
OnUnauthorized = Callable[[str], None]
"""Called with the name of a cluster that rejects our credentials."""


class Connection:
    """The connection to one cluster. It works while `run` runs."""

    def __init__(
        self,
        name: str,
        access: Access,
        watched: Sequence[Watched],
        store: Store,
        *,
        jitter: Callable[[], float],
        pace: ConnectionPace | None = None,
        on_call: OnCall = ignore_count,
        on_health: OnHealth = lambda _, __: None,
        on_return: OnReturn = lambda _: None,
        on_unauthorized: OnUnauthorized = lambda _: None,
        slots: asyncio.Semaphore | None = None,
        limits: ServerLimits | None = None,
        share: Share | None = None,
        opens: OpenChannel = open_channel,
    ) -> None:
        """Set the connection up. `slots` limits the concurrent initial syncs of a fleet.

        `on_health` is called first when the cluster is reachable again, and `on_return` once there is a client for it.

        `limits` and `share` bound what the cluster may send, and its share of the event loop; `opens` opens the channel
        that carries requests.
        """
        self.name = name
        self._access = access
        self._pace = pace or ConnectionPace()
        self._chance = jitter
        self._on_call, self._on_return, self._on_unauthorized = on_call, on_return, on_unauthorized
        self._limits, self._share, self._opens = limits, share, opens
        self._prober = Prober(name, self._pace, store.now, jitter, on_health)
        self._watches = Watches(self._prober, store)
        self._initial_sync = InitialSync(slots or asyncio.Semaphore(), self._prober, self._watches)
        self._kube: Kube | None = None
        self._changed = asyncio.Event()
        self.watch(watched)

    def watch(self, watched: Sequence[Watched]) -> None:
        """Watch these types as well; to be called before `run`."""
        self._watches.add(watched)

    @property
    def health(self) -> Health:
        """The reachability of the cluster."""
        return self._prober.health

    @property
    def server(self) -> str:
        """The address of its API server."""
        return self._access.server

    @property
    def unverified(self) -> str:
        """The reason why the identity of the cluster cannot be verified; empty if it can."""
        return self._access.unverified

    @property
    def token(self) -> Token | None:
        """Our token for the cluster, if it expires."""
        return read_token(self._access.token)

    @property
    def kube(self) -> Kube:
        """The client; raises Unreachable or the last error at once while the cluster does not answer."""
        if self.health.error is not None:
            raise self.health.error.without_details()
        if self._kube is None:
            raise Unreachable(f"cluster {self.name or 'hub'}: not connected yet")
        return self._kube

    def find(self, kind: ResourceType) -> Informer | None:
        """Return the informer of a type, or None if the type is not watched."""
        return self._watches.informers.get(kind)

    def find_failing(self, kind: ResourceType) -> ClientError | None:
        """Return the current error of the watch of a type."""
        return self._watches.find_failing(kind)

    @property
    def informers(self) -> Sequence[Informer]:
        """The informers of all watched types."""
        return tuple(self._watches.informers.values())

    @property
    def synced(self) -> bool:
        """True if every watched type has been listed once."""
        return self._watches.synced

    @property
    def watches(self) -> Sequence[Reflector]:
        """The reflectors of all watched types."""
        return self._watches.reflectors

    def invalidate(self) -> None:
        """Sync again the types that are not watched: another process of this operator may have written them.

        Until the next initial sync of the cluster they count as not synced.
        """
        for watch in self.watches:
            watch.invalidate()
        self._initial_sync.ask()

    def update(self, access: Access) -> None:
        """Use this access from now on. A renewed token keeps the client, everything else replaces it."""
        old, self._access = self._access, access
        if access == old:
            return
        if self._kube is not None and access.without_token() == old.without_token() and self.health.error is None:
            self._kube.renew(access)
            return
        if (access.server, access.authority) != (old.server, old.authority):
            self._watches.distrust()
        self._changed.set()

    async def run(self) -> None:
        """Stay connected until cancelled; closes everything that it opened."""
        failures = 0
        while True:
            self._changed.clear()
            contact = self.health.last_contact
            error = await self._run_client()
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

    async def _run_client(self) -> ClientError | None:
        """Run one client until it ends. Return its error, or None if another client should follow at once."""
        ended: asyncio.Future[ClientError | None] = asyncio.get_running_loop().create_future()
        tasks: list[asyncio.Task[None]] = []
        try:
            async with AsyncExitStack() as client, asyncio.TaskGroup() as group:

                def start(part: Awaitable[object]) -> None:
                    """Start a task whose end ends the client."""
                    # No part raises in the group: before Python 3.13, a group that is aborted by an error forgets that
                    # it was cancelled at the same moment.
                    tasks.append(group.create_task(self._report_end(part, ended)))

                start(self._changed.wait())
                start(self._initial_sync.run(partial(self._start_client, client, start), self._resync))
                error = await ended
                for task in tasks:
                    task.cancel()
                return error
        finally:
            self._kube = None

    async def _start_client(self, client: AsyncExitStack, start: Callable[[Awaitable[object]], None]) -> None:
        """Open a client, and start its prober and watches."""
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
        if self._prober.on_new_client():
            self._on_return(self.name)
        start(kube.misbehaves())
        start(self._prober.run(kube))
        start(follow(self._watches.on(kube)))

    def _resync(self) -> None:
        """Probe the cluster at once, and list the types that are not watched."""
        self._prober.suspected.set()
        for watch in self.watches:
            watch.list_unwatched()

    async def _report_end(self, part: Awaitable[object], ended: asyncio.Future[ClientError | None]) -> None:
        """Run one part of a connection, and report its end as the end of the connection."""
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
