"""Follow the fleet for the page: the hub's watches, converted to rows as far as the user may read them.

`Live` keeps one connection with informers for the five kinds that the rows depend on, or four if the user only reads
a namespace. The page's server waits for its rows and sends the differences (`changes`); rows are computed by the
functions that the commands use, too.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Final

from pydantic import ValidationError

from kubeloop.cache.connection import Connection
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.kube import Kube
from kubeloop.client.limits import OF_HUB
from kubeloop.client.subresources import may
from kubeloop.errors import ClientError
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.resource import of
from kubeloop.words import legible
from modelplane_operator.api import InferenceCluster, Kind, ModelCache, ModelDeployment, ModelReplica, ModelService
from modelplane_operator.ask.answers.overview import clusters, in_transit, models
from modelplane_operator.ask.answers.schema import plain
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.cli.kubeconfig import HubTarget

Rows = Mapping[str, Mapping[str, Any]]
"""Rows by group and by name."""

OWN: Final[tuple[Kind, ...]] = (ModelReplica, ModelDeployment, ModelCache, ModelService)
SHORTEST: Final = 0.5  # minimum seconds between two updates
SHARE: Final = 5  # an update takes at most this fraction of the time (1/5)

_Parsed = dict[Key, tuple[Manifest, Any]]


async def sees_all(kube: Kube) -> bool:
    """True if the user may read everything that a decision depends on. Otherwise the page shows one namespace."""
    for kind in (InferenceCluster, ModelReplica, ModelDeployment, ModelCache):
        if not await may(kube, "list", of(kind), Key("", "")):
            return False
    return True


@dataclass(slots=True)
class Live:
    """The live state behind the page; `run` keeps it up to date. `renewed` returns the hub with new credentials."""

    target: HubTarget
    """Hub at the start. Renewed credentials only reach the connection."""
    namespace: str
    """Namespace to show; empty for the whole fleet."""
    renewed: Callable[[], HubTarget]
    """Function that returns the hub with new credentials."""
    rows: Rows = field(default_factory=dict[str, dict[str, Any]], init=False)
    """Current rows. They are replaced, never changed."""
    connection: Connection = field(init=False)
    """Connection with an informer of each kind."""
    _parsed: dict[Kind, _Parsed] = field(default_factory=dict[Kind, _Parsed], init=False)
    """Parsed objects by kind, with the manifests that they were parsed from."""
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Event for changes of watched objects."""
    _rows_changed: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    """Condition that is notified when the rows were replaced."""
    _stale: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    """Event for rejected credentials."""

    def __post_init__(self) -> None:
        watched = [Watched(of(kind), selecting=None, namespace=self.namespace) for kind in self.kinds]
        self.connection = Connection(
            "",
            self.target.access,
            watched,
            Store(time.monotonic),
            jitter=random.random,
            limits=OF_HUB,
            on_health=lambda _, __: self._changed.set(),
            on_unauthorized=lambda _: self._stale.set(),
        )
        for informer in self.connection.informers:
            informer.subscribe(lambda _, __, ___: self._changed.set())

    @property
    def kinds(self) -> Sequence[Kind]:
        """Kinds to watch. InferenceClusters belong to no namespace, so a user of one namespace may not list them."""
        return OWN if self.namespace else (InferenceCluster, *OWN)

    async def run(self) -> None:
        """Keep the connection, the credentials and the rows up to date."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self.connection.run())
            group.create_task(self._renew())
            group.create_task(self._refresh())

    async def wait_for_change(self, previous: Rows, seconds: float) -> Rows:
        """Return the rows as soon as they differ from these, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds), self._rows_changed:
                await self._rows_changed.wait_for(lambda: self.rows is not previous)
        except TimeoutError:
            pass
        return self.rows

    def cached_objects(self) -> Mapping[Kind, Sequence[Manifest]]:
        """Return the objects of the watches, to be parsed in another thread."""
        informers = {kind: self.connection.find(of(kind)) for kind in self.kinds}
        return {kind: tuple(informer or ()) for kind, informer in informers.items()}

    def snapshot(self, objects: Mapping[Kind, Sequence[Manifest]]) -> Snapshot:
        """Parse the objects into a snapshot of the fleet."""
        fleet, replicas, deployments, caches = (
            self.parse_kind(kind, objects) for kind in (InferenceCluster, ModelReplica, ModelDeployment, ModelCache)
        )
        return Snapshot(fleet, replicas, deployments, caches, datetime.now(UTC))

    def parse_kind(self, kind: Kind, objects: Mapping[Kind, Sequence[Manifest]]) -> tuple[Any, ...]:
        """Parse the objects of a kind. Unchanged objects are not parsed again, and invalid ones are skipped."""
        old, new = self._parsed.get(kind, {}), _Parsed()
        for manifest in objects.get(kind, ()):
            key = key_of(manifest)
            cached = old.get(key)
            # Informers replace a changed object, so identity is enough.
            if cached is None or cached[0] is not manifest:
                try:
                    cached = (manifest, kind.parse(manifest))
                except ValidationError:
                    continue
            new[key] = cached
        self._parsed[kind] = new
        return tuple(parsed_object for _, parsed_object in new.values())

    async def _refresh(self) -> None:
        """Recompute the rows after changes, at a limited rate."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            started, state = time.monotonic(), self._connection_state()
            # To parse a large fleet and to compute its rows takes long enough to delay the watches.
            rows = await asyncio.to_thread(self._rows, self.cached_objects())
            async with self._rows_changed:
                self.rows = {"page": {"state": state}, **rows}
                self._rows_changed.notify_all()
            # Events come in bursts, and each refresh computes the rows of the entire fleet.
            await asyncio.sleep(max(SHORTEST, (SHARE - 1) * (time.monotonic() - started)))

    def _rows(self, manifests: Mapping[Kind, Sequence[Manifest]]) -> Rows:
        """Compute all rows."""
        fleet = self.snapshot(manifests)
        return {
            "clusters": {item.name: to_json(item) for item in clusters(fleet)},
            "models": {f"{item.namespace}/{item.name}": to_json(item) for item in models(fleet)},
            "moves": {f"{item.namespace}/{item.name}": to_json(item) for item in in_transit(fleet)},
        }

    def _connection_state(self) -> Mapping[str, Any]:
        """Return the state of the connection."""
        failing = (self.connection.find_failing(of(kind)) for kind in self.kinds)
        error = self.connection.health.error or next(filter(None, failing), None)
        return {
            "context": legible(self.target.context),
            "namespace": self.namespace,
            "synced": self.connection.synced,
            "trouble": legible(str(error)) if error else "",
        }

    async def _renew(self) -> None:
        """Renew the credentials when they were rejected."""
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                self.connection.update((await asyncio.to_thread(self.renewed)).access)
            except ClientError:
                continue  # the connection retries by itself and reports its error


def to_json(value: Any) -> Any:
    """Return a value as JSON, without characters that change the direction of text: names and messages come from
    others.
    """
    return _legible(plain(value))


def _legible(value: Any) -> Any:
    """Remove direction marks from all texts of a value."""
    match value:
        case str():
            return legible(value)
        case dict():
            return {name: _legible(item) for name, item in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_legible(item) for item in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def changes(before: Rows, after: Rows) -> Mapping[str, Any]:
    """Return the changes between two states of the rows."""
    put = {
        group: changed
        for group, rows in after.items()
        if (changed := {key: row for key, row in rows.items() if before.get(group, {}).get(key) != row})
    }
    deleted = {
        group: keys
        for group, rows in before.items()
        if (keys := [key for key in rows if key not in after.get(group, {})])
    }
    return {"put": put, "gone": deleted}
