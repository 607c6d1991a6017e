"""One pod's part in sharing the clusters with others: it looks, takes what it should have, and gives back the rest.

Every `Times.retry` seconds it renews its own Lease; the others judge by that whether it lives. Once its watch shows
that write, what the watch shows of the others is no older: that is a look, and at rest it costs no request. Only the
leader makes the Leases of clusters and deletes them, so that one that is missing was deleted by somebody else.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Generator, Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from functools import partial

import structlog

from modelplane_operator.api import labels
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.lease import Lease, Times, stamp, wall_clock
from modelplane_operator.clients.shares import Shares, holder_of, is_given_back, member_lease, preferred
from modelplane_operator.kube.errors import AlreadyExists, ClientError, Conflict, NotFound, NotLeading, Unreachable
from modelplane_operator.kube.objects import Key, Manifest, key_of, section
from modelplane_operator.kube.resources import LEASE

GIVE_BACK_SECONDS = 10.0  # that a stop takes for it at most; whatever is left others take when it is over
AT_ONCE = 16  # writes, and clusters that change hands: whoever gets them has to list what is there

Write = Callable[[], Awaitable[None]]

log = structlog.get_logger()


@dataclass(frozen=True, slots=True)
class Around:
    """What there is beside the Leases, as it is at the moment."""

    leases: Callable[[int, int], Awaitable[tuple[int, int, Iterable[Manifest]]]]
    """All Leases by which clusters are shared, once the watch has come to that era and resourceVersion, or into a later
    era; and how far it has come. A hub that is restored from a backup begins another era."""
    begin_again: Callable[[], int]
    """Has the hub listed anew; answers the era that begins."""
    clusters: Callable[[], Collection[str]]
    """Those that some object is of."""
    leads: Callable[[], bool]
    needs: Callable[[], Collection[str]]
    """Those that the leader has to be connected to whoever holds them."""
    busy: Callable[[str], bool]
    """Whether something goes on there that should end first."""
    connects: Callable[[str], None]
    """Told of a cluster that is to be connected to, or no longer."""
    gained: Callable[[Collection[str]], None]
    """Told of clusters of which reconciles may begin."""


@dataclass(slots=True)
class Sharing:
    """`lease`: what the leader holds; `grace`: how long reconciles may run on when their cluster changes hands."""

    kube: Callable[[], Kube]
    lease: Key
    identity: str
    now: Callable[[], float]
    chance: Callable[[], float]
    times: Times
    around: Around
    grace: float = 5.0
    wall: Callable[[], datetime] = wall_clock
    member: Lease = field(init=False)
    shares: Shares = field(init=False)
    clusters: frozenset[str] = field(default=frozenset(), init=False)
    """All that the pods share."""
    connected: frozenset[str] = field(default=frozenset(), init=False)
    """The clusters that this pod is to be connected to."""
    _running: Counter[str] = field(default_factory=Counter[str], init=False)
    _leaving: dict[str, float] = field(default_factory=dict[str, float], init=False)
    """Since when no reconcile begins there, so that another pod can have it."""
    _open: frozenset[str] = field(default=frozenset(), init=False)
    _missed: set[str] = field(default_factory=set[str], init=False)
    """Clusters of which a reconcile was not begun since somebody was last told."""
    _known: set[str] | None = field(default=None, init=False)
    """The clusters that have or had a Lease since we lead, for all we know."""
    _failing: bool = field(default=False, init=False)
    _blind: bool = field(default=False, init=False)
    """Whether the watch has not shown what we wrote last."""
    _version: int = field(default=0, init=False)
    """As of which we have seen the Leases, or have to see them: that of our own, as we wrote it last."""
    _wrote: int = field(default=0, init=False)
    """The latter."""
    _era: int = field(default=0, init=False)
    """Of that version."""
    _mine: frozenset[str] = field(default=frozenset(), init=False)
    _mine_of: tuple[frozenset[str], frozenset[str]] = field(default=(frozenset(), frozenset()), init=False)
    """Of which clusters and pods those are the ones that we should have."""

    def __post_init__(self) -> None:
        key = Key(self.lease.namespace, member_lease(self.lease.name, self.identity))
        told = {labels.SHARING: self.lease.name}
        began, since = self.wall(), self.now()

        def wall() -> datetime:
            """As if nobody had set the clock since: how long we have been there counts."""
            return began + timedelta(seconds=self.now() - since)

        self.member = Lease(self.kube, key, self.identity, self.now, self.chance, self.times, told, wall)
        self.shares = Shares(self.lease, self.identity, self.times)

    # For reconciles ---------------------------------------------------------------------------------------------------

    def holds(self, cluster: str) -> bool:
        """Whether no other pod can be writing for a cluster now."""
        return self.member.held and self.shares.holds(cluster, self.now())

    def check(self, cluster: str) -> None:
        """Raise NotLeading when another pod may hold the cluster."""
        if not self.holds(cluster):
            raise NotLeading("another operator may hold the cluster")

    @property
    def count(self) -> int:
        """How many clusters this pod holds."""
        return sum(map(self.holds, self.shares.held))

    @contextmanager
    def working(self, cluster: str) -> Generator[bool]:
        """Whether a reconcile of an object of that cluster may begin; the cluster changes hands after it."""
        if cluster in self._leaving or not self.holds(cluster):
            self._missed.add(cluster)
            yield False
            return
        self._running[cluster] += 1
        try:
            yield True
        finally:
            self._running[cluster] -= 1

    # The pod's own loop -----------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take part until cancelled; then give all back."""
        try:
            while True:
                try:
                    self.clusters = clusters = frozenset(self.around.clusters())
                    async with asyncio.timeout(self.times.deadline / 2):
                        await self._look(clusters)
                    await self._move(clusters)
                    self._failing = False
                except (ClientError, TimeoutError) as error:
                    self.member.invalidate()
                    tell = log.debug if self._failing else log.info
                    tell("clusters not looked after", held=self.count, error=str(error) or type(error).__name__)
                    self._failing = True
                self.tell()
                await asyncio.sleep(self.times.retry * (1 + self.chance() / 5))
        finally:
            await self._release()

    async def _look(self, clusters: Collection[str]) -> None:
        if self._blind:  # who does not see what the others do must not seem to live
            stored = await self.kube().find(LEASE, self.member.key)
            if self._wrote and (stored is None or _version(stored) < self._wrote):
                self._restored(self.around.begin_again(), 0)
            await self._leases()
        self._blind, asked = True, self.now()
        try:
            await self.member.renew()
        except (Conflict, NotFound):  # by hand, or from a backup
            self.shares.invalidate(self.now())
            raise
        if (stored := self.member.stored) is not None:
            before, self._version = self._version, _version(stored)
            self._wrote = self._version
            if self._version < before:
                self._restored(self.around.begin_again(), self._version)
        else:  # somebody has given it to another by hand: what the watch shows may be older
            asked = self.shares.asked
        found = await self._leases()
        self._blind = False
        self.shares.see(found, clusters, asked=asked, now=self.now(), until=self.member.until)

    async def _leases(self) -> Iterable[Manifest]:
        era, version, found = await self.around.leases(self._version, self._era)
        if era != self._era:
            self._restored(era, 0)
            raise Unreachable("the hub was restored from a backup")
        self._version = version
        return found

    def _restored(self, era: int, version: int) -> None:
        self._era, self._version, self._wrote = era, version, version
        self.shares.invalidate(self.now())

    async def _move(self, clusters: frozenset[str]) -> None:
        if not self.member.held:
            return
        shares = self.shares
        pods, held = shares.sharing, frozenset(shares.held)
        mine = self._preferred(clusters, pods)
        writes: list[Write] = [partial(self._give, one) for one in self._left(held - mine)]
        for one, lease in shares.free():
            if one in self._leaving:
                continue
            if one in mine:
                writes.append(partial(self._take, one))
            elif holder_of(lease) == self.identity or self._is_left_over(lease, one, clusters):
                writes.append(partial(self._give, one))
        writes += self._as_leader(clusters)
        with suppress(TimeoutError):
            async with asyncio.timeout(self.times.deadline / 4):
                await _all(writes)
        if (now := frozenset(shares.held)) != held:
            log.info("clusters shared", pods=len(pods), held=len(now), taken=len(now - held), left=len(held - now))

    def _preferred(self, clusters: frozenset[str], pods: frozenset[str]) -> frozenset[str]:
        """The clusters that we should have, reckoned when something changes: of thousands that takes a while."""
        if self._mine_of != (clusters, pods):
            self._mine = frozenset(one for one in clusters if preferred(one, pods) == self.identity)
            self._mine_of = (clusters, pods)
        return self._mine

    def _is_left_over(self, lease: Manifest, cluster: str, clusters: Collection[str]) -> bool:
        """Whether its holder is no more, and nobody needs it: it is for the leader to give back, and then to delete."""
        return cluster not in clusters and not is_given_back(lease) and self.around.leads()

    def _left(self, others: Collection[str]) -> Iterator[str]:
        """Have others' clusters left, some at a time; answers those that can be given back."""
        now, gap = self.now(), self.times.duration - self.times.deadline
        for one in tuple(self._leaving):
            if one in self.shares.held and one not in others:
                del self._leaving[one]  # it is ours again
        for one in sorted(others):
            if len(self._leaving) < AT_ONCE and one not in self._leaving and not self.around.busy(one):
                self._leaving[one] = now
        for one, since in tuple(self._leaving.items()):
            if self.around.busy(one):  # what a reconcile that ran on has begun
                continue
            if not self._running[one] or now >= since + self.grace:
                self.shares.cease(one)
            if one not in self.shares.held:
                if not self.shares.is_ours(one):
                    del self._leaving[one]
                elif not self._running[one] or now >= since + self.grace + gap:  # until then a write may be on its way
                    yield one

    def _as_leader(self, clusters: Collection[str]) -> Iterator[Write]:
        """What the leader does with Leases that nobody has, or nobody needs."""
        if not self.around.leads():
            self._known = None
            return
        shares = self.shares
        if self._known is None:
            self._known = set(clusters)
        for one in clusters:
            if one not in shares.leases and (one not in self._known or shares.was_missing(one)):
                yield partial(self._make, one)
        self._known |= shares.leases.keys()
        for one, lease in shares.leases.items():
            if one not in clusters and is_given_back(lease):
                yield partial(self._delete, lease, one)
        named = set(map(holder_of, shares.leases.values()))
        for who, lease in shares.members.items():
            if who not in named and shares.is_over(who):
                yield partial(self._delete, lease)

    def tell(self) -> None:
        """Tell of what has changed: which connections there are to be, and of which clusters reconciles may begin."""
        held = frozenset({*self.shares.held, *self._leaving})
        before, self.connected = self.connected, held | frozenset(self.around.needs() if self.around.leads() else ())
        for one in sorted(before ^ self.connected):
            self.around.connects(one)
        ready = frozenset(one for one in self.shares.held if one not in self._leaving and self.holds(one))
        gained = (ready - self._open) | (ready & self._missed)
        self._open = ready
        self._missed.clear()
        if gained:
            self.around.gained(gained)

    # Writes -----------------------------------------------------------------------------------------------------------

    async def _take(self, cluster: str) -> None:
        kube, asked = self.kube(), self.now()
        stored = await kube.replace(self.shares.taken(cluster, stamp(self.wall())))
        self.shares.took(cluster, stored, asked=asked, until=self.member.until)

    async def _give(self, cluster: str) -> None:
        self.shares.gave(cluster, await self.kube().replace(self.shares.given_back(cluster)))
        self._leaving.pop(cluster, None)

    async def _make(self, cluster: str) -> None:
        kube, new = self.kube(), self.shares.new(cluster)
        try:
            stored = await kube.create(new)
        except AlreadyExists:  # somebody has taken off what it is found by
            if (found := await kube.find(LEASE, key_of(new))) is None:
                return
            spec = new["spec"] if self.shares.was_missing(cluster) else found["spec"]
            stored = await kube.replace(
                {**found, "metadata": _marked(found["metadata"], new["metadata"]), "spec": spec}
            )
        self.shares.gave(cluster, stored)

    async def _delete(self, lease: Manifest, cluster: str | None = None) -> None:
        metadata = lease["metadata"]
        await self.kube().delete(LEASE, key_of(lease), uid=metadata["uid"], version=metadata["resourceVersion"])
        if cluster is not None and self._known is not None:
            self._known.discard(cluster)
            self.shares.gave(cluster, None)

    async def _release(self) -> None:
        stored, ours = self.member.stored, [one for one in self.shares.leases if self.shares.is_ours(one)]
        self.member.lose()
        for one in ours:
            self.shares.cease(one)
        try:
            async with asyncio.timeout(GIVE_BACK_SECONDS):
                with suppress(ClientError):  # first, so that nobody keeps for us what is given back
                    if stored := stored or await self.kube().find(LEASE, self.member.key):
                        await self.kube().delete(LEASE, self.member.key, uid=stored["metadata"]["uid"])
                await _all([partial(self._give, one) for one in ours if not self._running[one]])
        except (ClientError, TimeoutError) as error:
            log.info("clusters not given back", error=str(error))


def _version(lease: Manifest) -> int:
    return int(lease["metadata"]["resourceVersion"])


def _marked(metadata: Manifest, marks: Manifest) -> Manifest:
    """The same metadata, with the labels and annotations of other."""
    return {**metadata, **{part: {**section(metadata, part), **marks[part]} for part in ("labels", "annotations")}}


async def _all(writes: Iterable[Write]) -> None:
    """Some at a time. One that fails is for the next look: somebody was faster, or the hub is away."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def done(write: Write) -> None:
        async with slots:
            try:
                await write()
            except (AlreadyExists, Conflict, NotFound) as error:
                log.debug("lease not written", error=str(error))
            except ClientError as error:
                log.info("lease not written", error=str(error))

    await asyncio.gather(*map(done, writes))
