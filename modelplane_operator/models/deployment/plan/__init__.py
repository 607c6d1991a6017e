"""Plan a ModelDeployment: place its replicas, roll out changes, and put the replicas that answer into rotation.

A paused deployment, or one that is being deleted and waits for a foreign finalizer, is left as it is. Its replicas
still leave clusters that are drained or deleted, because those belong to other people.
"""

from __future__ import annotations

from datetime import timedelta

from kubeloop.plan import Plan
from modelplane_operator.models.deployment.plan.observed import FOLLOWING, ROLL_PATIENCE, ROLLED_OF, Observed
from modelplane_operator.models.deployment.plan.rollout_plan import decide
from modelplane_operator.models.deployment.plan.status import status
from modelplane_operator.models.deployment.plan.steps import steps

__all__ = ["FOLLOWING", "ROLLED_OF", "ROLL_PATIENCE", "Observed", "plan"]

ROLL_INTERVAL = timedelta(minutes=1)
"""Time between two looks for a free place to roll, where no event tells of one."""


def plan(observed: Observed) -> Plan:
    """Return the steps, the status and the requeue time for a deployment.

    A deployment that is being deleted gets no status. The requeue time is the next moment at which a grace period,
    a toleration or the wait for a route ends, or a place to roll may be free.
    """
    rollout_plan = decide(observed)
    route_deadlines = [
        deadline
        for deadline in map(observed.waits_until, observed.live)
        if deadline is not None and deadline > observed.now
    ]
    if any(observed.rolls(key) and key not in observed.rolling for key in observed.outdated):
        route_deadlines.append(observed.now + ROLL_INTERVAL)
    times = [
        deadline
        for deadline in (rollout_plan.decision.requeue_at, rollout_plan.moves.requeue_at, *route_deadlines)
        if deadline is not None
    ]
    wait = max((min(times) - observed.now).total_seconds(), 0.1) if times else None
    reported = None if observed.terminating else status(observed, rollout_plan)
    return Plan(tuple(steps(observed, rollout_plan)), reported, requeue_after=wait)
