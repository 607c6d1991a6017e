"""A ModelCache as it is written: whether any cluster would keep it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from kubeloop.verdict import NOTHING, Verdict
from kubeloop.words import counted, sentence
from modelplane_operator.api.model_cache import ModelCache


def judge(new: ModelCache, old: ModelCache | None, clusters: Iterable[Mapping[str, str]]) -> Verdict:
    """`clusters`: the labels of each."""
    selector = new.spec.cluster_selector
    wanted = selector.match_labels if selector else {}
    there = tuple(clusters)
    unchanged = old is not None and old.spec.cluster_selector == selector
    if unchanged or any(wanted.items() <= carried.items() for carried in there):
        return NOTHING
    asked = ",".join(f"{name}={value}" for name, value in sorted(wanted.items()))
    words = (
        f"none of {counted(len(there), 'InferenceCluster')} has the labels {asked}" if asked else "no cluster is there"
    )
    return Verdict(warnings=(sentence(f"the model would be staged nowhere: {words}"),))
