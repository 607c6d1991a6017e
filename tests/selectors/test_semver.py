"""Versions: their text and their order; what is a version is in the selectors' recorded answers."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from modelplane_operator.selectors import semver
from modelplane_operator.selectors.semver import Semver, SemverError

# From semver.org, with numbers that sort differently as texts.
_ASCENDING = [
    "0.9.9", "1.0.0-1", "1.0.0-2", "1.0.0-10", "1.0.0-A", "1.0.0-alpha", "1.0.0-alpha.1", "1.0.0-alpha.beta",
    "1.0.0-beta", "1.0.0-beta.2", "1.0.0-beta.11", "1.0.0-rc.1", "1.0.0", "1.0.1", "1.2.0", "1.10.0", "2.0.0",
]  # fmt: skip


def test_versions_ascend_as_semver_says() -> None:
    for older, newer in pairwise(map(semver.parse, _ASCENDING)):
        assert older < newer
        assert (older.compare(newer), newer.compare(older), older.compare(older)) == (-1, 1, 0)


def test_build_metadata_counts_for_nothing() -> None:
    assert semver.parse("1.2.3-rc.1+abc") == semver.parse("1.2.3-rc.1+def.0")


@pytest.mark.parametrize(
    ("written", "read"),
    [("v1", "1.0.0"), ("01.02", "1.2.0"), ("1.0.00-rc1", "1.0.0-rc1"), ("v1.2.3+b", "1.2.3"), ("000", "0.0.0")],
)
def test_normalising_forgives_a_v_leading_zeros_and_missing_numbers(written: str, read: str) -> None:
    assert str(semver.parse(written, normalize=True)) == read


@pytest.mark.parametrize(
    "written", ["", "v1.0.0", "1.0", "1.0.0-", "1.0.0+", "1.0.0-01", "1.0.0 ", "1.0.0\n", "\u0661.0.0"]
)
def test_a_strict_version_has_three_numbers_and_nothing_dangling(written: str) -> None:
    with pytest.raises(SemverError, match="is not a semantic version"):
        semver.parse(written)


@given(st.builds(Semver, *[st.integers(0, 2**64 - 1)] * 3))
def test_a_version_reads_back_as_itself(version: Semver) -> None:
    assert semver.parse(str(version)) == version


@given(st.text(alphabet="0123456789.-+vab", max_size=20), st.booleans())
def test_no_text_does_worse_than_be_refused(text: str, normalize: bool) -> None:  # noqa: FBT001
    try:
        version = semver.parse(text, normalize=normalize)
    except SemverError:
        return
    assert semver.parse(str(version)) == version
