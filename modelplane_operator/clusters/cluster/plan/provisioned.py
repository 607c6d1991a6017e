"""A cluster that a cloud makes: an object of the cloud's own kind stands for it, and goes last."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, is_terminating, key_of, section
from kubeloop.plan import KEEP, Apply, Plan, Step, delete
from modelplane_operator.api.inference_cluster import ClusterReady
from modelplane_operator.clouds.problem import CannotMake
from modelplane_operator.clouds.render import INFRASTRUCTURE, objects_of, render_infrastructure
from modelplane_operator.clusters.cluster.plan.observed import REQUEUE_SOON, Observed
from modelplane_operator.clusters.cluster.plan.out_of_reach import unreachable, waiting

_TROUBLES = (("CredentialsValid", "False"), ("Stalled", "True"), ("CapacityAvailable", "False"))
"""What the cloud's object says when something is not as it is asked for, and stays so."""


def never_reached(seen: Observed) -> bool:
    """Whether a cloud makes it and nothing can be on it: it has no API server yet, or none any more, or never answered.

    What was begun there all the same, by an operator that ended before it could say so, goes with the cluster.
    """
    is_made = seen.cluster.spec.cluster.source in INFRASTRUCTURE
    answered = seen.cluster.status is not None and seen.cluster.status.observed is not None
    return is_made and seen.state is None and not (answered and has_api_server(seen.infrastructure))


def provisioned(seen: Observed, as_brought: Callable[[Observed], Plan]) -> Plan:
    """Keep the cloud's object in line, and once there is a way to its cluster treat it as any other.

    It stays until that object is gone: whoever deletes it and waits has nothing to pay for any more. What is wrong with
    a pool or its class changes nothing about a cluster that is there.
    """
    steps: tuple[Step, ...] = ()
    problem = ""
    try:
        steps = (KEEP, Apply(render_infrastructure(seen.cluster, seen.classes, seen.removed_pools)))
        problem = _trouble(seen.infrastructure) if seen.connected else ""
    except CannotMake as error:
        problem = str(error)
    seen = replace(seen, problem=problem)
    if seen.connected:
        plan = as_brought(seen)
        found = objects_of(seen.cluster, seen.infrastructure) if seen.state is not None else ()
        objects = (Apply(one, seen.cluster.metadata.name) for one in found)
        return replace(plan, steps=(*steps, *plan.steps, *objects))
    if has_api_server(seen.infrastructure):
        # The way to it is being made anew, as whenever an operator begins to lead: what was known of it stays.
        plan = unreachable(seen, seen.kubeconfig) if seen.kubeconfig is not None else Plan(requeue_after=REQUEUE_SOON)
        return replace(plan, steps=(*steps, *plan.steps))
    if problem:
        reason = ClusterReady.INVALID_NODE_POOL
        missing = any(pool.class_name not in seen.classes for pool in seen.cluster.spec.node_pools)
        plan = waiting(seen, ClusterReady.WAITING_FOR_CLASSES if missing else reason, problem)
    else:
        plan = waiting(seen, ClusterReady.PROVISIONING, _progress(seen))
    return replace(plan, steps=(*steps, *plan.steps))


def _trouble(made: Manifest | None) -> str:
    """What the cloud's object says is not as it is asked for; empty while all is, or is on its way."""
    told = ((condition(made, of), bad) for of, bad in _TROUBLES) if made else ()
    words = next((one.message for one, bad in told if one.status == bad), "")
    return f"{made['kind']} {key_of(made)}: {words}" if made and words else ""


def _progress(seen: Observed) -> str:
    """What the cloud's object says of how far it is."""
    made = seen.infrastructure
    if made is None:
        return f"{seen.cluster.spec.cluster.source}Cluster {seen.cluster.metadata.name} is being made"
    told, synced = condition(made, "Ready"), condition(made, "Synced")
    why = synced.message if synced.status == "False" else told.message
    return ": ".join(filter(None, (f"{made['kind']} {key_of(made)}", why)))


def has_api_server(made: Manifest | None) -> bool:
    """Whether the cloud has told where the cluster's API server is, so that there may be something on the cluster."""
    return made is not None and bool(section(made, "status", "endpoint"))


def ended(seen: Observed) -> tuple[tuple[Step, ...], str]:
    """The step that has the cloud's object go, and what is to be waited for; nothing when it is gone."""
    made = seen.infrastructure
    if made is None:
        return (), ""
    steps: tuple[Step, ...] = () if is_terminating(made) else (delete(made),)
    why = condition(made, "Ready").message if is_terminating(made) else ""
    return steps, f"{made['kind']} {key_of(made)}{f' ({why})' if why else ''}"
