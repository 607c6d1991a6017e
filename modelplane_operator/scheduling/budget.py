"""Limit the total cost of a deployment's selectors, so that no deployment blocks the scheduler.

Each selector has limits of its own (docs/selector-language.md). But a fleet may have hundreds of devices, and a
deployment stored before the limits thousands of selectors. Text and number limit the cost of checking the selectors,
steps the cost of evaluating them on every device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from kubeloop.memo import memoize_bounded
from modelplane_operator.api.bounds import SELECTOR_TEXT, SELECTORS
from modelplane_operator.api.model_deployment import ReplicaSpec
from modelplane_operator.scheduling.problems import Overdrawn
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, Selector, SelectorError

STEPS = 2_000_000
"""Maximum steps of all selectors on all devices of the fleet; a usual selector takes some ten on each."""

AT_ONCE_TEXT, AT_ONCE_EFFORT = 1_024, 50_000  # some tens of milliseconds
AT_ONCE_PAIRS = 10_000  # lookups of a selector and a device; ten milliseconds
_REGEX_EFFORT = 6_000  # maximum steps of a match


def texts(spec: ReplicaSpec) -> tuple[str, ...]:
    """Return the distinct selectors of a deployment, in the order of the spec."""
    chosen = (member.node_selector for engine in spec.engines for member in engine.members if member.node_selector)
    requests = (request for selector in chosen for request in selector.devices)
    return tuple(dict.fromkeys(selector.cel or "" for request in requests for selector in request.selectors))


def overdrawn(selectors: tuple[str, ...], devices: frozenset[Device]) -> Overdrawn | None:
    """Return the limit that the selectors exceed, or None. The result does not depend on what is cached."""
    if (size := _size(selectors)) > SELECTOR_TEXT:
        return Overdrawn("characters of different selectors", size, SELECTOR_TEXT)
    if len(selectors) > SELECTORS:
        return Overdrawn("different selectors", len(selectors), SELECTORS)
    if not _is_affordable(selectors, devices):
        return Overdrawn("steps on the devices of the fleet", None, STEPS)
    return None


def at_once(selectors: tuple[str, ...], devices: frozenset[Device]) -> bool:
    """True if checking the selectors and evaluating them on all devices takes negligible time."""
    if len(selectors) * len(devices) > AT_ONCE_PAIRS:
        return False
    compiled = [Selector(text) for text in selectors if cel.knows(text)]
    new_text = _size(selectors) - sum(len(selector.text) for selector in compiled)
    if new_text > AT_ONCE_TEXT:
        return False
    if sum(map(_effort, compiled)) * len(devices) <= AT_ONCE_EFFORT:
        return True
    return all(cel.evaluate.knows(selector, device) for selector in _compile_valid(selectors) for device in devices)


def prepare(selectors: tuple[str, ...], devices: frozenset[Device]) -> None:
    """Check and evaluate the selectors now, within the limits, so that the results are cached.

    Old ones may have been evicted.
    """
    if _size(selectors) <= SELECTOR_TEXT and len(selectors) <= SELECTORS:
        _is_affordable.refresh(selectors, devices)


def _size(selectors: tuple[str, ...]) -> int:
    return sum(map(len, selectors))


def _effort(selector: Selector) -> int:
    """Estimate the steps of a selector on a device."""
    regexes = selector.text.count("matches") + selector.text.count("find")
    try:
        return selector.cost + regexes * _REGEX_EFFORT
    except SelectorError:
        return 0


def _size_of_entry(selectors: tuple[str, ...], _: frozenset[Device]) -> int:
    return 500 + _size(selectors)


@memoize_bounded(most=16 << 20, size=_size_of_entry)
def _is_affordable(selectors: tuple[str, ...], devices: frozenset[Device]) -> bool:
    """Evaluate the selectors on every device; False as soon as they have taken too many steps."""
    remaining = STEPS
    for selector in _compile_valid(selectors):
        for device in devices:
            remaining -= cel.evaluate(selector, device).steps
            if remaining < 0:
                return False
    return True


def _compile_valid(selectors: Iterable[str]) -> Iterator[Selector]:
    """Yield the selectors that compile."""
    for text in selectors:
        with suppress(SelectorError):
            yield cel.compile(text)
