"""Find the nodes on which pods do not run or are not scheduled, and describe them in messages."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, entries, labels_of, section
from kubeloop.remote_messages import is_formed, sanitize
from kubeloop.words import list_names
from modelplane_operator.api import labels

MAX_NAMES = 3  # the message says how many more there are
"""Number of nodes that a message names."""


def describe_not_ready(node: Manifest) -> str:
    """Return since when and for what reason a node is not ready, as a message; "" while it is ready."""
    ready = condition(node, "Ready")
    if ready.is_true:
        return ""
    changed_at, reason = ready.last_transition_time, sanitize(ready.reason)
    since_text = f" since {changed_at}" if is_formed("lastTransitionTime", changed_at) else ""
    return f"is not ready{since_text}{f' ({reason})' if reason else ''}"


def unfit(node: Manifest) -> str:
    """Return why no further pods are scheduled on a node, as a message; "" if they are."""
    return describe_not_ready(node) or ("is cordoned" if section(node, "spec").get("unschedulable") else "")


@dataclass(frozen=True)
class Unfit:
    """The nodes of a cluster's pools that are not ready or are cordoned."""

    nodes: tuple[Manifest, ...] = ()
    """Nodes that are not ready or are cordoned."""

    @cached_property
    def _not_ready(self) -> dict[str, str]:
        """Return the reason of each node that is not ready, by name."""
        return {node["metadata"]["name"]: message for node in self.nodes if (message := describe_not_ready(node))}

    def under(self, pod: Manifest) -> str:
        """Return the node of a pod and since when it is not ready; "" if it is ready.

        The pod's last status is then stale.
        """
        name = section(pod, "spec").get("nodeName", "")
        return f"node {name}, which {self._not_ready[name]}" if name in self._not_ready else ""

    def describe_cordoned(self, pods: Iterable[Manifest]) -> str:
        """Return a message that names the cordoned nodes of these pods; "" without any.

        A pod that ends on such a node needs another node for its successor.
        """
        used: set[str] = {section(pod, "spec").get("nodeName", "") for pod in pods}
        cordoned: set[str] = {
            node["metadata"]["name"] for node in self.nodes if section(node, "spec").get("unschedulable")
        }
        names = sorted(cordoned & used)
        is_plural = len(names) > 1
        listed_names = list_names(names, MAX_NAMES)
        description = f"node{'s' if is_plural else ''} {listed_names}, which {'are' if is_plural else 'is'} cordoned"
        return f"pods of the replica are on {description}" if names else ""

    def describe_taints(self, pod: Manifest) -> str:
        """Return the unfit nodes of a pending pod's pool, as a message."""
        pool = section(pod, "spec", "nodeSelector").get(labels.POOL)
        messages = [
            f"node {name} {reason}"
            for node in (self.nodes if pool else ())
            if labels_of(node).get(labels.POOL) == pool
            and is_formed("name", name := node["metadata"]["name"])
            and (reason := unfit(node))
        ]
        return list_names(sorted(messages), MAX_NAMES)


def pools_of(spec: Manifest) -> Iterable[str]:
    """Return the names of the pools that the engines of a ModelReplica use."""
    return {
        member.get("nodePoolName", "") for engine in entries(spec, "engines") for member in entries(engine, "members")
    }
