"""Checks whether an object still has the content that we last applied, without comparing values.

Comparing the live object with the manifest does not work: servers fill in defaults, write `1000m` as `1` and drop empty
fields, and webhooks add more. Two other checks are made instead:

  1. Is this the manifest that was applied last? Its hash is an annotation of the object.
  2. Has another manager changed one of its fields? The server lists our fields in `managedFields`, and removes a field
     from that list when another manager changes or deletes it.

Both work for objects that were written before this process started, so that a restart writes nothing.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, Final, cast

import orjson

from kubeloop.naming import names
from kubeloop.objects import Manifest, annotations_of
from kubeloop.resource import Resource

HASH: Final = 16  # hex digits; 64 bits suffice to tell successive manifests of one object apart
LARGEST: Final = 64 * 1024  # bytes of our fields as JSON, some 5 KB in a LeaderWorkerSet; above it only the hash counts
ALL_FIELDS: Final = "{}"
"""The set of fields of an object that we own completely."""

Fields = Mapping[str, Any]
"""A set of fields in the format of `managedFields`."""

# The server does not track the fields that identify an object, nor the status if the main resource is applied.
_UNTRACKED = frozenset({"apiVersion", "kind", "status"})
_TRACKED_METADATA = frozenset({"labels", "annotations", "ownerReferences", "finalizers"})


def add_content_hash(manifest: Manifest) -> Manifest:
    """Return the manifest with its hash as an annotation, in the form in which it is applied."""
    metadata: Manifest = manifest["metadata"]
    annotations = {**annotations_of(manifest), names().applied: _digest(manifest)}
    return {**manifest, "metadata": {**metadata, "annotations": annotations}}


def was_applied(live: Manifest, manifest: Manifest) -> bool:
    """True if the manifest is the one that was last applied to the live object."""
    return annotations_of(live).get(names().applied) == _digest(manifest)


def _digest(manifest: Manifest) -> str:
    """Return the hash of a manifest."""
    return hashlib.sha256(orjson.dumps(manifest, option=orjson.OPT_SORT_KEYS)).hexdigest()[:HASH]


def compute_owned_fields(manifest: Manifest) -> str:
    """Return our fields of an object as JSON, interned, as objects of one shape share it.

    Empty if we applied nothing.

    The size is limited, because the owner of the server can make it arbitrarily large.
    """
    managers = manifest["metadata"].get("managedFields") or ()
    for entry in managers:
        applied = entry.get("manager") == names().field_manager and entry.get("operation") == "Apply"
        if applied and not entry.get("subresource"):
            if any(_has_text(other) and str(other.get("time")) > str(entry.get("time")) for other in managers):
                return ""  # what it changed is not known
            fields = orjson.dumps(entry.get("fieldsV1") or {})
            return sys.intern(fields.decode()) if len(fields) <= LARGEST else ALL_FIELDS
    return ""


def _has_text(entry: Manifest) -> bool:
    """True if a manager has applied `stringData` of a Secret, for which Kubernetes 1.36 tracks no change of `data`."""
    fields: Fields | None = entry.get("fieldsV1")
    return isinstance(fields, dict) and "f:stringData" in fields


def is_current(live: Manifest, owned: str, desired: Manifest) -> bool:
    """True if applying the marked manifest would not change the live object."""
    if not owned or annotations_of(live).get(names().applied) != desired["metadata"]["annotations"][names().applied]:
        return False
    metadata = {name: value for name, value in desired["metadata"].items() if name in _TRACKED_METADATA}
    content = {name: value for name, value in desired.items() if name not in _UNTRACKED} | {"metadata": metadata}
    return owns(owned, content)


def owns(owned: str, content: Manifest) -> bool:
    """True if no other manager has changed or deleted one of these fields since we applied it."""
    try:
        return bool(owned) and _all_owned(content, orjson.loads(owned))
    except (AttributeError, TypeError, ValueError):  # malformed fields, from a server that is no API server
        return False


def _all_owned(value: Any, fields: Fields) -> bool:
    """True if all parts of a value are in a set of fields."""
    if not fields:  # a leaf, or an atomic list or map
        return True
    if isinstance(value, dict):
        return all(
            (subfields := fields.get(f"f:{name}")) is not None and _all_owned(item, subfields)
            for name, item in cast(Mapping[str, Any], value).items()
            if item is not None
        )
    if isinstance(value, list):
        keyed = [(orjson.loads(name[2:]), subfields) for name, subfields in fields.items() if name.startswith("k:")]
        values = {name[2:] for name in fields if name.startswith("v:")}
        return all(_item_owned(item, keyed, values) for item in cast(Iterable[Any], value))
    return True


def _item_owned(item: Any, keyed: Iterable[tuple[Mapping[str, Any], Fields]], values: Iterable[str]) -> bool:
    """True if an item of a list is in the set, by its key or by its value."""
    if not isinstance(item, dict):
        return orjson.dumps(item).decode() in values
    entry = cast(Mapping[str, Any], item)
    # A key that the item leaves out has its default (a port's protocol).
    return any(
        all(entry.get(name, value) == value for name, value in key.items()) and _all_owned(entry, subfields)
        for key, subfields in keyed
    )


def owner_labels(owner: Resource[Any, Any]) -> dict[str, str]:
    """Return the labels of an owner's children. Raise ValueError if the owner was never stored."""
    if not owner.metadata.uid:
        raise ValueError(f"{owner.definition.kind} {owner.key} was never stored: nothing can be its child")
    naming = names()
    return {
        naming.owner_kind: owner.definition.kind,
        **({naming.owner_namespace: owner.metadata.namespace} if owner.metadata.namespace else {}),
        naming.owner_name: owner.metadata.name,
        naming.owner_uid: owner.metadata.uid,
    }
