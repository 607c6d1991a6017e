"""What is done for a deployment now: its ModelReplicas, and the ModelEndpoints of those that are in rotation."""

from __future__ import annotations

from collections.abc import Iterable

from kubeloop.condition_types import Ready
from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, labels_of
from kubeloop.plan import Apply, Create, Replace, Step, delete
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.deployment.plan.course import Course
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.render import render_endpoint
from modelplane_operator.scheduling.placement import charges, held_nodes, read
from modelplane_operator.scheduling.reasons import ScaledDown


def steps(seen: Observed, course: Course) -> Iterable[Step]:
    """Out of rotation first, then what is new, what may go now, and last into rotation.

    Endpoints are tenants' to edit: one that cannot be written holds up no replica that leaves its cluster.
    """
    out = course.moves.drain | course.moves.go
    in_rotation = {key for key, one in seen.live.items() if key not in out and seen.answers(one)}
    for key, endpoint in seen.endpoint.items():
        if key not in in_rotation and not is_terminating(endpoint):
            yield delete(endpoint)
    changing = [key for key in course.changed if key in course.moves.go]
    # With a replica too many, the last that would have to change can go instead; unless it is the other that must go.
    leaving = [removal for removal in course.decision.removed if not isinstance(removal.why, ScaledDown)]
    spare = len(seen.live) - len(leaving) - course.decision.desired
    instead = set(course.changed) if 0 < len(course.changed) <= spare else set[Key]()
    removed = {removal.replica.key for removal in course.target.removed} | (instead & set(changing))
    for key, live in seen.live.items():
        if wanted := _rewritten(seen, course, key, live, removed):
            yield Replace(wanted)
    missing = [key for key in course.wanted if key not in seen.live]
    taken = {key_of(one) for one in seen.replicas}
    for key in [key for key in missing if key not in taken][: course.moves.create]:
        yield Create(course.wanted[key])
    for key in sorted(removed & course.moves.go):
        if key in seen.live:
            yield delete(seen.live[key])
    yield from _entering(seen, in_rotation)


def _rewritten(seen: Observed, course: Course, key: Key, live: Manifest, removed: set[Key]) -> Manifest | None:
    """The replica as it is to be stored now: its mark, its labels, and its shape when its turn has come."""
    if key in removed and key in course.moves.go:
        return None
    metadata: Manifest = live["metadata"]
    kept = {name: text for name, text in annotations_of(live).items() if name not in _MARKS}
    wanted = course.wanted.get(key)
    reshaped = wanted is not None and key in course.changed and key in course.moves.go
    marks = {
        labels.DRAINING_SINCE: (annotations_of(live).get(labels.DRAINING_SINCE) or seen.now.isoformat())
        if key in course.moves.drain
        else "",
        labels.HELD_NODES: _held(live, wanted if wanted and reshaped else live),
    }
    annotations = {**kept, **{name: text for name, text in marks.items() if text}}
    named = labels_of(wanted or live)
    rewritten = {
        **live,
        "metadata": {**metadata, "labels": named, "annotations": annotations},
        **({"spec": wanted["spec"]} if wanted and reshaped else {}),
    }
    same = named == labels_of(live) and annotations == annotations_of(live)
    return None if same and not reshaped else rewritten


_MARKS = frozenset({labels.DRAINING_SINCE, labels.HELD_NODES})


def _held(live: Manifest, next_: Manifest) -> str:
    """The nodes that its pods may still be on although its next shape needs fewer; until it is Ready in its shape."""
    if next_ is live and (not annotations_of(live).get(labels.HELD_NODES) or _has_its_shape(live)):
        return ""
    was, is_to_be = (read(ModelReplica.parse(one)) for one in (live, next_))
    return held_nodes(was.charges, charges(is_to_be.engines))


def _has_its_shape(replica: Manifest) -> bool:
    """Whether all of its pods have the shape that its spec says; those before it that still end are in its status."""
    found = condition(replica, Ready.__name__)
    return found.current and found.is_true


def _entering(seen: Observed, in_rotation: Iterable[Key]) -> Iterable[Step]:
    for key in sorted(in_rotation):
        if seen.endpoint.get(key, {}).get("metadata", {}).get("deletionTimestamp"):
            continue  # the one before has to go first
        if seen.terminating and key not in seen.endpoint:
            continue
        live = seen.live[key]
        info = seen.fleet.info(live["spec"]["clusterName"])
        if info is None or not info.cluster.gateway:  # it keeps the endpoint that it has
            continue
        place, cluster = read(ModelReplica.parse(live)).placement, info.cluster
        endpoint = render_endpoint(seen.deployment, place, cluster.gateway, cluster.server_name, cluster.gateway_port)
        # A pause keeps what the user's edits would make of it, and not what somebody has made of an endpoint.
        if not (seen.frozen and seen.endpoint.get(key, {}).get("spec") == endpoint["spec"]):
            yield Apply(endpoint)
