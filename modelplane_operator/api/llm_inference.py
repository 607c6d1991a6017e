"""LLMInference: one model, one URL, five fields; on a cluster that is named, or anywhere in the fleet."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import NORMAL, STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import ATOMIC, Model, Rule, must, require
from kubeloop.resource import Column, Definition, Resource, SummarizedStatus
from modelplane_operator.api.bounds import SERVICE_NAME, SUBDOMAIN, NamespaceName, ObjectName
from modelplane_operator.api.crossplane import Spec

INFERENCE = "inference.devopstoolkit.ai"
IN_CLUSTER = "incluster"
LOCATIONS = 8

ModelName = Annotated[
    str, Field(min_length=1, max_length=192, pattern="^[A-Za-z0-9][-A-Za-z0-9_.]*(/[A-Za-z0-9][-A-Za-z0-9_.]*)?$")
]
Memory = Annotated[str, Field(max_length=7, pattern="^[1-9][0-9]{0,4}Gi$")]
RUNTIME_STAYS = Rule(
    "self == oldSelf",
    "The runtime of an LLMInference cannot change, since both have the same names on the cluster: make another "
    "LLMInference beside it, or delete it and create it again.",
)
NAME_OF_A_SERVICE = Rule(
    f"oldSelf.hasValue() || self.metadata.name.matches('{SERVICE_NAME}')",
    "The name of an LLMInference is a Service's, too: use lower-case letters, digits and '-', and begin with a letter.",
    field="metadata.name",
    optional_old=True,  # what is stored under another name can still be deleted
)


class LLMInferenceSpec(Spec):
    """Which model, on how many GPUs, and where."""

    rules: ClassVar = (
        require(
            "providerConfigName",
            "self.placement == 'Fleet'",
            "Name the cluster: an InferenceCluster, a Secret with a kubeconfig, or incluster; or set placement: Fleet.",
        ),
        Rule(
            "self.placement != 'Fleet' || !(has(self.providerConfigName) || has(self.targetNamespace) || "
            "has(self.ingressClassName) || (has(self.ingressHost) && self.ingressHost != ''))",
            "With placement Fleet the operator chooses the cluster and makes the URL: remove providerConfigName, "
            "targetNamespace, ingressHost and ingressClassName.",
        ),
    )

    model: ModelName
    """Hugging Face id of the model, for example `Qwen/Qwen2.5-1.5B-Instruct`."""
    gpu: Annotated[int, Field(ge=1, le=16)] = 1
    """GPUs of the engine; the model is split over them."""
    placement: Literal["Cluster", "Fleet"] = "Cluster"
    """`Cluster`: on the cluster in `providerConfigName`. `Fleet`: the operator creates a ModelDeployment and a
    ModelService of this name, and chooses a cluster of the fleet."""
    provider_config_name: ObjectName | None = None
    """The cluster: a Secret of that name in this namespace with a `kubeconfig`; without such a Secret, the
    InferenceCluster of that name, if it grants this namespace access; `incluster` is the hub itself."""
    target_namespace: NamespaceName | None = None
    """Namespace on that cluster, which has to exist. Without it, the one that this object is in."""
    ingress_host: Annotated[str, Field(max_length=253, pattern=f"^$|{SUBDOMAIN}")] | None = None
    """Host name under which an Ingress serves the model, for example `qwen.example.com`. Without it there is none."""
    ingress_class_name: ObjectName | None = None
    """Class of that Ingress; without it the cluster's default."""
    runtime: Annotated[Literal["VLLMRuntime", "Deployment"], must(RUNTIME_STAYS)] = "VLLMRuntime"
    """What runs the engine on that cluster. `VLLMRuntime`: the vLLM production-stack operator. `Deployment`: Kubernetes
    itself, with shared memory and startup time according to the number of GPUs. It cannot change."""
    memory: Memory | None = None
    """GPU memory that the model needs on all its GPUs together, for example `40Gi`. Used with `placement: Fleet`, and
    required there if the model's name does not show its size; MemoryKnown has the assumed value."""


class Location(Model):
    """Where something was made."""

    target: Literal["Hub", "Secret", "InferenceCluster"]
    """The Secret or cluster that leads there."""
    name: ObjectName
    """Its name."""
    server: Annotated[str, Field(max_length=2048)] | None = None
    """Address of the API server in the Secret."""
    namespace: Annotated[str, Field(max_length=63)]
    """Namespace there."""

    def __hash__(self) -> int:
        return hash((self.target, self.name, self.server, self.namespace))

    def __str__(self) -> str:
        where = "on the hub" if self.target == "Hub" else f"on the cluster of {self.target} {self.name}"
        return f"namespace {self.namespace} {where}"


class LLMInferenceStatus(SummarizedStatus):
    """Observed state of the model."""

    url: Annotated[str, Field(max_length=2048)] | None = None
    """The URL; append the engine's path, such as `/v1/chat/completions`."""
    replicas: int | None = None
    """Running copies of the engine."""
    memory_per_gpu: Annotated[str, Field(max_length=16)] | None = None
    """Memory that the scheduler requires of each GPU; only with `placement: Fleet`."""
    locations: Annotated[tuple[Location, ...], Field(max_length=LOCATIONS), ATOMIC] = ()
    """Places where its objects are or may be: an entry is written before the first object, and removed after the
    last."""


