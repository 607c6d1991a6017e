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
    """`Enforced`: the pods of models are reached by the gateway, by monitoring and by their own namespace only.
    `Disabled`: there is no such policy, and those that the operator made are deleted."""
    gateway_namespaces: Namespaces = ("envoy-gateway-system",)
    """Namespaces of the gateway's Envoys, from which requests come."""
    monitoring_namespaces: Namespaces = ("monitoring",)
    """Namespaces whose pods may reach every port of the models' pods, to scrape metrics."""
    metadata_service: Literal["Blocked", "Allowed"] = "Blocked"
    """Whether the models' pods reach the cloud's metadata service, which gives whoever asks the identity of the node.
    Names may be resolved there in any case. Clouds that give pods an identity of their own by it need `Allowed`."""


class LimitRangeIsolation(Model):
    """The LimitRange of the namespaces in which models run, for containers that say nothing themselves."""

    mode: Literal["Enforced", "Disabled"] = "Enforced"
    """`Disabled`: there is none, and those that the operator made are deleted."""
    default_request: Amounts | None = None
    """What a container requests that requests nothing. Without it, a tenth of a processor and 256Mi of memory. There
    are no limits: an engine that needs more memory than a limit says is killed."""


class PodIsolation(Model):
    """What deployments may ask for their pods on this cluster, beyond what harms nobody."""

    allowed_annotations: AllowedKeys = ()
    """Annotations that pods may carry: keys, such as `sidecar.istio.io/inject`, or all of a prefix, such as
    `example.com/`. Keys without a prefix and those under `app.kubernetes.io/`, `kubectl.kubernetes.io/` and
    `prometheus.io/` are allowed in any case."""
    allowed_labels: AllowedKeys = ()
    """Labels that pods may carry, in the same way. Keys without a prefix are allowed in any case, but for `app` and
    `aadpodidbinding`; so are those under `app.kubernetes.io/`. Those under `modelplane.ai/` are in none."""
    max_shared_memory: Bytes = "64Gi"
    """The most that a pod may put into /dev/shm."""
    allowed_capabilities: Annotated[tuple[Capability, ...], Field(max_length=18), ATOMIC] = ()
    """Capabilities that engines may ask for, such as IPC_LOCK for RDMA, beside those that are for everybody. With one
    that Pod Security's level `baseline` refuses, the level of the namespaces of models is `privileged`: what their pods
    may have is then bounded by this list alone."""
    allowed_service_accounts: Annotated[tuple[ObjectName, ...], Field(max_length=64), ATOMIC] = ()
    """ServiceAccounts that pods may run as, by name, in whichever namespace of models one of that name exists."""
    allowed_priority_classes: Annotated[tuple[ObjectName, ...], Field(max_length=16), ATOMIC] = ()
    """PriorityClasses that pods may have."""
    allowed_tolerations: Annotated[tuple[QualifiedName, ...], Field(max_length=64), ATOMIC] = ()
    """Keys of taints that pods may tolerate, beside those of accelerators."""
    allowed_storage_classes: Annotated[tuple[ObjectName, ...], Field(max_length=16), ATOMIC] = ()
    """StorageClasses of which pods may have volumes that come and go with them."""
    allowed_seccomp_profiles: Annotated[tuple[Profile, ...], Field(max_length=16), ATOMIC] = ()
    """Files with seccomp profiles on the nodes that pods may name."""
    allowed_variables: Annotated[
        tuple[Annotated[str, Field(min_length=1, max_length=253, pattern="^[A-Za-z][A-Za-z0-9_]*$")], ...],
        Field(max_length=16),
        ATOMIC,
    ] = ()
    """Environment variables that engines may set although a container runtime gives devices by them, such as
    `NVIDIA_VISIBLE_DEVICES`: with one of those a pod has accelerators that it has not claimed."""
    allowed_paths: Annotated[tuple[ServingPath, ...], Field(max_length=32), ATOMIC] = ()
    """Paths of engines that deployments may let clients call (`serving.paths`), each with all below it; `/` allows all.
    The paths of model APIs are open in any case. Engines have routes for whoever runs them, too, which end answers or
    show prompts of others."""


class Isolation(Model):
    """What keeps models of different namespaces apart, and out of what is not theirs. It is safe as it is."""

    network_policy: NetworkIsolation | None = None
    """Who reaches the pods of models, and what they reach."""
    limit_range: LimitRangeIsolation | None = None
    """What containers request that say nothing themselves."""
    pods: PodIsolation | None = None
    """What deployments may ask for their pods."""
