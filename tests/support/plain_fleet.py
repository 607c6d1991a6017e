"""The fleet without any cleverness: what the fleet model must agree with, written to be read.

It asks every cluster every time, and counts free nodes from the list of all replicas.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from modelplane_operator.scheduling.cluster import ClusterView
from modelplane_operator.scheduling.decision import tally
from modelplane_operator.scheduling.ledger import ClusterInfo
from modelplane_operator.scheduling.load import Load
from modelplane_operator.scheduling.placement import Replica
from modelplane_operator.scheduling.requirement import Requirement
from modelplane_operator.scheduling.room import PodsOn
from modelplane_operator.scheduling.survey import Fit, Survey, answer, refuse


@dataclass(frozen=True)
class PlainFleet:
    clusters: tuple[ClusterView, ...]
    known: tuple[Replica, ...]

    @classmethod
    def of(cls, clusters: Iterable[ClusterView], replicas: Iterable[Replica] = ()) -> PlainFleet:
        return cls(tuple(clusters), tuple(replicas))

    @property
    def size(self) -> int:
        return len(self.clusters)

    def info(self, cluster: str) -> ClusterInfo | None:
        loads = [replica.load for replica in self.known if replica.cluster == cluster]
        nodes = sum((Counter(load.nodes) for load in loads), Counter[str]())
        used = Load(nodes, sum((Counter(load.pods) for load in loads), Counter[PodsOn]()))
        return next((ClusterInfo.of(found, used) for found in self.clusters if found.name == cluster), None)

    def replicas(self, namespace: str, deployment: str) -> tuple[Replica, ...]:
        named = (r for r in self.known if (r.owner.namespace, r.owner.name) == (namespace, deployment))
        return tuple(sorted(named, key=lambda replica: replica.key))

    def survey(self, requirement: Requirement, *, limit: int, apart: frozenset[str]) -> Survey:
        infos = [self.info(cluster.name) for cluster in self.clusters if cluster.name not in apart]
        asked = [(info, answer(requirement, info)) for info in infos if info is not None]
        fitting = [(found.rank, info.cluster.name, info) for info, found in asked if isinstance(found, Fit)]
        refused = [refuse(info, found) for info, found in asked if not isinstance(found, Fit)]
        return Survey(
            candidates=tuple(info for *_, info in sorted(fitting, key=lambda row: row[:2]))[:limit],
            fitting=len(fitting),
            refusals=tally((), refused),
        )
