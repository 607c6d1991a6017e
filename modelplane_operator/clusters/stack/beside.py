"""Software that a cluster has already, from somebody else: the parts of a stack that are left out there.

A CustomResourceDefinition or DeviceClass shows that there is such software; by Helm's annotations, by labels or by a
Deployment it shows whose it is. One that nobody can be named for is left over: Helm keeps those of a chart's `crds/`.
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
_LONGEST: Final = 253  # of what a cluster says somebody is called


@dataclass(frozen=True, slots=True)
class Marker:
    """How a cluster shows that it has software of a kind."""

    name: str
    """Of the CustomResourceDefinition, or of the DeviceClass, that comes with it."""
    image: str = ""
    """What the image of its controller is called, in whichever registry; empty where a Deployment shows nothing."""


def holder(
    marker: Marker, release: Key, definitions: Iterable[Manifest], deployments: Iterable[Manifest]
) -> str | None:
    """Return who has brought software to a cluster; empty when that is `release`, None when nobody has."""
    definition = next((one for one in definitions if one["metadata"]["name"] == marker.name), None)
    if definition is None:
        return None
    controllers = [one for one in deployments if marker.image and _runs(one, marker.image)]
    for manifest in (definition, *controllers):
        if labels.OWNER_UID in labels_of(manifest) or _helm_release(manifest) == release:
            return ""
        if (name := _attribution(manifest)) and name.isprintable():
            return name
    return f"Deployment {key_of(controllers[0])}"[:_LONGEST] if controllers else None


def _helm_release(manifest: Manifest) -> Key | None:
    noted = annotations_of(manifest)
    name = noted.get("meta.helm.sh/release-name")
    return Key(noted.get("meta.helm.sh/release-namespace", ""), name) if name else None


def _attribution(manifest: Manifest) -> str:
    if release := _helm_release(manifest):
        return f"Helm release {release}"[:_LONGEST]
    marks = labels_of(manifest)
    if marks.get(_OLM) == "true":
        return "the Operator Lifecycle Manager"
    return marks.get(_MANAGED_BY, "")[:_LONGEST]


def _runs(deployment: Manifest, image: str) -> bool:
    """Whether a Deployment runs an image of this name, or is labelled as what it is of."""
    containers: Sequence[Mapping[str, object]] = entries(deployment, "spec", "template", "spec", "containers")
    images = (_IMAGE.search(str(one.get("image") or "")) for one in containers)
    return labels_of(deployment).get(_NAME) == image or any(match and match[1] == image for match in images)
