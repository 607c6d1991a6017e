"""What controllers are made from, and what they answer when they are made."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from modelplane_operator.clients.connection import OnHealth, OnUnauthorized, Watched
from modelplane_operator.clients.fleet import Fleet
from modelplane_operator.clients.informer import Index, Informer
from modelplane_operator.clients.kube import Kube
from modelplane_operator.kube.objects import Key
from modelplane_operator.kube.resources import ResourceType
from modelplane_operator.runtime.loop import Controller
from modelplane_operator.settings import Settings

Scheduled = Callable[[str, float], None]
"""Told what a scheduling decision was (`placed`, `partly`, `nowhere`, ...: few words) and the seconds it took."""


OnChecked = Callable[[str, str], None]
"""Told the kind of what was checked, and the outcome: `answered`, `failed` or `defect`."""


def uncounted(_: str, __: float | str) -> None:
    """For whoever does not count decisions, or checks."""


def unheard(_: ResourceType, __: Key) -> None:
    """For a world without controllers."""


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
    scheduled: Scheduled = uncounted
    wake: Callable[[ResourceType, Key], None] = unheard
    """To be called when there is news of an object that no watch tells."""
    checked: OnChecked = uncounted


@dataclass(frozen=True, slots=True)
class Kinds:
    """All that the operator runs.

    Every type that wakes a controller is watched. On the hub, our own kinds and Namespaces are watched whole, and the
    Secrets of our own namespace; of every other type, and on workload clusters, what carries our owner label. There it
    is taken to be made by us alone, and is not watched while there is none.
    """

    controllers: tuple[Controller[Any, Any], ...] = ()
    listeners: tuple[Callable[[Informer], None], ...] = ()
    """Called once with each informer of the hub, before anything is in it: for what is no controller."""
    on_health: tuple[OnHealth, ...] = ()
    """Told when a workload cluster begins or ceases to answer, or to serve a type that is watched."""
    on_unauthorized: tuple[OnUnauthorized, ...] = ()
    """Told when a workload cluster does not accept our credentials."""
    while_leading: tuple[Callable[[], Coroutine[Any, Any, None]], ...] = ()
    """Run beside the controllers, and cancelled with them."""
    watched: tuple[Watched, ...] = ()
    """What is watched on the hub in another way, or although nobody is woken by it."""
    watched_remotely: tuple[Watched, ...] = ()
    """The same on workload clusters."""
    indexes: Mapping[ResourceType, Mapping[str, Index]] = field(default_factory=dict[ResourceType, Mapping[str, Index]])
    """How objects are found, by type, on all clusters."""
