"""Track free nodes: the nodes of a cluster, minus the ones that replicas take."""

from collections.abc import Mapping
from dataclasses import dataclass, replace

from modelplane_operator.scheduling.cluster import ClusterView


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster and the number of free nodes of its pools, in their order.

    The number is negative if a pool has shrunk.
    """

    cluster: ClusterView
    """Cluster with its pools."""
    free: tuple[int, ...]
    """Number of free nodes of each pool."""

    @classmethod
    def of(cls, cluster: ClusterView, used: Mapping[str, int]) -> "ClusterInfo":
        """Return the free nodes of a cluster. A pool that the cluster does not publish is not charged."""
        pools = cluster.pools
        return cls(cluster, tuple(n - used.get(name, 0) for name, n in zip(pools.names, pools.nodes, strict=True)))

    def charge(self, nodes: Mapping[str, int]) -> "ClusterInfo":
        """Return the info with these nodes, by pool, taken as well."""
        names = self.cluster.pools.names
        return replace(self, free=tuple(n - nodes.get(name, 0) for name, n in zip(names, self.free, strict=True)))

    def release(self, nodes: Mapping[str, int]) -> "ClusterInfo":
        """Return the info with these nodes, by pool, free again."""
        return self.charge({pool: -count for pool, count in nodes.items()})

    def free_in(self, pool: str) -> int:
        """Return the number of free nodes of a published pool."""
        return self.free[self.cluster.pools.names.index(pool)]
