"""Review an InferenceClass: unreadable devices, and the nodes that an edit affects."""

from __future__ import annotations

from collections.abc import Mapping

from kubeloop.verdict import Verdict
from kubeloop.words import count_of, list_names, sentence
from modelplane_operator.api.inference_class import InferenceClass
from modelplane_operator.clusters.cluster.plan.node_pools import problems, publish_devices


def judge(new: InferenceClass, old: InferenceClass | None, users: Mapping[str, int]) -> Verdict:
    """Return the verdict.

    `users` are the clusters with pools of the class, and the number of their nodes in them.
    """
    old_problems = frozenset(problems(publish_devices(old))) if old else frozenset[str]()
    if new_problems := [issue for issue in problems(publish_devices(new)) if issue not in old_problems]:
        return Verdict(tuple(map(sentence, new_problems)))
    if not users or old is None or new.spec.devices == old.spec.devices:
        return Verdict()
    nodes = count_of(sum(users.values()), "node")
    consequence = (
        f"{nodes} of {count_of(len(users), 'cluster')} would have these devices at once: {list_names(sorted(users))}"
    )
    return Verdict(
        warnings=(sentence(consequence, "replicas there that no longer fit are moved where others take them"),)
    )
