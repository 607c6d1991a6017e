"""Which toleration covers which taint."""

from __future__ import annotations

import pytest

from modelplane_operator.scheduling.taints import NO_EXECUTE, NO_SCHEDULE, Taint, Toleration, find_untolerated

TAINT = Taint("upkeep", "on", NO_SCHEDULE)
BARE = Taint("drain", "", NO_EXECUTE)


@pytest.mark.parametrize(
    ("toleration", "taint", "tolerated"),
    [
        (Toleration("upkeep", exists=True, value="", effect=""), TAINT, True),
        (Toleration("", exists=True, value="", effect=""), TAINT, True),
        (Toleration("", exists=True, value="", effect=NO_EXECUTE), TAINT, False),
        (Toleration("upkeep", exists=True, value="", effect=NO_SCHEDULE), TAINT, True),
        (Toleration("upkeep", exists=True, value="", effect=NO_EXECUTE), TAINT, False),
        (Toleration("other", exists=True, value="", effect=""), TAINT, False),
        (Toleration("upkeep", exists=False, value="on", effect=""), TAINT, True),
        (Toleration("upkeep", exists=False, value="off", effect=""), TAINT, False),
        (Toleration("upkeep", exists=False, value="", effect=""), TAINT, False),
        (Toleration("drain", exists=False, value="", effect=""), BARE, True),
        (Toleration("", exists=False, value="", effect=""), BARE, False),
    ],
)
def test_a_toleration_covers_a_taint(toleration: Toleration, taint: Taint, *, tolerated: bool) -> None:
    assert toleration.tolerates(taint) is tolerated


def test_every_taint_of_the_effects_must_be_covered() -> None:
    upkeep = Toleration("upkeep", exists=True, value="", effect="")

    assert find_untolerated([TAINT, BARE], [upkeep], {NO_SCHEDULE, NO_EXECUTE}) == BARE
    assert find_untolerated([TAINT, BARE], [upkeep], {NO_SCHEDULE}) is None
    assert find_untolerated([TAINT, BARE], [], {NO_SCHEDULE, NO_EXECUTE}) == TAINT
    assert find_untolerated([], [], {NO_SCHEDULE, NO_EXECUTE}) is None
