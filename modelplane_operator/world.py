"""What controllers are made from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime

from kubeloop.cache.fleet import Fleet
from kubeloop.client.kube import Kube
from kubeloop.helm.driver import Helm
from kubeloop.objects import Key
from kubeloop.types import ResourceType
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
    helm: Helm | None = None
    """None where no charts are installed."""
