"""What Crossplane put on every kind: accepted, so that manifests written for it apply unchanged, and ignored."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kubeloop.model import ATOMIC, Model
from modelplane_operator.api.bounds import COMPOSED, LabelsToMatch

_Ignored = Annotated[str, Field(max_length=253)]


class _NameRef(Model):
    name: _Ignored
    """Name of the referenced object."""


class _Labels(Model):
    match_labels: LabelsToMatch
    """Labels that the selected object carries."""


class ResourceRef(Model):
    """An object that Crossplane composed."""

    api_version: _Ignored
    """API version of the composed object."""
    kind: _Ignored
    """Kind of the composed object."""
    name: _Ignored | None = None
    """Name of the composed object."""


class ClusterResourceRef(ResourceRef):
    namespace: _Ignored | None = None
    """Namespace of the composed object."""


class _Composition(Model):
    """Settings for Crossplane, read by nothing here: manifests written for it apply unchanged."""

    composition_ref: _NameRef | None = None
    """Accepted and ignored."""
    composition_selector: _Labels | None = None
    """Accepted and ignored."""
    composition_revision_ref: _NameRef | None = None
    """Accepted and ignored."""
    composition_revision_selector: _Labels | None = None
    """Accepted and ignored."""
    composition_update_policy: Literal["Automatic", "Manual"] | None = None
    """Accepted and ignored."""


class Crossplane(_Composition):
    resource_refs: Annotated[tuple[ResourceRef, ...], Field(max_length=COMPOSED), ATOMIC] = ()
    """Accepted and ignored."""


class ClusterCrossplane(_Composition):
    resource_refs: Annotated[tuple[ClusterResourceRef, ...], Field(max_length=COMPOSED), ATOMIC] = ()
    """Accepted and ignored."""


class Spec(Model):
    """The part of a namespaced object that its author writes."""

    crossplane: Crossplane | None = None
    """Accepted for manifests written for Crossplane, and ignored: nothing here runs on it."""


class ClusterSpec(Model):
    """The part of a cluster-scoped object that its author writes."""

    crossplane: ClusterCrossplane | None = None
    """Accepted for manifests written for Crossplane, and ignored: nothing here runs on it."""
