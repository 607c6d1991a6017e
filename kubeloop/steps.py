"""How each step is done that is a write on an API server."""

from __future__ import annotations

import asyncio
import base64
from contextlib import suppress
from typing import Final, assert_never, get_args

from kubeloop.cache.entries import Entry
from kubeloop.cache.informer import Informer
from kubeloop.client.access import with_token
from kubeloop.client.certificates import secret_data
from kubeloop.errors import Conflict, Foreign, NotFound, Terminating
from kubeloop.helm.records import marked_failed
from kubeloop.naming import names, owner_uid
from kubeloop.objects import Manifest, is_terminating, key_of, section
from kubeloop.ownership import is_current, marked, owned_fields
from kubeloop.plan import Apply, Create, Delete, Issue, KubeStep, MarkFailed, RenewToken, Replace, SetFinalizer
from kubeloop.reading import Cluster
from kubeloop.strands import Executors, Turn
from kubeloop.types import HUB, SECRET, type_of


class KubeExecutor:
    """Writes are waited for: each has a deadline of its own."""

    async def begin(self, step: KubeStep, turn: Turn) -> None:
        match step:
            case Apply(manifest, cluster):
                await _apply(turn, turn.cluster(cluster), manifest)
            case Create(manifest):
                await _create(turn, turn.cluster(HUB), manifest)
            case Replace(manifest):
                await _replace(turn, turn.cluster(HUB), manifest)
            case Issue():
                await _issue(step, turn)
            case Delete():
                await _delete(turn, turn.cluster(step.cluster), step)
            case SetFinalizer():
                await _set_finalizer(step, turn)
            case MarkFailed():
                await _mark_failed(turn, turn.cluster(step.cluster), step)
            case RenewToken():
                await _renew_token(turn, step)
            case _:
                assert_never(step)


KUBE: Final[Executors] = dict.fromkeys(get_args(KubeStep), KubeExecutor())


async def _apply(turn: Turn, cluster: Cluster, manifest: Manifest) -> None:
    wanted = marked(manifest)
    kind, key = type_of(manifest), key_of(manifest)
    seen = cluster.find(kind)
    live = seen.entry(key) if seen else None
    if seen and live is None:
        # Most likely there is none. But a watch sees only what carries our labels, and not at once: an object of
        # somebody else must not become ours by being applied to, and be deleted as ours some day.
        seen.expect()
        turn.may_write()
        with suppress(Conflict):
            _note(seen, await cluster.kube.apply(wanted, new=True))
            return
    if live is None:
        found = await cluster.kube.find(kind, key)
        live = Entry(found, 0, owned_fields(found)) if found else None
    if live is not None:
        _refuse_strangers(live.manifest, owner_uid(manifest))
        if is_current(live.manifest, live.owned, wanted):
            if live.version == 0:
                _note(seen, live.manifest)
            return
    turn.may_write()
    _note(seen, await cluster.kube.apply(wanted))


async def _create(turn: Turn, cluster: Cluster, manifest: Manifest) -> None:
    turn.may_write()
    _note(cluster.find(type_of(manifest)), await cluster.kube.create(manifest))


async def _replace(turn: Turn, cluster: Cluster, manifest: Manifest) -> None:
    turn.may_write()
    _note(cluster.find(type_of(manifest)), await cluster.kube.replace(manifest))


async def _issue(step: Issue, turn: Turn) -> None:
    """Make the key here, as late as can be."""
    turn.may_write()
    signer = step.certificate.signer
    authority = await turn.cluster(HUB).kube.get(SECRET, signer) if signer else None
    manifest: Manifest = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": step.metadata,
        "type": "kubernetes.io/tls",
        "data": {**secret_data(step.certificate, authority)},
    }
    cluster = turn.cluster(step.cluster)
    await (_apply(turn, cluster, manifest) if signer else _create(turn, cluster, manifest))


async def _delete(turn: Turn, cluster: Cluster, step: Delete) -> None:
    seen = cluster.find(step.type)
    live = seen.get(step.key) if seen else None
    if live is None:
        live = await cluster.kube.find(step.type, step.key)
    if live is None or live["metadata"]["uid"] != step.uid or is_terminating(live):
        return  # it is gone, or terminating; what has its name now is another object, and another decision
    _refuse_strangers(live, step.owner)
    turn.may_write()
    try:
        left = await cluster.kube.delete(step.type, step.key, uid=step.uid, propagation=step.propagation)
    except NotFound:
        left = None
    if seen and left is None:
        seen.gone(step.key, step.uid)
    elif left is not None:
        _note(seen, left)


async def _mark_failed(turn: Turn, cluster: Cluster, step: MarkFailed) -> None:
    secret = await cluster.kube.find(SECRET, step.secret)
    if secret is None or (secret["metadata"]["uid"], secret["metadata"]["resourceVersion"]) != (
        step.uid,
        step.version,
    ):
        return  # somebody is at work on it after all
    turn.may_write()
    stored = await cluster.kube.replace(await asyncio.to_thread(marked_failed, secret))
    seen = cluster.find(SECRET)
    if seen and seen.bare:  # else that watch is for other Secrets than Helm's
        seen.written(stored)


async def _renew_token(turn: Turn, step: RenewToken) -> None:
    hub, kube = turn.cluster(HUB), turn.cluster(step.cluster).kube
    used = kube.access.token
    turn.may_write()
    token = await kube.request_token(step.account, step.seconds)
    secret = await hub.kube.get(SECRET, step.secret)
    text = base64.b64decode(section(secret, "data").get(step.key, "")).decode(errors="replace")
    renewed = base64.b64encode(with_token(text, used, token).encode()).decode()
    turn.may_write()
    version = secret["metadata"]["resourceVersion"]
    _note(hub.find(SECRET), await hub.kube.set_data(SECRET, step.secret, {step.key: renewed}, version))


async def _set_finalizer(step: SetFinalizer, turn: Turn) -> None:
    """Raises Terminating when it is too late for one."""
    kind, key, present = step.type or turn.subject, step.key or turn.key, step.present
    hub = turn.cluster(HUB)
    seen = hub.find(kind)
    live = seen.get(key) if seen else await hub.kube.find(kind, key)
    if live is None:
        return
    metadata = live["metadata"]
    finalizers: list[str] = metadata.get("finalizers") or []
    if (names().finalizer in finalizers) == present:
        return
    if present and is_terminating(live):
        raise Terminating("it is being deleted: nothing new is made for it")
    wanted = [name for name in finalizers if name != names().finalizer] + [names().finalizer] * present
    turn.may_write()
    try:
        left = await hub.kube.set_finalizers(kind, key, wanted, metadata["resourceVersion"])
    except NotFound:
        if present:
            raise
        left = None
    if seen and (left is None or (is_terminating(live) and not wanted)):
        seen.gone(key, metadata["uid"])
    elif left is not None:
        _note(seen, left)


def _refuse_strangers(live: Manifest, owner: str | None) -> None:
    theirs = owner_uid(live)
    if theirs != owner:
        whose = "another owner's" if theirs else "nobody's that we know"
        raise Foreign(f"{live.get('kind')} {key_of(live)} exists and is {whose}; it is left alone")
    if is_terminating(live):
        raise Terminating(f"{live.get('kind')} {key_of(live)} is still being deleted")


def _note(seen: Informer | None, manifest: Manifest) -> None:
    if seen:
        seen.written(manifest)
