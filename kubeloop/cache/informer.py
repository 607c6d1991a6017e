"""An informer: what lists, watches and our own writes have told about the objects of one type on one cluster.

Three sources fill it, in any order: lists, watch events, and the answers to our own writes, which are taken
in at once, so that whatever is decided next already counts with them. Of one object the newest version wins: the API
server's resourceVersions of one type are integers that grow. What is deleted is remembered for a while, so that an
answer or an event that comes late does not bring it back.

Objects are shared by all readers and never changed. They are kept without `managedFields`, which are half of many an
object; what those say about our own fields is kept aside, as `ownership.is_current` needs it.

An object that cannot be read, or that an index or a listener fails on, is that object's trouble and nobody else's: it
is counted, and kept for whoever reconciles the object to tell. What was last read of it stands.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

import orjson
import structlog

from kubeloop.cache.dedup import Alike
from kubeloop.cache.entries import (
    SIZE_OF_A_TOMBSTONE,
    Entry,
    Stage,
    Tombstone,
    Trouble,
    Weight,
    check_metadata,
    kind_of_error,
    name_of,
    shallow,
    version_of,
)
from kubeloop.cache.indexes import Index, Indexed
from kubeloop.client.errors import origin
from kubeloop.client.kube import Event
from kubeloop.client.lists import Listing
from kubeloop.objects import Key, Manifest, key_of, labels_of
from kubeloop.ownership import owned_fields
from kubeloop.repeats import is_power_of_two
from kubeloop.types import HUB, ResourceType

# Watches deliver or are declared dead within SILENCE, calls end at their deadline: nothing comes later than this.
REMEMBER_SECONDS = 600.0
UNSERVED_SECONDS = 30.0  # until somebody who would use a type has it looked for again
EXPECT_SECONDS = 120.0  # the answer to a write is there long before that, or lost

Keep = Callable[[Manifest], Manifest]
Listener = Callable[[Key, Manifest | None, Manifest | None], None]
"""Told the key, what was there before, and what is there now."""

log = structlog.get_logger()


def _nobody() -> None:
    """Nobody is told."""


@dataclass(slots=True)
class Informer:
    """The objects of one type on one cluster. `selecting`: only those with that label, as the watch selects them.

    `bare`: no more than their metadata is wanted, and kept. `keeping`: what is kept of an object that we only read.
    """

    type: ResourceType
    now: Callable[[], float]
    selecting: str | None = None
    indexes: Mapping[str, Index] = field(default_factory=dict[str, Index])
    bare: bool = False
    keeping: Keep | None = None
    cluster: str = HUB
    alike: Alike = field(default_factory=Alike)
    """Keeps once what its objects have in common; other informers may share it."""
    synced: bool = field(default=False, init=False)
    """Whether all of it has been seen once. Before that, what is not here may well be there."""
    served: bool = field(default=True, init=False)
    """Whether the cluster has this type at all, as far as we know."""
    heard: float | None = field(default=None, init=False)
    """When the watch last said anything, a bookmark included."""
    _entries: dict[Key, Entry] = field(default_factory=dict[Key, Entry], init=False)
    _tombstones: dict[Key, Tombstone] = field(default_factory=dict[Key, Tombstone], init=False)
    _indexed: Indexed = field(init=False)
    _listeners: list[Listener] = field(default_factory=list[Listener], init=False)
    _weight: Weight = field(default_factory=Weight, init=False)
    failures: Counter[Stage] = field(default_factory=Counter[Stage], init=False)
    """How often an object has failed on its way in."""
    _troubles: dict[Key, Trouble] = field(default_factory=dict[Key, Trouble], init=False)
    _on_trouble: list[Callable[[Key], None]] = field(default_factory=list[Callable[[Key], None]], init=False)
    _progress: int = field(default=0, init=False)
    _complete: int = field(default=0, init=False)
    woken: bool = field(default=False, init=False)
    """Whether there is something to look at, as somebody said; whoever looks takes it back."""
    on_wake: Callable[[], None] = field(default=_nobody, init=False)
    _expecting_until: float = field(default=0.0, init=False)

    def __post_init__(self) -> None:
        self._indexed = Indexed(self.type, self.indexes)

    # Reading ---------------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Manifest | None:
        entry = self._entries.get(key)
        return entry and entry.manifest

    def entry(self, key: Key) -> Entry | None:
        return self._entries.get(key)

    def keys(self) -> Sequence[Key]:
        return tuple(self._entries)

    def trouble(self, key: Key) -> Trouble | None:
        """What that object, as it is now, has failed in."""
        return self._troubles.get(key)

    def latest(self, key: Key) -> Manifest | None:
        """The object as it is now, or as much of it as can be used."""
        trouble = self._troubles.get(key)
        return trouble.rest if trouble and trouble.rest else self.get(key)

    def lost(self, key: Key) -> bool:
        """Whether there was one of that name a short while ago, and there is none now."""
        return key in self._tombstones and key not in self._entries

    def by(self, index: str, value: Hashable) -> Iterator[Manifest]:
        """The objects that an index finds for a value, in the order of their keys."""
        return self._still_there(sorted(self.keys_by(index, value)))

    def keys_by(self, index: str, value: Hashable) -> AbstractSet[Key]:
        """Their keys, in no order, which costs nothing however many they are."""
        return self._indexed.keys(index, value)

    def values(self, index: str) -> AbstractSet[Hashable]:
        """All values for which an index finds something."""
        return self._indexed.values(index)

    def owned_by(self, uid: str) -> Iterator[Manifest]:
        """The children of an object."""
        return self.by("owner", uid)

    def __iter__(self) -> Iterator[Manifest]:
        return self._still_there(self.keys())

    def _still_there(self, keys: Iterable[Key]) -> Iterator[Manifest]:
        """Whoever waits between two of them misses what goes meanwhile."""
        return (entry.manifest for key in keys if (entry := self._entries.get(key)) is not None)

    @property
    def count(self) -> int:
        return len(self._entries)

    @property
    def size(self) -> int:
        """The bytes that are kept: of objects, as JSON, and of what is remembered of those that are gone."""
        return self._weight.size + len(self._tombstones) * SIZE_OF_A_TOMBSTONE

    def subscribe(self, listener: Listener) -> None:
        """Tell a listener of every change from now on."""
        self._listeners.append(listener)

    def on_trouble(self, listener: Callable[[Key], None]) -> None:
        """Tell a listener of every object that gets into trouble, or out of it."""
        self._on_trouble.append(listener)

    # Whether there is anything to watch ------------------------------------------------------------------------------

    @property
    def vacant(self) -> bool:
        """Whether nothing is there, and nothing of ours is on its way."""
        return not self._entries and self.now() >= self._expecting_until

    def expect(self) -> None:
        """Something of ours is about to be written, or may have been."""
        self._expecting_until = self.now() + EXPECT_SECONDS
        if self.served:
            self.wake()
        else:  # or a cluster that has the type and then has not would be asked as fast as it answers
            self.look_for_type()

    def wake(self) -> None:
        """Wake whoever waits for something to look at."""
        self.woken = True
        self.on_wake()

    def serves(self) -> bool:
        """Whether the cluster has the type, which somebody would use; where it had not, it is asked again.

        One whose objects we have seen has it, whatever it says at the moment.
        """
        self.look_for_type()
        return self.served or self.count > 0

    def look_for_type(self) -> None:
        """Somebody would use the type that the cluster did not have when it was last asked."""
        if not self.served and self.heard is not None and self.now() - self.heard > UNSERVED_SECONDS:
            self.wake()

    # What comes in ---------------------------------------------------------------------------------------------------

    def reader(self) -> Callable[[Manifest], Entry | Key | None]:
        """Makes of the objects of one list, one after the other, what is kept of them; `listed` takes them in.

        Of an object that cannot be read that is its key, if it says that much.
        """
        return lambda manifest: self._read(manifest) or name_of(manifest)

    def listed(self, listing: Listing[Entry | Key | None]) -> None:
        """Take in all objects of one moment. What is not among them is gone, unless we wrote it since."""
        moment = int(listing.version)
        began_again = moment < self._progress  # restored from a backup, or another server: what we knew counts no more
        if began_again:
            self._tombstones.clear()
        present: set[Key] = set()
        nameless = 0
        for entry in listing.items:
            if not isinstance(entry, Entry):
                present.update(filter(None, [entry]))
                nameless += entry is None
                continue
            key = key_of(entry.manifest)
            present.add(key)
            known, tombstone = self._entries.get(key), self._tombstones.get(key)
            if began_again or (
                (known is None or known.version <= moment) and (tombstone is None or not tombstone.holds(entry))
            ):
                self._put(key, entry, anew=began_again)
        if not nameless:  # else one of those we miss may be the one that we cannot read
            for key, entry in tuple(self._entries.items()):
                if key not in present and (began_again or entry.version <= moment):
                    self._drop(key, moment)
            for key in [key for key in self._troubles if key not in present and key not in self._entries]:
                self._drop(key, moment)
        self._progress = self._complete = moment
        self.synced, self.served, self.heard = True, True, self.now()

    def unserved(self) -> None:
        """Take in that the cluster does not have this type. What we know of stays: a wrong answer looks the same."""
        self.synced, self.served, self.heard = True, False, self.now()

    def seen(self, event: Event) -> None:
        """Take in what a watch said."""
        self.heard = self.now()
        if event.type == "BOOKMARK":
            self._progress = max(self._progress, int(event.manifest["metadata"]["resourceVersion"]))
        elif (entry := self._read(event.manifest)) is not None:
            self._progress = max(self._progress, entry.version)
            if event.type == "DELETED":
                self._seen_gone(entry)
            else:
                self._seen(entry)
        elif event.type == "DELETED" and (key := name_of(event.manifest)):
            self._drop(key, self._entries[key].version if key in self._entries else 0)

    def written(self, manifest: Manifest) -> None:
        """Take in the answer to a write of ours."""
        if (entry := self._read(manifest)) is not None:
            self._seen(entry)
            if not self.served:  # it has the type by now
                self.wake()

    def gone(self, key: Key, uid: str) -> None:
        """Take in that a delete of ours left nothing of that object."""
        entry = self._entries.get(key)
        if entry is None or entry.uid == uid:
            self._drop(key, entry.version if entry else 0, uid=uid)

    def distrust(self) -> None:
        """What we know may be of another server: the next list replaces it all."""
        self.synced, self._progress, self._complete = False, sys.maxsize, 0
        self._tombstones.clear()

    def _seen(self, entry: Entry) -> None:
        if self.selecting and self.selecting not in labels_of(entry.manifest):
            return  # the watch would never tell of it again
        key = key_of(entry.manifest)
        known, tombstone = self._entries.get(key), self._tombstones.get(key)
        newest = known.version if known else self._complete  # a list that lacks it has told that it is gone
        if entry.version > newest and (tombstone is None or not tombstone.holds(entry)):
            self._put(key, entry)

    def _seen_gone(self, entry: Entry) -> None:
        key = key_of(entry.manifest)
        known = self._entries.get(key)
        if known is None or entry.version >= known.version:
            # By version and not by uid: an object that lost the label we select by is told as deleted, and may return.
            self._drop(key, entry.version)

    def _read(self, manifest: Manifest) -> Entry | None:
        """The object as it is kept; None when it is not one, or not of this informer: then it is in trouble."""
        try:
            metadata: Manifest = manifest["metadata"]
            version = int(metadata["resourceVersion"])
            check_metadata(metadata)
            owned = owned_fields(manifest)
            manifest = self.keeping(manifest) if self.keeping else manifest
            kept = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
            identity = {"apiVersion": self.type.api_version, "kind": self.type.kind, "metadata": kept}
            whole = identity if self.bare else {**manifest, **identity}
            size = len(orjson.dumps(whole))  # refuses what is nested so deep that nothing here could go through it
            known = self._entries.get(Key(kept.get("namespace") or "", kept["name"]))
            return Entry(self.alike.manifest(whole, known.manifest if known else {}), version, owned, size)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the other objects of the list or watch are to be read
            self._unreadable(manifest, error)
            return None

    def _unreadable(self, manifest: Any, error: Exception) -> None:
        """Remember what is left of an object that cannot be read; what was read of it before stands."""
        key = name_of(manifest)
        known, tombstone = (self._entries.get(key), self._tombstones.get(key)) if key else (None, None)
        if key is None or max(known.version if known else 0, tombstone.version if tombstone else 0) > version_of(
            manifest
        ):
            self._failed(key, "read", error, None)
            return
        identity = {"apiVersion": self.type.api_version, "kind": self.type.kind}
        parts = {name: shallow(manifest[name]) for name in ("metadata", "status") if name in manifest}
        too_deep = isinstance(error, orjson.JSONEncodeError | RecursionError)
        words = "it is nested too deep; make it flatter" if too_deep else kind_of_error(error)
        self._failed(key, "read", error, Trouble(f"the object cannot be read: {words}", {**identity, **parts}))

    def _failed(self, key: Key | None, stage: Stage, error: Exception, trouble: Trouble | None) -> None:
        """Count a failure, and say where in our code it arose, but nothing of what the object or the error says.

        Of a workload cluster's object that is all: nobody reconciles it, and a hostile one may send any number of them.
        """
        self.failures[stage] += 1
        if key is not None and trouble is not None and self.cluster == HUB and self._troubles.get(key) != trouble:
            self._troubles[key] = trouble
            self._tell_trouble(key)
        elif not is_power_of_two(self.failures[stage]):
            return  # it is in the log already, or there is no end of them
        told = {"stage": stage, "error": kind_of_error(error), "at": origin(error), "so_far": self.failures[stage]}
        log.error("object failed", resource=str(self.type), cluster=self.cluster, key=str(key), **told)

    # What changes ----------------------------------------------------------------------------------------------------

    def _put(self, key: Key, entry: Entry, *, anew: bool = False) -> None:
        """`anew`: a version that was seen before may be of another object now."""
        before = self._entries.get(key)
        if before is not None and (before.version, before.uid) == (entry.version, entry.uid) and not anew:
            return
        relieved = self._troubles.pop(key, None)
        if before is not None:
            self._indexed.remove(key, before.manifest)
            self._weight.remove(before)
        self._entries[key] = entry
        self._weight.add(entry)
        for name, error in self._indexed.add(key, entry.manifest).items():
            self._failed(key, "index", error, Trouble(f"internal error (index {name}: {kind_of_error(error)})"))
        self._tell(key, before and before.manifest, entry.manifest)
        if relieved and key not in self._troubles:
            self._tell_trouble(key)

    def _drop(self, key: Key, version: int, *, uid: str | None = None) -> None:
        now = self.now()
        tombstone = self._tombstones.pop(key, None)
        while self._tombstones and next(iter(self._tombstones.values())).dug < now - REMEMBER_SECONDS:
            del self._tombstones[next(iter(self._tombstones))]
        newest = max(version, tombstone.version if tombstone else 0)
        self._tombstones[key] = Tombstone(newest, uid or (tombstone and tombstone.uid), now)
        before = self._entries.pop(key, None)
        relieved = self._troubles.pop(key, None)
        if before is not None:
            self._weight.remove(before)
            self._indexed.remove(key, before.manifest)
            self._tell(key, before.manifest, None)
            self._troubles.pop(key, None)  # nobody is left to tell it
        if relieved:
            self._tell_trouble(key)

    def _tell(self, key: Key, before: Manifest | None, after: Manifest | None) -> None:
        for listener in self._listeners:
            try:
                listener(key, before, after)
            except Exception as error:  # noqa: BLE001 - one listener must not keep the news from the others
                self._failed(key, "listener", error, Trouble(f"internal error (its change: {kind_of_error(error)})"))

    def _tell_trouble(self, key: Key) -> None:
        for listener in self._on_trouble:
            listener(key)
