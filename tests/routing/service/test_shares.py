"""Which endpoints the entries of a service select: what labels say, however many there are."""

from __future__ import annotations

from collections.abc import ItemsView

from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.routing.service.weights import match_selectors, places

LABELS = st.dictionaries(st.sampled_from("abc"), st.sampled_from("xy"))


@given(wanted=st.lists(LABELS, max_size=8), carried=st.lists(LABELS, max_size=80))
def test_an_entry_selects_what_carries_all_of_its_labels(
    wanted: list[dict[str, str]], carried: list[dict[str, str]]
) -> None:
    found = [[*places(bits)] for bits in match_selectors(wanted, carried)]

    assert found == [
        [number for number, labels in enumerate(carried) if each.items() <= labels.items()] for each in wanted
    ]


class Looked(dict[str, str]):
    """Labels that count how often somebody looks at them."""

    times = 0

    def items(self) -> ItemsView[str, str]:  # type: ignore[override]
        Looked.times += 1
        return super().items()  # type: ignore[return-value]


def test_thousands_of_entries_are_not_compared_with_every_endpoint() -> None:
    wanted, carried = ([Looked(model="a", number=str(n % 7)) for n in range(count)] for count in (5000, 1000))
    found = [*match_selectors(wanted, carried)]

    assert sum(map(int.bit_count, found)) > 700_000
    assert Looked.times == len(wanted) + len(carried)
