"""Which type an object is of, our own kinds among them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from modelplane_operator.api import KINDS, Kind
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.kube.resources import TYPES, ResourceType


class UnknownTypeError(LookupError):
    """A manifest of a type that is neither ours nor has a row in `kube/resources.py`."""


def of(kind: Kind) -> ResourceType:
    """The type that a model of ours describes."""
    known = kind.definition
    return ResourceType(known.api_version, known.kind, known.plural, known.scope == "Namespaced")


ALL: Final[Mapping[tuple[str, str], ResourceType]] = {
    **TYPES,
    **{(known.api_version, known.kind): known for known in map(of, KINDS)},
}


def type_of(manifest: Manifest) -> ResourceType:
    """The type of an object."""
    api_version, kind = manifest.get("apiVersion", ""), manifest.get("kind", "")
    try:
        return ALL[api_version, kind]
    except KeyError:
        raise UnknownTypeError(f"{api_version} {kind} has no row in kube/resources.py") from None
