"""List, then watch: how an informer stays current through anything that can happen to a watch.

A watch that ends or breaks off is resumed where it was. All is listed again only when the server no longer knows that
place (410), when it has not come so far (below), or when something else is wrong than the way to it. Both wait longer
after each failure in a row, by chance more or less, so that a thousand watches that broke together do not return
together.

A server that was restored from a backup takes a watch from a version that it has yet to come to, and is silent. After a
watch that has said nothing, bookmarks included, a list of one object is asked how far the server is.

Of a type that nobody but us makes objects of, there is nothing to watch while there are none: then a list now and then
does, until we are about to write one. Of a type that the server does not have, it is asked less and less often. Neither
takes a task meanwhile (`turns.py`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import TypeVar

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
from kubeloop.objects import Manifest

T = TypeVar("T")

RETURNING = Backoff(first=0.2, longest=30.0)
UNSERVED = Backoff(first=40.0, longest=300.0)
LISTS_AT_ONCE = 4  # of one server: each takes a connection, of which memory once taken is hardly ever given back

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class WatchPace:
    """How long things may take."""

    watch_seconds: int = 300  # then the server ends it, and another server of the same cluster may take the next
    silence: float = SILENCE
    steady: float = 5.0  # a watch that lived that long has worked
    unserved: Backoff = UNSERVED  # until a type is asked for again that the server lacks
    vacant: float = 1200.0  # how often to list what nobody but us makes, while there is nothing
    backoff: Backoff = RETURNING
    patience: float = 15.0  # until the log tells of one watch that fails: its connection tells of a server that is away


@dataclass(slots=True)
class Reflector:
    """Keeps one informer current. `chance` gives numbers from 0 to 1."""

    kube: Kube
    informer: Informer
    chance: Callable[[], float]
    namespace: str = ""
    pace: WatchPace = WatchPace()
    on_broken: Callable[[], None] = lambda: None
    """Told when the server does not answer, or breaks off."""
    answers: Callable[[], bool] = lambda: True
    """Whether the server answers whoever asks how it is. When it does not, no watch of it is worth a log line."""
    ours: bool = False
    """Whether nobody but us makes such objects."""
    on_news: Callable[[], None] = lambda: None
    """Told when the server begins or ceases to have the type, or to let us see it: no object changes by that."""
    slots: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(LISTS_AT_ONCE))
    """Whose turn it is to list; those of one server share it."""
    kept: Callable[[], int] = lambda: 0
    """Tells how many bytes are kept of all objects of the server, those among them that a list has read so far."""
    _read: Weight = field(default_factory=Weight, init=False)
    lists: int = field(default=0, init=False)
    failing: ClientError | None = field(default=None, init=False)
    """What is wrong with it at the moment."""
    _fails_since: float | None = field(default=None, init=False)
    _alone_since: float | None = field(default=None, init=False)
    """Since when it fails although its server answers."""
    _told: str = field(default="", init=False)
    """What is in the log since it fails."""
    _up_since: float | None = field(default=None, init=False)
    idle: bool = field(default=False, init=False)
    """Whether there is nothing to watch, as far as known: it stays so while the server is away."""
    sleeps: bool = field(default=False, init=False)
    """Whether the last turn has found nothing to watch: it goes on as soon as somebody wakes the informer."""
    _version: str = field(default="", init=False)
    _silent: bool = field(default=False, init=False)
    """Whether the last watch has said nothing."""
    _failures: int = field(default=0, init=False)
    """How many turns in a row have ended at once."""
    _lacking: int = field(default=0, init=False)
    """How often in a row the server has not had the type."""

    def go_on(self, kube: Kube) -> None:
        """Ask by another client from now on."""
        self.kube, self._failures, self._lacking = kube, 0, 0

    def invalidate(self) -> None:
        """Another process like this one may have written something since we last looked."""
        if self.idle or not self.informer.served:
            self.informer.synced = False
            self._version = ""

    def relist(self) -> None:
        """List all of it before the next watch: what the last one said may not have been so."""
        self._version = ""

    def list_unwatched(self) -> None:
        """List what is not watched."""
        if self.idle or not self.informer.served:
            self.informer.wake()

    def failing_for(self, now: float) -> float:
        """For how many seconds it has not worked: it fails, or falls again and again as soon as it has begun."""
        return 0.0 if self._fails_since is None or self._is_steady(now) else now - self._fails_since

    def _is_steady(self, now: float) -> bool:
        return self._up_since is not None and now - self._up_since > self.pace.steady

    async def turn(self) -> float:
        """List where needed, and watch until that ends; answers after how many seconds to go on.

        Raises what another connection has to mend, or a pause.
        """
        self.informer.woken = self.sleeps = False
        began, self._up_since = self.informer.now(), None
        try:
            if await self._is_vacant():
                return self._asleep()
            await self._watch()
            error = None
        except (Unauthorized, KubeconfigError, Misbehaving):
            raise
        except ClientError as caught:
            error = caught
        except Exception as caught:  # noqa: BLE001 - what one watch cannot take must not end the others
            error = Defect.by(caught)
            self._tell(error, at=origin(caught))
        ended = self.informer.now()
        self._failures = 1 if ended - began > self.pace.steady else self._failures + 1
        if error is None or isinstance(error, NotFound):  # watches end, and not every server has every type
            self._fails_since = None
        elif self._fails_since is None or self._is_steady(ended):
            self._fails_since, self._alone_since, self._told = ended, None, ""
        self._up_since = None
        return self._after(error)

    async def _is_vacant(self) -> bool:
        """Whether there is nothing to watch; lists where that is not known."""
        if not self._version or (self.ours and self.informer.vacant) or await self._began_again():
            await self._list()
        return self.ours and self.informer.vacant

    async def _began_again(self) -> bool:
        """Whether the server has not come so far as the last watch was to go on from; asked where that is in doubt."""
        if not self._silent:
            return False
        first = await self.kube.some(self.informer.type, 1, namespace=self.namespace)
        return int(first.version) < int(self._version)

    def _asleep(self) -> float:
        """There may be something all the same: it is looked at now and then."""
        self.idle = self.sleeps = True
        self._version = ""
        self._failures, self._fails_since = 0, None
        self._note(None)
        return self.pace.vacant * (0.75 + self.chance() / 2)

    async def _watch(self) -> None:
        self.idle, self._silent = False, True
        watch = self.kube.watch(
            self.informer.type,
            self._version,
            seconds=int(self.pace.watch_seconds * (1 + self.chance())),
            namespace=self.namespace,
            selector=self.informer.selecting or "",
            silence=self.pace.silence,
            bare=self.informer.bare,
        )
        async with aclosing(watch) as events:
            self._note(None)
            self._up_since = self.informer.now()
            async for event in events:
                self._silent = False
                self.informer.seen(event)
                self._check_room()
                self._version = event.manifest["metadata"]["resourceVersion"]

    async def _list(self) -> None:
        self._version = ""
        async with self.slots:
            try:
                listing = await self.kube.read_list(
                    self.informer.type,
                    self._counted(self.informer.reader()),
                    namespace=self.namespace,
                    selector=self.informer.selecting or "",
                    bare=self.informer.bare,
                    size=_size,
                    on_begin=self._nothing_read,
                )
            finally:
                self._nothing_read()
        self.lists += 1
        self._lacking = 0
        begins = not self.informer.served
        self.informer.listed(listing)
        self._version = listing.version
        if begins:
            self.on_news()

    @property
    def reading(self) -> int:
        """How much of what is kept a list under way has read."""
        return self._read.size

    def _nothing_read(self) -> None:
        self._read = Weight()

    def _counted(self, read: Callable[[Manifest], T]) -> Callable[[Manifest], T]:
        """The same, and it raises Misbehaving when that would be more than may be kept."""

        def counted(manifest: Manifest) -> T:
            entry = read(manifest)
            if isinstance(entry, Entry):
                self._read.add(entry)
                self._check_room()
            return entry

        return counted

    def _check_room(self) -> None:
        self.kube.check_kept(self.informer.type, self.kept())

    def _after(self, error: ClientError | None) -> float:
        """The seconds to wait after a watch has ended in this way."""
        chance = self.chance()
        match error:
            case None:
                return self.pace.backoff.delay(self._failures - 1, chance)  # the first end is what watches do
            case Unreachable() | TooMany() | ServerFault():  # what we have seen stands: go on from there
                self.on_broken()
            case NotFound():
                self._version = ""
                ceases = self.informer.served
                self.informer.unserved()
                self.sleeps = True
                self._lacking += 1
                self._note(None)
                if ceases:
                    self.on_news()
                return self.pace.unserved.delay(self._lacking, chance)
            case _:
                self._version = ""
        now = self.informer.now()
        if not self.answers():
            self._alone_since = None
        elif self._alone_since is None:
            self._alone_since = now
        elif now - self._alone_since > self.pace.patience:
            self._tell(error)
        self._note(error)
        return self.pace.backoff.delay(self._failures, chance, at_least=error.retry_after)

    def _tell(self, error: ClientError, **more: object) -> None:
        """Log what is wrong with this watch alone, once until it has worked or something else is."""
        if error.reason != self._told:
            self._told = error.reason
            informer = self.informer
            log.warning("watch fails", cluster=informer.cluster, resource=str(informer.type), error=str(error), **more)

    def _note(self, error: ClientError | None) -> None:
        before, self.failing = self.failing, error and error.kept()
        if isinstance(before, Forbidden) != isinstance(error, Forbidden):
            self.on_news()


def _size(read: object) -> int:
    """The bytes that are kept of an object that a list has read."""
    return read.size if isinstance(read, Entry) else 0
