"""What a replica names on the hub, and the copies of it on the cluster: what is rendered of it, and what stays."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kubeloop.objects import Manifest, section
from kubeloop.types import CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE, SECRET, type_of
from modelplane_operator.api import names
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.render import Context, CopySource, sources

# Pods of the shape before may still name these, and could not be made again without them.
_NAMED_BY_PODS = frozenset({RESOURCE_CLAIM_TEMPLATE, SECRET, CONFIG_MAP})


def whole(seen: Observed) -> Context:
    """What was seen, but for referenced objects that lack keys: engines keep the copy that they have, or wait for one.

    A copy without these keys would be taken for one of before.
    """
    lacking = {(source.kind, source.name) for source in _lost(seen)}
    referenced = [one for one in seen.around.referenced if (one["kind"], one["metadata"]["name"]) not in lacking]
    picker_answers = seen.picker_answers and not seen.picker_refusal
    return replace(seen.around, referenced=tuple(referenced), picker_answers=picker_answers)


def keeps(child: Manifest, seen: Observed, *, complete: bool) -> bool:
    """Whether a child stays even if it is not wanted: what running pods need, and copies of what has vanished."""
    if type_of(child) not in _NAMED_BY_PODS:
        return False
    return not complete or child["metadata"]["name"] in {_copy(seen, source) for source in _lost(seen)}


def _copy(seen: Observed, source: CopySource) -> str:
    return names.copied(seen.replica.metadata.name, source.use, source.name)


def _lost(seen: Observed) -> Mapping[CopySource, str]:
    """What the engines name and the hub does not have, or not whole: in words."""
    there = {(referenced["kind"], referenced["metadata"]["name"]): referenced for referenced in seen.around.referenced}
    return {
        source: words
        for source in sources(seen.replica)
        if (words := _lack(source, there.get((source.kind, source.name))))
    }


def _lack(source: CopySource, referenced: Manifest | None) -> str:
    if referenced is None:
        return f"no {source.kind} {source.name}"
    gone = source.needed - {*section(referenced, "data"), *section(referenced, "binaryData")}
    keys = f"key{'s' if len(gone) > 1 else ''} {', '.join(sorted(gone))}"
    return f"no {keys} in {source.kind} {source.name}" if gone else ""


def missing(seen: Observed, *, copied: bool) -> str:
    """What the hub lacks that engines wait for: of what they have a copy of before, or of what they have none."""
    has = {child["metadata"]["name"] for child in seen.children}
    absent = [
        words for source, words in _lost(seen).items() if source.required and (_copy(seen, source) in has) is copied
    ]
    remedy = "" if copied else ", which its engines name: create what is missing"
    return f"namespace {seen.replica.key.namespace} has {', '.join(absent)}{remedy}" if absent else ""
