"""Remove from a pod template what its cluster does not allow, and name the field that would allow it.

Annotations and labels steer other controllers: service meshes, networks, autoscalers, injectors of secrets. A
ServiceAccount, a capability or a toleration grants a pod more than its own. So harmless values pass by default, and
the platform team allows others on its InferenceCluster.
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

# Kubernetes presumes that keys without a prefix are private to their user. These are not: Services select by `app`,
# and `aadpodidbinding` gives a pod an identity of Azure.
TAKEN_LABELS: Final = ("aadpodidbinding", "app")
"""Labels without a prefix that pass only if the cluster allows them."""
ANNOTATIONS: Final = ("app.kubernetes.io/", "kubectl.kubernetes.io/", "prometheus.io/")
"""Prefixes of annotations that always pass."""
LABELS: Final = ("app.kubernetes.io/",)
"""Prefixes of labels that always pass."""
# Container runtimes grant these by default, and their effect is limited to the container.
CAPABILITIES: Final = ("CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETGID", "SETUID")
"""Capabilities that always pass."""
# A pod that claims an accelerator should tolerate its taint. A node selector binds it to its own pool in any case.
TOLERATIONS: Final = ("amd.com/gpu", "aws.amazon.com/neuron", "google.com/tpu", "habana.ai/gaudi", "nvidia.com/gpu")
"""Taint keys whose tolerations always pass."""
# With these, runtimes of NVIDIA, AMD, Habana and AWS give a container devices of its node regardless of its claims.
# Variables that libraries read inside it, such as CUDA_VISIBLE_DEVICES, can only reduce the devices it has.
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
"""Environment variables that give a container devices of its node."""
DEVICE_PREFIXES: Final = ("DOCKER_RESOURCE_", "NVIDIA_MIG_")
"""Prefixes of further such variables."""
# Clients call the APIs of OpenAI, Anthropic, Cohere, KServe and Hugging Face, and those of vLLM,
# SGLang and llama.cpp that run a model. Other paths of engines are for administration.
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
"""Path prefixes of the model APIs, which clients may always call."""
# Triton's other KServe paths load and unload models, share memory, and trace.
KSERVE_PATHS: Final = "v2(/models/[^/]+(/versions/[^/]+)?(/(ready|infer|generate|generate_stream))?)?"
"""Expression for the paths of KServe's API that clients may call."""
SHARED_MEMORY: Final = "32Gi"  # engines pass tensors through it; unused space costs nothing
"""Default size limit of /dev/shm."""


@dataclass(frozen=True, slots=True, order=True)
class Disallowed:
    """A value that a pod template requests and its cluster does not allow."""

    what: str
    """The value, as messages name it."""
    setting: str
    """The field of `spec.isolation.pods` that would allow it."""

    def __str__(self) -> str:
        return f"{self.what} ({self.setting})"


class _RequestedValues(NamedTuple):
    """Values of one kind that a template requests, and the values of that kind that its cluster allows."""

    what: str
    """Kind of the values, as messages name it."""
    setting: str
    """The field of `spec.isolation.pods` that would allow them."""
    names: Iterable[str | None]
    """Requested values; None and "" count as absent."""
    granted: Collection[str]
    """Allowed values and prefixes."""


def isolation_of(cluster: InferenceCluster | None) -> PodIsolation:
    """Return what a cluster allows pods to have; the defaults without a cluster."""
    isolation = cluster.spec.isolation if cluster else None
    return (isolation.pods if isolation else None) or PodIsolation()


def find_disallowed(template: PodTemplate, may: PodIsolation) -> Iterator[Disallowed]:
    """Yield what the template requests and does not get."""
    for request in (*_read_metadata(template, may), *_read_spec(template, may)):
        for name in filter(None, request.names):
            prefix = f"{name.partition('/')[0]}/"
            if name not in request.granted and prefix not in request.granted:
                yield Disallowed(f"{request.what} {name}", request.setting)
    size = template.spec.shared_memory_size if template.spec else None
    if size and in_bytes(size) > in_bytes(may.max_shared_memory):
        yield Disallowed(f"what sharedMemorySize {size} is above {may.max_shared_memory}", "maxSharedMemory")


def find_disallowed_paths(serving: Serving | None, may: PodIsolation) -> Iterator[Disallowed]:
    """Yield the paths that a deployment opens to clients and its cluster does not allow."""
    allowed_prefixes = tuple(f"{prefix.rstrip('/')}/" for prefix in (*API_PATHS, *may.allowed_paths))
    for path in serving.paths if serving else ():
        if not f"{path.rstrip('/')}/".startswith(allowed_prefixes):
            yield Disallowed(f"path {path}", "allowedPaths")


def allow_serving(serving: Serving, may: PodIsolation) -> Serving:
    """Return `serving` with only the paths that the cluster allows."""
    rejected = {item.what for item in find_disallowed_paths(serving, may)}
    paths = tuple(path for path in serving.paths if f"path {path}" not in rejected)
    return serving if paths == serving.paths else serving.model_copy(update={"paths": paths})


def open_paths(added: Iterable[str]) -> str:
    """Return a regular expression for the paths of an engine that clients may call, without the leading slash."""
    if "/" in added:
        return ".*"
    below = "|".join(dict.fromkeys(path.strip("/") for path in (*API_PATHS, *added)))
    return f"(({below})(/.*)?|{KSERVE_PATHS})"


