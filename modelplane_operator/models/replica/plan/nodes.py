"""Nodes on which pods do not run, or get no more: which, and in which words that is told."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, entries, labels_of, section
from kubeloop.remote_messages import is_formed, worded
from kubeloop.words import listed
from modelplane_operator.api import labels

NAMED = 3  # nodes that a message names


def why_not_ready(node: Manifest) -> str:
    """Since when a node is not ready, and the reason that it gives; empty while it is ready."""
    ready = condition(node, "Ready")
    if ready.is_true:
        return ""
    moment, reason = ready.last_transition_time, worded(ready.reason)
    since = f" since {moment}" if is_formed("lastTransitionTime", moment) else ""
    return f"is not ready{since}{f' ({reason})' if reason else ''}"


def unfit(node: Manifest) -> str:
    """Why no more pods are put on a node; empty when they are."""
    return why_not_ready(node) or ("is cordoned" if section(node, "spec").get("unschedulable") else "")


@dataclass(frozen=True)
class Unfit:
    """The nodes of a cluster's pools that are not ready or are cordoned."""

    nodes: tuple[Manifest, ...] = ()

    @cached_property
    def _down(self) -> dict[str, str]:
        return {node["metadata"]["name"]: words for node in self.nodes if (words := why_not_ready(node))}

    def under(self, pod: Manifest) -> str:
        """The node of a pod, and since when it is not ready: what it last said of the pod counts no more."""
        name = section(pod, "spec").get("nodeName", "")
        return f"node {name}, which {self._down[name]}" if name in self._down else ""

    def cordoned(self, pods: Iterable[Manifest]) -> str:
        """The cordoned nodes that pods run on: once one ends, its successor needs another node."""
        used: set[str] = {section(pod, "spec").get("nodeName", "") for pod in pods}
        cordoned: set[str] = {
            node["metadata"]["name"] for node in self.nodes if section(node, "spec").get("unschedulable")
        }
        found = sorted(cordoned & used)
        many = len(found) > 1
        words = f"node{'s' if many else ''} {listed(found, NAMED)}, which {'are' if many else 'is'} cordoned"
        return f"pods of the replica are on {words}" if found else ""

    def kept_from(self, pod: Manifest) -> str:
        """The nodes of its pool on which a pod without a node is not put."""
        pool = section(pod, "spec", "nodeSelector").get(labels.POOL)
        return listed(sorted(self._of(pool)) if pool else (), NAMED)

    def _of(self, pool: str) -> Iterator[str]:
        for node in self.nodes:
            name = node["metadata"]["name"]
            if labels_of(node).get(labels.POOL) == pool and is_formed("name", name) and (words := unfit(node)):
                yield f"node {name} {words}"


def pools_of(spec: Manifest) -> Iterable[str]:
    """The pools that the engines of a ModelReplica are on."""
    return {
        member.get("nodePoolName", "") for engine in entries(spec, "engines") for member in entries(engine, "members")
    }
