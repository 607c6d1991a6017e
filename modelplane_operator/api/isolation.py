"""What keeps the models of different namespaces apart on a cluster."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kubeloop.model import ATOMIC, Model
from modelplane_operator.api.bounds import NamespaceName, ObjectName
from modelplane_operator.api.engines import ServingPath
from modelplane_operator.api.pods import Capability, Profile
from modelplane_operator.api.shared import Amounts, Bytes, QualifiedName

_KEY_OR_PREFIX = "^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$"

Namespaces = Annotated[tuple[NamespaceName, ...], Field(max_length=16), ATOMIC]
AllowedKeys = Annotated[
    tuple[Annotated[str, Field(min_length=1, max_length=317, pattern=_KEY_OR_PREFIX)], ...],
    Field(max_length=64),
    ATOMIC,
]


class NetworkIsolation(Model):
    """The NetworkPolicy of the namespaces in which models run. The cluster's network plugin has to enforce it."""

    mode: Literal["Enforced", "Disabled"] = "Enforced"
    """`Enforced`: only the gateway, monitoring and pods of the same namespace reach the pods of models. `Disabled`: no
    policy; those that the operator made are deleted."""
    gateway_namespaces: Namespaces = ("envoy-gateway-system",)
    """Namespaces of the gateway's Envoys, from which requests come."""
    monitoring_namespaces: Namespaces = ("monitoring",)
    """Namespaces whose pods may reach every port of the models' pods, to scrape metrics."""
    metadata_service: Literal["Blocked", "Allowed"] = "Blocked"
    """Whether the models' pods reach the cloud's metadata service, which hands out the identity of the node. DNS there
    is always allowed. Use `Allowed` for clouds that give pods their own identity by that service."""


class LimitRangeIsolation(Model):
    """The LimitRange of the namespaces in which models run, for containers that say nothing themselves."""

    mode: Literal["Enforced", "Disabled"] = "Enforced"
    """`Disabled`: no LimitRange; those that the operator made are deleted."""
    default_request: Amounts | None = None
    """Requests of a container without its own. Default: a tenth of a processor and 256Mi of memory. No limits are set,
    as an engine above a memory limit would be killed."""


class PodIsolation(Model):
    """What deployments may ask for their pods on this cluster, beyond what harms nobody."""

    allowed_annotations: AllowedKeys = ()
    """Annotations that pods may carry: keys, such as `sidecar.istio.io/inject`, or a prefix with all its keys, such as
    `example.com/`. Keys without a prefix and those under `app.kubernetes.io/`, `kubectl.kubernetes.io/` and
    `prometheus.io/` are always allowed."""
    allowed_labels: AllowedKeys = ()
    """Labels that pods may carry, in the same way. Keys without a prefix, except `app` and `aadpodidbinding`, and those
    under `app.kubernetes.io/` are always allowed; those under `modelplane.ai/` never."""
    max_shared_memory: Bytes = "64Gi"
    """Maximum size of a pod's /dev/shm."""
    allowed_capabilities: Annotated[tuple[Capability, ...], Field(max_length=18), ATOMIC] = ()
    """Additional capabilities that engines may request, such as IPC_LOCK for RDMA. If Pod Security's level `baseline`
    refuses one of them, the namespaces of models get the level `privileged`, and only this list limits their pods."""
    allowed_service_accounts: Annotated[tuple[ObjectName, ...], Field(max_length=64), ATOMIC] = ()
    """Names of ServiceAccounts that pods may use, in any namespace of models that has one of that name."""
    allowed_priority_classes: Annotated[tuple[ObjectName, ...], Field(max_length=16), ATOMIC] = ()
    """PriorityClasses that pods may have."""
    allowed_tolerations: Annotated[tuple[QualifiedName, ...], Field(max_length=64), ATOMIC] = ()
    """Keys of taints that pods may tolerate, in addition to those of accelerators."""
    allowed_storage_classes: Annotated[tuple[ObjectName, ...], Field(max_length=16), ATOMIC] = ()
    """StorageClasses for ephemeral volumes of pods."""
    allowed_seccomp_profiles: Annotated[tuple[Profile, ...], Field(max_length=16), ATOMIC] = ()
    """Files with seccomp profiles on the nodes that pods may use."""
    allowed_variables: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern="^[A-Za-z][A-Za-z0-9_]*$")], ...],
        Field(max_length=16),
        ATOMIC,
    ] = ()
    """Environment variables that engines may set although container runtimes grant devices by them, such as
    `NVIDIA_VISIBLE_DEVICES`. A pod with one of these can use accelerators that it has not claimed."""
    allowed_paths: Annotated[tuple[ServingPath, ...], Field(max_length=32), ATOMIC] = ()
    """Paths of engines that deployments may open to clients (`serving.paths`), each with all paths below it; `/` allows
    all. The paths of model APIs are always open. Beware: engines also have administrative routes, which stop answers or
    show prompts of others."""


class Isolation(Model):
    """What keeps models of different namespaces apart, and out of what is not theirs. It is safe as it is."""

    network_policy: NetworkIsolation | None = None
    """Connections to and from the pods of models."""
    limit_range: LimitRangeIsolation | None = None
    """Default requests of containers."""
    pods: PodIsolation | None = None
    """What deployments may request for their pods."""
