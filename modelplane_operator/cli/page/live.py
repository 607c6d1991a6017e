"""The fleet while somebody looks at it: what the hub's watches tell, as rows, as far as the user may see them."""

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
"""By what they are of, and by name."""

OWN: Final[tuple[Kind, ...]] = (ModelReplica, ModelDeployment, ModelCache, ModelService)
SHORTEST: Final = 0.5  # seconds between two looks
SHARE: Final = 5  # a look takes no more than this part of the time

_Parsed = dict[Key, tuple[Manifest, Any]]


async def sees_all(kube: Kube) -> bool:
    """Whether the user may read what a decision depends on; otherwise the page is of one namespace."""
    for kind in (InferenceCluster, ModelReplica, ModelDeployment, ModelCache):
        if not await may(kube, "list", of(kind), Key("", "")):
            return False
    return True


@dataclass(slots=True)
class Live:
    """Somebody has to `run` it. `renewed`: the hub with new credentials, where the old ones have ended."""

    target: HubTarget
    namespace: str
    """Empty: of the whole fleet."""
    renewed: Callable[[], HubTarget]
    rows: Rows = field(default_factory=dict[str, dict[str, Any]], init=False)
    """Replaced, and never changed."""
    connection: Connection = field(init=False)
    _known: dict[Kind, _Parsed] = field(default_factory=dict[Kind, _Parsed], init=False)
    _changed: asyncio.Event = field(default_factory=asyncio.Event, init=False)
    _news: asyncio.Condition = field(default_factory=asyncio.Condition, init=False)
    _stale: asyncio.Event = field(default_factory=asyncio.Event, init=False)

    def __post_init__(self) -> None:
        watched = [Watched(of(kind), selecting=None, namespace=self.namespace) for kind in self.kinds]
        self.connection = Connection(
            "",
            self.target.access,
            watched,
            Store(time.monotonic),
            chance=random.random,
            limits=OF_HUB,
            on_health=lambda _, __: self._changed.set(),
            on_unauthorized=lambda _: self._stale.set(),
        )
        for informer in self.connection.informers:
            informer.subscribe(lambda _, __, ___: self._changed.set())

    @property
    def kinds(self) -> Sequence[Kind]:
        return OWN if self.namespace else (InferenceCluster, *OWN)

    async def run(self) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self.connection.run())
            group.create_task(self._renew())
            group.create_task(self._look())

    async def changed(self, seen: Rows, seconds: float) -> Rows:
        """The rows, once they are other ones than those, or after so many seconds."""
        try:
            async with asyncio.timeout(seconds), self._news:
                await self._news.wait_for(lambda: self.rows is not seen)
        except TimeoutError:
            pass
        return self.rows

    def kept(self) -> Mapping[Kind, Sequence[Manifest]]:
        """What the watches have seen, to be parsed elsewhere."""
        found = {kind: self.connection.find(of(kind)) for kind in self.kinds}
        return {kind: tuple(informer or ()) for kind, informer in found.items()}

    def snapshot(self, kept: Mapping[Kind, Sequence[Manifest]]) -> Snapshot:
        fleet, replicas, deployments, caches = (
            self.parsed(kind, kept) for kind in (InferenceCluster, ModelReplica, ModelDeployment, ModelCache)
        )
        return Snapshot(fleet, replicas, deployments, caches, datetime.now(UTC))

    def parsed(self, kind: Kind, kept: Mapping[Kind, Sequence[Manifest]]) -> tuple[Any, ...]:
        """Of one kind; what is as it was is not parsed again, and what cannot be read is passed over."""
        before, now = self._known.get(kind, {}), _Parsed()
        for manifest in kept.get(kind, ()):
            key = key_of(manifest)
            known = before.get(key)
            if known is None or known[0] is not manifest:
                try:
                    known = (manifest, kind.parse(manifest))
                except ValidationError:
                    continue
            now[key] = known
        self._known[kind] = now
        return tuple(one for _, one in now.values())

    async def _look(self) -> None:
        while True:
            await self._changed.wait()
            self._changed.clear()
            began, state = time.monotonic(), self._state()
            rows = await asyncio.to_thread(self._rows, self.kept())
            async with self._news:
                self.rows = {"page": {"state": state}, **rows}
                self._news.notify_all()
            await asyncio.sleep(max(SHORTEST, (SHARE - 1) * (time.monotonic() - began)))

    def _rows(self, kept: Mapping[Kind, Sequence[Manifest]]) -> Rows:
        seen = self.snapshot(kept)
        return {
            "clusters": {one.name: shown(one) for one in clusters(seen)},
            "models": {f"{one.namespace}/{one.name}": shown(one) for one in models(seen)},
            "moves": {f"{one.namespace}/{one.name}": shown(one) for one in in_transit(seen)},
        }

    def _state(self) -> Mapping[str, Any]:
        failing = (self.connection.failing(of(kind)) for kind in self.kinds)
        error = self.connection.health.error or next(filter(None, failing), None)
        return {
            "context": legible(self.target.context),
            "namespace": self.namespace,
            "synced": self.connection.synced,
            "trouble": legible(str(error)) if error else "",
        }

    async def _renew(self) -> None:
        while True:
            await self._stale.wait()
            self._stale.clear()
            try:
                self.connection.update((await asyncio.to_thread(self.renewed)).access)
            except ClientError:
                continue  # the connection asks again by itself, and tells what it is told


def shown(value: Any) -> Any:
    """As JSON, without what turns the direction of a text: others choose names and messages."""
    return _legible(plain(value))


def _legible(value: Any) -> Any:
    match value:
        case str():
            return legible(value)
        case dict():
            return {name: _legible(one) for name, one in value.items()}  # pyright: ignore[reportUnknownVariableType]
        case list():
            return [_legible(one) for one in value]  # pyright: ignore[reportUnknownVariableType]
        case _:
            return value


def changes(before: Rows, after: Rows) -> Mapping[str, Any]:
    """What makes the one of the other."""
    put = {
        group: changed
        for group, rows in after.items()
        if (changed := {key: row for key, row in rows.items() if before.get(group, {}).get(key) != row})
    }
    gone = {
        group: left
        for group, rows in before.items()
        if (left := [key for key in rows if key not in after.get(group, {})])
    }
    return {"put": put, "gone": gone}
