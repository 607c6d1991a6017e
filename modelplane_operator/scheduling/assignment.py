"""Put every item whole into one bin, or prove that it cannot be done.

Both of the scheduler's small puzzles are this one: device requests into the device entries of a node, and engines into
the pools of a cluster. First-fit answers nearly always; when it fails, a search over sets of items decides.
"""

from collections.abc import Sequence

Costs = Sequence[Sequence[int | None]]
"""Per item and bin what the item takes there; None where it may not go."""


def assign(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    """The bin of every item, or None when there is no way at all.

    An item gets the earliest bin that it can have once the others have theirs, so bins come in order of preference.
    """
    chosen = _first_fit(costs, room)
    if chosen is not None or any(_earliest(row, room, 0) is None for row in costs):
        return chosen
    # What more has been taken of than there is has no room for anything, not even for what takes nothing.
    costs = [
        [cost if cost is None or cost <= free else None for cost, free in zip(row, room, strict=True)] for row in costs
    ]
    chosen = _search(costs, [max(free, 0) for free in room])
    return None if chosen is None else _preferring_early(chosen, costs, room)


def _earliest(row: Sequence[int | None], room: Sequence[int], start: int) -> int | None:
    return next((b for b in range(start, len(room)) if (cost := row[b]) is not None and cost <= room[b]), None)


def _first_fit(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    left = list(room)
    chosen: list[int] = []
    for row in costs:
        found = _earliest(row, left, 0)
        if found is None:
            return None
        left[found] -= row[found] or 0
        chosen.append(found)
    return tuple(chosen)


def _search(costs: Costs, room: Sequence[int]) -> tuple[int, ...] | None:
    """Fill the bins in order, and keep for every set of items the least that it can take up.

    "Least" is (the bin being filled, how full it is): whoever has got less far can do whatever the other can. That
    makes 2^items states instead of bins^items ways; states with less room left than the other items need are dropped.
    """
    everything = (1 << len(costs)) - 1
    twins = _earlier_twins(costs)
    least_cost = [min(cost for cost in row if cost is not None) for row in costs]
    room_after = [sum(room[place + 1 :]) for place in range(len(room))]
    lacking = {0: sum(least_cost)}
    least: dict[int, tuple[int, int]] = {0: (0, 0)}
    last: dict[int, int] = {}
    for items in range(everything):  # a set comes after its subsets
        if items not in least:
            continue
        bin_, full = least[items]
        if lacking[items] > max(room[bin_] - full, 0) + room_after[bin_]:
            continue
        for item, row in enumerate(costs):
            if items >> item & 1 or twins[item] & ~items:
                continue
            here = row[bin_]
            if here is not None and full + here <= room[bin_]:
                reached = (bin_, full + here)
            elif (later := _earliest(row, room, bin_ + 1)) is not None:
                reached = (later, row[later] or 0)
            else:
                continue
            grown = items | 1 << item
            if grown not in least or reached < least[grown]:
                least[grown], last[grown] = reached, item
                lacking[grown] = lacking[items] - least_cost[item]
    if everything not in least:
        return None
    chosen = [0] * len(costs)
    items = everything
    while items:
        chosen[last[items]] = least[items][0]
        items &= ~(1 << last[items])
    return tuple(chosen)


def _earlier_twins(costs: Costs) -> list[int]:
    """For every item the set of earlier ones just like it: which of two twins goes first makes no difference."""
    return [sum(1 << other for other in range(item) if costs[other] == row) for item, row in enumerate(costs)]


def _preferring_early(chosen: Sequence[int], costs: Costs, room: Sequence[int]) -> tuple[int, ...]:
    left = list(room)
    for row, bin_ in zip(costs, chosen, strict=True):
        left[bin_] -= row[bin_] or 0
    moved = list(chosen)
    for item, row in enumerate(costs):
        left[moved[item]] += row[moved[item]] or 0
        moved[item] = next(b for b in range(len(left)) if (cost := row[b]) is not None and cost <= left[b])
        left[moved[item]] -= row[moved[item]] or 0
    return tuple(moved)
