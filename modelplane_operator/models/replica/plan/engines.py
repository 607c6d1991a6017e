"""The engines of a replica as they are on its cluster."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from kubeloop.objects import Manifest, key_of, labels_of, section
from kubeloop.ownership import was_applied
from kubeloop.types import type_of
from kubeloop.words import counted
from modelplane_operator.api import labels, names
from modelplane_operator.models.replica.plan.observed import WORKLOADS, Observed
from modelplane_operator.models.replica.plan.symptoms import is_behind, is_ready, unfinished


@dataclass(frozen=True, slots=True)
class EngineState:
    """One engine as it is on the cluster."""

    name: str
    copies: int
    workload: Manifest | None
    current: bool
    """Whether the workload has been told its present content."""
    pods: Sequence[Manifest]
    """Those that answer requests, on nodes that are ready: the followers of a gang do not."""
    stranded: int = 0
    """How many pods call themselves ready on nodes that are not: what they last said."""

    @property
    def answers(self) -> bool:
        """Whether requests find a pod; right after a change, one of the new content must be there already."""
        if self.workload is None or not self.current or is_behind(self.workload):
            return False
        return bool(section(self.workload, "status").get("updatedReplicas")) and bool(self.pods)

    @property
    def lacks(self) -> str:
        """What is missing of all its copies; empty when nothing is."""
        if self.workload is None:
            return f"engine {self.name}: no workload yet"
        lacks = unfinished(self.workload, self.copies) if self.current else "its workload is being changed"
        if not lacks and self.stranded:
            lacks = f"{counted(self.stranded, 'pod')} on nodes that are not ready"
        return f"engine {self.name}: {lacks}" if lacks else ""


def engines(seen: Observed, rendered: Iterable[Manifest]) -> Sequence[EngineState]:
    workloads = {key_of(child).name: child for child in seen.children if type_of(child) in WORKLOADS}
    wanted = {key_of(manifest).name: manifest for manifest in rendered if type_of(manifest) in WORKLOADS}
    found: list[EngineState] = []
    for engine in seen.replica.spec.engines:
        name = names.workload(seen.replica.metadata.name, engine.name)
        live, present = workloads.get(name), wanted.get(name)
        # What cannot be rendered now leaves the workload as it is, and that is what it is judged by.
        current = live is not None and (present is None or was_applied(live, present))
        ready = [pod for pod in seen.pods if is_ready(pod) and labels_of(pod).get(labels.WORKLOAD) == name]
        pods = [pod for pod in ready if labels.SERVING in labels_of(pod) and seen.runs(pod)]
        stranded = sum(not seen.runs(pod) for pod in ready)
        found.append(EngineState(engine.name, engine.copies, live, current, pods, stranded))
    return found
