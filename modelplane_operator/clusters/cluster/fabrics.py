"""Watches of nodes and ResourceSlices that keep only the fields in use, with the labels that identify fabrics."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeloop.cache.informer import Informer
from kubeloop.cache.watches import Watched
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.resource import of
from kubeloop.types import NODE, RESOURCE_SLICE
from modelplane_operator.api import InferenceCluster, labels
from modelplane_operator.clusters.cluster.plan.hardware import prune_node, prune_slice


@dataclass(slots=True)
class Fabrics:
    """The fabric labels that the pools of all clusters declare.

    A new label is read from a node at the node's next event, within minutes.
    """

    _labels: dict[Key, frozenset[str]] = field(default_factory=dict[Key, frozenset[str]], init=False)
    """Declared labels by InferenceCluster."""
    _all: frozenset[str] = field(default=frozenset(), init=False)
    """All declared labels."""

    def add_event_handlers(self, informer: Informer) -> None:
        """Subscribe to the informer of InferenceClusters."""
        if informer.type == of(InferenceCluster):
            informer.subscribe(self._on_cluster)

    def watches(self) -> tuple[Watched, ...]:
        """Return the watches of pool nodes and ResourceSlices, for all controllers that read them."""
        return Watched(NODE, labels.POOL, keeping=self.prune_node), Watched(RESOURCE_SLICE, None, keeping=prune_slice)

    def prune_node(self, node: Manifest) -> Manifest:
        """Return a node with only the fields in use, as the informer keeps it."""
        return prune_node(node, self._all)

    def _on_cluster(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        """Update the declared labels by the pools of a cluster."""
        pools = entries(new or {}, "spec", "nodePools")
        declared = frozenset(
            name for pool in pools if isinstance(name := section(pool, "fabric").get("topologyKey"), str)
        )
        if declared == self._labels.get(key, frozenset()):
            return
        if declared:
            self._labels[key] = declared
        else:
            del self._labels[key]
        self._all = frozenset[str]().union(*self._labels.values())
