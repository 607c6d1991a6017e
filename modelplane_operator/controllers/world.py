"""What controllers are made from, and what they answer when they are made."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from modelplane_operator.clients.collection import Collection, Index
from modelplane_operator.clients.connection import OnHealth
from modelplane_operator.clients.fleet import Fleet
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.resources import ResourceType
from modelplane_operator.controllers.loop import Controller
from modelplane_operator.settings import Settings


@dataclass(frozen=True, slots=True)
class World:
    """What there is before any controller."""

    settings: Settings
    fleet: Fleet
    """The workload clusters; whoever learns how one is reached calls `set` and `remove`."""
    hub: Callable[[], Kube]
    """The hub's client; raises Unreachable while the hub does not answer."""
    now: Callable[[], datetime]
    connection_changed: Callable[[str], None]
    """To be called when there is news about the way to a workload cluster that its connection does not tell itself."""


Indexes = Mapping[ResourceType, Mapping[str, Index]]


@dataclass(frozen=True, slots=True)
class Kinds:
    """All that the operator runs."""

    controllers: tuple[Controller[Any, Any], ...] = ()
    listeners: tuple[Callable[[Collection], None], ...] = ()
    """Called once with each collection of the hub, before anything is in it: for what is no controller."""
    on_health: tuple[OnHealth, ...] = ()
    """Told when a workload cluster begins or ceases to answer."""
    reads: frozenset[ResourceType] = frozenset()
    """Types of the hub that are read although nobody is woken by them."""
    reads_afar: frozenset[ResourceType] = frozenset()
    """The same for types of workload clusters."""
    indexes: Indexes = field(default_factory=dict[ResourceType, Mapping[str, Index]])
    """How objects are found, by type; the same on all clusters."""
    selecting: Mapping[ResourceType, str | None] = field(default_factory=dict[ResourceType, str | None])
    """What objects of a type on workload clusters are selected by, where that is not our owner label."""
