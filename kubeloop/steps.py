"""The executor of the steps that write to an API server."""

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
from kubeloop.helm.records import mark_failed
from kubeloop.naming import names, owner_uid
from kubeloop.objects import Manifest, is_terminating, key_of, section
from kubeloop.ownership import add_content_hash, compute_owned_fields, is_current
from kubeloop.plan import Apply, Create, Delete, Issue, KubeStep, MarkFailed, RenewToken, Replace, SetFinalizer
from kubeloop.reading import Cluster
from kubeloop.strands import Executors, StepContext
from kubeloop.types import HUB, SECRET, type_of


class KubeExecutor:
    """Carries out writes to API servers, and waits for each of them: every request has a deadline."""

    async def begin(self, step: KubeStep, context: StepContext) -> None:
        """Carry out a step; raises ClientError."""
        match step:
            case Apply(manifest, cluster):
                await _apply(context, context.cluster(cluster), manifest)
            case Create(manifest):
                await _create(context, context.cluster(HUB), manifest)
            case Replace(manifest):
                await _replace(context, context.cluster(HUB), manifest)
            case Issue():
                await _issue(step, context)
            case Delete():
                await _delete(context, context.cluster(step.cluster), step)
            case SetFinalizer():
                await _set_finalizer(step, context)
            case MarkFailed():
                await _mark_failed(context, context.cluster(step.cluster), step)
            case RenewToken():
                await _renew_token(context, step)
            case _:
                assert_never(step)


KUBE: Final[Executors] = dict.fromkeys(get_args(KubeStep), KubeExecutor())
"""The executor for all steps of API servers."""


async def _apply(context: StepContext, cluster: Cluster, manifest: Manifest, *, adopt: bool = False) -> None:
    """Apply a manifest to an object that is missing or owned by the same owner, unless it matches already.

    Raises Foreign or Terminating if the existing object is not ours or is being deleted. `adopt`: an object that has
    no owner may be ours without its labels.
    """
    desired = add_content_hash(manifest)
    kind, key = type_of(manifest), key_of(manifest)
    informer = cluster.find(kind)
    live = informer.entry(key) if informer else None
    if informer and live is None:
        # The object probably does not exist. But a watch shows only objects with our labels, and with a delay, so a
        # foreign object may have the name. Applying to it would make it ours, and we would delete it one day.
        informer.expect()
        context.may_write()
        with suppress(Conflict):
            _remember(informer, await cluster.kube.apply(desired, new=True))
            return
    if live is None:
        existing = await cluster.kube.find(kind, key)
        live = Entry(existing, 0, compute_owned_fields(existing)) if existing else None
    if live is not None:
        _reject_foreign(live.manifest, owner_uid(manifest), adopt=adopt)
        if is_current(live.manifest, live.owned, desired):
            if live.version == 0:
                _remember(informer, live.manifest)
            return
    context.may_write()
    _remember(informer, await cluster.kube.apply(desired))


async def _create(context: StepContext, cluster: Cluster, manifest: Manifest) -> None:
    """Create an object, and put it into the cache."""
    context.may_write()
    _remember(cluster.find(type_of(manifest)), await cluster.kube.create(manifest))


async def _replace(context: StepContext, cluster: Cluster, manifest: Manifest) -> None:
    """Replace an object at its resourceVersion, and put it into the cache."""
    context.may_write()
    _remember(cluster.find(type_of(manifest)), await cluster.kube.replace(manifest))


async def _issue(step: Issue, context: StepContext) -> None:
    """Generate a key and certificate, and store them in a Secret. The key is made here, so that no plan contains it."""
    context.may_write()
    signer = step.certificate.signer
    authority = await context.cluster(HUB).kube.get(SECRET, signer) if signer else None
    manifest: Manifest = {
        "apiVersion": SECRET.api_version,
        "kind": SECRET.kind,
        "metadata": step.metadata,
        "type": "kubernetes.io/tls",
        "data": {**secret_data(step.certificate, authority)},
    }
    cluster = context.cluster(step.cluster)
    # Whoever replaces a Secret by hand removes our labels. The name is the operator's, in a namespace of its own.
    await (_apply(context, cluster, manifest, adopt=True) if signer else _create(context, cluster, manifest))


