"""Review maintenance windows: schedules and time zones that a schema cannot check."""

from __future__ import annotations

from collections.abc import Container, Iterator, Sequence

from kubeloop.words import sentence
from modelplane_operator.api.maintenance import MaintenanceWindow
from modelplane_operator.scheduling.maintenance import find_problem


def check_windows(new: Sequence[MaintenanceWindow], old: Container[MaintenanceWindow]) -> Iterator[str]:
    """Yield a message for each new window that cannot be used."""
    for number, window in enumerate(new):
        if window not in old and (problem := find_problem(window)):
            yield sentence(f"spec.maintenance[{number}]: {problem}")
