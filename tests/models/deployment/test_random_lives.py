"""Whatever happens to a fleet and its deployments, in any order: what users rely on holds after each decision."""

from __future__ import annotations

import pytest

from tests.models.deployment.lives import play

LIVES, MANY = 300, 2000
"""Number of lives in the pure tests, and of longer ones in the slow tests, which take three minutes of two cores."""
TESTS = 10
"""The lives are divided among so many tests, which can run side by side."""


@pytest.mark.parametrize("first", range(0, LIVES, LIVES // TESTS))
def test_a_life_ends_well(first: int) -> None:
    for number in range(first, first + LIVES // TESTS):
        play(number)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(LIVES, LIVES + MANY, MANY // TESTS))
def test_a_longer_life_ends_well(first: int) -> None:
    for number in range(first, first + MANY // TESTS):
        play(number, events=10)
