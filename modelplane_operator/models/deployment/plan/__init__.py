"""A deployment: where its replicas are to be, which of them exist in what shape, and which of them are in rotation.

One that is paused, or that is being deleted and waits for somebody else's finalizer, is left as it is. Its replicas
leave clusters that are drained or deleted all the same: those belong to somebody else.
"""

from __future__ import annotations

from kubeloop.plan import Plan
from modelplane_operator.models.deployment.plan.course import decide
from modelplane_operator.models.deployment.plan.observed import FOLLOWING, Observed
from modelplane_operator.models.deployment.plan.status import status
from modelplane_operator.models.deployment.plan.steps import steps

__all__ = ["FOLLOWING", "Observed", "plan"]


def plan(seen: Observed) -> Plan:
    course = decide(seen)
    awaited = [at for at in map(seen.awaited, seen.live) if at is not None and at > seen.now]
    times = [at for at in (course.decision.requeue_at, course.moves.requeue_at, *awaited) if at is not None]
    wait = max((min(times) - seen.now).total_seconds(), 0.1) if times else None
    told = None if seen.terminating else status(seen, course)
    return Plan(tuple(steps(seen, course)), told, requeue_after=wait)
