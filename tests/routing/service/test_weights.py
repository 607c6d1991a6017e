"""Weights: exact between the entries of a service, even within one, and within what a route can hold."""

from __future__ import annotations

from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.routing.service.weights import MAX_WEIGHT, fit_weights, weights

# (weight, endpoints) of each entry, and the weight of every endpoint of each
WORKED = {
    ((1, 2), (3, 1)): (1, 6),
    ((3, 4), (1, 1)): (3, 4),
    ((1, 3), (1, 2)): (2, 3),
    ((1_000_000, 3), (1, 3)): (1_000_000, 1),
    ((1_000_000, 1), (1, 2)): (1_000_000, 1),
    ((100, 7), (1, 1)): (100, 7),
    ((20, 1),): (1,),
    ((1_000_000, 1), (999_999, 1)): (1_000_000, 999_999),
    (): (),
}

entries = st.lists(st.tuples(st.integers(1, MAX_WEIGHT), st.integers(1, 16)), min_size=1, max_size=16)
small = st.lists(st.tuples(st.integers(1, 100), st.integers(1, 8)), min_size=1, max_size=8)


@pytest.mark.parametrize(("given_entries", "wanted"), WORKED.items())
def test_worked_case(given_entries: tuple[tuple[int, int], ...], wanted: tuple[int, ...]) -> None:
    assert fit_weights(weights(given_entries)) == wanted


@given(entries=small)
def test_the_shares_of_entries_are_exact(entries: list[tuple[int, int]]) -> None:
    shares = [each * count for each, (_, count) in zip(weights(entries), entries, strict=True)]

    assert len({Fraction(share, weight) for share, (weight, _) in zip(shares, entries, strict=True)}) == 1


@given(entries=entries)
def test_a_route_holds_every_weight(entries: list[tuple[int, int]]) -> None:
    assert all(1 <= weight <= MAX_WEIGHT for weight in fit_weights(weights(entries)))


@given(entries=entries)
def test_what_is_rounded_is_off_by_less_than_one(entries: list[tuple[int, int]]) -> None:
    found = fit_weights(weights(entries))
    exact = [Fraction(weight, count) for weight, count in entries]
    scale = Fraction(max(found)) / max(exact)

    assert all(abs(each - share * scale) < 1 for each, share in zip(found, exact, strict=True))
