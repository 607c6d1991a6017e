"""Where a ModelCache has a model's files from: a block for each source."""

from __future__ import annotations

from typing import Annotated, TypeAlias

from pydantic import Field

from kubeloop.model import ATOMIC, Model
from modelplane_operator.api.bounds import CloudName, DataKey, ObjectName

_PART = r"[a-zA-Z0-9_][-._a-zA-Z0-9]*"
# They become arguments of a program, and parts of paths.
Repository = Annotated[str, Field(min_length=1, max_length=253, pattern=f"^{_PART}(/{_PART})?$")]
Revision = Annotated[str, Field(max_length=253, pattern=r"^([^-\s]\S*)?$")]
Pattern = Annotated[str, Field(min_length=1, max_length=253, pattern="^[#-~]([ -~]*[!-~])?$")]
Patterns = Annotated[tuple[Pattern, ...], Field(max_length=32), ATOMIC]
# What S3 and Google Cloud Storage both let a bucket be called.
Bucket = Annotated[str, Field(min_length=3, max_length=222, pattern=r"^[a-z0-9]([-._a-z0-9]*[a-z0-9])$")]
Prefix = Annotated[str, Field(max_length=1024, pattern="^([#-~]([ -~]*[!-~])?)?$")]
_HOST = r"([a-zA-Z0-9]([-.a-zA-Z0-9]*[a-zA-Z0-9])?|\[[:.0-9a-fA-F]+\])(:[0-9]{1,5})?"
# No user, password or fragment in it.
WebAddress = Annotated[str, Field(min_length=8, max_length=2048, pattern=rf"^https?://{_HOST}(/[!-\"$-~]*)?$")]
_NAME = r"[a-z0-9]+([._-]+[a-z0-9]+)*"
Reference = Annotated[
    str,
    Field(
        min_length=3,
        max_length=1024,
        pattern=rf"^{_HOST}(/{_NAME})+(:[a-zA-Z0-9_][-._a-zA-Z0-9]{{0,127}})?(@sha256:[0-9a-f]{{64}})?$",
    ),
]
Sha256 = Annotated[str, Field(min_length=64, max_length=64, pattern="^[0-9a-f]{64}$")]


class SecretName(Model):
    """A Secret in the cache's namespace."""

    name: ObjectName
    """Name of the Secret."""


class TokenRef(SecretName):
    """A token in a Secret in the cache's namespace."""

    key: DataKey = "HF_TOKEN"
    """Key within it."""


class BearerRef(SecretName):
    """A token in a Secret in the cache's namespace."""

    key: DataKey = "token"
    """Key within it."""


class ServiceAccountKeyRef(SecretName):
    """The key of a service account in a Secret in the cache's namespace."""

    key: DataKey = "credentials.json"
    """Key within it, with the JSON that Google Cloud issues."""


class Fetched(Model):
    """What is fetched onto a volume of its own."""

    allow_patterns: Patterns = ()
    """Files to download, for example `*.safetensors` and `*.json`. Without any, all of them; `*` matches `/` too."""
    ignore_patterns: Patterns = ()
    """Files to leave out, for example `original/*`: many repositories have weights in several formats."""
    size_gib: Annotated[int, Field(ge=1, le=100000, alias="sizeGiB")]
    """Size in GiB of the volume on each cluster. It can be raised if the StorageClass allows it."""


class HuggingFace(Fetched):
    """A repository on Hugging Face."""

    repo: Repository
    """Repository, for example `Qwen/Qwen3-8B`."""
    revision: Revision | None = None
    """Branch, tag or commit. Without one, the repository's default branch."""
    auth_secret: TokenRef | None = None
    """Token for a gated or private repository. It is on a cluster only during the download."""


class S3(Fetched):
    """Objects in a bucket of Amazon S3, or of a store with its protocol."""

    bucket: Bucket
    """Bucket, for example `models`."""
    prefix: Prefix | None = None
    """Prefix of the objects' names, for example `qwen3-8b/v2`; the rest of a name is the path of the file."""
    region: CloudName = "us-east-1"
    """Region of the bucket."""
    endpoint: WebAddress | None = None
    """Address of a store other than Amazon's, as clusters reach it: `https://minio.example.com:9000`."""
    auth_secret: SecretName | None = None
    """Secret with the keys `AWS_ACCESS_KEY_ID` and `AWS_SECRET_ACCESS_KEY`, and optionally `AWS_SESSION_TOKEN`. Without
    it, the bucket has to be public. It is on a cluster only during the download."""


class GoogleCloudStorage(Fetched):
    """Objects in a bucket of Google Cloud Storage."""

    bucket: Bucket
    """Bucket, for example `models`."""
    prefix: Prefix | None = None
    """Prefix of the objects' names, for example `qwen3-8b/v2`; the rest of a name is the path of the file."""
    auth_secret: ServiceAccountKeyRef | None = None
    """Key of a service account that may read the bucket. Without it, the bucket has to be public. It is on a cluster
    only during the download."""


class OCI(Fetched):
    """An artifact in an OCI registry, each of whose layers is a file with its name in
    `org.opencontainers.image.title`."""

    reference: Reference
    """Registry, repository, and tag or digest: `ghcr.io/org/model:v2`. Without either, the tag `latest`."""
    insecure: bool = False
    """Whether to use HTTP without TLS."""
    auth_secret: SecretName | None = None
    """Secret of type `kubernetes.io/dockerconfigjson` for the registry. It is on a cluster only during the download."""


class HTTP(Fetched):
    """Files on any web server, named by a manifest in JSON: `{"files": [{"path": ..., "size": ..., "sha256": ...}]}`.
    A file is at its path beside the manifest, or at its `url`."""

    manifest: WebAddress
    """Address of the manifest, for example `https://models.example.com/qwen3-8b/v2/manifest.json`."""
    sha256: Sha256 | None = None
    """SHA-256 of the manifest; a manifest with another hash is rejected."""
    auth_secret: BearerRef | None = None
    """Token that is sent as `Authorization: Bearer` to the server of the manifest, and to no other. It is on a cluster
    only during the download."""


class PersistentVolumeClaim(Model):
    """A claim that is there already, and is mounted as it is."""

    claim_name: Annotated[str, Field(min_length=1, max_length=63, pattern="^[a-z0-9]([-a-z0-9]*[a-z0-9])?$")]
    """Name of the PersistentVolumeClaim, on each cluster in the namespace where the engines are:
    `modelplane-NAMESPACE`."""


Remote: TypeAlias = HuggingFace | S3 | GoogleCloudStorage | OCI | HTTP
"""Sources whose files are fetched."""
