"""Clouds that stand in for the real ones: one of each for all tests of a module, and empty for each of them."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.aws.world import AwsWorld, aws_world
from tests.support.google.world import GoogleWorld, google_world


@pytest.fixture(scope="module")
def _aws() -> Iterator[AwsWorld]:
    with aws_world() as world:
        yield world


@pytest.fixture
def aws(_aws: AwsWorld) -> AwsWorld:
    _aws.reset()
    return _aws


@pytest.fixture(scope="module")
def _google() -> Iterator[GoogleWorld]:
    with google_world() as world:
        yield world


@pytest.fixture
def google(_google: GoogleWorld) -> GoogleWorld:
    _google.reset()
    return _google
