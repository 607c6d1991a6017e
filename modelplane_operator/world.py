"""The components that controllers are created from."""

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
"""Callback with the reason of `ReplicasScheduled` after a scheduling decision, and the duration of the decision in
seconds.
"""


OnChecked = Callable[[str, str], None]
"""Callback with the kind of a check and its outcome: `answered`, `failed` or `defect`."""


def ignore_count(_: str, __: float | str) -> None:
    """Ignore a decision or a check: the default where none are counted."""


def unheard(_: ResourceType, __: Key) -> None:
    """Ignore a request to enqueue an object: the default without controllers."""


@dataclass(frozen=True, slots=True)
class World:
    """The components that exist before any controller."""

    settings: Settings
    fleet: Fleet
    """Workload clusters. Controllers call `set` and `remove` when the access to one changes."""
    hub: Callable[[], Kube]
    """Client of the hub. Raises Unreachable while the hub does not respond."""
    now: Callable[[], datetime]
    """Clock."""
    connection_changed: Callable[[str], None]
    """Callback for a change of a cluster's access that its connection cannot detect itself."""
    scheduled: Scheduled = ignore_count
    """Callback for each scheduling decision."""
    wake: Callable[[ResourceType, Key], None] = unheard
    """Callback that enqueues an object after a change that no watch reports."""
    checked: OnChecked = ignore_count
    """Callback for each check."""
    helm: Helm | None = None
    """Helm driver; None if the operator installs no charts."""
