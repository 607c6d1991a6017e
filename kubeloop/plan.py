"""What a decision is: steps to write, and the status to report. Values only; executors carry them out.

A plan is a fixpoint: planning over the result of its own steps gives steps that change nothing.

This order holds between the steps of a plan, whatever their targets, and no other:

    first     the finalizers that are to be there, one after the other; if one fails, nothing else is done
    strands   the steps of each target (the hub, each workload cluster, a cloud), in the plan's order, to the first
              failure of a step that does more than begin something; side by side, none waiting for another
    last      our finalizer comes off the object itself, when nothing of all that has failed

Whatever on one target has to follow something on another waits until a later plan has observed that.
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
from kubeloop.remote_messages import refused
from kubeloop.resource import Status
from kubeloop.types import HUB, LEADER_WORKER_SET, SECRET, ResourceType, type_of

Propagation = Literal["Background", "Foreground", "Orphan"]


@dataclass(frozen=True, slots=True)
class Step:
    """One change that a plan makes outside the operator. Its type decides which executor carries it out."""

    only_begins: ClassVar[bool] = False
    """True if no later step can count on it, so that its failure holds none up: the next plan observes how it went."""

    @property
    def target(self) -> str:
        """The cluster, or cloud account, that it writes to: steps of one target run in one strand."""
        return getattr(self, "cluster", HUB)

    @property
    def creates_external_objects(self) -> bool:
        """True if it leaves something behind that the hub's garbage collector does not reach."""
        return False

    @property
    def siblings(self) -> object:
        """A value that is equal for consecutive steps which run at the same time: by default no others."""
        return id(self)


@dataclass(frozen=True, slots=True)
class Apply(Step):
    """Make an object say what the manifest says. Nothing is written when it does so already."""

    manifest: Manifest
    cluster: str = HUB

    def __str__(self) -> str:
        return f"apply {_named(type_of(self.manifest), key_of(self.manifest), self.cluster)}"

    @property
    def creates_external_objects(self) -> bool:
        return self.cluster != HUB

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest), self.cluster


@dataclass(frozen=True, slots=True)
class Create(Step):
    """Store a new object on the hub, and fail when there is one of that name: for decisions that are taken once."""

    manifest: Manifest

    def __str__(self) -> str:
        return f"create {_named(type_of(self.manifest), key_of(self.manifest), HUB)}"

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Replace(Step):
    """Store another content of an object on the hub, and fail when it has changed since it was observed.

    The manifest is the observed one with changes, its resourceVersion included. For what was made by `Create`.
    """

    manifest: Manifest

    def __str__(self) -> str:
        return f"replace {_named(type_of(self.manifest), key_of(self.manifest), HUB)}"

    @property
    def siblings(self) -> object:
        return type(self), type_of(self.manifest)


@dataclass(frozen=True, slots=True)
class Issue(Step):
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

    @property
    def creates_external_objects(self) -> bool:
        return self.cluster != HUB


@dataclass(frozen=True, slots=True)
class Delete(Step):
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

    @property
    def siblings(self) -> object:
        return type(self), self.type, self.cluster


@dataclass(frozen=True, slots=True)
class SetFinalizer(Step):
    """Have our finalizer on an object of the hub, so that it stays while we need it, or take it off.

    Without a type and a key, on the object that the plan is for: while something of it is left where the hub's garbage
    collector does not reach.
    """

    type: ResourceType | None = None
    key: Key | None = None
    present: bool = field(default=True, kw_only=True)

    def __str__(self) -> str:
        whose = _named(self.type, self.key, HUB) if self.type and self.key else "the object"
        return f"add our finalizer to {whose}" if self.present else f"remove our finalizer from {whose}"


KEEP = SetFinalizer()
"""Added by itself before a step that leaves something behind; to be planned where another's need is the reason."""
LET_GO = SetFinalizer(present=False)
"""Nothing of the object is left anywhere."""


@dataclass(frozen=True, slots=True)
class Install(Step):
    """Begin to bring a Helm release to what is asked. Nobody waits for it: the next look tells how it went."""

    only_begins: ClassVar[bool] = True
    release: helm.Release
    cluster: str = HUB
    wait: bool = field(default=False)
    """Whether it fails unless its pods come up: then what was there before can be brought back."""

    def __str__(self) -> str:
        return f"install {_release(self.release.key, self.cluster)}"

    @property
    def creates_external_objects(self) -> bool:
        return True


@dataclass(frozen=True, slots=True)
class RollBack(Step):
    """Begin to bring back what a revision of a Helm release was."""

    only_begins: ClassVar[bool] = True
    release: Key
    revision: int
    cluster: str = HUB

    def __str__(self) -> str:
        return f"roll back {_release(self.release, self.cluster)} to revision {self.revision}"


