"""What of a pod template a cluster allows: the rest is left out, and what is left out has a name and a way to allow it.

Annotations and labels steer whoever reads them: service meshes, networks, autoscalers, injectors of secrets. An
account, a capability or a toleration gives a pod what is not its own. So what is harmless is let through, and what else
is wanted is for the platform team to say, on its InferenceCluster.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from modelplane_operator.api.engines import Serving
from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.isolation import PodIsolation
from modelplane_operator.api.pods import (
    Capabilities,
    Capability,
    Container,
    ContainerSecurity,
    PodMetadata,
    PodSpec,
    PodTemplate,
)
from modelplane_operator.api.shared import in_bytes

# Kubernetes presumes that keys without a prefix are their user's own. These are not: Services select by `app`, and by
# the other a pod gets an identity of Azure.
TAKEN_LABELS: Final = ("aadpodidbinding", "app")
ANNOTATIONS: Final = ("app.kubernetes.io/", "kubectl.kubernetes.io/", "prometheus.io/")
LABELS: Final = ("app.kubernetes.io/",)
# Every runtime gives these by default, and they end where the container does: for images that change users or owners.
CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
# Whoever claims an accelerator is meant to tolerate its taint; a pod is on its own pool's nodes in any case.
TOLERATIONS: Final = ("amd.com/gpu", "aws.amazon.com/neuron", "google.com/tpu", "habana.ai/gaudi", "nvidia.com/gpu")
# By these, runtimes of NVIDIA, AMD, Habana and AWS give a container devices of its node, whatever it has claimed. What
# libraries read within it, such as CUDA_VISIBLE_DEVICES, only makes fewer of those that are there.
DEVICE_VARIABLES: Final = (
    "AMD_VISIBLE_DEVICES",
    "AWS_NEURON_VISIBLE_DEVICES",
    "HABANA_VISIBLE_DEVICES",
    "NVIDIA_GDRCOPY",
    "NVIDIA_GDS",
    "NVIDIA_IMEX_CHANNELS",
    "NVIDIA_MOFED",
    "NVIDIA_NVSWITCH",
    "NVIDIA_VISIBLE_DEVICES",
)
DEVICE_PREFIXES: Final = ("DOCKER_RESOURCE_", "NVIDIA_MIG_")
# What clients call of an engine: the APIs of OpenAI, Anthropic, Cohere, KServe and Hugging Face, and those of vLLM,
# SGLang and llama.cpp that answer with a model. Their other routes are for whoever runs the engine.
API_PATHS: Final = (
    *(
        "/v1",
        "/v2/chat",
        "/v2/embed",
        "/v2/health",
        "/v2/rerank",
        "/health",
        "/ping",
        "/rerank",
        "/reranking",
        "/score",
        "/classify",
        "/pooling",
        "/embed",
    ),
    *("/embedding", "/embeddings", "/tokenize", "/detokenize", "/invocations", "/inference", "/generate"),
    *("/generate_stream", "/encode", "/completion", "/completions", "/chat", "/infill", "/apply-template", "/predict"),
)
# KServe's, of which Triton has more than clients need: to load and unload models, share memory, and trace.
KSERVE_PATHS: Final = "v2(/models/[^/]+(/versions/[^/]+)?(/(ready|infer|generate|generate_stream))?)?"
SHARED_MEMORY: Final = "32Gi"  # engines pass tensors by it; what nobody puts there costs nothing


@dataclass(frozen=True, slots=True, order=True)
class LeftOut:
    """Something that a pod template asks for and its cluster does not allow."""

    what: str
    setting: str
    """The field of `spec.isolation.pods` that would allow it."""

    def __str__(self) -> str:
        return f"{self.what} ({self.setting})"


class _Asked(NamedTuple):
    """What a template asks for of one kind, and what its cluster has of that."""

    what: str
    setting: str
    names: Iterable[str | None]
    granted: Collection[str]


def isolation_of(cluster: InferenceCluster | None) -> PodIsolation:
    """What pods may have there."""
    isolation = cluster.spec.isolation if cluster else None
    return (isolation.pods if isolation else None) or PodIsolation()


def left_out(template: PodTemplate, may: PodIsolation) -> Iterator[LeftOut]:
    """What the template asks for and does not get."""
    for asked in (*_of_metadata(template, may), *_of_spec(template, may)):
        for name in asked.names:
            if name and not _is_granted(name, asked.granted):
                yield LeftOut(f"{asked.what} {name}", asked.setting)
    size = template.spec.shared_memory_size if template.spec else None
    if size and in_bytes(size) > in_bytes(may.max_shared_memory):
        yield LeftOut(f"what sharedMemorySize {size} is above {may.max_shared_memory}", "maxSharedMemory")


def paths_left_out(serving: Serving | None, may: PodIsolation) -> Iterator[LeftOut]:
    """Yield the paths that a deployment wants clients to call, and its cluster does not allow."""
    for path in serving.paths if serving else ():
        if not any(_is_below(path, prefix) for prefix in (*API_PATHS, *may.allowed_paths)):
            yield LeftOut(f"path {path}", "allowedPaths")


def allowed_serving(serving: Serving, may: PodIsolation) -> Serving:
    """Return `serving` with the paths that the cluster allows."""
    refused = {left.what for left in paths_left_out(serving, may)}
    paths = tuple(path for path in serving.paths if f"path {path}" not in refused)
    return serving if paths == serving.paths else serving.model_copy(update={"paths": paths})


def open_paths(added: Iterable[str]) -> str:
    """Return the expression that matches the paths that clients may call of an engine, without their first slash."""
    if "/" in added:
        return ".*"
    below = "|".join(dict.fromkeys(path.strip("/") for path in (*API_PATHS, *added)))
    return f"(({below})(/.*)?|{KSERVE_PATHS})"


def _is_below(path: str, prefix: str) -> bool:
    return f"{path.rstrip('/')}/".startswith(f"{prefix.rstrip('/')}/")


def _of_metadata(template: PodTemplate, may: PodIsolation) -> Iterator[_Asked]:
    if given := template.metadata:
        annotations = [key for key in given.annotations if "/" in key]
        labels = [key for key in given.labels if "/" in key or key in TAKEN_LABELS]
        yield _Asked(_ANNOTATION, "allowedAnnotations", annotations, (*ANNOTATIONS, *may.allowed_annotations))
        yield _Asked(_LABEL, "allowedLabels", labels, (*LABELS, *may.allowed_labels))


def _of_spec(template: PodTemplate, may: PodIsolation) -> Iterator[_Asked]:
    if (spec := template.spec) is None:
        return
    capabilities = [name for container in spec.containers for name in _capabilities(container)]
    variables = [one.name for container in spec.containers for one in container.env if _gives_devices(one.name)]
    tolerated = [toleration.key for toleration in spec.tolerations]
    classes = [volume.storage_class_name for volume in spec.ephemeral_volumes]
    granted = may.allowed_service_accounts
    yield _Asked(_CAPABILITY, "allowedCapabilities", capabilities, (*CAPABILITIES, *may.allowed_capabilities))
    yield _Asked(_VARIABLE, "allowedVariables", variables, may.allowed_variables)
    yield _Asked(_SERVICE_ACCOUNT, "allowedServiceAccounts", [spec.service_account_name], granted)
    yield _Asked(_PRIORITY_CLASS, "allowedPriorityClasses", [spec.priority_class_name], may.allowed_priority_classes)
    yield _Asked(_TOLERATION, "allowedTolerations", tolerated, (*TOLERATIONS, *may.allowed_tolerations))
    yield _Asked(_VOLUME, "allowedStorageClasses", classes, may.allowed_storage_classes)
    yield _Asked(_SECCOMP, "allowedSeccompProfiles", [_seccomp(spec)], may.allowed_seccomp_profiles)


_ANNOTATION, _LABEL = "annotation", "label"
_CAPABILITY, _SERVICE_ACCOUNT, _PRIORITY_CLASS = "capability", "ServiceAccount", "PriorityClass"
_TOLERATION, _VOLUME, _SECCOMP = "toleration of", "volumes of StorageClass", "seccomp profile"
_VARIABLE = "variable"


def _gives_devices(variable: str) -> bool:
    return variable in DEVICE_VARIABLES or variable.startswith(DEVICE_PREFIXES)


def _capabilities(container: Container) -> tuple[Capability, ...]:
    security = container.security_context
    return security.capabilities.add if security and security.capabilities else ()


def _seccomp(spec: PodSpec) -> str | None:
    security = spec.security_context
    return security.seccomp_profile.localhost_profile if security and security.seccomp_profile else None


def _is_granted(name: str, granted: Collection[str]) -> bool:
    """Whether it is there by its name, or by its prefix."""
    return name in granted or f"{name.partition('/')[0]}/" in granted


def allowed(template: PodTemplate, may: PodIsolation) -> PodTemplate:
    """The template as its cluster allows it, with what the operator decides where it is silent."""
    refused = frozenset(left.what for left in left_out(template, may))
    return template.model_copy(
        update={
            **({"metadata": _metadata(template.metadata, refused)} if template.metadata else {}),
            **({"spec": _spec(template.spec, may, refused)} if template.spec else {}),
        }
    )


def _metadata(metadata: PodMetadata, refused: frozenset[str]) -> PodMetadata:
    kept = {
        "annotations": {
            key: text for key, text in metadata.annotations.items() if f"{_ANNOTATION} {key}" not in refused
        },
        "labels": {key: text for key, text in metadata.labels.items() if f"{_LABEL} {key}" not in refused},
    }
    return PodMetadata.model_validate({name: value for name, value in kept.items() if value})


def _spec(spec: PodSpec, may: PodIsolation, refused: frozenset[str]) -> PodSpec:
    def kept(what: str, name: str | None) -> bool:
        return f"{what} {name}" not in refused

    asked = {
        "service_account_name": kept(_SERVICE_ACCOUNT, spec.service_account_name),
        "priority_class_name": kept(_PRIORITY_CLASS, spec.priority_class_name),
        "security_context": kept(_SECCOMP, _seccomp(spec)),
    }
    tolerations = tuple(one for one in spec.tolerations if kept(_TOLERATION, one.key))
    volumes = tuple(one for one in spec.ephemeral_volumes if kept(_VOLUME, one.storage_class_name))
    return spec.model_copy(
        update={
            **{name: None for name, granted in asked.items() if not granted},
            **({"tolerations": tolerations} if tolerations != spec.tolerations else {}),
            **({"ephemeral_volumes": volumes} if volumes != spec.ephemeral_volumes else {}),
            "shared_memory_size": min(spec.shared_memory_size or SHARED_MEMORY, may.max_shared_memory, key=in_bytes),
            "containers": tuple(_container(one, refused) for one in spec.containers),
        }
    )


def _container(container: Container, refused: frozenset[str]) -> Container:
    env = tuple(one for one in container.env if f"{_VARIABLE} {one.name}" not in refused)
    asked = _capabilities(container)
    kept = Capabilities(add=tuple(name for name in asked if f"{_CAPABILITY} {name}" not in refused))
    return container.model_copy(
        update={
            **({"env": env} if env != container.env else {}),
            **({"security_context": ContainerSecurity(capabilities=kept)} if asked else {}),
        }
    )