class TargetResolved(ConditionType):
    """Whether the cluster that is named can be used; only with `placement: Cluster`."""

    RESOLVED = "Resolved", "True", "The cluster answers, and this namespace may use it."
    NOT_FOUND = "NotFound", "False", "The Secret with the cluster's kubeconfig no longer exists.", WARNING
    NOT_GRANTED = (
        "NotGranted",
        "False",
        "This namespace has no Secret of that name and no grant for the cluster; the message says how to get one.",
        WARNING,
    )
    HOST_NOT_GRANTED = (
        "HostNotGranted",
        "False",
        "The grant does not include the host in `spec.ingressHost`; the message says how to get it.",
        WARNING,
    )
    INVALID_KUBECONFIG = (
        "InvalidKubeconfig",
        "False",
        "The Secret's kubeconfig is invalid; the message says why.",
        WARNING,
    )
    FORBIDDEN = (
        "Forbidden",
        "False",
        "The kubeconfig's account lacks a permission there; the message says which.",
        WARNING,
    )
    UNREACHABLE = "Unreachable", "Unknown", "The cluster does not answer; the message says why.", WARNING
    NOT_NEEDED = "NotNeeded", "True", "The operator chooses the cluster: `placement: Fleet`."
    CONNECTING = "Connecting", "Unknown", "The operator is connecting to the cluster.", STEP
    TOO_MANY_LOCATIONS = (
        "TooManyLocations",
        "False",
        "Too many places still have old copies, so nothing is created in another.",
        WARNING,
    )


class RuntimeAvailable(ConditionType):
    """Whether the cluster knows VLLMRuntimes; only with `placement: Cluster`."""

    AVAILABLE = "Available", "True", "The cluster knows VLLMRuntimes."
    NOT_INSTALLED = (
        "NotInstalled",
        "False",
        "The cluster does not know VLLMRuntimes; the message says what to install.",
        WARNING,
    )
    NOT_NEEDED = "NotNeeded", "True", "No VLLMRuntime is created: `runtime: Deployment` or `placement: Fleet`."
    NOT_KNOWN = "NotKnown", "Unknown", "The cluster was not checked.", STEP


class ModelReady(ConditionType):
    """Whether the model answers, as its VLLMRuntime, its Deployment or its ModelService says."""

    READY = "Ready", "True", "The model answers.", NORMAL
    UPDATING = "Updating", "False", "Its engine is being replaced.", STEP
    NOT_READY = "NotReady", "False", "Its engine does not answer yet.", STEP
    FAILING = "Failing", "False", "Its engine does not start without help; the message says why.", WARNING
    NOT_CREATED = "NotCreated", "False", "No object of the model exists yet.", STEP
    NAME_TAKEN = "NameTaken", "False", "Another object on the cluster has its name; the message says which.", WARNING
    UNKNOWN = (
        "Unknown",
        "Unknown",
        "Nothing reports the model's state, for example because the vLLM production-stack operator does not run there.",
        STEP,
    )


class OldCopiesRemoved(ConditionType):
    """Whether what was made elsewhere before is gone; absent while nothing ever was."""

    REMOVED = "Removed", "True", "All old copies are gone."
    REMOVING = "Removing", "False", "Old copies are being deleted, or wait until the new copy is there.", STEP
    LEFT_BEHIND = (
        "LeftBehind",
        "False",
        "Some old copies cannot be reached; the message says where they are, and how to abandon them.",
        WARNING,
    )


class MemoryKnown(ConditionType):
    """Whether it is known how much GPU memory the model needs; only with `placement: Fleet`."""

    SAID = "Said", "True", "`spec.memory` sets it."
    KNOWN_MODEL = "KnownModel", "True", "The operator knows the size of this model; the message says what it assumed."
    ASSUMED_FROM_NAME = "AssumedFromName", "True", "The model's name states its parameters; the message says which."
    NOT_NEEDED = "NotNeeded", "True", "The spec names a cluster, so the size does not matter."
    NOT_KNOWN = "NotKnown", "False", "The size is unknown: set `spec.memory`. A running model stays.", WARNING


class LLMInference(Resource[LLMInferenceSpec, LLMInferenceStatus]):
    """One model with one URL: name the model, its number of GPUs, and where it runs."""

    rules: ClassVar = (NAME_OF_A_SERVICE,)
    definition: ClassVar = Definition(
        kind="LLMInference",
        group=INFERENCE,
        short="llmi",
        scope="Namespaced",
        columns=(
            Column("MODEL", ".spec.model"),
            Column("GPU", ".spec.gpu", "integer"),
            Column("URL", ".status.url"),
        ),
        conditions=(TargetResolved, RuntimeAvailable, MemoryKnown, ModelReady, OldCopiesRemoved, Synced, Ready),
    )

    @property
    def target_namespace(self) -> str:
        return self.spec.target_namespace or self.key.namespace

    @property
    def locations(self) -> tuple[Location, ...]:
        return self.status.locations if self.status else ()
