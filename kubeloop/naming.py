"""The labels and annotations by which an operator marks objects as its own.

One process is one operator and has one set of them: the module that defines them calls `use` when it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.objects import Manifest, labels_of


@dataclass(frozen=True, slots=True)
class Naming:
    """Keys of labels and annotations, and the names that an operator has on API servers."""

    field_manager: str
    """By which server-side apply knows our fields."""
    system_namespace: str
    """The namespace of the operator itself, on the hub and on workload clusters."""
    owner_kind: str
    owner_namespace: str
    owner_name: str
    owner_uid: str
    """Labels of a child on any cluster: its owner on the hub."""
    finalizer: str
    applied: str
    """Annotation: the hash of the manifest that was applied last."""
    paused: str
    """Annotation: "true" has the operator leave the object alone."""
    retry: str
    """Annotation: another value ends the object's quarantine."""
    release: str
    """Label of a Helm revision: the digest of the release that was asked for."""
    interrupted: str
    """Label of a Helm revision: its number, when the Helm that made it was killed."""


_naming = Naming(
    field_manager="kubeloop",
    system_namespace="kubeloop-system",
    owner_kind="kubeloop/owner-kind",
    owner_namespace="kubeloop/owner-namespace",
    owner_name="kubeloop/owner-name",
    owner_uid="kubeloop/owner-uid",
    finalizer="kubeloop/finalizer",
    applied="kubeloop/applied",
    paused="kubeloop/paused",
    retry="kubeloop/retry",
    release="kubeloop/release",
    interrupted="kubeloop/interrupted",
)


def use(naming: Naming) -> None:
    """Have all of kubeloop mark objects by these names from now on."""
    global _naming  # noqa: PLW0603 - set once, when a process begins
    _naming = naming


def names() -> Naming:
    """Return the names of this process' operator."""
    return _naming


def owner_uid(child: Manifest) -> str | None:
    """Return the uid of the owner that a child names; None, which is nobody's, when it names none."""
    return labels_of(child).get(_naming.owner_uid)
