"""Detect foreign software: components of a stack that another owner has installed on the cluster.

A CustomResourceDefinition or DeviceClass shows that the software exists; Helm's annotations, labels or a Deployment
show its owner. Without an owner it is a remnant, since Helm keeps the definitions in a chart's `crds/`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from kubeloop.objects import Key, Manifest, annotations_of, entries, key_of, labels_of
from modelplane_operator.api import labels

_MANAGED_BY: Final = "app.kubernetes.io/managed-by"
_NAME: Final = "app.kubernetes.io/name"
_OLM: Final = "olm.managed"
_IMAGE: Final = re.compile(r"(?:^|/)([^/:@]+)(?::[^/@]*)?(?:@.*)?$")
_LONGEST: Final = 253  # characters kept of a reported owner


@dataclass(frozen=True, slots=True)
class Marker:
    """The objects by which a cluster shows that it has some software."""

    name: str
    """The name of its CustomResourceDefinition or DeviceClass."""
    image: str = ""
    """The name of its controller's image, without the registry; empty if no Deployment is checked."""


def holder(
    marker: Marker, release: Key, definitions: Iterable[Manifest], deployments: Iterable[Manifest]
) -> str | None:
    """Return the owner of software on a cluster; empty if it is `release`, None if there is none."""
    definition = next((item for item in definitions if item["metadata"]["name"] == marker.name), None)
    if definition is None:
        return None
    controllers = [item for item in deployments if marker.image and _runs_image(item, marker.image)]
    for manifest in (definition, *controllers):
        if labels.OWNER_UID in labels_of(manifest) or _get_helm_release(manifest) == release:
            return ""
        if (name := _find_owner(manifest)) and name.isprintable():
            return name
    return f"Deployment {key_of(controllers[0])}"[:_LONGEST] if controllers else None


def _get_helm_release(manifest: Manifest) -> Key | None:
    """Return the Helm release that created the object, by its annotations."""
    annotations = annotations_of(manifest)
    name = annotations.get("meta.helm.sh/release-name")
    return Key(annotations.get("meta.helm.sh/release-namespace", ""), name) if name else None


def _find_owner(manifest: Manifest) -> str:
    """Return the owner of an object, by Helm's annotations or by labels; empty if they name none."""
    if release := _get_helm_release(manifest):
        return f"Helm release {release}"[:_LONGEST]
    object_labels = labels_of(manifest)
    if object_labels.get(_OLM) == "true":
        return "the Operator Lifecycle Manager"
    return object_labels.get(_MANAGED_BY, "")[:_LONGEST]


def _runs_image(deployment: Manifest, image: str) -> bool:
    """True if a Deployment runs an image of this name, or has it as its name label."""
    containers: Sequence[Mapping[str, object]] = entries(deployment, "spec", "template", "spec", "containers")
    images = (_IMAGE.search(str(container.get("image") or "")) for container in containers)
    return labels_of(deployment).get(_NAME) == image or any(match and match[1] == image for match in images)
