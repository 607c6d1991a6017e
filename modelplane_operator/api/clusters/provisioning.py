"""What is said of a cluster that is made on a cloud: each of its resources, and what holds it up."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Literal

from pydantic import Field

from kubeloop.condition_types import NORMAL, STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import Model, list_map
from kubeloop.resource import SummarizedStatus
from modelplane_operator.api.shared import CacheStatus

MOST_RESOURCES = 256  # of one cluster: 8 pools, 6 zones and all that belongs to them are some hundred
MESSAGE = 1024

ResourceState = Literal["Pending", "Creating", "Ready", "Updating", "Deleting", "Failed", "Missing"]


class CloudResource(Model):
    """A resource on the cloud."""

    key: Annotated[str, Field(max_length=253)]
    """Its role in the cluster, also in its tag `modelplane.ai/resource`."""
    kind: Annotated[str, Field(max_length=63)]
    """Type of the resource on the cloud."""
    id: Annotated[str, Field(max_length=2048)] | None = None
    """Its id on the cloud, once there is one."""
    state: ResourceState
    """`Pending`: the cloud has not begun to create it. `Failed`: it was created and never worked. `Missing`: it
    existed, and no longer does."""
    since: datetime
    """Time since which it has that state."""
    message: Annotated[str, Field(max_length=MESSAGE)] | None = None
    """What it waits for, or the cloud's error."""
    worked: bool | None = None
    """Whether it was ever `Ready`. If it fails after that, the operator reports it, and does not replace it."""
    attempt: Annotated[str, Field(max_length=63)] | None = None
    """Recorded before a call that must not be made twice, so that the operator does not repeat it before its effect is
    visible."""


class CloudEndpoint(Model):
    """Where the API server of a cluster is."""

    server: Annotated[str, Field(max_length=2048)]
    """Its address."""
    authority: Annotated[str, Field(max_length=16384)]
    """CA certificates of the API server, in base64."""
    cluster: Annotated[str, Field(max_length=253)]
    """Name of the cluster on the cloud, which its tokens contain."""


class CredentialsValid(ConditionType):
    """Whether the cloud accepts the credentials, and they may do what is needed."""

    ACCEPTED = "Accepted", "True", "Every call so far was permitted."
    NOT_ACCEPTED = "NotAccepted", "False", "The cloud rejects the credentials; the message has its error.", WARNING
    ANOTHER_ACCOUNT = (
        "AnotherAccount",
        "False",
        "The credentials belong to another account than the cluster; nothing is changed.",
        WARNING,
    )
    NO_SDK = "NoSDK", "False", "This operator was installed without the cloud's SDK.", WARNING
    NOT_FOUND = (
        "NotFound",
        "False",
        "There are no credentials; the message says where the operator looks for them.",
        WARNING,
    )


class QuotaAvailable(ConditionType):
    """Whether the account's quotas leave room for what is asked for, as far as the cloud tells before it is made."""

    SUFFICIENT = "Sufficient", "True", "The quotas suffice."
    LIMITED = (
        "Limited",
        "True",
        "The quotas suffice for the first nodes, but not for the maximum size of the pools.",
        WARNING,
    )
    INSUFFICIENT = (
        "Insufficient",
        "False",
        "A quota does not suffice; the message says which, and how much of it is free.",
        WARNING,
    )
    NOT_ASKED = "NotAsked", "Unknown", "The cloud did not report its quotas; the message has its error.", WARNING


class CapacityAvailable(ConditionType):
    """Whether the cloud has what is asked for, and the account may have it."""

    SUFFICIENT = "Sufficient", "True", "No call failed for lack of quota or machines."
    EXHAUSTED = "Exhausted", "False", "A quota or the machines of a kind are used up; the message says which.", WARNING
    NOT_OFFERED = (
        "NotOffered",
        "False",
        "The zone does not have such machines, or the reservation does not exist; the message says which.",
        WARNING,
    )


class NetworkReady(ConditionType):
    """Whether the cluster's network is there."""

    AVAILABLE = "Available", "True", "Everything exists."
    CREATING = "Creating", "False", "Something is still missing; the message names it.", STEP


class ControlPlaneReady(ConditionType):
    """Whether the cluster's API server runs."""

    AVAILABLE = "Available", "True", "The cluster runs."
    CREATING = "Creating", "False", "The cloud is creating it.", STEP
    UPDATING = "Updating", "True", "It runs, and the cloud is updating it.", STEP


class NodePoolsReady(ConditionType):
    """Whether the cluster's node pools are there."""

    AVAILABLE = "Available", "True", "All node pools exist."
    CREATING = "Creating", "False", "Some are missing; the message names them.", STEP


class Stalled(ConditionType):
    """Whether something takes far longer than it usually does, or cannot go on without somebody's help."""

    PROGRESSING = "Progressing", "False", "Everything in progress is within its usual time.", NORMAL
    STALLED = "Stalled", "True", "The message names what blocks it, in the cloud's words.", WARNING


CONDITIONS = (
    CredentialsValid,
    QuotaAvailable,
    CapacityAvailable,
    NetworkReady,
    ControlPlaneReady,
    NodePoolsReady,
    Stalled,
    Synced,
    Ready,
)
"""Of every kind of cluster that a cloud makes."""


class CloudStatus(SummarizedStatus):
    """What is known of a cluster that a cloud makes."""

    cache: CacheStatus | None = None
    """Storage for model caches."""
    endpoint: CloudEndpoint | None = None
    """Where the cluster's API server is."""
    resources: Annotated[tuple[CloudResource, ...], Field(max_length=MOST_RESOURCES), list_map("key")] = ()
    """Each resource on the cloud, with its state."""
    gone_since: datetime | None = None
    """Time since which nothing of a deleted cluster is left on the cloud."""
