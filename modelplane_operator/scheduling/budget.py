"""What the selectors of one deployment may cost, all together, so that no deployment stops the scheduler.

Each selector has bounds of its own (docs/selector-language.md). The fleet may have hundreds of devices, and a
deployment that is older than the bounds of its kind thousands of selectors. Text and number bound what it takes to
check them, steps what it takes to ask every device.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import suppress

from kubeloop.memo import remembered
from modelplane_operator.api.bounds import SELECTOR_TEXT, SELECTORS
from modelplane_operator.api.model_deployment import ReplicaSpec
from modelplane_operator.scheduling.problems import Overdrawn
from modelplane_operator.selectors import cel
from modelplane_operator.selectors.cel import Device, Selector, SelectorError

STEPS = 2_000_000
"""Steps of all of them on all devices of the fleet; a usual selector takes some ten on each."""

AT_ONCE_TEXT, AT_ONCE_EFFORT = 1_024, 50_000  # some tens of milliseconds
AT_ONCE_PAIRS = 10_000  # of a selector and a device, to look up; ten milliseconds
_REGEX_EFFORT = 6_000  # steps of a match, at most


def texts(spec: ReplicaSpec) -> tuple[str, ...]:
    """The different selectors of a deployment, in the order in which they are written."""
    chosen = (member.node_selector for engine in spec.engines for member in engine.members if member.node_selector)
    requests = (request for selector in chosen for request in selector.devices)
    return tuple(dict.fromkeys(selector.cel or "" for request in requests for selector in request.selectors))


def overdrawn(selectors: tuple[str, ...], devices: frozenset[Device]) -> Overdrawn | None:
    """Which bound the selectors exceed. That does not depend on what is remembered of them."""
    if (size := _size(selectors)) > SELECTOR_TEXT:
        return Overdrawn("characters of different selectors", size, SELECTOR_TEXT)
    if len(selectors) > SELECTORS:
        return Overdrawn("different selectors", len(selectors), SELECTORS)
    if not _affordable(selectors, devices):
        return Overdrawn("steps on the devices of the fleet", None, STEPS)
    return None


def at_once(selectors: tuple[str, ...], devices: frozenset[Device]) -> bool:
    """Whether to check the selectors and to ask all devices takes no time worth mentioning."""
    if len(selectors) * len(devices) > AT_ONCE_PAIRS:
        return False
    known = [Selector(text) for text in selectors if cel.knows(text)]
    new = _size(selectors) - sum(len(selector.text) for selector in known)
    if new > AT_ONCE_TEXT:
        return False
    if sum(map(_effort, known)) * len(devices) <= AT_ONCE_EFFORT:
        return True
    return all(cel.evaluate.knows(selector, device) for selector in _usable(selectors) for device in devices)


def prepare(selectors: tuple[str, ...], devices: frozenset[Device]) -> None:
    """Do all of that work now, unless it is too much, so that it is remembered; some may have been forgotten."""
    if _size(selectors) <= SELECTOR_TEXT and len(selectors) <= SELECTORS:
        _affordable.anew(selectors, devices)


def _size(selectors: tuple[str, ...]) -> int:
    return sum(map(len, selectors))


def _effort(selector: Selector) -> int:
    """About how many steps the selector may take on a device."""
    regexes = selector.text.count("matches") + selector.text.count("find")
    try:
        return selector.cost + regexes * _REGEX_EFFORT
    except SelectorError:
        return 0


def _kept(selectors: tuple[str, ...], _: frozenset[Device]) -> int:
    return 500 + _size(selectors)


@remembered(most=16 << 20, size=_kept)
def _affordable(selectors: tuple[str, ...], devices: frozenset[Device]) -> bool:
    """Ask every device, until that has taken too many steps."""
    left = STEPS
    for selector in _usable(selectors):
        for device in devices:
            left -= cel.evaluate(selector, device).steps
            if left < 0:
                return False
    return True


def _usable(selectors: Iterable[str]) -> Iterator[Selector]:
    for text in selectors:
        with suppress(SelectorError):
            yield cel.compile(text)
