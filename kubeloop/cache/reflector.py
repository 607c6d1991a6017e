"""List and watch: how an informer stays current through every failure of a watch.

A watch that ends or breaks is resumed at its resourceVersion. A new list is needed only if the server no longer has
that version (410), if the server is behind it (see below), or after any other error than a lost connection. Retries
back off with jitter, so that a thousand watches that broke together do not return together.

A server that was restored from a backup accepts a watch from a version in its future, and sends nothing. After a watch
without any event or bookmark, a list of one object therefore checks how far the server is.

A type that only we create is not watched while there are no objects; it is listed now and then, and watched as soon as
we are about to write one. A type that the server lacks is checked less and less often. Neither needs a task in the
meantime (`turns.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field

import structlog

from kubeloop.backoff import Backoff
from kubeloop.cache.entries import Entry, Weight
from kubeloop.cache.informer import Informer
from kubeloop.client.errors import origin
from kubeloop.client.kube import SILENCE, Kube
from kubeloop.errors import (
    ClientError,
    Defect,
    Forbidden,
    KubeconfigError,
    Misbehaving,
    NotFound,
    ServerFault,
    TooMany,
    Unauthorized,
    Unreachable,
)
from kubeloop.objects import Key, Manifest

RETURNING = Backoff(first=0.2, longest=30.0)
UNSERVED = Backoff(first=40.0, longest=300.0)
LISTS_AT_ONCE = 4  # per server: each takes a connection, and memory that the process hardly ever returns

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WatchPace:
    """The times of lists and watches, in seconds."""

    watch_seconds: int = 300  # until the server ends a watch, so that load can move between API servers
    silence: float = SILENCE
    steady: float = 5.0  # a watch that lasted this long counts as successful
    unserved: Backoff = UNSERVED  # between checks for a type that the server lacks
    vacant: float = 1200.0  # between lists of a type that only we create, while it is empty
    backoff: Backoff = RETURNING
    patience: float = 15.0  # until one failing watch is logged; an unreachable server is logged by its connection


@dataclass(slots=True)
class Reflector:
    """Keeps one informer current by lists and watches. `jitter` returns random numbers from 0 to 1."""

    kube: Kube
    informer: Informer
    jitter: Callable[[], float]
    namespace: str = ""
    pace: WatchPace = WatchPace()
    on_broken: Callable[[], None] = lambda: None
    """Called when the server does not respond or a watch breaks."""
    answers: Callable[[], bool] = lambda: True
    """True if the server answers probes. Otherwise a failing watch is not logged."""
    only_ours: bool = False
    """True if only we create objects of this type."""
    on_type_change: Callable[[], None] = lambda: None
    """Called when the server gains or loses the type or our permission for it, which changes no object."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LISTS_AT_ONCE))
    """Limits the concurrent lists of one server."""
    cached_bytes: Callable[[], int] = lambda: 0
    """Returns the bytes cached of all objects of the server, including those that current lists have read."""
    _read: Weight = field(default_factory=Weight, init=False)
    """The size of the entries that the current list has read."""
    lists: int = field(default=0, init=False)
    """The number of completed lists."""
    failing: ClientError | None = field(default=None, init=False)
    """The current error."""
    _fails_since: float | None = field(default=None, init=False)
    """The time since which the watch fails."""
    _alone_since: float | None = field(default=None, init=False)
    """The time since which the watch fails although its server answers."""
    _logged: str = field(default="", init=False)
    """The reason that was logged during the current failure."""
    _up_since: float | None = field(default=None, init=False)
    """The time at which the current watch began."""
    idle: bool = field(default=False, init=False)
    """True if the type was empty at the last list, and is not watched. It stays so while the server is unreachable."""
    sleeps: bool = field(default=False, init=False)
    """True if the last turn found nothing to watch. The next turn begins early if the informer is woken."""
    _version: str = field(default="", init=False)
    """The resourceVersion to resume the watch from; empty if a list is needed."""
    _silent: bool = field(default=False, init=False)
    """True if the last watch has delivered nothing."""
    _failures: int = field(default=0, init=False)
    """The number of consecutive turns that ended at once."""
    _missing_checks: int = field(default=0, init=False)
    """The number of consecutive checks in which the server lacked the type."""

    def go_on(self, kube: Kube) -> None:
        """Use another client from now on."""
        self.kube, self._failures, self._missing_checks = kube, 0, 0

    def invalidate(self) -> None:
        """Mark an unwatched type as not synced, since another process of this operator may have written it."""
        if self.idle or not self.informer.served:
            self.informer.synced = False
            self._version = ""

    def relist(self) -> None:
        """List everything before the next watch, because the events of the last one may have been wrong."""
        self._version = ""

    def list_unwatched(self) -> None:
        """List the type soon if it is not watched."""
        if self.idle or not self.informer.served:
            self.informer.wake()

    def seconds_failing(self, now: float) -> float:
        """Return the seconds for which it has failed without a watch that lasted; 0 while it works."""
        return 0.0 if self._fails_since is None or self._is_steady(now) else now - self._fails_since

    def _is_steady(self, now: float) -> bool:
        """True if the current watch has lasted long enough to count as successful."""
        return self._up_since is not None and now - self._up_since > self.pace.steady

    async def turn(self) -> float:
        """List if needed and watch until the watch ends. Return the seconds to wait before the next turn.

        Raises the errors that need another connection or a pause of it.
        """
        self.informer.woken = self.sleeps = False
        started_at, self._up_since = self.informer.now(), None
        try:
            if not self._version or (self.only_ours and self.informer.vacant) or await self._is_behind():
                await self._list()
            if self.only_ours and self.informer.vacant:
                return self._sleep()
            await self._watch()
            error = None
        except (Unauthorized, KubeconfigError, Misbehaving):
            raise
        except ClientError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - what one watch cannot take must not end the others
            error = Defect.by(caught)
            self._log_failure(error, at=origin(caught))
        ended_at = self.informer.now()
        self._failures = 1 if ended_at - started_at > self.pace.steady else self._failures + 1
        if error is None or isinstance(error, NotFound):  # watches end, and not every server has every type
            self._fails_since = None
        elif self._fails_since is None or self._is_steady(ended_at):
            self._fails_since, self._alone_since, self._logged = ended_at, None, ""
        self._up_since = None
        return self._end_turn(error)

    async def _is_behind(self) -> bool:
        """True if the server is behind the version of the last watch, as after a restore.

        Asks only after a silent watch.
        """
        if not self._silent:
            return False
        first = await self.kube.some(self.informer.type, 1, namespace=self.namespace)
        return int(first.version) < int(self._version)

    def _sleep(self) -> float:
        """Stop watching the empty type, and return the seconds until it is listed again."""
        self.idle = self.sleeps = True
        self._version = ""
        self._failures, self._fails_since = 0, None
        self._set_failing(None)
        return self.pace.vacant * (0.75 + self.jitter() / 2)

    async def _watch(self) -> None:
        """Watch from the current version until the watch ends, and pass its events to the informer."""
        self.idle, self._silent = False, True
        watch = self.kube.watch(
            self.informer.type,
            self._version,
            seconds=int(self.pace.watch_seconds * (1 + self.jitter())),
            namespace=self.namespace,
            selector=self.informer.selecting or "",
            silence=self.pace.silence,
            bare=self.informer.bare,
        )
        async with aclosing(watch) as events:
            self._set_failing(None)
            self._up_since = self.informer.now()
            async for event in events:
                self._silent = False
                self.informer.on_event(event)
                self._check_room()
                self._version = event.manifest["metadata"]["resourceVersion"]

    async def _list(self) -> None:
        """List all objects page by page, pass them to the informer, and note the version to watch from."""
        read = self.informer.reader()

        def read_checked(manifest: Manifest) -> Entry | Key | None:
            """Read an object and count its size; raises Misbehaving when the cluster exceeds the size of its cache."""
            entry = read(manifest)
            if isinstance(entry, Entry):
                self._read.add(entry)
                self._check_room()
            return entry

        self._version = ""
        async with self.slots:
            try:
                listing = await self.kube.read_list(
                    self.informer.type,
                    read_checked,
                    namespace=self.namespace,
                    selector=self.informer.selecting or "",
                    bare=self.informer.bare,
                    size=_entry_size,
                    on_begin=self._reset_read,
                )
            finally:
                self._reset_read()
        self.lists += 1
        self._missing_checks = 0
        was_missing = not self.informer.served
        self.informer.on_list(listing)
        self._version = listing.version
        if was_missing:
            self.on_type_change()

    @property
    def reading(self) -> int:
        """The bytes that the current list has read."""
        return self._read.size

    def _reset_read(self) -> None:
        """Reset the size of the current list."""
        self._read = Weight()

    def _check_room(self) -> None:
        """Raise Misbehaving if the cluster's cache exceeds its limit."""
        self.kube.check_cached_bytes(self.informer.type, self.cached_bytes())

    def _end_turn(self, error: ClientError | None) -> float:
        """Update the state after a turn that ended with this error, and return the seconds to wait."""
        chance = self.jitter()
        match error:
            case None:
                return self.pace.backoff.delay(self._failures - 1, chance)  # a first normal end needs no pause
            case Unreachable() | TooMany() | ServerFault():  # the cache is valid: resume there
                self.on_broken()
            case NotFound():
                self._version = ""
                was_served = self.informer.served
                self.informer.on_missing_type()
                self.sleeps = True
                self._missing_checks += 1
                self._set_failing(None)
                if was_served:
                    self.on_type_change()
                return self.pace.unserved.delay(self._missing_checks, chance)
            case _:
                self._version = ""
        now = self.informer.now()
        if not self.answers():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > self.pace.patience:
            self._log_failure(error)
        self._set_failing(error)
        return self.pace.backoff.delay(self._failures, chance, at_least=error.retry_after)

    def _log_failure(self, error: ClientError, **more: object) -> None:
        """Log a failure of this watch, once until it has worked or the reason has changed."""
        if error.reason != self._logged:
            self._logged = error.reason
            informer = self.informer
            log.warning("watch fails", cluster=informer.cluster, resource=str(informer.type), error=str(error), **more)

    def _set_failing(self, error: ClientError | None) -> None:
        """Set the current error, and report when our permission for the type has changed."""
        old, self.failing = self.failing, error and error.without_details()
        if isinstance(old, Forbidden) != isinstance(error, Forbidden):
            self.on_type_change()


def _entry_size(read: object) -> int:
    """Return the size in bytes of an entry that a list has read."""
    return read.size if isinstance(read, Entry) else 0
