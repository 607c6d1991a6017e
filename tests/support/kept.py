"""Objects as the operator's watches keep them: what is planned by them in tests is planned by no more."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from functools import cache

from kubeloop.cache.informer import Informer
from kubeloop.cache.watches import Watched
from kubeloop.objects import key_of
from kubeloop.types import ResourceType, type_of
from kubeloop.watched import collect_watches
from modelplane_operator.api import names
from modelplane_operator.operator import OWN_TYPES
from tests.support.declared import declared
from tests.support.manifests import Manifest


@cache
def _watched() -> tuple[dict[ResourceType, Watched], dict[ResourceType, Watched]]:
    loop = asyncio.new_event_loop()  # that of a test goes on
    try:
        near, far = collect_watches(loop.run_until_complete(declared()), OWN_TYPES, names.SYSTEM_NAMESPACE)
    finally:
        loop.close()
    return {one.type: one for one in near}, {one.type: one for one in far}


def of_hub(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    return tuple(_kept(one, _watched()[0][type_of(one)]) for one in manifests)


def of_cluster(manifests: Iterable[Manifest]) -> tuple[Manifest, ...]:
    return tuple(_kept(one, _watched()[1][type_of(one)]) for one in manifests)


def _kept(manifest: Manifest, how: Watched) -> Manifest:
    informer = Informer(how.type, lambda: 0.0, bare=how.bare, keeping=how.keeping)
    metadata = {"uid": "uid", "resourceVersion": "1", **manifest["metadata"]}
    informer.on_write({**manifest, "metadata": metadata})
    kept = informer.get(key_of(manifest))
    assert kept is not None
    return kept
