"""A fleet of eight workload clusters beside its hub, as large as this machine is asked to carry."""

from __future__ import annotations

from pathlib import Path

import pytest

from localfleet.fleet import Fleet, Options

# In `make test` there is one cluster for them: tests/localfleet/test_fleet.py looks at the memory of each of a fleet.
pytestmark = [pytest.mark.fleet, pytest.mark.long]

GIB = 1 << 30


def test_eight_workload_clusters_fit_in_eight_gibibytes(tmp_path: Path) -> None:
    fleet = Fleet(tmp_path / "fleet")
    try:
        fleet.up(Options(workers=8))
        clusters = fleet.status()["clusters"]

        assert [each["name"] for each in clusters] == ["hub", *(f"worker-{number}" for number in range(1, 9))]
        assert {state for each in clusters for state in each["components"].values()} == {"running"}
        assert sum(fleet.memory().values()) < 8 * GIB
    finally:
        fleet.down()
