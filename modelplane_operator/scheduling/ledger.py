"""Track what is free: the nodes of a cluster, minus the ones that replicas take; of a shared pool, their devices."""

from collections.abc import Iterable
from dataclasses import dataclass

from modelplane_operator.scheduling.cluster import ClusterView
from modelplane_operator.scheduling.load import Load
from modelplane_operator.scheduling.room import PodsOn, Room


@dataclass(frozen=True, slots=True)
class ClusterInfo:
    """A cluster and the number of free nodes of its pools, in their order.

    The number is negative if a pool has shrunk.
    """

    cluster: ClusterView
    """Cluster with its pools."""
    free: tuple[int, ...]
    """Number of free nodes of each pool; of a shared pool, the nodes without pods."""
    rooms: tuple[Room | None, ...] = ()
    """Room of each shared pool, None for the others; empty when no pool is shared."""

    @classmethod
    def of(cls, cluster: ClusterView, used: Load) -> "ClusterInfo":
        """Return what is free on a cluster. A pool that the cluster does not publish is not charged."""
        pools = cluster.pools
        free = tuple(n - used.nodes.get(name, 0) for name, n in zip(pools.names, pools.nodes, strict=True))
        if not pools.shared:
            return cls(cluster, free)
        rooms = tuple(
            Room.of(node, nodes, _in_pool(name, used)) if node else None
            for name, node, nodes in zip(pools.names, pools.shared, pools.nodes, strict=True)
        )
        free = tuple(room.free_nodes if room else n for n, room in zip(free, rooms, strict=True))
        return cls(cluster, free, rooms)

    def charge(self, load: Load) -> "ClusterInfo":
        """Return the info with this load as well."""
        names = self.cluster.pools.names
        if not self.rooms:
            free = tuple(n - load.nodes.get(name, 0) for name, n in zip(names, self.free, strict=True))
            return ClusterInfo(self.cluster, free)
        free, rooms = list(self.free), list(self.rooms)
        for index, name in enumerate(names):  # few of the pools: a room takes time to plan
            if name in load.nodes:
                room = rooms[index]
                rooms[index] = room = room.charge(_in_pool(name, load)) if room else None
                free[index] = room.free_nodes if room else free[index] - load.nodes[name]
        return ClusterInfo(self.cluster, tuple(free), tuple(rooms))

    def release(self, load: Load) -> "ClusterInfo":
        """Return the info without this load."""
        return self.charge(-load)

    def free_in(self, pool: str) -> int:
        """Return the number of free nodes of a published pool."""
        return self.free[self.cluster.pools.names.index(pool)]

    def room_in(self, pool: str) -> Room | None:
        """Return the room of a pool that is shared; None for another."""
        return dict(zip(self.cluster.pools.names, self.rooms, strict=False)).get(pool)

    @property
    def shared(self) -> frozenset[str]:
        """Names of the pools that are shared by device."""
        return frozenset(name for name, room in zip(self.cluster.pools.names, self.rooms, strict=False) if room)

    def has_room(self, load: Load) -> bool:
        """True if the published pools of a load have room for it."""
        return all(
            room.fits(load.pods_in(pool)) if (room := self.room_in(pool)) else nodes <= self.free_in(pool)
            for pool, nodes in load.nodes.items()
        )

    def needs_more(self, old: Load, new: Load) -> bool:
        """True if the new load needs something that the old one does not have."""
        return any(
            new.count_more_pods(old, pool) > 0 if self.room_in(pool) else nodes > old.nodes.get(pool, 0)
            for pool, nodes in new.nodes.items()
        )


def _in_pool(pool: str, load: Load) -> Iterable[tuple[PodsOn, int]]:
    """Return the pods of a load in one pool."""
    return [(pods, number) for pods, number in load.pods.items() if pods.pool == pool]
