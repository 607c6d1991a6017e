"""Plan a ModelDeployment: place its replicas, roll out changes, and put the replicas that answer into rotation.

A paused deployment, or one that is being deleted and waits for a foreign finalizer, is left as it is. Its replicas
still leave clusters that are drained or deleted, because those belong to other people.
"""

from __future__ import annotations

from datetime import timedelta

from kubeloop.plan import Plan
from modelplane_operator.models.deployment.plan.observed import FOLLOWING, Observed
from modelplane_operator.models.deployment.plan.rollout_plan import decide
from modelplane_operator.models.deployment.plan.status import status
from modelplane_operator.models.deployment.plan.steps import steps

__all__ = ["FOLLOWING", "Observed", "plan"]

ROLL_INTERVAL = timedelta(minutes=1)
"""Time between two checks whether the budget of disruptions allows a roll, where no event shows it."""


def plan(observed: Observed) -> Plan:
    """Return the steps, the status and the requeue time for a deployment.

    A deployment that is being deleted gets no status. The requeue time is the next moment at which a grace period,
    a toleration or the wait for a route ends, a maintenance window opens, or the budget may allow another roll.
    """
    rollout_plan = decide(observed)
    route_deadlines = [
        deadline
        for deadline in map(observed.waits_until, observed.live)
        if deadline is not None and deadline > observed.now
    ]
    roll_times = [observed.now + ROLL_INTERVAL] if observed.rolls.full or rollout_plan.spared else []
    times = [
        deadline
        for deadline in (
            rollout_plan.decision.requeue_at,
            rollout_plan.moves.requeue_at,
            *route_deadlines,
            *roll_times,
            *observed.rolls.closed.values(),
        )
        if deadline is not None
    ]
    wait = max((min(times) - observed.now).total_seconds(), 0.1) if times else None
    reported = None if observed.terminating else status(observed, rollout_plan)
    return Plan(tuple(steps(observed, rollout_plan)), reported, requeue_after=wait)
