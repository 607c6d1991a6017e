"""What is kept of nodes and of what their drivers publish: among little else, which fabric they are on."""

from __future__ import annotations

from dataclasses import dataclass, field

from kubeloop.cache.informer import Informer
from kubeloop.cache.watches import Watched
from kubeloop.objects import Key, Manifest, entries, section
from kubeloop.resource import of
from kubeloop.types import NODE, RESOURCE_SLICE
from modelplane_operator.api import InferenceCluster, labels
from modelplane_operator.clusters.cluster.plan.hardware import cut_node, cut_slice


@dataclass(slots=True)
class Fabrics:
    """The labels that pools name. One that is new is kept of a node when there is news of it: every few minutes."""

    _named: dict[Key, frozenset[str]] = field(default_factory=dict[Key, frozenset[str]], init=False)
    _all: frozenset[str] = field(default=frozenset(), init=False)

    def listen(self, informer: Informer) -> None:
        if informer.type == of(InferenceCluster):
            informer.subscribe(self._cluster)

    def watched(self) -> tuple[Watched, ...]:
        """How nodes of pools and ResourceSlices are watched, for all controllers that read them."""
        return Watched(NODE, labels.POOL, keeping=self.cut_node), Watched(RESOURCE_SLICE, None, keeping=cut_slice)

    def cut_node(self, node: Manifest) -> Manifest:
        return cut_node(node, self._all)

    def _cluster(self, key: Key, _: Manifest | None, new: Manifest | None) -> None:
        pools = entries(new or {}, "spec", "nodePools")
        named = frozenset(name for pool in pools if isinstance(name := section(pool, "fabric").get("topologyKey"), str))
        if named == self._named.get(key, frozenset()):
            return
        if named:
            self._named[key] = named
        else:
            del self._named[key]
        self._all = frozenset[str]().union(*self._named.values())
