"""Compute the steps for a ModelDeployment: its ModelReplicas, and ModelEndpoints for those in rotation."""

from __future__ import annotations

from collections.abc import Iterable

from kubeloop.condition_types import Ready
from kubeloop.conditions import condition
from kubeloop.objects import Key, Manifest, annotations_of, is_terminating, key_of, labels_of
from kubeloop.plan import Apply, Create, Replace, Step, delete
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.deployment.plan.observed import Observed
from modelplane_operator.models.deployment.plan.rollout_plan import RolloutPlan
from modelplane_operator.models.deployment.render import render_endpoint
from modelplane_operator.scheduling.load import load_of
from modelplane_operator.scheduling.placement import read, reserved_nodes


def steps(observed: Observed, rollout_plan: RolloutPlan) -> Iterable[Step]:
    """Yield the steps in order: out of rotation, replicas rewritten, created and removed, into rotation.

    Tenants may edit ModelEndpoints. One that cannot be written must not block replicas that leave their cluster.
    """
    out_of_rotation = rollout_plan.moves.drain | rollout_plan.moves.go
    in_rotation = {
        key for key, replica in observed.live.items() if key not in out_of_rotation and observed.answers(replica)
    }
    for key, endpoint in observed.endpoint.items():
        if key not in in_rotation and not is_terminating(endpoint):
            yield delete(endpoint)
    removed = {removal.replica.key for removal in rollout_plan.target.removed} | rollout_plan.instead
    for key, live in observed.live.items():
        if rewritten := _rewrite(observed, rollout_plan, key, live, removed):
            yield Replace(rewritten)
    missing = [key for key in rollout_plan.desired if key not in observed.live]
    existing = {key_of(replica) for replica in observed.replicas}
    for key in [key for key in missing if key not in existing][: rollout_plan.moves.create]:
        yield Create(rollout_plan.desired[key])
    for key in sorted(removed & rollout_plan.moves.go):
        if key in observed.live:
            yield delete(observed.live[key])
    yield from _apply_endpoints(observed, in_rotation)


def _rewrite(
    observed: Observed, rollout_plan: RolloutPlan, key: Key, live: Manifest, removed: set[Key]
) -> Manifest | None:
    """Return the replica with the annotations, labels and spec to store now, or None if nothing differs.

    Labels and `_OWN_ANNOTATIONS` change at once. The spec changes only once the rollout allows the replica to go.
    """
    if key in removed and key in rollout_plan.moves.go:
        return None
    metadata: Manifest = live["metadata"]
    foreign_annotations = {name: text for name, text in annotations_of(live).items() if name not in _OWN_ANNOTATIONS}
    desired = rollout_plan.desired.get(key)
    reshaped = desired is not None and key in rollout_plan.changed and key in rollout_plan.moves.go
    own_annotations = {
        labels.DRAINING_SINCE: (annotations_of(live).get(labels.DRAINING_SINCE) or observed.now.isoformat())
        if key in rollout_plan.moves.drain
        else "",
        labels.HELD_NODES: _compute_reserved_nodes(observed, live, desired if desired and reshaped else live),
        labels.ROLLING: _rolls_since(observed, rollout_plan, key, live),
    }
    annotations = {**foreign_annotations, **{name: text for name, text in own_annotations.items() if text}}
    new_labels = labels_of(desired or live)
    rewritten = {
        **live,
        "metadata": {**metadata, "labels": new_labels, "annotations": annotations},
        **({"spec": desired["spec"]} if desired and reshaped else {}),
    }
    unchanged = new_labels == labels_of(live) and annotations == annotations_of(live)
    return None if unchanged and not reshaped else rewritten


_OWN_ANNOTATIONS = frozenset({labels.DRAINING_SINCE, labels.HELD_NODES, labels.ROLLING})
"""Annotations that the plan sets and removes. All others on a replica stay as they are."""


def _rolls_since(observed: Observed, rollout_plan: RolloutPlan, key: Key, live: Manifest) -> str:
    """Return since when a replica draws on the budget of disruptions; "" if it does not.

    It does so until it answers with its new pods, so that a rendering that does not work stops the others.
    One that does not answer before does not draw on it.
    """
    since = annotations_of(live).get(labels.ROLLING, "")
    if not observed.answers(live):
        return since
    return since or observed.now.isoformat() if key in rollout_plan.rolling else ""


def _compute_reserved_nodes(observed: Observed, live: Manifest, next_: Manifest) -> str:
    """Return the nodes that a replica's pods may still use although its next spec needs fewer.

    Returns "" once the replica is Ready in its current spec.
    """
    if next_ is live and (
        not annotations_of(live).get(labels.HELD_NODES)
        # Ready shows that all pods have the shape of the spec; the status lists older pods that are still ending.
        or ((ready := condition(live, Ready.__name__)).current and ready.is_true)
    ):
        return ""
    old, new = (read(ModelReplica.parse(replica)) for replica in (live, next_))
    info = observed.fleet.info(old.cluster)
    return reserved_nodes(old.load, load_of(new.engines), info.shared if info else ())


def _apply_endpoints(observed: Observed, in_rotation: Iterable[Key]) -> Iterable[Step]:
    """Yield an Apply of the endpoint of each replica in rotation.

    A deployment that is being deleted gets no new endpoints. A replica keeps its endpoint if its cluster reports no
    gateway.
    """
    for key in sorted(in_rotation):
        if observed.endpoint.get(key, {}).get("metadata", {}).get("deletionTimestamp"):
            continue  # the old endpoint has to be deleted first
        if observed.terminating and key not in observed.endpoint:
            continue
        live = observed.live[key]
        info = observed.fleet.info(live["spec"]["clusterName"])
        if info is None or not info.cluster.gateway:  # the replica keeps its existing endpoint
            continue
        placement, cluster = read(ModelReplica.parse(live)).placement, info.cluster
        endpoint = render_endpoint(
            observed.deployment, placement, cluster.gateway, cluster.server_name, cluster.gateway_port
        )
        # A pause holds back changes of the deployment. It does not preserve edits made to the endpoint itself.
        if not (observed.frozen and observed.endpoint.get(key, {}).get("spec") == endpoint["spec"]):
            yield Apply(endpoint)