async def _delete(context: StepContext, cluster: Cluster, step: Delete) -> None:
    """Delete an object if its uid is still the same and it is not terminating.

    Raises Foreign if it has another owner.
    """
    informer = cluster.find(step.type)
    live = informer.get(step.key) if informer else None
    if live is None:
        live = await cluster.kube.find(step.type, step.key)
    if live is None or live["metadata"]["uid"] != step.uid or is_terminating(live):
        return  # it is deleted or terminating; an object with the same name and another uid is left to a later plan
    _reject_foreign(live, step.owner)
    context.may_write()
    try:
        remaining = await cluster.kube.delete(step.type, step.key, uid=step.uid, propagation=step.propagation)
    except NotFound:
        remaining = None
    if informer and remaining is None:
        informer.on_delete(step.key, step.uid)
    elif remaining is not None:
        _remember(informer, remaining)


async def _mark_failed(context: StepContext, cluster: Cluster, step: MarkFailed) -> None:
    """Mark a revision of a Helm release as failed, unless its record has changed since it was observed."""
    secret = await cluster.kube.find(SECRET, step.secret)
    if secret is None or (secret["metadata"]["uid"], secret["metadata"]["resourceVersion"]) != (
        step.uid,
        step.version,
    ):
        return  # another process works on it after all
    context.may_write()
    stored = await cluster.kube.replace(await asyncio.to_thread(mark_failed, secret))
    informer = cluster.find(SECRET)
    if informer and informer.bare:  # else the watch of Secrets is not the one for Helm's records
        informer.on_write(stored)


async def _renew_token(context: StepContext, step: RenewToken) -> None:
    """Request a new token for our ServiceAccount, and replace it in the kubeconfig Secret of the cluster."""
    hub, kube = context.cluster(HUB), context.cluster(step.cluster).kube
    old_token = kube.access.token
    context.may_write()
    token = await kube.request_token(step.account, step.seconds)
    secret = await hub.kube.get(SECRET, step.secret)
    kubeconfig = base64.b64decode(section(secret, "data").get(step.key, "")).decode(errors="replace")
    new_kubeconfig = base64.b64encode(with_token(kubeconfig, old_token, token).encode()).decode()
    context.may_write()
    version = secret["metadata"]["resourceVersion"]
    _remember(hub.find(SECRET), await hub.kube.set_data(SECRET, step.secret, {step.key: new_kubeconfig}, version))


async def _set_finalizer(step: SetFinalizer, context: StepContext) -> None:
    """Add or remove our finalizer; raises Terminating if the object is being deleted and takes no new finalizer."""
    kind, key, present = step.type or context.subject, step.key or context.key, step.present
    hub = context.cluster(HUB)
    informer = hub.find(kind)
    live = informer.get(key) if informer else await hub.kube.find(kind, key)
    if live is None:
        return
    metadata = live["metadata"]
    finalizers: list[str] = metadata.get("finalizers") or []
    if (names().finalizer in finalizers) == present:
        return
    if present and is_terminating(live):
        raise Terminating("it is being deleted, so nothing new is created for it")
    desired = [name for name in finalizers if name != names().finalizer] + [names().finalizer] * present
    context.may_write()
    try:
        remaining = await hub.kube.set_finalizers(kind, key, desired, metadata["resourceVersion"])
    except NotFound:
        if present:
            raise
        remaining = None
    if informer and (remaining is None or (is_terminating(live) and not desired)):
        informer.on_delete(key, metadata["uid"])
    elif remaining is not None:
        _remember(informer, remaining)


def _reject_foreign(live: Manifest, owner: str | None, *, adopt: bool = False) -> None:
    """Raise Foreign if the object has another owner, or Terminating if it is being deleted.

    `adopt`: an object without an owner is not foreign.
    """
    live_owner = owner_uid(live)
    if live_owner != owner and not (adopt and live_owner is None):
        described = "has another owner" if live_owner else "has no owner"
        raise Foreign(
            f"{live.get('kind')} {key_of(live)} exists and {described}, so the operator leaves it alone: delete or"
            " rename it"
        )
    if is_terminating(live):
        raise Terminating(f"{live.get('kind')} {key_of(live)} is still being deleted")


def _remember(informer: Informer | None, manifest: Manifest) -> None:
    """Put the response to a write into the cache, if the type is watched."""
    if informer:
        informer.on_write(manifest)
