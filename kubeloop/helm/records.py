"""Helm's records of releases: a Secret for each revision, with its status in labels, and a payload.

The payload is compressed JSON, base64-encoded twice: by Helm, and by the API like all data of Secrets.
"""

from __future__ import annotations

import base64
import gzip
import re
import zlib
from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any, Final, cast

import orjson

from kubeloop.client.limits import MIB, format_size, too_many_values
from kubeloop.errors import Misbehaving, ServerFault
from kubeloop.helm.release import Revision, RevisionContent
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of, labels_of

INFLATED: Final = 16 * MIB
"""The limit of a decompressed payload in bytes. A Secret has at most 1 MiB, and charts compress about tenfold."""
_PAYLOAD = "release"
_GZIP: Final = 16 + zlib.MAX_WBITS


def revisions(secrets: Iterable[Manifest]) -> Mapping[Key, tuple[Revision, ...]]:
    """Return the revisions of each release, the newest first. Secrets that are not Helm's are skipped."""
    by_release: dict[Key, list[Revision]] = {}
    for secret in secrets:
        if (revision := _parse_revision(secret)) is not None:
            by_release.setdefault(revision.release, []).append(revision)
    return {
        release: tuple(sorted(items, key=lambda item: item.number, reverse=True))
        for release, items in by_release.items()
    }


_NUMBER = re.compile("[0-9]{1,18}")
_TIME = re.compile("[0-9]{1,11}")  # seconds, up to years with four digits
_RELEASE = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RELEASE_LENGTH: Final = 53  # Helm's limit, which leaves room for suffixes
LABEL_LENGTH: Final = 63  # limit of a namespace


def may_be_a_release(release: Key) -> bool:
    """True if the name and namespace are valid for Helm, and so safe as its arguments."""
    name, namespace = release.name, release.namespace
    if len(name) > RELEASE_LENGTH or len(namespace) > LABEL_LENGTH:  # before the regular expressions
        return False
    return bool(_RELEASE.fullmatch(name) and _RELEASE.fullmatch(namespace)) and "." not in namespace


def _parse_revision(secret: Manifest) -> Revision | None:
    """Return the revision that a Secret's metadata describes; None if it is not one of Helm's."""
    labels, metadata = labels_of(secret), secret["metadata"]
    number, release = labels.get("version", ""), Key(metadata.get("namespace") or "", labels.get("name", ""))
    if labels.get("owner") != "helm" or metadata.get("deletionTimestamp"):
        return None
    if not _NUMBER.fullmatch(number) or not may_be_a_release(release):
        return None
    try:
        created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None  # not from an API server
    modified = labels.get("modifiedAt", "")
    return Revision(
        release=release,
        number=int(number),
        status=labels.get("status", "unknown"),
        secret=key_of(secret),
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        modified=max(created, float(modified) if _TIME.fullmatch(modified) else 0.0),
        digest=labels.get(names().release, ""),
        owner=labels.get(names().owner_uid, ""),
        interrupted=labels.get(names().interrupted) == number,
    )


def content(secret: Manifest) -> RevisionContent:
    """Parse the payload of a revision; raises ServerFault if it is not Helm's."""
    release = _read_payload(secret)
    chart, info = _get_map(_get_map(release, "chart"), "metadata"), _get_map(release, "info")
    return RevisionContent(
        _get_string(chart, "name"),
        _get_string(chart, "version"),
        dict(_get_map(release, "config")),
        _get_string(info, "description"),
    )


def mark_failed(secret: Manifest) -> Manifest:
    """Return the Secret of an abandoned revision with the status "failed", so that Helm can continue from there.

    Helm refuses to touch a pending release, but upgrades a failed one without uninstalling it.
    """
    release = _read_payload(secret)
    info = {**_get_map(release, "info"), "status": "failed", "description": "Helm ended before it was done"}
    try:
        payload = orjson.dumps({**release, "info": info})
    except orjson.JSONEncodeError as error:  # orjson parses deeper nesting than it serializes
        raise ServerFault(f"Secret {key_of(secret)} is nested deeper than records of Helm's are") from error
    packed = base64.b64encode(gzip.compress(payload))
    metadata, labels = secret["metadata"], labels_of(secret)
    # The label has the number, because Helm copies labels to the next revision.
    new_labels = {**labels, "status": "failed", names().interrupted: labels.get("version", "")}
    return {
        **secret,
        "metadata": {**metadata, "labels": new_labels},
        "data": {**secret["data"], _PAYLOAD: base64.b64encode(packed).decode()},
    }


def _get_string(mapping: Mapping[str, Any], name: str) -> str:
    """Return a field that is a string, else an empty string. Other values may be nested too deep to be converted."""
    return value if isinstance(value := mapping.get(name), str) else ""


def _get_map(mapping: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    """Return a field that is a map, else an empty map."""
    value = mapping.get(name)
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def _read_payload(secret: Manifest) -> dict[str, Any]:
    """Decode a payload; raises ServerFault if it is not Helm's, and Misbehaving if it is too large."""
    try:
        packed = base64.b64decode(base64.b64decode(secret["data"][_PAYLOAD]))
        # Decompress at most one byte beyond the limit: anyone who may write Secrets there controls this payload.
        content = zlib.decompressobj(_GZIP).decompress(packed, INFLATED + 1)
        if len(content) > INFLATED:
            raise Misbehaving(
                f"Secret {key_of(secret)} inflates to more than the {format_size(INFLATED)} that are allowed"
            )
        if excess := too_many_values(content, INFLATED):
            raise Misbehaving(f"Secret {key_of(secret)} has {excess}")
        release = orjson.loads(content)
        if isinstance(release, dict):
            return cast(dict[str, Any], release)
    except (KeyError, TypeError, ValueError, zlib.error):
        pass
    raise ServerFault(f"Secret {key_of(secret)} is not a record of Helm's")
