"""Whether an object still says what we last applied, told without comparing values.

Comparing the live object with the manifest does not tell: servers fill in defaults, write `1000m` as `1` and leave out
what is empty; webhooks add to it. So two questions are asked instead.

1. Is it this manifest that was applied last? Its hash is an annotation of the object.
2. Has nobody changed one of its fields since? The server keeps the set of fields that are ours (`managedFields`), and
   takes a field out of it when another manager gives it another value, or takes it away.

Both hold for an object that was written before this process began, so that a restart writes nothing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson

from kubeloop.naming import names
from kubeloop.objects import Manifest, annotations_of

HASH: Final = 16  # 64 bits: two manifests in succession, not a birthday party
LARGEST: Final = 64 * 1024  # of our fields' JSON: a LeaderWorkerSet has some 5 KB; beyond that the hash alone tells
WHOLE: Final = "{}"
"""An object all of which is ours."""

Fields = Mapping[str, Any]

# The server keeps no fields for what an object is called by, nor, when the object itself is applied, for its status.
_UNTRACKED = frozenset({"apiVersion", "kind", "status"})
_TRACKED_METADATA = frozenset({"labels", "annotations", "ownerReferences", "finalizers"})


def marked(manifest: Manifest) -> Manifest:
    """The manifest with its hash on it, as it is applied."""
    metadata: Manifest = manifest["metadata"]
    annotations = {**annotations_of(manifest), names().applied: _digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def was_applied(live: Manifest, wanted: Manifest) -> bool:
    """Whether it is this manifest that was applied last to the live object."""
    return annotations_of(live).get(names().applied) == _digest(wanted)


def _digest(manifest: Manifest) -> str:
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()[:HASH]


def owned_fields(manifest: Manifest) -> str:
    """The fields that are ours, of an object as a server tells it: JSON, kept once for all objects of one shape.

    Whoever has the server writes them at any length: what no honest object has is not kept.
    """
    for entry in manifest["metadata"].get("managedFields") or ():
        applied = entry.get("manager") == names().field_manager and entry.get("operation") == "Apply"
        if applied and not entry.get("subresource"):
            fields = orjson.dumps(entry.get("fieldsV1") or {})
            return sys.intern(fields.decode()) if len(fields) <= LARGEST else WHOLE
    return ""


def is_current(live: Manifest, owned: str, wanted: Manifest) -> bool:
    """Whether applying the marked manifest would change nothing that we want of the live object."""
    if not owned or annotations_of(live).get(names().applied) != wanted["metadata"]["annotations"][names().applied]:
        return False
    fields = orjson.loads(owned)
    metadata = {name: value for name, value in wanted["metadata"].items() if name in _TRACKED_METADATA}
    content = {name: value for name, value in wanted.items() if name not in _UNTRACKED} | {"metadata": metadata}
    try:
        return _all_owned(content, fields)
    except (AttributeError, TypeError, ValueError):  # no API server writes such fields
        return False


def _all_owned(value: Any, fields: Fields) -> bool:
    if not fields:  # a leaf, or a list or map that is one value to the server
        return True
    if isinstance(value, dict):
        return all(
            (below := fields.get(f"f:{name}")) is not None and _all_owned(item, below)
            for name, item in cast(Mapping[str, Any], value).items()
            if item is not None
        )
    if isinstance(value, list):
        keyed = [(orjson.loads(name[2:]), below) for name, below in fields.items() if name.startswith("k:")]
        values = {name[2:] for name in fields if name.startswith("v:")}
        return all(_item_owned(item, keyed, values) for item in cast(Iterable[Any], value))
    return True


def _item_owned(item: Any, keyed: Iterable[tuple[Mapping[str, Any], Fields]], values: Iterable[str]) -> bool:
    if not isinstance(item, dict):
        return orjson.dumps(item).decode() in values
    entry = cast(Mapping[str, Any], item)
    # A key that the item leaves out has its default (a port's protocol).
    return any(
        all(entry.get(name, value) == value for name, value in key.items()) and _all_owned(entry, below)
        for key, below in keyed
    )
