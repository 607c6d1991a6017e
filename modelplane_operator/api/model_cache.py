"""ModelCache: a model's weights, staged near the GPUs."""

from __future__ import annotations

from typing import Annotated, ClassVar, Literal

from pydantic import Field

from modelplane_operator.api.base import MODELPLANE, Column, Definition, Resource, Status
from modelplane_operator.api.bounds import DataKey, ObjectName
from modelplane_operator.api.conditions import STEP, WARNING, ConditionType, Ready, Synced
from modelplane_operator.api.crossplane import Spec
from modelplane_operator.api.model import Model, needed
from modelplane_operator.api.shared import ClusterSelector

_PART = r"[a-zA-Z0-9_][-._a-zA-Z0-9]*"
# They become arguments of a program, and parts of paths.
Repository = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_PART}(/{_PART})?$")]
Revision = Annotated[str, Field(max_length=253, pattern=r"^([^-\s]\S*)?$")]


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
    auth_secret: TokenRef | None = None
    """Token for a gated or private repository."""
    size_gib: Annotated[int, Field(ge=1, le=100000, alias="sizeGiB")]
    """Size in GiB of the volume on each cluster."""


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
    """The clusters in one figure."""

    ready: str | None = None
    """Clusters that hold the weights, of those that shall: `2/3`."""


class CachedCluster(Model):
    """The weights on one cluster."""

    name: str
    """Name of the InferenceCluster."""
    phase: Literal["Pending", "Hydrating", "Ready", "Failed"] | None = None
    """`Pending` without a volume, `Hydrating` while the weights come, then `Ready` or `Failed`."""
    message: str | None = None
    """What went wrong or is awaited."""


class ModelCacheStatus(Status):
    """Where the weights are."""

    summary: CacheSummary | None = None
    """The clusters in one figure."""
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
    FAILED = "Failed", "False", "Staging failed on some cluster.", WARNING
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
        columns=(Column("SOURCE", ".spec.huggingFace.repo"), Column("READY", ".status.summary.ready")),
        conditions=(ClustersMatched, ArtifactReady, Synced, Ready),
    )
