"""Quantities: canonical texts and the forms that show; what they compare to is in the selectors' recorded answers."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.selectors import quantity
from modelplane_operator.selectors.quantity import Quantity, QuantityError


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("0", "0"),
        ("-0", "0"),
        ("1024Ki", "1Mi"),
        ("40960Mi", "40Gi"),
        ("1536Mi", "1536Mi"),
        ("1.5Gi", "1536Mi"),
        ("0.5Ki", "512"),
        ("1023", "1023"),
        ("2048", "2048"),
        ("1000", "1k"),
        ("1500", "1500"),
        ("1.5k", "1500"),
        ("0.2G", "200M"),
        ("1e3", "1e3"),
        ("12e2", "1200"),
        ("100m", "100m"),
        ("0.1", "100m"),
        ("0.0000000001", "1n"),
        ("-1.5", "-1500m"),
        ("1E", "1E"),
        ("8Ei", "9223372036854775807"),
        ("5.", "5"),
        ("+.5", "500m"),
    ],
)
def test_a_quantity_is_printed_with_the_largest_suffix_that_leaves_no_fraction(written: str, canonical: str) -> None:
    assert str(quantity.parse(written)) == canonical


@pytest.mark.parametrize(
    ("written", "complaint"),
    [
        ("", "is not a quantity: write a number with a suffix, such as 79Gi or 1.5k"),
        ("Mi", "write a number"),
        ("+", "write a number"),
        ("80GB", "GB is none of the suffixes"),
        ("200K", "K is none of the suffixes"),
        ("1,3G", "write a number"),
        (" 5Gi", "write a number"),
        ("5Gi\n", "write a number"),
        ("\u0663", "write a number"),  # a digit to Python, not to Kubernetes
        ("1e", "e is none of the suffixes"),
        ("1e101", "its exponent is beyond 100"),
        ("1e-999999999999", "its exponent is beyond 100"),
        ("9" * 5000, "it has more than 100 digits"),
    ],
)
def test_what_is_no_quantity_is_refused_with_what_to_write(written: str, complaint: str) -> None:
    with pytest.raises(QuantityError) as refused:
        quantity.parse(written)

    assert complaint in str(refused.value)
    assert len(str(refused.value)) < 200


@given(st.integers(-(10**12), 10**12), st.sampled_from(["", "k", "M", "m", "Ki", "Mi", "Gi", "e3", "n"]))
def test_the_canonical_text_is_the_same_quantity(number: int, suffix: str) -> None:
    written = quantity.parse(f"{number}{suffix}")

    assert quantity.parse(str(written)) == written
    assert str(quantity.parse(str(written))) == str(written)


_quantities = st.builds(
    Quantity, st.integers(-(10**20), 10**20), st.integers(-9, 6), st.sampled_from(quantity.Suffixes), st.booleans()
)


@given(_quantities, _quantities)
def test_order_sums_and_hashes_go_by_value(a: Quantity, b: Quantity) -> None:
    scaled = [x.number * 10 ** (x.exponent + 9) for x in (a, b)]

    assert a.compare(b) == (scaled[0] > scaled[1]) - (scaled[0] < scaled[1])
    assert (a < b) == (scaled[0] < scaled[1])
    assert a + b == Quantity(sum(scaled), -9)
    assert (a + b) - b == a
    assert hash(a) == hash(Quantity(a.number * 10, a.exponent - 1))


@given(st.text(alphabet="0123456789.+-eEinumkKMGTP ", max_size=12))
def test_no_text_does_worse_than_be_refused(text: str) -> None:
    try:
        parsed = quantity.parse(text)
    except QuantityError:
        return
    assert isinstance(str(parsed), str)
