"""ModelCache: a model's weights, staged near the GPUs."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from kubeloop.condition_types import STEP, WARNING, ConditionType, Ready, Synced
from kubeloop.model import Model, Rule, require
from kubeloop.resource import Column, Definition, Resource, Status
from modelplane_operator.api.cache_sources import HTTP, OCI, S3, GoogleCloudStorage, HuggingFace, PersistentVolumeClaim
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.groups import MODELPLANE
from modelplane_operator.api.shared import ClusterSelector

Source = Literal["HuggingFace", "S3", "GoogleCloudStorage", "OCI", "HTTP", "PersistentVolumeClaim"]
Phase = Literal["Pending", "Hydrating", "Ready", "Failed"]
UserName = Annotated[str, Field(max_length=270)]
MOST_USERS = 16
Count = Annotated[int | None, Field(json_schema_extra={"format": "int64"})]


def _block_of(source: str, field: str, example: str) -> Rule:
    return require(
        field,
        f"self.source != '{source}'",
        f"Source {source} needs its own block: add `{field}: {{{example}}}`.",
    )


class ModelCacheSpec(Spec):
    """Weights to stage, and where."""

    rules: ClassVar = (
        _block_of("HuggingFace", "huggingFace", "repo: ..., sizeGiB: ..."),
        _block_of("S3", "s3", "bucket: ..., sizeGiB: ..."),
        _block_of("GoogleCloudStorage", "googleCloudStorage", "bucket: ..., sizeGiB: ..."),
        _block_of("OCI", "oci", "reference: ..., sizeGiB: ..."),
        _block_of("HTTP", "http", "manifest: ..., sizeGiB: ..."),
        _block_of("PersistentVolumeClaim", "persistentVolumeClaim", "claimName: ..."),
    )

    source: Source
    """Where the weights come from. The block of the same name is required; others have no effect."""
    hugging_face: HuggingFace | None = None
    """A repository on Hugging Face."""
    s3: S3 | None = None
    """Objects in a bucket of Amazon S3, or of a store with its protocol."""
    google_cloud_storage: GoogleCloudStorage | None = None
    """Objects in a bucket of Google Cloud Storage."""
    oci: OCI | None = None
    """An artifact in an OCI registry."""
    http: HTTP | None = None
    """Files on any web server, named by a manifest."""
    persistent_volume_claim: PersistentVolumeClaim | None = None
    """An existing claim on each cluster, which is mounted unchanged."""
    cluster_selector: ClusterSelector | None = None
    """Which clusters hold the weights. Without it, every cluster that has storage for caches."""


class CacheSummary(Model):
    """Summary for `kubectl get`."""

    source: Annotated[str | None, Field(max_length=2048)] = None
    """Where the weights come from: `Qwen/Qwen3-8B`, `s3://models/qwen3-8b`."""
    ready: str | None = None
    """Clusters that hold the weights, of all that should: `2/3`."""
    size: Annotated[str | None, Field(max_length=64)] = None
    """Size of the volume on each cluster: `20Gi`."""
    progress: Annotated[str | None, Field(max_length=64)] = None
    """Progress of all clusters that are downloading: `41%`. Absent if there are none."""


class CacheProgress(Model):
    """How far the weights of one cluster are."""

    files: Count = None
    """Files that are complete and verified."""
    total_files: Count = None
    """Number of all files."""
    bytes: Count = None
    """Bytes that are downloaded."""
    total_bytes: Count = None
    """Number of all bytes."""
    estimated_completion: datetime | None = None
    """Expected end at the current speed, by the clock of the cluster's node."""


