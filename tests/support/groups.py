"""Which tests run on one worker, one after the other, and which of these groups go first."""

from __future__ import annotations

import pytest

from localfleet import pytest_plugin

STAGE, FLEET = "the stage", "the fleet"
SHARED = {
    "tests/integration/": STAGE,
    "tests/controllers/test_clusters.py": FLEET,
    "tests/faults/": FLEET,
    "tests/localfleet/test_fleet.py": FLEET,
    "tests/rendering/test_path.py": FLEET,
}
"""Files that need the same fleet, so that it is started once; every other file is a group of its own."""
LONG = (STAGE, FLEET)
"""The groups that take minutes, the longest first: a worker that began one last would run on alone."""


def group_of(nodeid: str) -> str:
    """The group of a test."""
    shared = (group for start, group in SHARED.items() if nodeid.startswith(start))
    return next(shared, nodeid.partition("::")[0])


def sort(items: list[pytest.Item]) -> None:
    """Bring groups together: the long ones, then those that start programs, then the others, each as they came.

    In a group, what needs the fleet comes first: it ends when the next test does not.
    """
    marked = {group_of(item.nodeid) for item in items if item.get_closest_marker("fleet")}
    groups = dict.fromkeys([*LONG, *(group for item in items if (group := group_of(item.nodeid)) in marked)])
    groups |= dict.fromkeys(group_of(item.nodeid) for item in items)
    place = {group: number for number, group in enumerate(groups)}
    items.sort(key=lambda item: (place[group_of(item.nodeid)], not pytest_plugin.needs_fleet(item)))
