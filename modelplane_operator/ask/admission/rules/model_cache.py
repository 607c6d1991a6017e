"""Review a ModelCache: does its selector match any cluster?"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeloop.verdict import NOTHING, Verdict
from kubeloop.words import count_of, sentence
from modelplane_operator.api.model_cache import ModelCache


def judge(new: ModelCache, old: ModelCache | None, clusters: Iterable[Mapping[str, str]]) -> Verdict:
    """Return the verdict. `clusters` are the labels of each InferenceCluster."""
    selector = new.spec.cluster_selector
    match_labels = selector.match_labels if selector else {}
    existing = tuple(clusters)
    unchanged = old is not None and old.spec.cluster_selector == selector
    if unchanged or any(match_labels.items() <= cluster_labels.items() for cluster_labels in existing):
        return NOTHING
    selector_text = ",".join(f"{name}={value}" for name, value in sorted(match_labels.items()))
    reason = (
        f"none of {count_of(len(existing), 'InferenceCluster')} has the labels {selector_text}"
        if selector_text
        else "no cluster is there"
    )
    return Verdict(warnings=(sentence(f"the model would be staged nowhere: {reason}"),))
