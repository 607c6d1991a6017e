"""Fragments that several kinds share."""

from __future__ import annotations

from decimal import Decimal
from typing import Annotated, Literal

from pydantic import Field

from kubeloop.model import Model
from modelplane_operator.api.bounds import DnsLabel, LabelsToMatch, ObjectName, OurName

Bytes = Annotated[str, Field(max_length=9, pattern="^[1-9][0-9]{0,6}(Mi|Gi|Ti)$")]
"""An amount of memory or storage, such as 16Gi."""

_UNITS = {"Mi": 2**20, "Gi": 2**30, "Ti": 2**40}


def in_bytes(amount: str) -> int:
    """An amount of memory or storage as a number."""
    return int(amount[:-2]) * _UNITS[amount[-2:]]


def in_millis(amount: str) -> int:
    """So many processors as a number of thousandths."""
    return int(amount[:-1]) if amount.endswith("m") else int(Decimal(amount) * 1000)


Cpu = Annotated[str, Field(max_length=8, pattern=r"^([1-9][0-9]{0,6}m?|[0-9]{1,4}\.[0-9]{1,3})$")]
"""So many processors, such as 2 or 500m."""

QUALIFIED_NAME = r"^([a-z0-9]([-a-z0-9.]*[a-z0-9])?/)?[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?$"
QualifiedName = Annotated[str, Field(min_length=1, max_length=317, pattern=QUALIFIED_NAME)]
ClaimMode = Literal["DRA", "Synthetic"]
Sharing = Literal["Device", "Node"]
"""The unit of a pool that a pod takes: the devices that it claims, or a node."""
Effect = Literal["NoSchedule", "NoExecute"]


class ClusterSelector(Model):
    """Which InferenceClusters are meant."""

    match_labels: LabelsToMatch = {}
    """Labels that an InferenceCluster must all carry, with exactly these values. Empty means every cluster."""


class ModelCacheRef(Model):
    """A ModelCache in the same namespace."""

    name: OurName
    """Name of the ModelCache."""


class PlacedCacheRef(ModelCacheRef):
    """A ModelCache, and which of its volumes."""

    volume: DnsLabel | None = None
    """PersistentVolumeClaim to start from. Without one, the cache's first; a changed cache has another."""
    repo: Annotated[str, Field(min_length=1, max_length=2048)] | None = None
    """Repository on Hugging Face that the weights come from; engines serve them by that name."""
    size_gib: Annotated[int | None, Field(ge=1, le=100000, alias="sizeGiB")] = None
    """Size in GiB that the cache had when the replica was made or last changed: engines that load more may take
    longer."""


class Credentials(Model):
    """The cloud account to work with."""

    type: Literal["ProviderConfig", "ClusterProviderConfig"] = "ClusterProviderConfig"
    """Accepted for manifests written for Crossplane; both values mean the Secret in `name`."""
    name: ObjectName = "default"
    """Name of the Secret in `modelplane-system` that holds the account's credentials. `default` without such a Secret
    means the operator's own cloud identity."""


class Amounts(Model):
    """How much of a node's resources."""

    cpu: Cpu | None = None
    """Processors, for example `"2"` or `500m`."""
    memory: Bytes | None = None
    """Memory, for example `4Gi`."""
    ephemeral_storage: Annotated[Bytes | None, Field(alias="ephemeral-storage")] = None
    """Disk of the node, for example `50Gi`."""


class Attribute(Model):
    """A typed value: exactly one of the four."""

    string: Annotated[str, Field(max_length=253)] | None = None
    """A text."""
    version: Annotated[str, Field(max_length=32)] | None = None
    """A semantic version: three numbers, such as 9.0.0."""
    boolean: Annotated[bool | None, Field(alias="bool")] = None
    """True or false."""
    integer: Annotated[int | None, Field(alias="int", json_schema_extra={"format": "int64"})] = None
    """A whole number."""


class CacheStatus(Model):
    """Storage for model caches."""

    storage_class_name: Annotated[str, Field(max_length=253)] | None = None
    """StorageClass for volumes that many nodes can write to. Without one the cluster holds no ModelCache."""
