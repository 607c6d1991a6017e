"""Assign every item to one bin, or prove that it is impossible.

Both assignments of the scheduler use it: device requests to device entries of a node, and engines to pools of a
cluster. First-fit nearly always succeeds; when it fails, a search over sets of items decides.
"""

from collections.abc import Sequence

Costs = Sequence[Sequence[int | None]]
"""Cost by item and bin; None where the item must not go."""


def assign(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    """Return the bin of every item, or None if there is no assignment.

    Each item gets the earliest bin that still allows an assignment of the later items, so bins are in order of
    preference.
    """
    chosen = _first_fit(costs, room)
    if chosen is not None or any(_earliest(row, room, 0) is None for row in costs):
        return chosen
    # A bin with negative room takes nothing, not even an item that costs nothing.
    costs = [
        [cost if cost is None or cost <= free else None for cost, free in zip(row, room, strict=True)] for row in costs
    ]
    chosen = _search(costs, [max(free, 0) for free in room])
    return None if chosen is None else _move_to_early_bins(chosen, costs, room)


def _earliest(row: Sequence[int | None], room: Sequence[int], start: int) -> int | None:
    """Return the first bin from `start` on that has room for the item."""
    return next((b for b in range(start, len(room)) if (cost := row[b]) is not None and cost <= room[b]), None)


def _first_fit(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    """Assign each item to its earliest bin with room; None if one finds none."""
    remaining = list(room)
    chosen: list[int] = []
    for row in costs:
        bin_ = _earliest(row, remaining, 0)
        if bin_ is None:
            return None
        remaining[bin_] -= row[bin_] or 0
        chosen.append(bin_)
    return tuple(chosen)


def _search(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    """Fill the bins in order, and store for every set of items the lowest fill level that can hold it.

    A level is (the bin being filled, how full it is): a lower level can be extended to everything that a higher one
    can. This takes 2^items states instead of bins^items paths. States with less room than the remaining items need are
    dropped.
    """
    all_items = (1 << len(costs)) - 1
    # For every item the set of equal earlier ones: their order makes no difference, so only one order is tried.
    twins = [sum(1 << other for other in range(item) if costs[other] == row) for item, row in enumerate(costs)]
    least_cost = [min(cost for cost in row if cost is not None) for row in costs]
    room_in_later_bins = [sum(room[index + 1 :]) for index in range(len(room))]
    required = {0: sum(least_cost)}
    least: dict[int, tuple[int, int]] = {0: (0, 0)}
    last: dict[int, int] = {}
    for items in range(all_items):  # a set comes after its subsets
        if items not in least:
            continue
        bin_, full = least[items]
        if required[items] > max(room[bin_] - full, 0) + room_in_later_bins[bin_]:
            continue
        for item, row in enumerate(costs):
            if items >> item & 1 or twins[item] & ~items:
                continue
            cost_here = row[bin_]
            if cost_here is not None and full + cost_here <= room[bin_]:
                level = (bin_, full + cost_here)
            elif (later := _earliest(row, room, bin_ + 1)) is not None:
                level = (later, row[later] or 0)
            else:
                continue
            extended = items | 1 << item
            if extended not in least or level < least[extended]:
                least[extended], last[extended] = level, item
                required[extended] = required[items] - least_cost[item]
    if all_items not in least:
        return None
    chosen = [0] * len(costs)
    items = all_items
    while items:
        chosen[last[items]] = least[items][0]
        items &= ~(1 << last[items])
    return tuple(chosen)


def _move_to_early_bins(chosen: Sequence[int], costs: Costs, room: Sequence[int]) -> tuple[int, ...]:
    """Move each item to the earliest bin that has room for it."""
    remaining = list(room)
    for row, bin_ in zip(costs, chosen, strict=True):
        remaining[bin_] -= row[bin_] or 0
    moved = list(chosen)
    for item, row in enumerate(costs):
        remaining[moved[item]] += row[moved[item]] or 0
        moved[item] = next(b for b in range(len(remaining)) if (cost := row[b]) is not None and cost <= remaining[b])
        remaining[moved[item]] -= row[moved[item]] or 0
    return tuple(moved)
