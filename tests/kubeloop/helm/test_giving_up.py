"""What Helm left pending on the hub, where only the Secrets of the operator's own namespace are watched."""

from __future__ import annotations

import asyncio
import base64
import gzip

import orjson
import pytest

from kubeloop.cache.connection import Connection
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.objects import Key, key_of
from kubeloop.plan import MarkFailed
from kubeloop.steps import KUBE
from kubeloop.strands import Actor, StepContext
from kubeloop.types import HUB, SECRET
from tests.support.api_fixtures import Manifest
from tests.support.waiting import until
from tests.support.world import CACHES

pytestmark = pytest.mark.fleet


def record(namespace: str) -> Manifest:
    """A revision that Helm was at work on."""
    payload = base64.b64encode(gzip.compress(orjson.dumps({"info": {"status": "pending-install"}})))
    marks = {"owner": "helm", "name": "mp-traefik", "version": "1", "status": "pending-install"}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "sh.helm.release.v1.mp-traefik.v1", "namespace": namespace, "labels": marks},
        "data": {"release": base64.b64encode(payload).decode()},
    }


async def test_it_is_given_up_and_not_taken_for_a_secret_of_ours(access: Access, kube: Kube, namespace: str) -> None:
    made = await kube.create(record(namespace))
    watched = [Watched(SECRET, None, namespace="modelplane-system")]
    hub = Connection(HUB, access, watched, Store(asyncio.get_running_loop().time), jitter=lambda: 0.5)
    actor = Actor(StepContext(CACHES, Key("", "any"), lambda _: hub, lambda: None), KUBE)
    running = asyncio.create_task(hub.run())
    try:
        await until(lambda: hub.synced and hub.health.answers, "the first list")
        told = made["metadata"]
        step = MarkFailed(Key(namespace, "mp-traefik"), key_of(made), told["uid"], told["resourceVersion"])

        assert await actor.act([step]) == ()
        assert (await kube.get(SECRET, key_of(made)))["metadata"]["labels"]["status"] == "failed"
        seen = hub.find(SECRET)
        assert seen is not None
        assert seen.get(key_of(made)) is None
    finally:
        running.cancel()
        await asyncio.wait({running})
