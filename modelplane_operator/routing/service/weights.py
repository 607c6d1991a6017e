"""Who gets which share of a service's requests, and how that fits into a route.

A rule takes sixteen backends. Of more, some stand together as a group: one backend of the rule, which leads back to the
gateway, where a rule of the group's own shares the requests out among its members. Groups may hold groups. Weights
multiply along the way, and stay exact.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from kubeloop.objects import Key
from modelplane_operator.api.model_endpoint import ModelEndpoint
from modelplane_operator.api.model_service import ModelService
from modelplane_operator.routing.endpoint.backend_url import Backend
from modelplane_operator.routing.endpoint.credentials import Header

MAX_WEIGHT = 1_000_000
MAX_BACKENDS = 16  # of one rule, by the Gateway API


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """How an endpoint is reached."""

    backend: Backend
    header: Header | None = None
    """Its credentials, when it has some."""
    path: str | None = None
    """What takes the place of the service's prefix; None leaves the path as it is."""
    name: str | None = None
    """What it is asked by; None for the client's own word."""
    unproven: bool = field(default=False)
    """Whether nobody proves there to be the gateway of a cluster: it may lead anywhere, and back to us."""


@dataclass(frozen=True, slots=True)
class WeightedEndpoint:
    """An endpoint with its share of the requests."""

    endpoint: ModelEndpoint
    target: Target
    weight: int


@dataclass(frozen=True, slots=True)
class BackendGroup:
    """The backends of one rule. Number 0 is the service itself; the others are backends of another group."""

    number: int
    members: tuple[WeightedEndpoint | BackendGroup, ...]

    @property
    def weight(self) -> int:
        return sum(member.weight for member in self.members)


def matched(wanted: Iterable[Labels], carried: Sequence[Labels]) -> Iterator[int]:
    """For each selector those that carry all of its labels, as bits.

    Thousands of selectors over thousands of endpoints are millions of pairs; as bits they are looked at 64 at once.
    """
    bits: dict[tuple[str, str], int] = {}
    for number, labels in enumerate(carried):
        for label in labels.items():
            bits[label] = bits.get(label, 0) | 1 << number
    everyone = (1 << len(carried)) - 1
    for labels in wanted:
        found = everyone
        for label in labels.items():
            found &= bits.get(label, 0)
        yield found


def places(bits: int) -> Iterator[int]:
    """The numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def selected(service: ModelService, endpoints: Iterable[ModelEndpoint]) -> tuple[tuple[ModelEndpoint, ...], ...]:
    """The endpoints of each entry, by name; one that several entries select belongs to the first."""
    named = sorted((e for e in endpoints if e.key.namespace == service.key.namespace), key=lambda e: e.key.name)
    wanted = (entry.selector.match_labels for entry in service.spec.endpoints)
    left = (1 << len(named)) - 1
    groups: list[tuple[ModelEndpoint, ...]] = []
    for bits in matched(wanted, [e.metadata.labels for e in named]):
        groups.append(tuple(named[place] for place in places(bits & left)))
        left &= ~bits
    return tuple(groups)


def weighted(
    service: ModelService, groups: Sequence[Sequence[ModelEndpoint]], targets: Mapping[Key, Target]
) -> tuple[WeightedEndpoint, ...]:
    """Who gets which share of the requests, given the endpoints of each entry.

    `targets` holds the endpoints that can be used; the share of an entry without any goes to the others.
    """
    usable = [[endpoint for endpoint in group if endpoint.key in targets] for group in groups]
    entries = [(entry.weight, group) for entry, group in zip(service.spec.endpoints, usable, strict=True) if group]
    each = weights([(weight, len(group)) for weight, group in entries])
    return tuple(
        WeightedEndpoint(endpoint, targets[endpoint.key], weight)
        for (_, group), weight in zip(entries, each, strict=True)
        for endpoint in group
    )


def weights(entries: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """The weight of every endpoint of each entry, given the entry's weight and how many endpoints it has.

    The weights of an entry's endpoints are equal and add up in proportion to the entries' weights.
    """
    common = math.lcm(*(count for _, count in entries))
    return _reduced([weight * common // count for weight, count in entries])


def fitted(exact: Sequence[int]) -> tuple[int, ...]:
    """The same proportions in numbers that a rule can hold: rounded only where there are none, and to 1 at least."""
    reduced = _reduced(exact)
    largest = max(reduced, default=0)
    if largest <= MAX_WEIGHT:
        return reduced
    return tuple(max(1, round(weight * MAX_WEIGHT / largest)) for weight in reduced)


def grouped(shared: Sequence[WeightedEndpoint]) -> tuple[BackendGroup, ...]:
    """The rules that it takes, the service's own first.

    The lightest are put together again and again (Huffman's way), so that as few requests as possible take a detour.
    """
    waiting: list[tuple[int, int, WeightedEndpoint | BackendGroup]] = [
        (one.weight, order, one) for order, one in enumerate(shared)
    ]
    heapq.heapify(waiting)
    groups: list[BackendGroup] = []
    size = (len(shared) - 2) % (MAX_BACKENDS - 1) + 2  # of the first, so that all others are full
    while len(waiting) > MAX_BACKENDS:
        lightest = [heapq.heappop(waiting) for _ in range(size)]
        groups.append(BackendGroup(len(groups) + 1, tuple(one for *_, one in lightest)))
        heapq.heappush(waiting, (groups[-1].weight, len(shared) + len(groups), groups[-1]))
        size = MAX_BACKENDS
    return (BackendGroup(0, tuple(one for *_, one in sorted(waiting, key=lambda one: one[1]))), *groups)


def _reduced(exact: Sequence[int]) -> tuple[int, ...]:
    least = math.gcd(*exact)
    return tuple(weight // least for weight in exact)
