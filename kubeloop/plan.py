"""The value that a decision results in: steps to carry out, a status to report, and when to reconcile next.

Nothing in this module does I/O. Executors (`strands.py`) carry the steps out.

A plan is a fixpoint: planning again over the result of its own steps gives steps that change nothing.

Steps of one plan are ordered as follows, whatever their targets. No other order is guaranteed:

    first     the finalizers to add, one after the other; if one fails, no other step runs
    strands   the steps of each target (the hub, each workload cluster, a cloud) in the order of the plan, up to the
              first failure of a step that is not `only_begins`; the strands run concurrently and independently
    last      the removal of our finalizer from the object itself, if no other step has failed

A step on one target that depends on a step on another target belongs into a later plan, which observes the result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Literal, TypeAlias

from kubeloop.certificate import Certificate
from kubeloop.errors import ClientError
from kubeloop.helm import release as helm
from kubeloop.naming import owner_uid
from kubeloop.objects import Key, Manifest, is_terminating, key_of
from kubeloop.remote_messages import describe_rejection
from kubeloop.resource import Status
from kubeloop.types import HUB, LEADER_WORKER_SET, SECRET, ResourceType, type_of

Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Step:
    """One change that a plan makes outside the operator. Its type decides which executor carries it out."""

    only_begins: ClassVar[bool] = False
    """True if no later step depends on this one: its failure stops no other step."""

    @property
    def target(self) -> str:
        """The cluster or cloud account that the step writes to. Steps of one target run in one strand."""
        return getattr(self, "cluster", HUB)

    @property
    def creates_external_objects(self) -> bool:
        """True if it creates objects that the hub's garbage collector cannot delete, so that a finalizer is needed."""
        return False

    @property
    def siblings(self) -> object:
        """A value that is equal for consecutive steps that may run concurrently. By default each step runs alone."""
        return id(self)


@dataclass(frozen=True, slots=True)
class Apply(Step):
    """Apply a manifest server-side. Nothing is written if the object matches it already."""

    manifest: Manifest
    cluster: str = HUB

    def __str__(self) -> str:
        return f"apply {_describe_object(type_of(self.manifest), key_of(self.manifest), self.cluster)}"

    @property
    def creates_external_objects(self) -> bool:
        return self.cluster != HUB

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest), self.cluster


@dataclass(frozen=True, slots=True)
class Create(Step):
    """Create an object on the hub, and fail if the name is taken. For decisions that are made exactly once."""

    manifest: Manifest

    def __str__(self) -> str:
        return f"create {_describe_object(type_of(self.manifest), key_of(self.manifest), HUB)}"

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Replace(Step):
    """Replace an object on the hub, and fail if it has changed since it was observed.

    The manifest is the observed object with changes, including its resourceVersion. Meant for objects made by `Create`.
    """

    manifest: Manifest

    def __str__(self) -> str:
        return f"replace {_describe_object(type_of(self.manifest), key_of(self.manifest), HUB)}"

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Issue(Step):
    """Generate a private key and a certificate, and store both in a Secret. The plan itself never contains the key.

    The Secret of a certificate authority is created and never overwritten; the content of any other Secret is replaced.
    """

    metadata: Manifest
    certificate: Certificate
    cluster: str = HUB

    @property
    def key(self) -> Key:
        return key_of({"metadata": self.metadata})

    def __str__(self) -> str:
        return f"issue {_describe_object(SECRET, self.key, self.cluster)}"

    @property
    def creates_external_objects(self) -> bool:
        return self.cluster != HUB


@dataclass(frozen=True, slots=True)
class Delete(Step):
    """Delete the object with this uid, which must be a child of the given owner."""

    type: ResourceType
    key: Key
    uid: str
    owner: str
    """The uid that the object's owner label must carry."""
    cluster: str = HUB
    propagation: Propagation = "Background"

    def __str__(self) -> str:
        return f"delete {_describe_object(self.type, self.key, self.cluster)}"

    @property
    def siblings(self) -> object:
        return type(self), self.type, self.cluster


@dataclass(frozen=True, slots=True)
class SetFinalizer(Step):
    """Add our finalizer to an object of the hub, or remove it.

    If no type and key are given, the object that the plan is for is meant. It carries the finalizer while it may have
    objects that the hub's garbage collector cannot reach.
    """

    type: ResourceType | None = None
    key: Key | None = None
    present: bool = field(default=True, kw_only=True)

    def __str__(self) -> str:
        described = _describe_object(self.type, self.key, HUB) if self.type and self.key else "the object"
        return f"add our finalizer to {described}" if self.present else f"remove our finalizer from {described}"


KEEP = SetFinalizer()
"""Adds our finalizer to the object itself. `strands` inserts it before steps that create external objects; a plan needs
to contain it only if another object's need is the reason."""
LET_GO = SetFinalizer(present=False)
"""Removes our finalizer from the object itself, when none of its external objects is left."""