@dataclass(frozen=True, slots=True)
class Uninstall(Step):
    """Begin to take a Helm release away."""

    only_begins: ClassVar[bool] = True
    release: Key
    cluster: str = HUB

    def __str__(self) -> str:
        return f"uninstall {_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class MarkFailed(Step):
    """Have a revision of a Helm release count as failed that nobody works on any more. Nothing is uninstalled by it."""

    only_begins: ClassVar[bool] = True
    release: Key
    secret: Key
    uid: str
    version: str
    """The resourceVersion at which it was observed: whoever still works on it has written since."""
    cluster: str = HUB

    def __str__(self) -> str:
        return f"mark as failed what was begun with {_release(self.release, self.cluster)}"


@dataclass(frozen=True, slots=True)
class RenewToken(Step):
    """Ask a cluster for another token of the account that we are there, and put it into the kubeconfig's Secret.

    The old one goes on to hold: whoever is ended between the two begins anew with it.
    """

    only_begins: ClassVar[bool] = True
    cluster: str
    account: Key
    seconds: int
    secret: Key
    key: str
    """Of the kubeconfig within the Secret."""

    def __str__(self) -> str:
        return f"renew the token in Secret {self.secret}"


KubeStep: TypeAlias = Apply | Create | Replace | Issue | Delete | SetFinalizer | MarkFailed | RenewToken
HelmStep: TypeAlias = Install | RollBack | Uninstall


@dataclass(frozen=True, slots=True)
class Plan:
    """What to write, what to report, and when to look again at the latest."""

    steps: tuple[Step, ...] = ()
    """The order that holds between them is told at the top of this page."""
    status: Status | None = None
    """All of the status but for `Synced`, which the loop adds. None leaves the rest of it as it is."""
    requeue_after: float | None = None
    failure: ClientError | None = None
    """What keeps us from doing more; it is told and tried again like a step that failed."""
    refused: str = ""
    """What clusters have refused, where the plan says itself when each of them is asked again; `Synced` tells it."""
    defects: Mapping[str, Exception] = field(default_factory=dict[str, Exception])
    """What we failed on in what clusters say, by cluster, where the plan goes on with the others: for the log."""


@dataclass(frozen=True, slots=True)
class Failure:
    """The step that failed, and why."""

    step: Step | None
    error: ClientError
    planned: bool = False
    """Whether a plan tells it, which words it for those who read the status."""

    def __str__(self) -> str:
        return f"{self.step}: {self.error}" if self.step else str(self.error)

    def in_our_words(self) -> str:
        """Return the same for a tenant to read: without what a workload cluster says of it."""
        if self.planned or (self.step and self.step.target == HUB):
            return str(self)
        return f"{self.step}: {refused(self.error)}" if self.step else refused(self.error)


def strands(steps: Iterable[Step]) -> tuple[Sequence[Sequence[Step]], ...]:
    """The three rows that follow each other, as told at the top of this page; what is in one goes on side by side."""
    given = tuple(steps)
    keep = [KEEP] * any(one.creates_external_objects for one in given)
    first = [*dict.fromkeys([*keep, *(one for one in given if isinstance(one, SetFinalizer) and one.present)])]
    by_target: dict[str, list[Step]] = {}
    for step in given:
        if not isinstance(step, SetFinalizer) or not (step.present or step == LET_GO):
            by_target.setdefault(step.target, []).append(step)
    return (first,), tuple(by_target.values()), ([step for step in given if step == LET_GO],)


# In the background a gang's workers are told when their leader has ended, and hold their devices for as long again.
_PROPAGATION: Mapping[ResourceType, Propagation] = {LEADER_WORKER_SET: "Foreground"}


def delete(child: Manifest, *, cluster: str = HUB) -> Delete:
    """The step that deletes an observed child of ours."""
    owner, kind = owner_uid(child) or "", type_of(child)
    propagation = _PROPAGATION.get(kind, "Background")
    return Delete(kind, key_of(child), child["metadata"]["uid"], owner, cluster, propagation)


def prune(
    children: Iterable[Manifest], wanted: Iterable[Manifest], *, owner: str, cluster: str = HUB
) -> Iterator[Delete]:
    """Steps that delete those children of an owner that are no longer wanted and not on their way out."""
    kept = {(type_of(manifest), key_of(manifest)) for manifest in wanted}
    for child in children:
        terminating = is_terminating(child)
        ours = owner_uid(child) == owner
        if ours and not terminating and (type_of(child), key_of(child)) not in kept:
            yield delete(child, cluster=cluster)


def _release(release: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"Helm release {release}{where}"


def _named(kind: ResourceType, key: Key, cluster: str) -> str:
    where = f" on cluster {cluster}" if cluster else ""
    return f"{kind.kind} {key}{where}"
