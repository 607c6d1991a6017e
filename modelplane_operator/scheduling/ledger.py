"""Free nodes: what a cluster has, less what replicas take."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from modelplane_operator.scheduling.cluster import ClusterView


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster and the free nodes of its pools, in their order. Free is negative where a pool has shrunk since."""

    cluster: ClusterView
    free: tuple[int, ...]

    @classmethod
    def of(cls, cluster: ClusterView, used: Mapping[str, int]) -> "ClusterInfo":
        """A pool that the cluster does not publish is charged nothing."""
        pools = cluster.pools
        return cls(cluster, tuple(n - used.get(name, 0) for name, n in zip(pools.names, pools.nodes, strict=True)))

    def charged(self, nodes: Mapping[str, int]) -> "ClusterInfo":
        """The info once these nodes, by pool, are taken too."""
        names = self.cluster.pools.names
        return replace(self, free=tuple(n - nodes.get(name, 0) for name, n in zip(names, self.free, strict=True)))

    def released(self, nodes: Mapping[str, int]) -> "ClusterInfo":
        """The info once these nodes, by pool, are free again."""
        return self.charged({pool: -count for pool, count in nodes.items()})

    def free_in(self, pool: str) -> int:
        """Free nodes of a pool that the cluster publishes."""
        return self.free[self.cluster.pools.names.index(pool)]
