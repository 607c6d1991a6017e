"""An InferenceClass as it is written: devices that cannot be read, and the nodes that an edit is about."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.verdict import Verdict
from kubeloop.words import counted, listed, sentence
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.clusters.cluster.plan.node_pools import problems, published


def judge(new: InferenceClass, old: InferenceClass | None, users: Mapping[str, int]) -> Verdict:
    """`users`: the clusters with pools of the class, and their nodes in these."""
    known = frozenset(problems(published(old))) if old else frozenset[str]()
    if wrong := [found for found in problems(published(new)) if found not in known]:
        return Verdict(tuple(map(sentence, wrong)))
    if not users or old is None or new.spec.devices == old.spec.devices:
        return Verdict()
    nodes = counted(sum(users.values()), "node")
    told = f"{nodes} of {counted(len(users), 'cluster')} would have these devices at once: {listed(sorted(users))}"
    return Verdict(warnings=(sentence(told, "replicas there that no longer fit are moved where others take them"),))
