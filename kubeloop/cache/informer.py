"""An informer: a cache of the objects of one type on one cluster.

It is fed, in any order, by lists, by watch events and by the responses to our own writes. Responses are taken in at
once, so that the next plan sees them. The newest version of an object wins; resourceVersions of one type are growing
integers. Deletions are remembered for a while, so that a late response or event does not restore a deleted object.

Cached objects are shared by all readers and never modified. They are stored without `managedFields`, which are half of
many an object; the set of our own fields is stored separately, for `ownership.is_current`.

An object that cannot be parsed, or on which an index or listener fails, affects no other object. The failure is counted
and remembered, and the object's reconcile reports it. The last version that could be parsed stays in the cache.
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

from kubeloop.cache.dedup import Interner
from kubeloop.cache.entries import (
    SIZE_OF_A_TOMBSTONE,
    Entry,
    ObjectError,
    Stage,
    Tombstone,
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
from kubeloop.ownership import compute_owned_fields
from kubeloop.repeats import is_power_of_two
from kubeloop.types import HUB, ResourceType

# A watch delivers within SILENCE or is given up, and calls have deadlines, so no event or response is older than this.
REMEMBER_SECONDS = 600.0
UNSERVED_SECONDS = 30.0  # minimum time between two checks for a type that the server lacked
EXPECT_SECONDS = 120.0  # a response to a write arrives long before that, or never

Keep = Callable[[Manifest], Manifest]
"""Returns the part of an object that the cache keeps."""
Listener = Callable[[Key, Manifest | None, Manifest | None], None]
"""Called with the key, the old object and the new one; None means that there is none."""

log = structlog.get_logger()


@dataclass(slots=True)
class Informer:
    """The cached objects of one type on one cluster.

    `selecting`: only objects with this label, as the watch selects them.

    `bare`: only metadata is requested and kept. `keeping`: returns the part to keep of an object that we only read.
    """

    type: ResourceType
    now: Callable[[], float]
    selecting: str | None = None
    indexes: Mapping[str, Index] = field(default_factory=dict[str, Index])
    bare: bool = False
    keeping: Keep | None = None
    cluster: str = HUB
    interner: Interner = field(default_factory=Interner)
    """Shares equal parts between objects, also with those of other informers."""
    synced: bool = field(default=False, init=False)
    """True once all objects were listed. Before that, an object that is not cached may still exist."""
    served: bool = field(default=True, init=False)
    """False if the cluster's last response said that it does not have this type."""
    last_event_at: float | None = field(default=None, init=False)
    """The time of the last list, event or bookmark, or of a response that the type does not exist."""
    _entries: dict[Key, Entry] = field(default_factory=dict[Key, Entry], init=False)
    """The current objects."""
    _tombstones: dict[Key, Tombstone] = field(default_factory=dict[Key, Tombstone], init=False)
    """The recent deletions, oldest first."""
    _indexed: Indexed = field(init=False)
    """The keys by index and value."""
    _listeners: list[Listener] = field(default_factory=list[Listener], init=False)
    """Called with every change."""
    _weight: Weight = field(default_factory=Weight, init=False)
    failures: Counter[Stage] = field(default_factory=Counter[Stage], init=False)
    """The number of failures to take in an object, by stage."""
    _troubles: dict[Key, ObjectError] = field(default_factory=dict[Key, ObjectError], init=False)
    """The current problems of objects of the hub."""
    _on_error: list[Callable[[Key], None]] = field(default_factory=list[Callable[[Key], None]], init=False)
    """Called with the key of an object that gets a problem or loses it."""
    _progress: int = field(default=0, init=False)
    """The newest resourceVersion that the server has sent in a list or watch."""
    _complete: int = field(default=0, init=False)
    """The resourceVersion of the last list. Objects up to it that the list did not have are deleted."""
    woken: bool = field(default=False, init=False)
    """True if the type should be listed or watched again soon. The reflector clears it when it does."""
    on_wake: Callable[[], None] = field(default=lambda: None, init=False)
    """Called when `woken` is set."""
    _expecting_until: float = field(default=0.0, init=False)
    """The time until which one of our writes may create an object, so that the type is watched although it is empty."""

    def __post_init__(self) -> None:
        self._indexed = Indexed(self.type, self.indexes)

    # Reading ---------------------------------------------------------------------------------------------------------

    def get(self, key: Key) -> Manifest | None:
        """Return the object, or None."""
        entry = self._entries.get(key)
        return entry and entry.manifest

    def entry(self, key: Key) -> Entry | None:
        """Return the object with the set of our fields, or None."""
        return self._entries.get(key)

    def keys(self) -> Sequence[Key]:
        """Return the keys of all objects, as a copy."""
        return tuple(self._entries)

    def error_of(self, key: Key) -> ObjectError | None:
        """Return the problem of the current version of an object."""
        return self._troubles.get(key)

    def latest(self, key: Key) -> Manifest | None:
        """Return the current version of the object. If it cannot be parsed, return the usable part of it."""
        trouble = self._troubles.get(key)
        return trouble.remainder if trouble and trouble.remainder else self.get(key)

    def find_lost(self, key: Key) -> bool:
        """True if an object of this key was deleted recently and does not exist now."""
        return key in self._tombstones and key not in self._entries

    def by(self, index: str, value: Hashable) -> Iterator[Manifest]:
        """Yield the objects that an index finds for a value, sorted by key."""
        return self._iterate_existing(sorted(self.keys_by(index, value)))

    def keys_by(self, index: str, value: Hashable) -> AbstractSet[Key]:
        """Return their keys, unordered, without copying them."""
        return self._indexed.keys(index, value)

    def values(self, index: str) -> AbstractSet[Hashable]:
        """Return all values for which an index finds objects."""
        return self._indexed.values(index)

    def children_of(self, uid: str) -> Iterator[Manifest]:
        """Yield the children of the object with this uid."""
        return self.by("owner", uid)

    def __iter__(self) -> Iterator[Manifest]:
        return self._iterate_existing(self.keys())

    def _iterate_existing(self, keys: Iterable[Key]) -> Iterator[Manifest]:
        """Yield the objects of these keys that still exist when their turn comes."""
        return (entry.manifest for key in keys if (entry := self._entries.get(key)) is not None)

    @property
    def count(self) -> int:
        """The number of cached objects."""
        return len(self._entries)

    @property
    def size(self) -> int:
        """The size of the cache in bytes: objects as JSON, and tombstones."""
        return self._weight.size + len(self._tombstones) * SIZE_OF_A_TOMBSTONE

    def subscribe(self, listener: Listener) -> None:
        """Call a listener on every change from now on."""
        self._listeners.append(listener)

    def on_error(self, listener: Callable[[Key], None]) -> None:
        """Call a listener whenever an object gets a problem or loses it."""
        self._on_error.append(listener)

    # Empty and missing types -----------------------------------------------------------------------------------------

    @property
    def vacant(self) -> bool:
        """True if there is no object, and none is about to be written by us."""
        return not self._entries and self.now() >= self._expecting_until

    def expect(self) -> None:
        """Note that we are about to write an object, or may have written one, so that the type is watched."""
        self._expecting_until = self.now() + EXPECT_SECONDS
        if self.served:
            self.wake()
        else:  # rate-limited, in case the cluster alternates between having the type and lacking it
            self.check_type()

    def wake(self) -> None:
        """Ask the reflector to list or watch the type soon."""
        self.woken = True
        self.on_wake()

    def serves(self) -> bool:
        """True if the cluster has the type. If it lacked the type, this also starts another check.

        A cached object proves that the type exists, whatever the server says at the moment.
        """
        self.check_type()
        return self.served or self.count > 0

    def check_type(self) -> None:
        """Start another check for a type that the cluster lacked, unless the last one was a moment ago."""
        if not self.served and self.last_event_at is not None and self.now() - self.last_event_at > UNSERVED_SECONDS:
            self.wake()

    # Input -----------------------------------------------------------------------------------------------------------

    def reader(self) -> Callable[[Manifest], Entry | Key | None]:
        """Return a function that parses one object of a list into the entry that `on_list` takes.

        If an object cannot be parsed it returns the key, or None if there is not even that.
        """
        return lambda manifest: self._parse(manifest) or name_of(manifest)

    def on_list(self, listing: Listing[Entry | Key | None]) -> None:
        """Take in a complete list.

        Cached objects that are not in it are dropped, except those that we have written since.
        """
        list_version = int(listing.version)
        is_reset = list_version < self._progress  # restored from a backup, or another server: the cache is void
        if is_reset:
            self._tombstones.clear()
        present: set[Key] = set()
        unidentified = 0
        for entry in listing.items:
            if not isinstance(entry, Entry):
                present.update(filter(None, [entry]))
                unidentified += entry is None
                continue
            key = key_of(entry.manifest)
            present.add(key)
            cached, tombstone = self._entries.get(key), self._tombstones.get(key)
            if is_reset or (
                (cached is None or cached.version <= list_version) and (tombstone is None or not tombstone.holds(entry))
            ):
                self._put(key, entry, is_new=is_reset)
        if not unidentified:  # else a cached object that is missing may be one that cannot be parsed
            for key, entry in tuple(self._entries.items()):
                if key not in present and (is_reset or entry.version <= list_version):
                    self._drop(key, list_version)
            for key in [key for key in self._troubles if key not in present and key not in self._entries]:
                self._drop(key, list_version)
        self._progress = self._complete = list_version
        self.synced, self.served, self.last_event_at = True, True, self.now()

    def on_missing_type(self) -> None:
        """Note that the cluster does not have this type. Cached objects stay, since the response may be wrong."""
        self.synced, self.served, self.last_event_at = True, False, self.now()

    def on_event(self, event: Event) -> None:
        """Take in a watch event."""
        self.last_event_at = self.now()
        if event.type == "BOOKMARK":
            self._progress = max(self._progress, int(event.manifest["metadata"]["resourceVersion"]))
        elif (entry := self._parse(event.manifest)) is not None:
            self._progress = max(self._progress, entry.version)
            if event.type == "DELETED":
                self._observe_deletion(entry)
            else:
                self._observe(entry)
        elif event.type == "DELETED" and (key := name_of(event.manifest)):
            self._drop(key, self._entries[key].version if key in self._entries else 0)

    def on_write(self, manifest: Manifest) -> None:
        """Take in the response to one of our writes."""
        if (entry := self._parse(manifest)) is not None:
            self._observe(entry)
            if not self.served:  # the write succeeded, so the server has the type now
                self.wake()

    def on_delete(self, key: Key, uid: str) -> None:
        """Take in that one of our deletes has removed the object with this uid."""
        entry = self._entries.get(key)
        if entry is None or entry.uid == uid:
            self._drop(key, entry.version if entry else 0, uid=uid)

    def distrust(self) -> None:
        """Let the next list replace everything: the cache may be of another server."""
        self.synced, self._progress, self._complete = False, sys.maxsize, 0
        self._tombstones.clear()

    def _observe(self, entry: Entry) -> None:
        """Store an object that is newer than the cached one, unless it is known to be deleted."""
        if self.selecting and self.selecting not in labels_of(entry.manifest):
            return  # the watch does not select it, so no later event would update or delete it
        key = key_of(entry.manifest)
        cached, tombstone = self._entries.get(key), self._tombstones.get(key)
        newest = cached.version if cached else self._complete  # a later list without it means deleted
        if entry.version > newest and (tombstone is None or not tombstone.holds(entry)):
            self._put(key, entry)

    def _observe_deletion(self, entry: Entry) -> None:
        """Drop an object after a DELETED event, unless the cached one is newer."""
        key = key_of(entry.manifest)
        cached = self._entries.get(key)
        if cached is None or entry.version >= cached.version:
            # Compare versions, not uids: an object that loses the selected label is sent as DELETED, and may return.
            self._drop(key, entry.version)

    def _parse(self, manifest: Manifest) -> Entry | None:
        """Return the entry to cache for an object. If it is invalid, record that as a problem and return None."""
        try:
            metadata: Manifest = manifest["metadata"]
            version = int(metadata["resourceVersion"])
            check_metadata(metadata)
            owned = compute_owned_fields(manifest)
            manifest = self.keeping(manifest) if self.keeping else manifest
            metadata_kept = {name: value for name, value in manifest["metadata"].items() if name != "managedFields"}
            identity = {"apiVersion": self.type.api_version, "kind": self.type.kind, "metadata": metadata_kept}
            content = identity if self.bare else {**manifest, **identity}
            size = len(orjson.dumps(content))  # raises for objects that are nested too deep to process
            cached = self._entries.get(Key(metadata_kept.get("namespace") or "", metadata_kept["name"]))
            return Entry(self.interner.manifest(content, cached.manifest if cached else {}), version, owned, size)
        except Exception as error:  # noqa: BLE001 - of whatever kind: the other objects of the list or watch are to be read
            self._record_unreadable(manifest, error)
            return None

    def _record_unreadable(self, manifest: Any, error: Exception) -> None:
        """Record that an object cannot be parsed, and keep the usable part of it.

        The last parsed version stays in the cache.
        """
        key = name_of(manifest)
        cached, tombstone = (self._entries.get(key), self._tombstones.get(key)) if key else (None, None)
        if key is None or max(cached.version if cached else 0, tombstone.version if tombstone else 0) > version_of(
            manifest
        ):
            self._record_failure(key, "read", error, None)
            return
        identity = {"apiVersion": self.type.api_version, "kind": self.type.kind}
        usable = {name: shallow(manifest[name]) for name in ("metadata", "status") if name in manifest}
        too_deep = isinstance(error, orjson.JSONEncodeError | RecursionError)
        reason = "it is nested too deep; make it flatter" if too_deep else kind_of_error(error)
        self._record_failure(
            key, "read", error, ObjectError(f"the object cannot be read: {reason}", {**identity, **usable})
        )

    def _record_failure(self, key: Key | None, stage: Stage, error: Exception, problem: ObjectError | None) -> None:
        """Count a failure and log where in our code it arose, without any text of the object or the error.

        Problems are kept for objects of the hub only. Objects of workload clusters are not reconciled, and a hostile
        cluster may send any number of broken ones.
        """
        self.failures[stage] += 1
        if key is not None and problem is not None and self.cluster == HUB and self._troubles.get(key) != problem:
            self._troubles[key] = problem
            self._notify_error(key)
        elif not is_power_of_two(self.failures[stage]):
            return  # it is in the log already
        log_fields = {
            "stage": stage,
            "error": kind_of_error(error),
            "at": origin(error),
            "so_far": self.failures[stage],
        }
        log.error("object failed", resource=str(self.type), cluster=self.cluster, key=str(key), **log_fields)

    # Changes ---------------------------------------------------------------------------------------------------------

    def _put(self, key: Key, entry: Entry, *, is_new: bool = False) -> None:
        """Store an object, update indexes and call listeners.

        `is_new`: the same version may be another object, as after a restore.
        """
        old = self._entries.get(key)
        if old is not None and (old.version, old.uid) == (entry.version, entry.uid) and not is_new:
            return
        had_problem = self._troubles.pop(key, None)
        if old is not None:
            self._indexed.remove(key, old.manifest)
            self._weight.remove(old)
        self._entries[key] = entry
        self._weight.add(entry)
        for name, error in self._indexed.add(key, entry.manifest).items():
            self._record_failure(
                key, "index", error, ObjectError(f"internal error (index {name}: {kind_of_error(error)})")
            )
        self._notify(key, old and old.manifest, entry.manifest)
        if had_problem and key not in self._troubles:
            self._notify_error(key)

    def _drop(self, key: Key, version: int, *, uid: str | None = None) -> None:
        """Remove an object, remember the deletion, and call listeners."""
        now = self.now()
        tombstone = self._tombstones.pop(key, None)
        while self._tombstones and next(iter(self._tombstones.values())).dug < now - REMEMBER_SECONDS:
            del self._tombstones[next(iter(self._tombstones))]
        newest = max(version, tombstone.version if tombstone else 0)
        self._tombstones[key] = Tombstone(newest, uid or (tombstone and tombstone.uid), now)
        old = self._entries.pop(key, None)
        had_problem = self._troubles.pop(key, None)
        if old is not None:
            self._weight.remove(old)
            self._indexed.remove(key, old.manifest)
            self._notify(key, old.manifest, None)
            self._troubles.pop(key, None)  # a deleted object is not reconciled, so nothing would report it
        if had_problem:
            self._notify_error(key)

    def _notify(self, key: Key, old: Manifest | None, new: Manifest | None) -> None:
        """Call the listeners with a change."""
        for listener in self._listeners:
            try:
                listener(key, old, new)
            except Exception as error:  # noqa: BLE001 - one listener must not keep the news from the others
                self._record_failure(
                    key, "listener", error, ObjectError(f"internal error (its change: {kind_of_error(error)})")
                )

    def _notify_error(self, key: Key) -> None:
        """Call the listeners for problems."""
        for listener in self._on_error:
            listener(key)
