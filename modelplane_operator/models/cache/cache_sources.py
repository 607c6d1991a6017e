"""Derive from each source of a ModelCache its content hash, the hydrator's arguments, and the required credentials.

Another content hash leads to another volume, so the hash must change with a change that leads to other files, and
with no other.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from modelplane_operator.api.cache_sources import (
    HTTP,
    OCI,
    S3,
    GoogleCloudStorage,
    HuggingFace,
    PersistentVolumeClaim,
    Remote,
)
from modelplane_operator.api.model_cache import ModelCache

DIGITS: Final = 16  # enough to distinguish the few contents of one cache
"""Length of a content hash, in hexadecimal digits."""


@dataclass(frozen=True, slots=True)
class HydratorCredentials:
    """The keys of a Secret that the hydrator gets as environment variables."""

    secret: str
    """Name of the Secret in the cache's namespace."""
    variables: Mapping[str, str]
    """Required keys of the Secret, by environment variable."""
    optional: Mapping[str, str] = field(default_factory=dict[str, str])
    """Optional keys of the Secret, by environment variable."""


def source_of(cache: ModelCache) -> Remote | PersistentVolumeClaim:
    """Return the source block of a cache. Raise ValueError if the block for `spec.source` is missing.

    The API server prevents that, unless the cache was stored before the CRD had the rule.
    """
    spec = cache.spec
    block = {
        "HuggingFace": spec.hugging_face,
        "S3": spec.s3,
        "GoogleCloudStorage": spec.google_cloud_storage,
        "OCI": spec.oci,
        "HTTP": spec.http,
        "PersistentVolumeClaim": spec.persistent_volume_claim,
    }[spec.source]
    if block is None:
        raise ValueError(f"ModelCache {cache.key} has no block for source {spec.source}")
    return block


def remote_source(cache: ModelCache) -> Remote:
    """Return the source of a cache whose files are fetched.

    Raise ValueError for an existing PersistentVolumeClaim.
    """
    source = source_of(cache)
    if isinstance(source, PersistentVolumeClaim):
        raise ValueError(f"nothing is fetched for ModelCache {cache.key}")
    return source


def claim_of(cache: ModelCache) -> str:
    """Return the name of the existing claim that a cache uses; "" if it fetches files."""
    source = source_of(cache)
    return source.claim_name if isinstance(source, PersistentVolumeClaim) else ""


def content_of(cache: ModelCache) -> str:
    """Return a short hash of what a volume must hold.

    Another content gets another volume; the size does not count.
    """
    source = remote_source(cache)
    match source:
        case HuggingFace():
            identity = (source.repo, source.revision or "")
        case S3():
            identity = (source.endpoint or "", source.bucket, source.prefix or "")
        case GoogleCloudStorage():
            identity = (source.bucket, source.prefix or "")
        case OCI():
            identity = (source.reference,)
        case HTTP():
            identity = (source.manifest, source.sha256 or "")
    fields = [cache.spec.source, *identity, source.allow_patterns, source.ignore_patterns]
    return hashlib.sha256(json.dumps(fields).encode()).hexdigest()[:DIGITS]


def pin_of(source: Remote | PersistentVolumeClaim) -> str:
    """Return the revision that the spec itself fixes; "" if the source can change, such as a branch or a bucket."""
    match source:
        case HuggingFace(revision=str(commit)) if re.fullmatch("[0-9a-f]{40}", commit):
            return commit
        case HTTP(sha256=str(digest)):
            return f"sha256:{digest}"
        case _:  # the digest of an OCI index differs from that of the artifact it resolves to
            return ""


def to_pin(source: Remote | PersistentVolumeClaim) -> str:
    """Return advice for users who want the same content on all clusters."""
    match source:
        case HuggingFace():
            return "name a commit in huggingFace.revision"
        case OCI():
            return "name a digest in oci.reference"
        case HTTP():
            return "name the manifest's hash in http.sha256"
        case _:
            return "put each content under a prefix of its own, and name that"


def format_for_column(source: Remote | PersistentVolumeClaim) -> str:
    """Return the source for a column of `kubectl get`."""
    match source:
        case HuggingFace():
            return source.repo
        case S3():
            return _bucket_url("s3", source.bucket, source.prefix)
        case GoogleCloudStorage():
            return _bucket_url("gs", source.bucket, source.prefix)
        case OCI():
            return f"oci://{source.reference}"
        case HTTP():
            return source.manifest.partition("?")[0]  # the query may have a key
        case PersistentVolumeClaim():
            return f"pvc://{source.claim_name}"


def describe_source(source: Remote | PersistentVolumeClaim) -> str:
    """Return the source as a phrase for messages."""
    match source:
        case HuggingFace():
            return f"repository {source.repo}"
        case S3() | GoogleCloudStorage():
            return f"bucket {format_for_column(source)}"
        case OCI():
            return f"artifact {source.reference}"
        case HTTP():
            return f"manifest {format_for_column(source)}"
        case PersistentVolumeClaim():
            return f"PersistentVolumeClaim {source.claim_name}"


def arguments(source: Remote, hugging_face: str) -> Iterator[str]:
    """Yield the hydrator's arguments for a source. None of them comes from a cluster."""
    match source:
        case HuggingFace():
            yield f"--repo={source.repo}"
            yield from (f"--revision={value}" for value in filter(None, [source.revision]))
            yield f"--endpoint={hugging_face}"
        case S3():
            yield from ("--source=S3", f"--bucket={source.bucket}", f"--region={source.region}")
            yield from (f"--prefix={value}" for value in filter(None, [source.prefix]))
            yield from (f"--endpoint={value}" for value in filter(None, [source.endpoint]))
        case GoogleCloudStorage():
            yield from ("--source=GoogleCloudStorage", f"--bucket={source.bucket}")
            yield from (f"--prefix={value}" for value in filter(None, [source.prefix]))
        case OCI():
            yield from ("--source=OCI", f"--reference={source.reference}", *(["--insecure"] if source.insecure else []))
        case HTTP():
            yield from ("--source=HTTP", f"--manifest={source.manifest}")
            yield from (f"--sha256={value}" for value in filter(None, [source.sha256]))
    yield from (f"--allow={value}" for value in source.allow_patterns)
    yield from (f"--ignore={value}" for value in source.ignore_patterns)


def credentials(source: Remote | PersistentVolumeClaim) -> HydratorCredentials | None:
    """Return the credentials of a source; None if it needs none."""
    if isinstance(source, PersistentVolumeClaim) or source.auth_secret is None:
        return None
    name = source.auth_secret.name
    match source:
        case HuggingFace(auth_secret=secret) if secret:
            return HydratorCredentials(name, {"HF_TOKEN": secret.key})
        case S3():
            keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
            session = "AWS_SESSION_TOKEN"
            return HydratorCredentials(name, {key: key for key in keys}, {session: session})
        case GoogleCloudStorage(auth_secret=secret) if secret:
            return HydratorCredentials(name, {"GOOGLE_CREDENTIALS": secret.key})
        case OCI():
            return HydratorCredentials(name, {"REGISTRY_CREDENTIALS": ".dockerconfigjson"})
        case HTTP(auth_secret=secret) if secret:
            return HydratorCredentials(name, {"HTTP_TOKEN": secret.key})
        case _:
            return None


def _bucket_url(scheme: str, bucket: str, prefix: str | None) -> str:
    """Return the URL of a bucket with an optional prefix."""
    return f"{scheme}://{bucket}" + (f"/{prefix.strip('/')}" if prefix else "")
