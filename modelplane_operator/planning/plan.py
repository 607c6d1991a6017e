"""What a decision is: steps to write, in order, and the status to report. Values only; `controllers` carries them out.

A plan is a fixpoint: planning over the result of its own steps gives steps that change nothing.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from modelplane_operator.api import labels
from modelplane_operator.api.base import Status
from modelplane_operator.api.certificate import Certificate
from modelplane_operator.api.types import type_of
from modelplane_operator.kube import releases as helm
from modelplane_operator.kube.errors import ClientError
from modelplane_operator.kube.objects import Key, Manifest, key_of, labels_of
from modelplane_operator.kube.resources import HUB, LEADER_WORKER_SET, SECRET, ResourceType

Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Apply:
    """Make an object say what the manifest says. Nothing is written when it does so already."""

    manifest: Manifest
    cluster: str = HUB

    def __str__(self) -> str:
        return f"apply {_named(type_of(self.manifest), key_of(self.manifest), self.cluster)}"


@dataclass(frozen=True, slots=True)
class Create:
    """Store a new object on the hub, and fail when there is one of that name: for decisions that are taken once."""

    manifest: Manifest

    def __str__(self) -> str:
        return f"create {_named(type_of(self.manifest), key_of(self.manifest), HUB)}"


@dataclass(frozen=True, slots=True)
class Replace:
    """Store another content of an object on the hub, and fail when it has changed since it was observed.

    The manifest is the observed one with changes, its resourceVersion included. For what was made by `Create`.
    """

    manifest: Manifest

    def __str__(self) -> str:
        return f"replace {_named(type_of(self.manifest), key_of(self.manifest), HUB)}"


@dataclass(frozen=True, slots=True)
class Issue:
    """Make a key and a certificate for it, and have a Secret hold both. No plan holds the key.

    The Secret of an authority is only created; another one's content is replaced.
    """

    metadata: Manifest
    certificate: Certificate
    cluster: str = HUB

    @property
    def key(self) -> Key:
        return key_of({"metadata": self.metadata})

    def __str__(self) -> str:
        return f"issue {_named(SECRET, self.key, self.cluster)}"


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete that very object, which must be a child of that owner."""

    type: ResourceType
    key: Key
    uid: str
    owner: str
    """The uid that its owner label must carry."""
    cluster: str = HUB
    propagation: Propagation = "Background"

    def __str__(self) -> str:
        return f"delete {_named(self.type, self.key, self.cluster)}"


@dataclass(frozen=True, slots=True)
class AddFinalizer:
    """Have our finalizer on an object of the hub that somebody else made, so that it stays while we need it."""

    type: ResourceType
    key: Key

    def __str__(self) -> str:
        return f"add our finalizer to {_named(self.type, self.key, HUB)}"


@dataclass(frozen=True, slots=True)
class RemoveFinalizer:
    """Take our finalizer off it: we do not need it any more.

    Without a type and a key, off the object that the plan is for: nothing of it is left anywhere.
    """

    type: ResourceType | None = None
    key: Key | None = None

    def __str__(self) -> str:
        whom = _named(self.type, self.key, HUB) if self.type and self.key else "the object"
        return f"remove our finalizer from {whom}"


@dataclass(frozen=True, slots=True)
class Install:
    """Begin to bring a Helm release to what is asked. Nobody waits for it: the next look tells how it went."""

    release: helm.Release
    cluster: str = HUB
    wait: bool = field(default=False)
    """Whether it fails unless its pods come up: then what was there before can be brought back."""

    def __str__(self) -> str:
        return f"install {_release(self.release.key, self.cluster)}"


@dataclass(frozen=True, slots=True)
class RollBack:
    """Begin to bring back what a revision of a Helm release was."""

    release: Key
    revision: int
    cluster: str = HUB

    def __str__(self) -> str:
        return f"roll back {_release(self.release, self.cluster)} to revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Uninstall:
    """Begin to take a Helm release away."""

    release: Key
    cluster: str = HUB

    def __str__(self) -> str:
        return f"uninstall {_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class MarkFailed:
    """Have a revision of a Helm release count as failed that nobody works on any more. Nothing is uninstalled by it."""

    release: Key
    secret: Key
    uid: str
    version: str
    """The resourceVersion at which it was observed: whoever still works on it has written since."""
    cluster: str = HUB

    def __str__(self) -> str:
        return f"mark as failed what was begun with {_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class RenewToken:
    """Ask a cluster for another token of the account that we are there, and put it into the kubeconfig's Secret.

    The old one goes on to hold: whoever is ended between the two begins anew with it.
    """

    cluster: str
    account: Key
    seconds: int
    secret: Key
    key: str
    """Of the kubeconfig within the Secret."""

    def __str__(self) -> str:
        return f"renew the token in Secret {self.secret}"


Step: TypeAlias = (
    Apply
    | Create
    | Replace
    | Issue
    | Delete
    | AddFinalizer
    | RemoveFinalizer
    | Install
    | RollBack
    | Uninstall
    | MarkFailed
    | RenewToken
)


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, what to report, and when to look again at the latest."""

    steps: tuple[Step, ...] = ()
    status: Status | None = None
    """All of the status but for `Synced`, which the loop adds. None leaves the rest of it as it is."""
    requeue_after: float | None = None
    failure: ClientError | None = None
    """What keeps us from doing more; it is told and tried again like a step that failed."""
    needs_finalizer: bool = field(default=False)
    """Whether our finalizer must be on the object even if no step leaves the hub (a cloud call does)."""


def creates_external_objects(step: Step) -> bool:
    """Whether a step leaves something behind where the hub's garbage collector does not reach."""
    return isinstance(step, Install) or (isinstance(step, Apply | Issue) and step.cluster != HUB)


# In the background a gang's workers are told when their leader has ended, and hold their devices for as long again.
_PROPAGATION: Mapping[ResourceType, Propagation] = {LEADER_WORKER_SET: "Foreground"}


def delete(child: Manifest, *, cluster: str = HUB) -> Delete:
    """The step that deletes an observed child of ours."""
    owner, kind = labels_of(child).get(labels.OWNER_UID, ""), type_of(child)
    propagation = _PROPAGATION.get(kind, "Background")
    return Delete(kind, key_of(child), child["metadata"]["uid"], owner, cluster, propagation)


def prune(
    children: Iterable[Manifest], wanted: Iterable[Manifest], *, owner: str, cluster: str = HUB
) -> Iterator[Delete]:
    """Steps that delete those children of an owner that are no longer wanted and not on their way out."""
    kept = {(type_of(manifest), key_of(manifest)) for manifest in wanted}
    for child in children:
        going = child["metadata"].get("deletionTimestamp")
        ours = labels_of(child).get(labels.OWNER_UID) == owner
        if ours and not going and (type_of(child), key_of(child)) not in kept:
            yield delete(child, cluster=cluster)


def _release(release: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"Helm release {release}{where}"


def _named(kind: ResourceType, key: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"{kind.kind} {key}{where}"
