"""What each source of a ModelCache is to the rest: its content, the hydrator's arguments, the credentials it takes."""

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

DIGITS: Final = 16  # of a digest: two contents of one cache, not a birthday party


@dataclass(frozen=True, slots=True)
class HydratorCredentials:
    """What of a Secret the hydrator gets."""

    secret: str
    variables: Mapping[str, str]
    """Keys of the Secret, by the variable of the hydrator's that has what is there."""
    optional: Mapping[str, str] = field(default_factory=dict[str, str])
    """Those that need not be there."""


def source_of(cache: ModelCache) -> Remote | PersistentVolumeClaim:
    """Raises ValueError for a cache whose rules the API server did not know."""
    spec = cache.spec
    found = {
        "HuggingFace": spec.hugging_face,
        "S3": spec.s3,
        "GoogleCloudStorage": spec.google_cloud_storage,
        "OCI": spec.oci,
        "HTTP": spec.http,
        "PersistentVolumeClaim": spec.persistent_volume_claim,
    }[spec.source]
    if found is None:
        raise ValueError(f"ModelCache {cache.key} has no block for source {spec.source}")
    return found


def fetched_by(cache: ModelCache) -> Remote:
    """The source of a cache whose files are fetched; raises ValueError for another."""
    source = source_of(cache)
    if isinstance(source, PersistentVolumeClaim):
        raise ValueError(f"nothing is fetched for ModelCache {cache.key}")
    return source


def claim_of(cache: ModelCache) -> str:
    """The claim that a cache has its files on without fetching any; empty when it does fetch."""
    source = source_of(cache)
    return source.claim_name if isinstance(source, PersistentVolumeClaim) else ""


def content_of(cache: ModelCache) -> str:
    """What a volume is to hold, in short: another one when it is to hold something else. Its size is none of it."""
    source = fetched_by(cache)
    told = [cache.spec.source, *_identity(source), source.allow_patterns, source.ignore_patterns]
    return hashlib.sha256(json.dumps(told).encode()).hexdigest()[:DIGITS]


def _identity(source: Remote) -> tuple[str, ...]:
    match source:
        case HuggingFace():
            return (source.repo, source.revision or "")
        case S3():
            return (source.endpoint or "", source.bucket, source.prefix or "")
        case GoogleCloudStorage():
            return (source.bucket, source.prefix or "")
        case OCI():
            return (source.reference,)
        case HTTP():
            return (source.manifest, source.sha256 or "")


def pin_of(source: Remote | PersistentVolumeClaim) -> str:
    """What its content is to resolve to, where the spec says so itself; empty for a branch, say, or a bucket."""
    match source:
        case HuggingFace(revision=str(commit)) if re.fullmatch("[0-9a-f]{40}", commit):
            return commit
        case HTTP(sha256=str(digest)):
            return f"sha256:{digest}"
        case _:  # an artifact's digest may be that of an index, which resolves to the one artifact in it
            return ""


def to_pin(source: Remote | PersistentVolumeClaim) -> str:
    """What somebody does who wants one content on all clusters."""
    match source:
        case HuggingFace():
            return "name a commit in huggingFace.revision"
        case OCI():
            return "name a digest in oci.reference"
        case HTTP():
            return "name the manifest's hash in http.sha256"
        case _:
            return "put each content under a prefix of its own, and name that"


def shown(source: Remote | PersistentVolumeClaim) -> str:
    """In a column."""
    match source:
        case HuggingFace():
            return source.repo
        case S3():
            return _bucket("s3", source.bucket, source.prefix)
        case GoogleCloudStorage():
            return _bucket("gs", source.bucket, source.prefix)
        case OCI():
            return f"oci://{source.reference}"
        case HTTP():
            return source.manifest.partition("?")[0]  # what comes after it may be a key
        case PersistentVolumeClaim():
            return f"pvc://{source.claim_name}"


def named(source: Remote | PersistentVolumeClaim) -> str:
    """In a sentence."""
    match source:
        case HuggingFace():
            return f"repository {source.repo}"
        case S3() | GoogleCloudStorage():
            return f"bucket {shown(source)}"
        case OCI():
            return f"artifact {source.reference}"
        case HTTP():
            return f"manifest {shown(source)}"
        case PersistentVolumeClaim():
            return f"PersistentVolumeClaim {source.claim_name}"


def arguments(source: Remote, hugging_face: str) -> Iterator[str]:
    """What the hydrator is told of it: nothing that a cluster has said."""
    match source:
        case HuggingFace():
            yield f"--repo={source.repo}"
            yield from (f"--revision={one}" for one in filter(None, [source.revision]))
            yield f"--endpoint={hugging_face}"
        case S3():
            yield from ("--source=S3", f"--bucket={source.bucket}", f"--region={source.region}")
            yield from (f"--prefix={one}" for one in filter(None, [source.prefix]))
            yield from (f"--endpoint={one}" for one in filter(None, [source.endpoint]))
        case GoogleCloudStorage():
            yield from ("--source=GoogleCloudStorage", f"--bucket={source.bucket}")
            yield from (f"--prefix={one}" for one in filter(None, [source.prefix]))
        case OCI():
            yield from ("--source=OCI", f"--reference={source.reference}", *(["--insecure"] if source.insecure else []))
        case HTTP():
            yield from ("--source=HTTP", f"--manifest={source.manifest}")
            yield from (f"--sha256={one}" for one in filter(None, [source.sha256]))
    yield from (f"--allow={one}" for one in source.allow_patterns)
    yield from (f"--ignore={one}" for one in source.ignore_patterns)


def credentials(source: Remote | PersistentVolumeClaim) -> HydratorCredentials | None:
    """None when it has to do without."""
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


def _bucket(scheme: str, bucket: str, prefix: str | None) -> str:
    return f"{scheme}://{bucket}" + (f"/{prefix.strip('/')}" if prefix else "")