class CachedCluster(Model):
    """The weights on one cluster."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the InferenceCluster."""
    phase: Phase | None = None
    """`Pending` without a volume, `Hydrating` during the download, then `Ready` or `Failed`."""
    message: Annotated[str | None, Field(max_length=1024)] = None
    """The error, or what it waits for."""
    reason: Annotated[str | None, Field(max_length=63)] = None
    """The reason of `ArtifactReady` for this cluster: `Failed`, `VolumeNotBound` or `AuthSecretMissing`. Absent while
    nothing is wrong."""
    since: datetime | None = None
    """Time since which it is in this phase, by the operator's clock."""
    attempts: int | None = None
    """Number of attempts to stage these weights; a failed one is repeated after a while."""
    refusals: int | None = None
    """Number of writes in a row that the cluster has rejected; `message` says why."""
    next_attempt: datetime | None = None
    """Time of the next attempt, after staging failed or the cluster rejected a write."""
    progress: CacheProgress | None = None
    """Progress of the download."""
    volume: Annotated[str | None, Field(max_length=63)] = None
    """PersistentVolumeClaim with all of the weights, which replicas start from. Absent until there is one."""
    revision: Annotated[str | None, Field(max_length=253)] = None
    """Commit or hash whose files that volume holds, as its cluster reports."""
    digest: Annotated[str | None, Field(pattern=r"^sha256:[0-9a-f]{64}$", max_length=71)] = None
    """Hash of the list of that volume's files (path, size, SHA-256), made when it was filled and verified. A later
    hydration compares existing files with that list. Absent if an older version of the operator filled the volume."""
    changed_files: Count = None
    """Files that the last hydration found with other content, and downloaded again."""
    unlisted_files: Count = None
    """Files that the last hydration found and that the source does not name. They stay."""
    used_by: Annotated[tuple[UserName, ...] | None, Field(max_length=MOST_USERS)] = None
    """The first 16 replicas that start from its volumes there, as `ModelReplica/a`."""
    users: int | None = None
    """Number of all these replicas."""


class ModelCacheStatus(Status):
    """Where the weights are."""

    summary: CacheSummary | None = None
    """Summary for `kubectl get`."""
    clusters: tuple[CachedCluster, ...] = ()
    """The weights on each cluster."""


class ClustersMatched(ConditionType):
    """Whether there is a cluster to stage the weights on."""

    MATCHED = "Matched", "True", "At least one cluster matches and has storage for caches."
    NO_CLUSTERS = "NoClusters", "False", "No cluster matches the selector and has storage for caches.", WARNING


class ArtifactReady(ConditionType):
    """Whether the weights are on every matching cluster."""

    NO_CLUSTERS = "NoClusters", "False", "No cluster matches.", WARNING
    AUTH_SECRET_MISSING = "AuthSecretMissing", "False", "The token's Secret, or the key in it, does not exist.", WARNING
    TOO_MANY = (
        "TooMany",
        "False",
        "Its namespace already has the maximum number of caches; the message says how many.",
        WARNING,
    )
    FAILED = "Failed", "False", "Staging failed on a cluster; the operator tries again.", WARNING
    VOLUME_NOT_BOUND = (
        "VolumeNotBound",
        "False",
        "A cluster has no volume for the weights: its claim does not exist, or has not been bound for half a minute.",
        WARNING,
    )
    CONTENTS_DIFFER = "ContentsDiffer", "False", "Clusters hold different contents of the source.", WARNING
    PARTIAL = "Partial", "False", "Some clusters hold the weights, others do not yet.", STEP
    HYDRATING = "Hydrating", "False", "No cluster holds the weights yet.", STEP
    STAGED = "Staged", "True", "Every matching cluster holds the weights."


class ModelCache(Resource[ModelCacheSpec, ModelCacheStatus]):
    """A model's weights, staged on a volume of every matching cluster, for engines to start from."""

    definition: ClassVar = Definition(
        kind="ModelCache",
        group=MODELPLANE,
        short="mc",
        scope="Namespaced",
        columns=(
            Column("SOURCE", ".status.summary.source"),
            Column("SIZE", ".status.summary.size"),
            Column("PHASE", ".status.conditions[?(@.type=='ArtifactReady')].reason"),
            Column("STAGED", ".status.summary.ready"),
            Column("PROGRESS", ".status.summary.progress"),
        ),
        conditions=(ClustersMatched, ArtifactReady, Synced, Ready),
    )

    @property
    def match_labels(self) -> Mapping[str, str]:
        """Labels of the clusters that it is meant for. Empty: every cluster."""
        return self.spec.cluster_selector.match_labels if self.spec.cluster_selector else {}

    def on(self, cluster: str) -> CachedCluster | None:
        """What was last known of one cluster."""
        return next((one for one in self.status.clusters if one.name == cluster), None) if self.status else None
