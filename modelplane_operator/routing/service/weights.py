"""The weight of each endpoint of a service, and how endpoints fit into the rules of a route.

A rule takes sixteen backends. Beyond that, some endpoints form a group: one backend of the rule, which leads back to
the gateway, where the group's own rule distributes the requests to its members. Groups may contain groups. Weights
multiply along the path, and stay exact.
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
MAX_BACKENDS = 16  # the Gateway API's limit for a rule


Labels = Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Target:
    """The address of an endpoint and the changes to its requests."""

    backend: Backend
    """Host and port of the endpoint."""
    header: Header | None = None
    """Its credentials, if any."""
    path: str | None = None
    """The replacement of the service's prefix; None leaves the path unchanged."""
    name: str | None = None
    """The host name in requests; None keeps the client's."""
    unproven: bool = field(default=False)
    """True if the backend does not prove to be a cluster's gateway: it may lead anywhere, even back to the hub."""


@dataclass(frozen=True, slots=True)
class WeightedEndpoint:
    """An endpoint with its weight."""

    endpoint: ModelEndpoint
    target: Target
    weight: int
    """The weight relative to the other endpoints; it may exceed what a rule can hold."""


@dataclass(frozen=True, slots=True)
class BackendGroup:
    """The backends of one rule. Number 0 is the service itself; the others are backends of another group."""

    number: int
    """Number of the group within its route."""
    members: tuple[WeightedEndpoint | BackendGroup, ...]
    """Endpoints, and groups with their own rule."""

    @property
    def weight(self) -> int:
        """The sum of the members' weights."""
        return sum(member.weight for member in self.members)


def match_selectors(selectors: Iterable[Labels], carried: Sequence[Labels]) -> Iterator[int]:
    """Yield for each selector the matching objects, as bits.

    Thousands of selectors and endpoints are millions of pairs; with bits, 64 are compared at a time.
    """
    bits: dict[tuple[str, str], int] = {}
    for number, labels in enumerate(carried):
        for label in labels.items():
            bits[label] = bits.get(label, 0) | 1 << number
    all_objects = (1 << len(carried)) - 1
    for labels in selectors:
        matching = all_objects
        for label in labels.items():
            matching &= bits.get(label, 0)
        yield matching


def places(bits: int) -> Iterator[int]:
    """Yield the numbers of the bits that are set."""
    while bits:
        lowest = bits & -bits
        yield lowest.bit_length() - 1
        bits ^= lowest


def select_endpoints(
    service: ModelService, endpoints: Iterable[ModelEndpoint]
) -> tuple[tuple[ModelEndpoint, ...], ...]:
    """Return the endpoints of each entry, by name; an endpoint that several entries select belongs to the first."""
    by_name = sorted((e for e in endpoints if e.key.namespace == service.key.namespace), key=lambda e: e.key.name)
    selectors = (entry.selector.match_labels for entry in service.spec.endpoints)
    remaining = (1 << len(by_name)) - 1
    groups: list[tuple[ModelEndpoint, ...]] = []
    for bits in match_selectors(selectors, [e.metadata.labels for e in by_name]):
        groups.append(tuple(by_name[index] for index in places(bits & remaining)))
        remaining &= ~bits
    return tuple(groups)


def weigh_endpoints(
    service: ModelService, groups: Sequence[Sequence[ModelEndpoint]], targets: Mapping[Key, Target]
) -> tuple[WeightedEndpoint, ...]:
    """Return the usable endpoints with their weights, given the endpoints of each entry.

    `targets` has the usable endpoints; the weight of an entry without any goes to the others.
    """
    usable = [[endpoint for endpoint in group if endpoint.key in targets] for group in groups]
    entries = [(entry.weight, group) for entry, group in zip(service.spec.endpoints, usable, strict=True) if group]
    endpoint_weights = weights([(weight, len(group)) for weight, group in entries])
    return tuple(
        WeightedEndpoint(endpoint, targets[endpoint.key], weight)
        for (_, group), weight in zip(entries, endpoint_weights, strict=True)
        for endpoint in group
    )


def weights(entries: Sequence[tuple[int, int]]) -> tuple[int, ...]:
    """Return the weight of every endpoint of each entry, given the entry's weight and number of endpoints.

    The weights of an entry's endpoints are equal, and their sums are proportional to the entries' weights.
    """
    common = math.lcm(*(count for _, count in entries))
    return _reduce([weight * common // count for weight, count in entries])


def fit_weights(exact: Sequence[int]) -> tuple[int, ...]:
    """Return the same proportions in numbers that a rule can hold: rounded only if necessary, and at least 1."""
    reduced = _reduce(exact)
    largest = max(reduced, default=0)
    if largest <= MAX_WEIGHT:
        return reduced
    return tuple(max(1, round(weight * MAX_WEIGHT / largest)) for weight in reduced)


def group_backends(shared: Sequence[WeightedEndpoint]) -> tuple[BackendGroup, ...]:
    """Return the rules for the endpoints, the service's own first.

    The lightest are grouped repeatedly (as in Huffman coding), so that few requests take additional passes.
    """
    queue: list[tuple[int, int, WeightedEndpoint | BackendGroup]] = [
        (item.weight, order, item) for order, item in enumerate(shared)
    ]
    heapq.heapify(queue)
    groups: list[BackendGroup] = []
    size = (len(shared) - 2) % (MAX_BACKENDS - 1) + 2  # size of the first group, so that all others are full
    while len(queue) > MAX_BACKENDS:
        lightest = [heapq.heappop(queue) for _ in range(size)]
        groups.append(BackendGroup(len(groups) + 1, tuple(item for *_, item in lightest)))
        heapq.heappush(queue, (groups[-1].weight, len(shared) + len(groups), groups[-1]))
        size = MAX_BACKENDS
    return (BackendGroup(0, tuple(item for *_, item in sorted(queue, key=lambda item: item[1]))), *groups)


def _reduce(exact: Sequence[int]) -> tuple[int, ...]:
    """Return the numbers divided by their greatest common divisor."""
    least = math.gcd(*exact)
    return tuple(weight // least for weight in exact)
