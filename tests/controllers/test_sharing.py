"""Which caches are looked at for one that shares, and who is woken when one of them changes."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelplane_operator.api import ModelCache
from modelplane_operator.clients.referenced import ReferencedObjects
from modelplane_operator.controllers import model_cache
from modelplane_operator.controllers.model_cache import CACHES, REPLICAS
from modelplane_operator.kube.objects import Key
from modelplane_operator.rendering.model_cache import Hydrator
from modelplane_operator.runtime.loop import Change
from modelplane_operator.runtime.reading import Cluster
from tests.support.informers import holding, stored
from tests.support.manifests import Manifest

CONTROLLER = model_cache.controller(ReferencedObjects(cast("Any", None), lambda: 0.0, 1.0), Hydrator())


def cache(
    name: str, *lines: Manifest, made: str = "10", repo: str = "org/model", sharing: str = "Namespace", size: int = 1
) -> Manifest:
    found = stored(CACHES, name, "team", creationTimestamp=f"2026-11-23T{made}:00:00Z")
    spec = {"source": "HuggingFace", "huggingFace": {"repo": repo, "sizeGiB": size}}
    return {**found, "spec": {**spec, **({"sharing": sharing} if sharing else {})}, "status": {"clusters": [*lines]}}


def line(name: str = "berlin", **more: Any) -> Manifest:
    return {"name": name, "phase": "Hydrating", **more}


OWNER = cache("owner", line(users=2), made="09")
BORROWERS = [cache(f"borrower-{number}", line(volumeOf="owner"), size=number + 1) for number in range(3)]
OTHERS = [cache("another", repo="org/other"), cache("alone", sharing="")]


def hub(*caches: Manifest, replicas: tuple[Manifest, ...] = ()) -> Cluster:
    held = {
        CACHES: holding(CACHES, caches, **model_cache.INDEXES[CACHES]),
        REPLICAS: holding(REPLICAS, replicas, **model_cache.INDEXES[REPLICAS]),
    }
    return cast("Cluster", SimpleNamespace(find=held.get))


HUB = hub(OWNER, *BORROWERS, *OTHERS)


def woken(before: Manifest | None, after: Manifest) -> set[str]:
    return {key.name for key in CONTROLLER.watches[CACHES](Change(before, after), HUB)}


def test_how_far_the_owner_of_a_volume_is_concerns_those_that_share_it() -> None:
    further = {**OWNER, "status": {"clusters": [line(users=2, progress={"bytes": 1})]}}

    assert woken(OWNER, further) == {one["metadata"]["name"] for one in BORROWERS}
    assert woken(OWNER, OWNER) == set()


def test_how_far_one_is_that_borrows_concerns_nobody_and_what_it_starts_from_does() -> None:
    """Else a hundred that wait for one volume would wake each other all the time."""
    first, *rest = BORROWERS
    further = {**first, "status": {"clusters": [line(volumeOf="owner", progress={"bytes": 1})]}}
    started = {**first, "status": {"clusters": [line(volumeOf="owner", volume="v")]}}

    assert woken(first, further) == set()
    assert woken(first, started) == {"owner", *(one["metadata"]["name"] for one in rest)}


def test_a_cache_with_another_content_or_for_itself_concerns_nobody() -> None:
    for one in OTHERS:
        assert woken(None, one) == set()


@pytest.mark.parametrize(
    ("of", "caches", "beside"),
    [
        (BORROWERS[1], [OWNER, *BORROWERS, *OTHERS], {"owner"}),
        (OWNER, [OWNER, *BORROWERS, *OTHERS], set()),
        (BORROWERS[1], [*BORROWERS, *OTHERS], {"borrower-0"}),
        (cache("alone", line(volumeOf="owner"), sharing=""), [OWNER, *BORROWERS], {"owner"}),
        (cache("unreadable"), [{**OWNER, "spec": {**OWNER["spec"], "huggingFace": 1}}], set()),
    ],
    ids=["the-owner", "nobody-to-borrow-from", "the-oldest", "what-is-shared-already", "one-that-cannot-be-read"],
)
def test_only_those_are_looked_at_that_may_lend(of: Manifest, caches: list[Manifest], beside: set[str]) -> None:
    found = model_cache._neighbours(ModelCache.parse(of), hub(*caches))  # pyright: ignore[reportPrivateUsage]

    assert {other.key.name for other, _, __ in found} == beside


def test_a_replica_that_names_a_volume_concerns_the_caches_that_somebody_uses() -> None:
    replica = stored(REPLICAS, "r", "team")
    plain = {**replica, "spec": {"clusterName": "berlin", "modelCacheRef": {"name": "borrower-0"}}}
    named = {**plain, "spec": {**plain["spec"], "modelCacheRef": {"name": "borrower-0", "volume": "v"}}}

    def concerned(one: Manifest) -> set[str]:
        return {key.name for key in CONTROLLER.watches[REPLICAS](Change(None, one), HUB)}

    assert (concerned(plain), concerned(named)) == ({"borrower-0"}, {"borrower-0", "owner"})
    users = model_cache._users(ModelCache.parse(OWNER), hub(OWNER, replicas=(named,)))  # pyright: ignore[reportPrivateUsage]
    assert users == {}, "it is not its own; whose volume it names is seen on the cluster"
    assert Key("team", "v") in {key for one in (named,) for key in model_cache.INDEXES[REPLICAS]["volume"](one)}
