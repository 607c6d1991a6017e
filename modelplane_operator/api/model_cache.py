"""ModelCache: a model's weights, staged near the GPUs."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelplane_operator.api.base import MODELPLANE, Column, Definition, Resource, Status
from modelplane_operator.api.bounds import DataKey, ObjectName
from modelplane_operator.api.conditions import STEP, WARNING, ConditionType, Ready, Synced
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.model import ATOMIC, Model, needed
from modelplane_operator.api.shared import ClusterSelector

_PART = r"[a-zA-Z0-9_][-._a-zA-Z0-9]*"
# They become arguments of a program, and parts of paths.
Repository = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_PART}(/{_PART})?$")]
Revision = Annotated[str, Field(max_length=253, pattern=r"^([^-\s]\S*)?$")]


Pattern = Annotated[str, Field(min_length=1, max_length=253, pattern="^[#-~]([ -~]*[!-~])?$")]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=32), ATOMIC]
Phase = Literal["Pending", "Hydrating", "Ready", "Failed"]
Count = Annotated[int | None, Field(json_schema_extra={"format": "int64"})]


class TokenRef(Model):
    """A token in a Secret in the cache's namespace."""

    name: ObjectName
    """Name of the Secret."""
    key: DataKey = "HF_TOKEN"
    """Key within it."""


class HuggingFace(Model):
    """A repository on Hugging Face."""

    repo: Repository
    """Repository, for example `Qwen/Qwen3-8B`."""
    revision: Revision | None = None
    """Branch, tag or commit. Without one, the repository's default branch."""
    allow_patterns: Patterns = ()
    """Files to have, for example `*.safetensors` and `*.json`. Without any, all of them; `*` matches `/` too."""
    ignore_patterns: Patterns = ()
    """Files to leave out of those, for example `original/*`: many repositories have weights in several formats."""
    auth_secret: TokenRef | None = None
    """Token for a gated or private repository. It is on a cluster only while the weights come there."""
    size_gib: Annotated[int, Field(ge=1, le=100000, alias="sizeGiB")]
    """Size in GiB of the volume on each cluster. It can be raised where the StorageClass allows that."""


class ModelCacheSpec(Spec):
    """Weights to stage, and where."""

    rules: ClassVar = (
        needed(
            "huggingFace",
            "self.source != 'HuggingFace'",
            "Source HuggingFace needs its own block: add `huggingFace: {repo: ..., sizeGiB: ...}`.",
        ),
    )

    source: Literal["HuggingFace"]
    """Where the weights come from. The block of the same name must be there."""
    hugging_face: HuggingFace | None = None
    """A repository on Hugging Face."""
    cluster_selector: ClusterSelector | None = None
    """Which clusters hold the weights. Without it, every cluster that has storage for caches."""


class CacheSummary(Model):
    """The clusters in figures."""

    ready: str | None = None
    """Clusters that hold the weights, of those that shall: `2/3`."""
    progress: Annotated[str | None, Field(max_length=64)] = None
    """How far the clusters are that the weights come to, taken together: `41%`. Without any, it is absent."""


class CacheProgress(Model):
    """How far the weights of one cluster are."""

    files: Count = None
    """Files that are there and verified."""
    total_files: Count = None
    """Files that there shall be."""
    bytes: Count = None
    """Bytes that are there."""
    total_bytes: Count = None
    """Bytes that there shall be."""
    estimated_completion: datetime | None = None
    """When all of them are there if it goes on as lately, by the clock of the cluster's node."""


class CachedCluster(Model):
    """The weights on one cluster."""

    name: Annotated[str, Field(max_length=63)]
    """Name of the InferenceCluster."""
    phase: Phase | None = None
    """`Pending` without a volume, `Hydrating` while the weights come, then `Ready` or `Failed`."""
    message: Annotated[str | None, Field(max_length=1024)] = None
    """What went wrong or is awaited."""
    since: datetime | None = None
    """Since when it is in this phase, by the operator's clock."""
    attempts: int | None = None
    """How often staging these weights was begun: a hydration that fails is begun again after a while."""
    progress: CacheProgress | None = None
    """How far it is."""
    volume: Annotated[str | None, Field(max_length=63)] = None
    """PersistentVolumeClaim that replicas start from: one that holds all of the weights. Until there is one, it is
    absent."""
    revision: Annotated[str | None, Field(max_length=253)] = None
    """Commit of which that volume holds all files."""


class ModelCacheStatus(Status):
    """Where the weights are."""

    summary: CacheSummary | None = None
    """The clusters in figures."""
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
    TOO_MANY = "TooMany", "False", "Its namespace has as many caches before it as it may have; see how many.", WARNING
    FAILED = "Failed", "False", "Staging failed on some cluster; it is begun again after a while.", WARNING
    PARTIAL = "Partial", "False", "Some clusters hold the weights, others not yet.", STEP
    HYDRATING = "Hydrating", "False", "No cluster holds them yet.", STEP
    STAGED = "Staged", "True", "Every matching cluster holds them."


class ModelCache(Resource[ModelCacheSpec, ModelCacheStatus]):
    """A model's weights, staged on a volume of every matching cluster, for engines to start from."""

    definition: ClassVar = Definition(
        kind="ModelCache",
        group=MODELPLANE,
        short="mc",
        scope="Namespaced",
        columns=(
            Column("SOURCE", ".spec.huggingFace.repo"),
            Column("STAGED", ".status.summary.ready"),
            Column("PROGRESS", ".status.summary.progress"),
        ),
        conditions=(ClustersMatched, ArtifactReady, Synced, Ready),
    )

    def on(self, cluster: str) -> CachedCluster | None:
        """What was last known of one cluster."""
        return next((one for one in self.status.clusters if one.name == cluster), None) if self.status else None
