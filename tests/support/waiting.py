"""Waiting in tests for what somebody else brings about."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

SECONDS = 120.0  # a deadline, not an expectation: machines are busy


async def until(holds: Callable[[], bool], what: str) -> None:
    """Wait for something that a watch shall bring about."""
    try:
        async with asyncio.timeout(SECONDS):
            while not holds():  # noqa: ASYNC110 - there is nothing to be woken by: the point is what a reader sees
                await asyncio.sleep(0.01)
    except TimeoutError:
        pytest.fail(f"waited {SECONDS:g} s for {what}, in vain")
