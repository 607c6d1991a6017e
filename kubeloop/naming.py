"""The names by which an operator marks objects as its own: labels, annotations, finalizer and field manager.

A process is one operator and has one set of names. The module that defines them calls `use` when it is imported.
"""

from __future__ import annotations

from dataclasses import dataclass

from kubeloop.objects import Manifest, labels_of


@dataclass(frozen=True, slots=True)
class Naming:
    """Keys of labels and annotations, and the names of an operator on API servers."""

    field_manager: str
    """The manager of our fields in server-side apply."""
    system_namespace: str
    """The namespace of the operator itself, on the hub and on workload clusters."""
    owner_kind: str
    owner_namespace: str
    owner_name: str
    owner_uid: str
    """The last of four labels of a child on any cluster that name its owner on the hub."""
    finalizer: str
    applied: str
    """The annotation with the hash of the manifest that was last applied."""
    paused: str
    """The annotation that pauses an object if it is "true"."""
    retry: str
    """The annotation whose change ends the quarantine of an object."""
    release: str
    """The label of a Helm revision with the digest of the requested release."""
    interrupted: str
    """The label of a Helm revision whose process was killed, with its number."""


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
    """Set the names by which kubeloop marks objects in this process."""
    global _naming  # noqa: PLW0603 - set once, when a process begins
    _naming = naming


def names() -> Naming:
    """Return the names of this process' operator."""
    return _naming


def owner_uid(child: Manifest) -> str | None:
    """Return the uid in the owner label of a child; None if it has none."""
    return labels_of(child).get(_naming.owner_uid)
