"""What Helm keeps of its releases: a Secret for each revision, with labels that tell how it stands, and a payload.

The payload is JSON, compressed and twice encoded: by Helm, and by the API as every Secret's content.
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

from kubeloop.client.limits import MIB, shown, too_many_values
from kubeloop.errors import Misbehaving, ServerFault
from kubeloop.helm.release import Revision, RevisionContent
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of, labels_of

INFLATED: Final = 16 * MIB
"""What a payload may be: a Secret has at most 1 MiB, and charts and values have some ten times that when inflated."""
_PAYLOAD = "release"
_GZIP: Final = 16 + zlib.MAX_WBITS


def revisions(secrets: Iterable[Manifest]) -> Mapping[Key, tuple[Revision, ...]]:
    """The revisions of each release, the newest first. Secrets that are not Helm's are passed over."""
    found: dict[Key, list[Revision]] = {}
    for secret in secrets:
        if (revision := _revision(secret)) is not None:
            found.setdefault(revision.release, []).append(revision)
    return {release: tuple(sorted(known, key=lambda one: one.number, reverse=True)) for release, known in found.items()}


_NUMBER = re.compile("[0-9]{1,18}")
_TIME = re.compile("[0-9]{1,11}")  # in seconds: years that have four digits
_RELEASE = re.compile("[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*")
RELEASE_LENGTH: Final = 53  # by Helm, for what it appends
LABEL_LENGTH: Final = 63  # of a namespace


def may_be_a_release(release: Key) -> bool:
    """Whether Helm could have a release of that name: else it could be anything else that a program is told."""
    name, namespace = release.name, release.namespace
    if len(name) > RELEASE_LENGTH or len(namespace) > LABEL_LENGTH:  # before anything that takes longer with them
        return False
    return bool(_RELEASE.fullmatch(name) and _RELEASE.fullmatch(namespace)) and "." not in namespace


def _revision(secret: Manifest) -> Revision | None:
    said, metadata = labels_of(secret), secret["metadata"]
    number, release = said.get("version", ""), Key(metadata.get("namespace") or "", said.get("name", ""))
    if said.get("owner") != "helm" or metadata.get("deletionTimestamp"):
        return None
    if not _NUMBER.fullmatch(number) or not may_be_a_release(release):
        return None
    try:
        created = datetime.fromisoformat(metadata["creationTimestamp"]).timestamp()
    except (KeyError, TypeError, ValueError):
        return None  # no API server stores that
    modified = said.get("modifiedAt", "")
    return Revision(
        release=release,
        number=int(number),
        status=said.get("status", "unknown"),
        secret=key_of(secret),
        uid=metadata["uid"],
        version=metadata["resourceVersion"],
        modified=max(created, float(modified) if _TIME.fullmatch(modified) else 0.0),
        digest=said.get(names().release, ""),
        owner=said.get(names().owner_uid, ""),
        interrupted=said.get(names().interrupted) == number,
    )


def content(secret: Manifest) -> RevisionContent:
    """Read a revision's payload; raises ServerFault when it is none of Helm's."""
    release = _payload(secret)
    chart, info = _part(_part(release, "chart"), "metadata"), _part(release, "info")
    return RevisionContent(
        _text(chart, "name"),
        _text(chart, "version"),
        dict(_part(release, "config")),
        _text(info, "description"),
    )


def marked_failed(secret: Manifest) -> Manifest:
    """The Secret of a revision that nobody works on any more, so that Helm goes on from there.

    Helm refuses to touch a release that is pending. It takes one that failed as it is: nothing has to be uninstalled.
    """
    release = _payload(secret)
    info = {**_part(release, "info"), "status": "failed", "description": "Helm ended before it was done"}
    try:
        said = orjson.dumps({**release, "info": info})
    except orjson.JSONEncodeError as error:  # it reads what is nested deeper than it writes
        raise ServerFault(f"Secret {key_of(secret)} is nested deeper than records of Helm's are") from error
    packed = base64.b64encode(gzip.compress(said))
    metadata, known = secret["metadata"], labels_of(secret)
    # The number, because Helm gives a revision the labels of the one before.
    marks = {**known, "status": "failed", names().interrupted: known.get("version", "")}
    return {
        **secret,
        "metadata": {**metadata, "labels": marks},
        "data": {**secret["data"], _PAYLOAD: base64.b64encode(packed).decode()},
    }


def _text(of: Mapping[str, Any], name: str) -> str:
    """Return a field that is a text: anything else may be nested too deep to be written out."""
    return value if isinstance(value := of.get(name), str) else ""


def _part(of: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    value = of.get(name)
    return cast(Mapping[str, Any], value) if isinstance(value, dict) else {}


def _payload(secret: Manifest) -> dict[str, Any]:
    try:
        packed = base64.b64decode(base64.b64decode(secret["data"][_PAYLOAD]))
        # One byte more than allowed shows that there are more: whoever may write Secrets there writes this one, too.
        told = zlib.decompressobj(_GZIP).decompress(packed, INFLATED + 1)
        if len(told) > INFLATED:
            raise Misbehaving(f"Secret {key_of(secret)} inflates to more than the {shown(INFLATED)} that are allowed")
        if crowd := too_many_values(told, INFLATED):
            raise Misbehaving(f"Secret {key_of(secret)} has {crowd}")
        release = orjson.loads(told)
        if isinstance(release, dict):
            return cast(dict[str, Any], release)
    except (KeyError, TypeError, ValueError, zlib.error):
        pass
    raise ServerFault(f"Secret {key_of(secret)} is not a record of Helm's")
