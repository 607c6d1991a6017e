"""What every cluster says to one replica more, once those that the scheduler finds a place for now are there."""

from __future__ import annotations

from collections import Counter

from modelplane_operator.ask.answers.documents import ClusterAnswer
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.placement import charges
from modelplane_operator.scheduling.prose import reason, remedy
from modelplane_operator.scheduling.reasons import Spare
from modelplane_operator.scheduling.requirement import PlacementRequest
from modelplane_operator.scheduling.survey import Fit, answer


def every_cluster(
    asked: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot
) -> tuple[ClusterAnswer, ...]:
    infos = {name: info for name in sorted(snapshot.cluster) if (info := fleet.info(name)) is not None}
    for placement in decision.new:
        infos[placement.cluster] = infos[placement.cluster].charged(charges(placement.engines))
    now = Counter(placement.cluster for placement in decision.placements)
    found = list[ClusterAnswer]()
    for name, info in infos.items():
        said = answer(asked.requirement, info)
        why = Spare() if isinstance(said, Fit) else said
        found.append(ClusterAnswer(name, now[name], isinstance(said, Fit), reason(why), remedy(why)))
    return tuple(found)
