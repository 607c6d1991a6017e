"""Compare the engines of a replica with their workloads and pods on the cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeloop.objects import Manifest, key_of, labels_of, section
from kubeloop.ownership import was_applied
from kubeloop.types import type_of
from kubeloop.words import count_of
from modelplane_operator.api import labels, names
from modelplane_operator.models.replica.plan.observed import WORKLOADS, Observed
from modelplane_operator.models.replica.plan.symptoms import (
    describe_starting,
    describe_unfinished,
    has_rejected_pods,
    is_behind,
    is_ready,
)


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine as it is on the cluster."""

    name: str
    """Name of the engine in the replica's spec."""
    copies: int
    """Number of copies that the spec requests."""
    workload: Manifest | None
    """The Deployment or LeaderWorkerSet of the engine, or None before it exists."""
    current: bool
    """True if the workload was applied with its current content."""
    pods: Sequence[Manifest]
    """Ready pods on ready nodes that serve requests; the followers of a gang do not."""
    stranded: int = 0
    """Number of pods whose last status is ready, on nodes that are not ready."""

    @property
    def answers(self) -> bool:
        """True if requests reach a pod. After a change, a pod of the new content must exist."""
        if self.workload is None or not self.current or is_behind(self.workload):
            return False
        return bool(section(self.workload, "status").get("updatedReplicas")) and bool(self.pods)

    @property
    def lacks(self) -> str:
        """Return what all copies are missing, as a message; "" if nothing."""
        if self.workload is None:
            return f"engine {self.name}: {describe_starting('workload')}"
        missing = describe_unfinished(self.workload, self.copies) if self.current else "its workload is being changed"
        if not missing and self.stranded:
            missing = f"{count_of(self.stranded, 'pod')} on nodes that are not ready"
        return f"engine {self.name}: {missing}" if missing else ""

    @property
    def rejected(self) -> bool:
        """True if the cluster lets the workload make no more pods."""
        return self.workload is not None and has_rejected_pods(self.workload)


def engines(observed: Observed, rendered: Iterable[Manifest]) -> Sequence[EngineState]:
    """Return the state of each engine of the replica."""
    workloads = {key_of(child).name: child for child in observed.children if type_of(child) in WORKLOADS}
    desired = {key_of(manifest).name: manifest for manifest in rendered if type_of(manifest) in WORKLOADS}
    states: list[EngineState] = []
    for engine in observed.replica.spec.engines:
        name = names.workload(observed.replica.metadata.name, engine.name)
        live, desired_workload = workloads.get(name), desired.get(name)
        # An engine that cannot be rendered now keeps its workload, which then counts as current.
        current = live is not None and (desired_workload is None or was_applied(live, desired_workload))
        ready = [pod for pod in observed.pods if is_ready(pod) and labels_of(pod).get(labels.WORKLOAD) == name]
        pods = [pod for pod in ready if labels.SERVING in labels_of(pod) and observed.runs(pod)]
        stranded = sum(not observed.runs(pod) for pod in ready)
        states.append(EngineState(engine.name, engine.copies, live, current, pods, stranded))
    return states
