"""Compare the Secrets and ConfigMaps that a replica references on the hub with their copies on the cluster."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from kubeloop.objects import Manifest, section
from kubeloop.types import CONFIG_MAP, RESOURCE_CLAIM_TEMPLATE, SECRET, type_of
from modelplane_operator.api import names
from modelplane_operator.models.replica.plan.observed import Observed
from modelplane_operator.models.replica.render import Context, CopySource, sources

# Pods of an earlier shape may still reference these, and could not be recreated without them.
_REFERENCED_BY_PODS = frozenset({RESOURCE_CLAIM_TEMPLATE, SECRET, CONFIG_MAP})
"""Types that a pod needs to start."""


def complete_context(observed: Observed) -> Context:
    """Return the rendering context without referenced objects that lack keys.

    Engines then keep their existing copy or wait for one. A copy without those keys would replace a complete one.
    """
    incomplete = {(source.kind, source.name) for source in _find_incomplete(observed)}
    referenced = [
        manifest
        for manifest in observed.around.referenced
        if (manifest["kind"], manifest["metadata"]["name"]) not in incomplete
    ]
    picker_answers = observed.picker_answers and not observed.picker_refusal
    return replace(observed.around, referenced=tuple(referenced), picker_answers=picker_answers)


def keeps(child: Manifest, observed: Observed, *, complete: bool) -> bool:
    """True if a child that is not rendered stays: pods may use it, or it is a copy of an object that has vanished."""
    if type_of(child) not in _REFERENCED_BY_PODS:
        return False
    return not complete or child["metadata"]["name"] in {
        _name_copy(observed, source) for source in _find_incomplete(observed)
    }


def _name_copy(observed: Observed, source: CopySource) -> str:
    """Return the name of the copy of a referenced object."""
    return names.name_of_copy(observed.replica.metadata.name, source.use, source.name)


def _find_incomplete(observed: Observed) -> Mapping[CopySource, str]:
    """Return a message for each referenced object that the hub lacks or that lacks keys."""
    on_hub = {
        (referenced["kind"], referenced["metadata"]["name"]): referenced for referenced in observed.around.referenced
    }
    return {
        source: message
        for source in sources(observed.replica)
        if (message := describe_source(source, on_hub.get((source.kind, source.name))))
    }


def describe_source(source: CopySource, referenced: Manifest | None) -> str:
    """Return what a referenced object lacks, as a message; "" if nothing."""
    if referenced is None:
        return f"no {source.kind} {source.name}"
    missing_keys = source.needed - {*section(referenced, "data"), *section(referenced, "binaryData")}
    keys = f"key{'s' if len(missing_keys) > 1 else ''} {', '.join(sorted(missing_keys))}"
    return f"no {keys} in {source.kind} {source.name}" if missing_keys else ""


def describe_missing(observed: Observed, *, copied: bool) -> str:
    """Return a message about required objects that the hub lacks; "" if there are none.

    `copied` selects the objects that the cluster has an old copy of; otherwise those that it has no copy of.
    """
    child_names = {child["metadata"]["name"] for child in observed.children}
    messages = [
        message
        for source, message in _find_incomplete(observed).items()
        if source.required and (_name_copy(observed, source) in child_names) is copied
    ]
    remedy = "" if copied else ", which its engines name: create what is missing"
    return f"namespace {observed.replica.key.namespace} has {', '.join(messages)}{remedy}" if messages else ""