def _read_metadata(template: PodTemplate, isolation: PodIsolation) -> Iterator[_RequestedValues]:
    """Yield the annotations and labels of a template that need permission."""
    if metadata := template.metadata:
        annotations = [key for key in metadata.annotations if "/" in key]
        labels = [key for key in metadata.labels if "/" in key or key in TAKEN_LABELS]
        yield _RequestedValues(
            _ANNOTATION, "allowedAnnotations", annotations, (*ANNOTATIONS, *isolation.allowed_annotations)
        )
        yield _RequestedValues(_LABEL, "allowedLabels", labels, (*LABELS, *isolation.allowed_labels))


def _read_spec(template: PodTemplate, isolation: PodIsolation) -> Iterator[_RequestedValues]:
    """Yield the values of a pod spec that need permission."""
    if (spec := template.spec) is None:
        return
    capabilities = [name for container in spec.containers for name in _read_capabilities(container)]
    variables = [
        variable.name
        for container in spec.containers
        for variable in container.env
        if variable.name in DEVICE_VARIABLES or variable.name.startswith(DEVICE_PREFIXES)
    ]
    tolerated = [toleration.key for toleration in spec.tolerations]
    classes = [volume.storage_class_name for volume in spec.ephemeral_volumes]
    granted = isolation.allowed_service_accounts
    yield _RequestedValues(
        _CAPABILITY, "allowedCapabilities", capabilities, (*CAPABILITIES, *isolation.allowed_capabilities)
    )
    yield _RequestedValues(_VARIABLE, "allowedVariables", variables, isolation.allowed_variables)
    yield _RequestedValues(_SERVICE_ACCOUNT, "allowedServiceAccounts", [spec.service_account_name], granted)
    yield _RequestedValues(
        _PRIORITY_CLASS, "allowedPriorityClasses", [spec.priority_class_name], isolation.allowed_priority_classes
    )
    yield _RequestedValues(_TOLERATION, "allowedTolerations", tolerated, (*TOLERATIONS, *isolation.allowed_tolerations))
    yield _RequestedValues(_VOLUME, "allowedStorageClasses", classes, isolation.allowed_storage_classes)
    yield _RequestedValues(
        _SECCOMP, "allowedSeccompProfiles", [_read_seccomp_profile(spec)], isolation.allowed_seccomp_profiles
    )


_ANNOTATION, _LABEL = "annotation", "label"
_CAPABILITY, _SERVICE_ACCOUNT, _PRIORITY_CLASS = "capability", "ServiceAccount", "PriorityClass"
_TOLERATION, _VOLUME, _SECCOMP = "toleration of", "volumes of StorageClass", "seccomp profile"
_VARIABLE = "variable"


def _read_capabilities(container: Container) -> tuple[Capability, ...]:
    security = container.security_context
    return security.capabilities.add if security and security.capabilities else ()


def _read_seccomp_profile(spec: PodSpec) -> str | None:
    security = spec.security_context
    return security.seccomp_profile.localhost_profile if security and security.seccomp_profile else None


def allowed(template: PodTemplate, may: PodIsolation) -> PodTemplate:
    """Return the template reduced to what its cluster allows, with the operator's defaults for missing values."""
    rejected = frozenset(item.what for item in find_disallowed(template, may))
    return template.model_copy(
        update={
            **({"metadata": _filter_metadata(template.metadata, rejected)} if template.metadata else {}),
            **({"spec": _filter_spec(template.spec, may, rejected)} if template.spec else {}),
        }
    )


def _filter_metadata(metadata: PodMetadata, rejected: frozenset[str]) -> PodMetadata:
    """Return the metadata without rejected annotations and labels."""
    allowed_fields = {
        "annotations": {
            key: text for key, text in metadata.annotations.items() if f"{_ANNOTATION} {key}" not in rejected
        },
        "labels": {key: text for key, text in metadata.labels.items() if f"{_LABEL} {key}" not in rejected},
    }
    return PodMetadata.model_validate({name: value for name, value in allowed_fields.items() if value})


def _filter_spec(spec: PodSpec, isolation: PodIsolation, rejected: frozenset[str]) -> PodSpec:
    """Return the pod spec without rejected values, with a size of its shared memory."""

    def is_allowed(what: str, name: str | None) -> bool:
        return f"{what} {name}" not in rejected

    grants = {
        "service_account_name": is_allowed(_SERVICE_ACCOUNT, spec.service_account_name),
        "priority_class_name": is_allowed(_PRIORITY_CLASS, spec.priority_class_name),
        "security_context": is_allowed(_SECCOMP, _read_seccomp_profile(spec)),
    }
    tolerations = tuple(item for item in spec.tolerations if is_allowed(_TOLERATION, item.key))
    volumes = tuple(item for item in spec.ephemeral_volumes if is_allowed(_VOLUME, item.storage_class_name))
    return spec.model_copy(
        update={
            **{name: None for name, granted in grants.items() if not granted},
            **({"tolerations": tolerations} if tolerations != spec.tolerations else {}),
            **({"ephemeral_volumes": volumes} if volumes != spec.ephemeral_volumes else {}),
            "shared_memory_size": min(
                spec.shared_memory_size or SHARED_MEMORY, isolation.max_shared_memory, key=in_bytes
            ),
            "containers": tuple(_filter_container(item, rejected) for item in spec.containers),
        }
    )


def _filter_container(container: Container, rejected: frozenset[str]) -> Container:
    """Return the container without rejected variables and capabilities."""
    env = tuple(variable for variable in container.env if f"{_VARIABLE} {variable.name}" not in rejected)
    requested = _read_capabilities(container)
    granted = Capabilities(add=tuple(name for name in requested if f"{_CAPABILITY} {name}" not in rejected))
    return container.model_copy(
        update={
            **({"env": env} if env != container.env else {}),
            **({"security_context": ContainerSecurity(capabilities=granted)} if requested else {}),
        }
    )
