"""Tell for every cluster if it has capacity for one more replica, after the replicas that are placed now."""

from __future__ import annotations

from collections import Counter

from modelplane_operator.ask.answers.documents import ClusterAnswer
from modelplane_operator.ask.answers.snapshot import Snapshot
from modelplane_operator.scheduling.decision import Decision
from modelplane_operator.scheduling.fleet import FleetModel
from modelplane_operator.scheduling.load import load_of
from modelplane_operator.scheduling.prose import reason, remedy
from modelplane_operator.scheduling.reasons import Spare
from modelplane_operator.scheduling.requirement import PlacementRequest
from modelplane_operator.scheduling.survey import Fit, answer


def every_cluster(
    request: PlacementRequest, decision: Decision, fleet: FleetModel, snapshot: Snapshot
) -> tuple[ClusterAnswer, ...]:
    """Return each cluster's answer to one more replica of the deployment."""
    infos = {name: info for name in sorted(snapshot.cluster) if (info := fleet.info(name)) is not None}
    for placement in decision.new:
        infos[placement.cluster] = infos[placement.cluster].charge(load_of(placement.engines))
    now = Counter(placement.cluster for placement in decision.placements)
    answers = list[ClusterAnswer]()
    for name, info in infos.items():
        result = answer(request.requirement, info)
        cause = Spare() if isinstance(result, Fit) else result
        answers.append(ClusterAnswer(name, now[name], isinstance(result, Fit), reason(cause), remedy(cause)))
    return tuple(answers)
