"""Find places for missing replicas, one by one, and the reasons why there are no more."""

from collections import Counter, defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass
from heapq import heapify, heappop, heappush
from itertools import count

from modelplane_operator.api.placement import Placement
from modelplane_operator.scheduling.decision import Refusal, tally
from modelplane_operator.scheduling.load import load_of
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.requirement import Requirement
from modelplane_operator.scheduling.settling import StableReplicas
from modelplane_operator.scheduling.survey import Fit, FleetSnapshot, answer, engine_placements, refuse

STAGED, COMING, NEVER = range(3)
"""Distances of a cluster from the weights."""


@dataclass(frozen=True, slots=True)
class Filled:
    """New placements in the order in which they were found, and the reasons why there are no more."""

    placements: tuple[Placement, ...] = ()
    """Places of new replicas."""
    refusals: tuple[Refusal, ...] = ()
    """Reasons of the clusters, nearest misses first."""


def fill(
    requirement: Requirement,
    number: int,
    stable: StableReplicas,
    namesakes: Iterable[Replica],
    fleet: FleetSnapshot,
    *,
    staged: frozenset[str] = frozenset(),
    coming: frozenset[str] = frozenset(),
) -> Filled:
    """Find places for up to `number` replicas.

    Clusters with the weights come first, then clusters that will get them, then all others; within each, clusters
    with fewer of the deployment's replicas. The survey lists, in order, the clusters with neither weights nor
    replicas. The others are evaluated separately, again after each placement.
    """
    distances = dict.fromkeys(coming, COMING) | dict.fromkeys(staged, STAGED)
    infos = dict(stable.infos)
    infos |= {name: info for name in distances.keys() - infos.keys() if (info := fleet.info(name)) is not None}
    loads = Counter(replica.cluster for replica in stable.staying)
    used_indices = _used_indices(namesakes)
    apart = frozenset(loads) | (distances.keys() & infos.keys())
    answers = {name: answer(requirement, infos[name]) for name in apart}
    queue = [
        (distances.get(name, NEVER), loads[name], result.rank, name)
        for name, result in answers.items()
        if isinstance(result, Fit)
    ]
    # A heap, since each placement changes the order of one cluster only.
    heapify(queue)
    # One more than needed: it is the example of a cluster with room for a further replica.
    survey = fleet.survey(requirement, limit=number + 1, apart=apart)
    candidates = deque(survey.candidates)
    placements: list[Placement] = []
    while len(placements) < number and (candidates or queue):
        # Queued clusters that have the weights, or will get them, come before the surveyed ones.
        is_surveyed_next = candidates and not (queue and queue[0][0] < NEVER)
        info = candidates.popleft() if is_surveyed_next else infos[heappop(queue)[-1]]
        name = info.cluster.name
        answers[name] = result = answer(requirement, info)
        if not isinstance(result, Fit):
            continue
        index = next(number for number in count() if number not in used_indices[name])
        placement = Placement(name, index, engine_placements(requirement.engines, result.chosen, info))
        placements.append(placement)
        used_indices[name].add(index)
        loads[name] += 1
        infos[name] = info.charge(load_of(placement.engines))
        answers[name] = result = answer(requirement, infos[name])
        if isinstance(result, Fit):
            heappush(queue, (distances.get(name, NEVER), loads[name], result.rank, name))
    unused = survey.fitting - (len(survey.candidates) - len(candidates))
    # The survey's unused candidates could take a replica, so they are counted as spare.
    spare = [refuse(candidates[0], answer(requirement, candidates[0]), unused)] if candidates else []
    chosen = {placement.cluster for placement in placements} if len(placements) == number else set[str]()
    others = (refuse(infos[name], result) for name, result in sorted(answers.items()) if name not in chosen)
    return Filled(tuple(placements), tally((*survey.refusals, *spare), others))


def _used_indices(namesakes: Iterable[Replica]) -> defaultdict[str, set[int]]:
    """Return the indices in use, by cluster. Terminating replicas count, since their names are not free yet."""
    indices = defaultdict[str, set[int]](set)
    for replica in namesakes:
        indices[replica.cluster].add(replica.index)
    return indices
