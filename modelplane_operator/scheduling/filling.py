"""Places for the replicas that are missing, one after the other, and why there are no more."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.decision import Refusal, tally
from modelplane_operator.scheduling.placement import Replica, charges
from modelplane_operator.scheduling.reasons import Reason, Spare
from modelplane_operator.scheduling.requirement import Requirement
from modelplane_operator.scheduling.settling import Settled
from modelplane_operator.scheduling.survey import Answer, Fit, FleetSnapshot, answer, placed

STAGED, COMING, NEVER = range(3)
"""How far the weights are from a cluster."""


@dataclass(frozen=True, slots=True)
class Filled:
    """New placements in the order in which they were found, and why there are no more."""

    placements: tuple[Placement, ...] = ()
    refusals: tuple[Refusal, ...] = ()


def fill(
    requirement: Requirement,
    wanted: int,
    settled: Settled,
    namesakes: Iterable[Replica],
    fleet: FleetSnapshot,
    *,
    staged: frozenset[str] = frozenset(),
    coming: frozenset[str] = frozenset(),
) -> Filled:
    """Find places for so many replicas, as far as there are any.

    Clusters on which the weights are staged come before those to which they are to come, and these before all others;
    of each the ones that have none of ours before the ones that have. What has nothing of it the survey names, in
    order; the others are kept apart from it, and asked again after each step.
    """
    far = dict.fromkeys(coming, COMING) | dict.fromkeys(staged, STAGED)
    infos = dict(settled.infos)
    infos |= {name: info for name in far.keys() - infos.keys() if (info := fleet.info(name)) is not None}
    loads = Counter(replica.cluster for replica in settled.staying)
    taken = _taken(namesakes)
    apart = frozenset(loads) | (far.keys() & infos.keys())
    answers = {name: answer(requirement, infos[name]) for name in apart}
    queue = [
        (far.get(name, NEVER), loads[name], found.usage, name)
        for name, found in answers.items()
        if isinstance(found, Fit)
    ]
    heapify(queue)
    survey = fleet.survey(requirement, limit=wanted + 1, apart=apart)
    fresh = deque(survey.candidates)
    placements: list[Placement] = []
    while len(placements) < wanted and (fresh or queue):
        info = fresh.popleft() if fresh and not (queue and _is_first(queue[0])) else infos[heappop(queue)[-1]]
        name = info.cluster.name
        answers[name] = found = answer(requirement, info)
        if not isinstance(found, Fit):
            continue
        index = next(number for number in count() if number not in taken[name])
        placement = Placement(name, index, placed(requirement.engines, found.chosen, info))
        placements.append(placement)
        taken[name].add(index)
        loads[name] += 1
        infos[name] = info.charged(charges(placement.engines))
        answers[name] = found = answer(requirement, infos[name])
        if isinstance(found, Fit):
            heappush(queue, (far.get(name, NEVER), loads[name], found.usage, name))
    unused = survey.fitting - (len(survey.candidates) - len(fresh))
    spare = [Refusal(unused, fresh[0].cluster.name, Spare())] if fresh else []
    chosen = {placement.cluster for placement in placements} if len(placements) == wanted else set[str]()
    others = ((name, _reason(found)) for name, found in sorted(answers.items()) if name not in chosen)
    return Filled(tuple(placements), tally((*survey.refusals, *spare), others))


def _is_first(row: tuple[int, int, float, str]) -> bool:
    """Whether a cluster comes before those that the survey names: the weights are there, or are to come."""
    return row[0] < NEVER


def _taken(namesakes: Iterable[Replica]) -> defaultdict[str, set[int]]:
    """Indices in use, by cluster. Those of replicas on their way out count: their names are not free yet."""
    taken = defaultdict[str, set[int]](set)
    for replica in namesakes:
        taken[replica.cluster].add(replica.index)
    return taken


def _reason(found: Answer) -> Reason:
    return Spare() if isinstance(found, Fit) else found
