"""Act: carry out the steps of a plan, in order, to the first failure; those that do the same to siblings, at once."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from itertools import groupby
from typing import assert_never

from modelplane_operator.api import labels
from modelplane_operator.api.types import type_of
from modelplane_operator.clients.access import with_token
from modelplane_operator.clients.certificates import secret_data
from modelplane_operator.clients.helm import Helm, HelmError
from modelplane_operator.clients.informer import Entry, Informer
from modelplane_operator.clients.releases import marked_failed
from modelplane_operator.kube.errors import ClientError, Conflict, Foreign, NotFound, Terminating
from modelplane_operator.kube.objects import Key, Manifest, key_of, labels_of, section
from modelplane_operator.kube.ownership import is_current, marked, owned_fields
from modelplane_operator.kube.resources import HUB, SECRET, ResourceType
from modelplane_operator.planning.plan import (
    AddFinalizer,
    Apply,
    Create,
    Delete,
    Install,
    Issue,
    MarkFailed,
    RemoveFinalizer,
    RenewToken,
    Replace,
    RollBack,
    Step,
    Uninstall,
    creates_external_objects,
)
from modelplane_operator.runtime.reading import Cluster, find

AT_ONCE = 8  # writes for one object


@dataclass(frozen=True, slots=True)
class Failure:
    """The step that failed, and why."""

    step: Step | None
    error: ClientError

    def __str__(self) -> str:
        return f"{self.step}: {self.error}" if self.step else str(self.error)


@dataclass(frozen=True, slots=True)
class Actor:
    """Carries out steps for one object. `may_write` raises NotLeading when the lease is lost."""

    subject: ResourceType
    key: Key
    cluster: Callable[[str], Cluster]
    may_write: Callable[[], None]
    helm: Helm | None = None

    async def act(self, steps: Iterable[Step], *, needs_finalizer: bool = False) -> Failure | None:
        """Carry out the steps to the first failure. Before one that leaves the hub, our finalizer is set."""
        held = confirmed = False
        step: Step | None = None
        later: Failure | None = None
        try:
            if needs_finalizer:
                held = await self._add_finalizer()
            for siblings in _siblings(steps):
                step = siblings[0]
                if not confirmed and any(map(self._makes_again, siblings)):
                    await self._confirm()
                    confirmed = True
                if creates_external_objects(step) and not held:
                    held = await self._add_finalizer()
                if failure := await self._take_all(siblings):
                    if not isinstance(step, RenewToken):
                        return failure
                    later = failure  # the token that is there still holds: what follows does not need another
        except ClientError as error:
            return Failure(step, error)
        return later

    async def _take_all(self, steps: Sequence[Step]) -> Failure | None:
        """Carry them out at once, and all whatever becomes of the others; answers the first that failed."""
        slots = asyncio.Semaphore(AT_ONCE)

        async def take(step: Step) -> None:
            async with slots:
                await self._take(step)

        for step, error in zip(steps, await asyncio.gather(*map(take, steps), return_exceptions=True), strict=True):
            if isinstance(error, ClientError):
                return Failure(step, error)
            if error is not None:
                raise error
        return None

    def _makes_again(self, step: Step) -> bool:
        """Whether it makes what was there a short while ago, or another of what we have told of before."""
        match step:
            case Apply(manifest, cluster):
                seen = self.cluster(cluster).find(type_of(manifest))
                return seen is not None and seen.lost(key_of(manifest))
            case Create():
                return bool((self._known() or {}).get("status"))
            case _:
                return False

    async def _confirm(self) -> None:
        """See for ourselves that the object is still there; raises Conflict when we had not heard that it is going.

        What was made for it goes with it, and while our watch lags we would make that again as often as it is deleted.
        """
        hub, known = self.cluster(HUB), self._known()
        subjects, live = hub.find(self.subject), await hub.kube.find(self.subject, self.key)
        if live:
            _note(subjects, live)
        elif subjects and known:
            subjects.gone(self.key, known["metadata"]["uid"])
        if _life(live) != _life(known):
            raise Conflict(f"{self.subject.kind} {self.key} is gone, or going")

    def _known(self) -> Manifest | None:
        return find(self.cluster(HUB), self.subject, self.key)

    async def _take(self, step: Step) -> None:
        match step:
            case Apply(manifest, cluster):
                await self._apply(self.cluster(cluster), manifest)
            case Create(manifest):
                await self._create(self.cluster(HUB), manifest)
            case Replace(manifest):
                await self._replace(self.cluster(HUB), manifest)
            case Issue():
                await self._issue(step)
            case Delete():
                await self._delete(self.cluster(step.cluster), step)
            case AddFinalizer(kind, key):
                await self._set_finalizer(kind, key, present=True)
            case RemoveFinalizer(kind, key):
                await self._set_finalizer(kind or self.subject, key or self.key, present=False)
            case Install() | RollBack() | Uninstall():
                self._begin(step)
            case MarkFailed():
                await self._mark_failed(self.cluster(step.cluster), step)
            case RenewToken():
                await self._renew_token(self.cluster(step.cluster), step)
            case _:
                assert_never(step)

    async def _apply(self, cluster: Cluster, manifest: Manifest) -> None:
        wanted = marked(manifest)
        kind, key = type_of(manifest), key_of(manifest)
        seen = cluster.find(kind)
        live = seen.entry(key) if seen else None
        if seen and live is None:
            # Most likely there is none. But a watch sees only what carries our labels, and not at once: an object of
            # somebody else must not become ours by being applied to, and be deleted as ours some day.
            seen.expect()
            self.may_write()
            with suppress(Conflict):
                _note(seen, await cluster.kube.apply(wanted, new=True))
                return
        if live is None:
            found = await cluster.kube.find(kind, key)
            live = Entry(found, 0, owned_fields(found)) if found else None
        if live is not None:
            _refuse_strangers(live.manifest, labels_of(manifest).get(labels.OWNER_UID))
            if is_current(live.manifest, live.owned, wanted):
                if live.version == 0:
                    _note(seen, live.manifest)
                return
        self.may_write()
        _note(seen, await cluster.kube.apply(wanted))

    async def _create(self, cluster: Cluster, manifest: Manifest) -> None:
        self.may_write()
        _note(cluster.find(type_of(manifest)), await cluster.kube.create(manifest))

    async def _replace(self, cluster: Cluster, manifest: Manifest) -> None:
        self.may_write()
        _note(cluster.find(type_of(manifest)), await cluster.kube.replace(manifest))

    async def _issue(self, step: Issue) -> None:
        """Make the key here, as late as can be."""
        self.may_write()
        signer = step.certificate.signer
        authority = await self.cluster(HUB).kube.get(SECRET, signer) if signer else None
        manifest: Manifest = {
            "apiVersion": SECRET.api_version,
            "kind": SECRET.kind,
            "metadata": step.metadata,
            "type": "kubernetes.io/tls",
            "data": {**secret_data(step.certificate, authority)},
        }
        cluster = self.cluster(step.cluster)
        await (self._apply(cluster, manifest) if signer else self._create(cluster, manifest))

    async def _delete(self, cluster: Cluster, step: Delete) -> None:
        seen = cluster.find(step.type)
        live = seen.get(step.key) if seen else None
        if live is None:
            live = await cluster.kube.find(step.type, step.key)
        if live is None or live["metadata"]["uid"] != step.uid or live["metadata"].get("deletionTimestamp"):
            return  # it is gone, or going; what has its name now is another object, and another decision
        _refuse_strangers(live, step.owner)
        self.may_write()
        try:
            left = await cluster.kube.delete(step.type, step.key, uid=step.uid, propagation=step.propagation)
        except NotFound:
            left = None
        if seen and left is None:
            seen.gone(step.key, step.uid)
        elif left is not None:
            _note(seen, left)

    def _begin(self, step: Install | RollBack | Uninstall) -> None:
        if self.helm is None:
            raise HelmError("this operator runs no Helm")
        self.may_write()
        cluster = self.cluster(step.cluster)
        match step:
            case Install(release, wait=wait):
                self.helm.install(cluster, release, wait=wait)
            case RollBack(release, revision):
                self.helm.rollback(cluster, release, revision)
            case Uninstall(release):
                self.helm.uninstall(cluster, release)

    async def _mark_failed(self, cluster: Cluster, step: MarkFailed) -> None:
        secret = await cluster.kube.find(SECRET, step.secret)
        if secret is None or (secret["metadata"]["uid"], secret["metadata"]["resourceVersion"]) != (
            step.uid,
            step.version,
        ):
            return  # somebody is at work on it after all
        self.may_write()
        stored = await cluster.kube.replace(await asyncio.to_thread(marked_failed, secret))
        seen = cluster.find(SECRET)
        if seen and seen.bare:  # else that watch is for other Secrets than Helm's
            seen.written(stored)

    async def _renew_token(self, cluster: Cluster, step: RenewToken) -> None:
        hub, kube = self.cluster(HUB), cluster.kube
        used = kube.access.token
        self.may_write()
        token = await kube.request_token(step.account, step.seconds)
        secret = await hub.kube.get(SECRET, step.secret)
        text = base64.b64decode(section(secret, "data").get(step.key, "")).decode(errors="replace")
        renewed = base64.b64encode(with_token(text, used, token).encode()).decode()
        self.may_write()
        version = secret["metadata"]["resourceVersion"]
        _note(hub.find(SECRET), await hub.kube.set_data(SECRET, step.secret, {step.key: renewed}, version))

    async def _add_finalizer(self) -> bool:
        """Have our finalizer on the object; raises Terminating when it is too late for that."""
        return await self._set_finalizer(self.subject, self.key, present=True)

    async def _set_finalizer(self, kind: ResourceType, key: Key, *, present: bool) -> bool:
        hub = self.cluster(HUB)
        seen = hub.find(kind)
        live = seen.get(key) if seen else await hub.kube.find(kind, key)
        if live is None:
            return present
        metadata = live["metadata"]
        finalizers: list[str] = metadata.get("finalizers") or []
        if (labels.FINALIZER in finalizers) == present:
            return True
        if present and metadata.get("deletionTimestamp"):
            raise Terminating("it is being deleted: nothing new is made for it")
        wanted = [name for name in finalizers if name != labels.FINALIZER] + [labels.FINALIZER] * present
        self.may_write()
        try:
            left = await hub.kube.set_finalizers(kind, key, wanted, metadata["resourceVersion"])
        except NotFound:
            if present:
                raise
            left = None
        if seen and (left is None or (metadata.get("deletionTimestamp") and not wanted)):
            seen.gone(key, metadata["uid"])
        elif left is not None:
            _note(seen, left)
        return True


def _siblings(steps: Iterable[Step]) -> Iterator[Sequence[Step]]:
    """Steps that follow each other and do the same to objects of one type: none of them waits for another."""
    for _, siblings in groupby(steps, _alike):
        yield tuple(siblings)


def _alike(step: Step) -> object:
    match step:
        case Apply(manifest, cluster):
            return Apply, type_of(manifest), cluster
        case Create(manifest) | Replace(manifest):
            return type(step), type_of(manifest)
        case Delete():
            return Delete, step.type, step.cluster
        case _:
            return id(step)


def _life(manifest: Manifest | None) -> object:
    """Which object it is, and whether it is going; None when there is none."""
    return manifest and (manifest["metadata"]["uid"], "deletionTimestamp" in manifest["metadata"])


def _refuse_strangers(live: Manifest, owner: str | None) -> None:
    metadata = live["metadata"]
    theirs = labels_of(live).get(labels.OWNER_UID)
    if theirs != owner:
        whose = "another owner's" if theirs else "nobody's that we know"
        raise Foreign(f"{live.get('kind')} {key_of(live)} exists and is {whose}; it is left alone")
    if metadata.get("deletionTimestamp"):
        raise Terminating(f"{live.get('kind')} {key_of(live)} is still being deleted")


def _note(seen: Informer | None, manifest: Manifest) -> None:
    if seen:
        seen.written(manifest)