@dataclass(frozen=True, slots=True)
class Install(Step):
    """Start to install or upgrade a Helm release. No reconcile waits for the end; the next one observes the result."""

    only_begins: ClassVar[bool] = True
    release: helm.Release
    cluster: str = HUB
    wait: bool = field(default=False)
    """True if the release should fail when its pods do not become ready, so that it can be rolled back."""
    definitions: bool = field(default=False)
    """True if the definitions in the `crds/` of the chart are upgraded first."""

    def __str__(self) -> str:
        return f"install {_describe_release(self.release.key, self.cluster)}"

    @property
    def creates_external_objects(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RollBack(Step):
    """Start to roll a Helm release back to an earlier revision."""

    only_begins: ClassVar[bool] = True
    release: Key
    revision: int
    cluster: str = HUB

    def __str__(self) -> str:
        return f"roll back {_describe_release(self.release, self.cluster)} to revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Uninstall(Step):
    """Start to uninstall a Helm release."""

    only_begins: ClassVar[bool] = True
    release: Key
    cluster: str = HUB

    def __str__(self) -> str:
        return f"uninstall {_describe_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class MarkFailed(Step):
    """Mark an abandoned revision of a Helm release as failed, so that another can start. Nothing is uninstalled."""

    only_begins: ClassVar[bool] = True
    release: Key
    secret: Key
    uid: str
    version: str
    """The resourceVersion at which the record was observed. A process that still works on the release has changed it
    since."""
    cluster: str = HUB

    def __str__(self) -> str:
        return f"mark as failed what was begun with {_describe_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class RenewToken(Step):
    """Request a new token for our ServiceAccount on a cluster, and store it in the kubeconfig Secret.

    The old token stays valid, so a crash between the two writes is safe.
    """

    only_begins: ClassVar[bool] = True
    cluster: str
    account: Key
    seconds: int
    secret: Key
    key: str
    """The key of the kubeconfig within the Secret."""

    def __str__(self) -> str:
        return f"renew the token in Secret {self.secret}"


KubeStep: TypeAlias = Apply | Create | Replace | Issue | Delete | SetFinalizer | MarkFailed | RenewToken
HelmStep: TypeAlias = Install | RollBack | Uninstall


@dataclass(frozen=True, slots=True)
class Plan:
    """The steps to carry out, the status to report, and the latest time of the next reconcile."""

    steps: tuple[Step, ...] = ()
    """The steps, ordered as the docstring of this module defines."""
    status: Status | None = None
    """The full status except for the condition `Synced`, which the loop adds. None leaves it unchanged."""
    requeue_after: float | None = None
    """The seconds after which to reconcile again at the latest. None waits for an event or the resync."""
    failure: ClientError | None = None
    """An error that keeps the plan from doing more. It is reported and retried like the failure of a step."""
    refused: str = ""
    """A message for `Synced` about clusters that rejected writes, if the plan itself decides when each is tried
    again."""
    defects: Mapping[str, Exception] = field(default_factory=dict[str, Exception])
    """Internal errors from reading the data of clusters, by cluster. They are logged, and the plan covers the
    others."""


@dataclass(frozen=True, slots=True)
class Failure:
    """A failed step and its error. The step is None if the reconcile failed outside of the steps."""

    step: Step | None
    error: ClientError
    planned: bool = False
    """True if the error comes from the plan, which has worded it for readers of the status."""

    def __str__(self) -> str:
        return f"{self.step}: {self.error}" if self.step else str(self.error)

    def message_for_tenants(self) -> str:
        """Return the message for a tenant: without the text of a workload cluster's response."""
        if self.planned or (self.step and self.step.target == HUB):
            return str(self)
        return f"{self.step}: {describe_rejection(self.error)}" if self.step else describe_rejection(self.error)


def strands(steps: Iterable[Step]) -> tuple[Sequence[Sequence[Step]], ...]:
    """Group steps into three consecutive rows of strands: finalizers to add, steps by target, removal of our finalizer.

    The strands of one row run concurrently.
    """
    all_steps = tuple(steps)
    keep = [KEEP] * any(candidate.creates_external_objects for candidate in all_steps)
    first = [
        *dict.fromkeys(
            [
                *keep,
                *(candidate for candidate in all_steps if isinstance(candidate, SetFinalizer) and candidate.present),
            ]
        )
    ]
    by_target: dict[str, list[Step]] = {}
    for step in all_steps:
        if not isinstance(step, SetFinalizer) or not (step.present or step == LET_GO):
            by_target.setdefault(step.target, []).append(step)
    return (first,), tuple(by_target.values()), ([step for step in all_steps if step == LET_GO],)


# With background deletion, the workers of a LeaderWorkerSet begin to stop only after their leader has ended, and hold
# their devices twice as long.
_PROPAGATION: Mapping[ResourceType, Propagation] = {LEADER_WORKER_SET: "Foreground"}


def delete(child: Manifest, *, cluster: str = HUB) -> Delete:
    """Return the step that deletes an observed child. It uses foreground deletion where the type needs that."""
    owner, kind = owner_uid(child) or "", type_of(child)
    propagation = _PROPAGATION.get(kind, "Background")
    return Delete(kind, key_of(child), child["metadata"]["uid"], owner, cluster, propagation)


def prune(
    children: Iterable[Manifest], desired: Iterable[Manifest], *, owner: str, cluster: str = HUB
) -> Iterator[Delete]:
    """Yield steps that delete the children of an owner that are not among the wanted objects and not terminating."""
    desired_keys = {(type_of(manifest), key_of(manifest)) for manifest in desired}
    for child in children:
        terminating = is_terminating(child)
        owned = owner_uid(child) == owner
        if owned and not terminating and (type_of(child), key_of(child)) not in desired_keys:
            yield delete(child, cluster=cluster)


def _describe_release(release: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"Helm release {release}{where}"


def _describe_object(kind: ResourceType, key: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"{kind.kind} {key}{where}"
