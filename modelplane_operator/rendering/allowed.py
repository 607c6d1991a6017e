"""What of a pod template a cluster allows: the rest is left out, and what is left out has a name and a way to allow it.

Annotations and labels steer whoever reads them: service meshes, networks, autoscalers, injectors of secrets. So those
that are harmless are let through, and what else is wanted is for the platform team to say, on its InferenceCluster.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from modelplane_operator.api.inference_cluster import InferenceCluster, PodIsolation
from modelplane_operator.api.shared import PodMetadata, PodSpec, PodTemplate, in_bytes

# Kubernetes presumes that keys without a prefix are their user's own, so that nothing acts on them.
ANNOTATIONS: Final = ("app.kubernetes.io/", "kubectl.kubernetes.io/", "prometheus.io/")
LABELS: Final = ("app.kubernetes.io/",)
SHARED_MEMORY: Final = "32Gi"  # engines pass tensors by it; what nobody puts there costs nothing


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """Something that a pod template asks for and its cluster does not allow."""

    what: str
    setting: str
    """The field of `spec.isolation.pods` that would allow it."""

    def __str__(self) -> str:
        return f"{self.what} ({self.setting})"


def isolation_of(cluster: InferenceCluster | None) -> PodIsolation:
    """What pods may have there."""
    isolation = cluster.spec.isolation if cluster else None
    return (isolation.pods if isolation else None) or PodIsolation()


def allowed(template: PodTemplate, may: PodIsolation) -> PodTemplate:
    """The template as its cluster allows it, with what the operator decides where it is silent."""
    metadata, spec = template.metadata, template.spec
    return template.model_copy(
        update={
            **({"metadata": _metadata(metadata, may)} if metadata else {}),
            **({"spec": _spec(spec, may)} if spec else {}),
        }
    )


def left_out(template: PodTemplate, may: PodIsolation) -> Iterator[LeftOut]:
    """What is not in the allowed template."""
    if metadata := template.metadata:
        for what, setting, given, own, more in (
            ("annotation", "allowedAnnotations", metadata.annotations, ANNOTATIONS, may.allowed_annotations),
            ("label", "allowedLabels", metadata.labels, LABELS, may.allowed_labels),
        ):
            yield from (LeftOut(f"{what} {key}", setting) for key in given if not _may_have(key, (*own, *more)))
    size = template.spec.shared_memory_size if template.spec else None
    if size and in_bytes(size) > in_bytes(may.max_shared_memory):
        yield LeftOut(f"what sharedMemorySize {size} is above {may.max_shared_memory}", "maxSharedMemory")


def _metadata(metadata: PodMetadata, may: PodIsolation) -> PodMetadata:
    annotations = _allowed(metadata.annotations, (*ANNOTATIONS, *may.allowed_annotations))
    labels = _allowed(metadata.labels, (*LABELS, *may.allowed_labels))
    given = {"annotations": annotations, "labels": labels}
    return PodMetadata.model_validate({name: value for name, value in given.items() if value})


def _spec(spec: PodSpec, may: PodIsolation) -> PodSpec:
    size = min(spec.shared_memory_size or SHARED_MEMORY, may.max_shared_memory, key=in_bytes)
    return spec.model_copy(update={"shared_memory_size": size})


def _allowed(given: Mapping[str, str], entries: Iterable[str]) -> dict[str, str]:
    known = tuple(entries)
    return {key: value for key, value in given.items() if _may_have(key, known)}


def _may_have(key: str, entries: Iterable[str]) -> bool:
    prefix, slash, _ = key.partition("/")
    return not slash or any(entry in {key, f"{prefix}/"} for entry in entries)
