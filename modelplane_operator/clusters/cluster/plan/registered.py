"""A cluster that may have been brought under another name before.

Two that look alike are told apart by a mark: the first writes the uids of the others on its cluster, and whoever finds
its own there has the same cluster. A hint alone is no proof: a cluster that was restored from another's backup looks
like that one.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from kubeloop.objects import Manifest, is_terminating, key_of
from kubeloop.plan import Apply, Delete, Plan, delete
from kubeloop.types import SECRET, type_of
from modelplane_operator.api.inference_cluster import ClusterReady, InferenceClusterStatus, ObservedCluster
from modelplane_operator.clusters.cluster.plan.observed import SWEEP, ClusterState, Observed
from modelplane_operator.clusters.cluster.plan.out_of_reach import waiting
from modelplane_operator.clusters.cluster.registration import mark_key, render_mark

ASK_AGAIN = 1.0  # until the other one's mark can have been written: no event tells of it


def only_once(seen: Observed, state: ClusterState) -> Plan | None:
    """What to do while it is another InferenceCluster's, or may be; else None. What is placed there stays."""
    known = state.registered
    if known.first:
        words = (
            f"{seen.named} is the same cluster as InferenceCluster {known.first}, so that nothing is made there for "
            "this one: delete one of the two"
        )
        return _without_service(seen, state, ClusterReady.REGISTERED_TWICE, words, requeue_after=SWEEP)
    if known.unsure:
        words = f"{seen.named} may be the same cluster as InferenceCluster {known.unsure}, which is being found out"
        return _without_service(seen, state, ClusterReady.IDENTIFYING, words, requeue_after=ASK_AGAIN)
    return None


def marks(seen: Observed, state: ClusterState) -> Sequence[Apply | Delete]:
    """Tell the others, while there are any. Last of all: it is to keep nothing else from being done."""
    mark, cluster = mark_of(seen, state.children), seen.cluster.metadata.name
    if not state.registered.later:
        gone = mark is None or is_terminating(mark)
        return () if mark is None or gone else (delete(mark, cluster=cluster),)
    if not state.registered.home or SECRET in state.forbidden:
        return ()
    return (Apply(render_mark(seen.cluster, state.registered.later), cluster),)


def mark_of(seen: Observed, children: Iterable[Manifest]) -> Manifest | None:
    """This one's mark, of what we made there for it."""
    wanted = SECRET, mark_key(seen.cluster.metadata.uid or "")
    return next((one for one in children if (type_of(one), key_of(one)) == wanted), None)


def _without_service(
    seen: Observed, state: ClusterState, reason: ClusterReady, words: str, *, requeue_after: float
) -> Plan:
    decided = waiting(seen, reason, words)
    status = decided.status
    if isinstance(status, InferenceClusterStatus):
        observed = (status.observed or ObservedCluster()).model_copy(update={"identity": state.registered.identity})
        status = status.model_copy(update={"observed": observed})
    return replace(decided, status=status, requeue_after=requeue_after)
