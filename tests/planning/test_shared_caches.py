"""Caches of one content share a volume on each cluster, when both of them ask for that."""

from __future__ import annotations

from typing import Any

import pytest

from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import CachedCluster, ModelCache
from modelplane_operator.kube.objects import Manifest
from modelplane_operator.planning.cached_cluster import ClusterState, Neighbour, User
from modelplane_operator.planning.model_cache import plan
from modelplane_operator.planning.plan import LET_GO, Plan
from modelplane_operator.rendering.cache_sources import content_of
from tests.support.caches import COMMIT, PLAIN, applied, cache, cluster, deleted, job, phase, seen, told, volume

THEIRS = names.cache_volume("team", "first")
EARLIER, LATER = "2026-11-23T10:00:00Z", "2026-11-23T11:00:00Z"
TERMINATING = {"deletionTimestamp": "2026-11-23T12:00:00Z"}


def shared(name: str = "qwen", made: str = LATER, sharing: str | None = "Namespace", **changes: Any) -> ModelCache:
    spec = {"sharing": sharing} if sharing else {}
    return cache(**{"name": name, "uid": name, "creationTimestamp": made, "spec": spec, **changes})


def first(**changes: Any) -> ModelCache:
    """A cache of the same content that was there before."""
    return shared("first", EARLIER, **changes)


def beside(of: ModelCache, *claims: Manifest, meant: bool = True) -> Neighbour:
    return Neighbour(of, content_of(of), meant, claims)


def line(decided: Plan) -> CachedCluster:
    (one,) = decided.status.clusters if decided.status else ()  # type: ignore[attr-defined]
    return one


def decided(of: ModelCache, *neighbours: Neighbour, children: tuple[Manifest, ...] = (), **more: Any) -> Plan:
    return plan(seen(of, cluster(*children, neighbours=neighbours, **more)))


def test_the_older_of_two_caches_fills_the_volume_and_the_other_waits_for_it() -> None:
    coming = {"name": "berlin", "phase": "Hydrating", "progress": {"bytes": 4, "totalBytes": 10}}
    older = first(status={"clusters": [coming]})

    waits, fills = decided(shared(), beside(older)), decided(first(), beside(shared()))

    assert {"PersistentVolumeClaim", "Job", "Secret"}.isdisjoint(applied(waits))
    assert {"PersistentVolumeClaim", "Job"} <= {*applied(fills)}
    assert (line(waits).phase, line(waits).volume_of, line(waits).volume) == ("Hydrating", "first", None)
    assert line(waits).message == "ModelCache first stages it for this one too"
    assert waits.status is not None
    assert waits.status.to_manifest()["summary"]["progress"] == "40%"


def test_what_keeps_the_other_from_filling_it_is_told() -> None:
    older = first(status={"clusters": [{"name": "berlin", "phase": "Failed", "message": "raise sizeGiB"}]})

    waits = decided(shared(), beside(older, volume(older, THEIRS)))

    assert (told(waits, "ArtifactReady"), line(waits).message) == (
        "False/Failed",
        "ModelCache first stages it for this one too: raise sizeGiB",
    )


def test_a_complete_volume_is_shared_and_needs_no_token_of_ones_own() -> None:
    gated = shared(source={"authSecret": {"name": "token"}})

    shares = decided(gated, beside(first(), volume(first(), THEIRS, staged=COMMIT)))
    waits = decided(gated, beside(first(), volume(first(), THEIRS)))

    assert (line(shares).phase, line(shares).volume, line(shares).volume_of) == ("Ready", THEIRS, "first")
    assert (line(shares).revision, told(shares, "Ready")) == (COMMIT, "True/Available")
    assert told(waits, "ArtifactReady") == "False/Hydrating"


@pytest.mark.parametrize(
    ("of", "neighbour"),
    [
        (shared(sharing=None), beside(first(), volume(first(), THEIRS, staged=COMMIT))),
        (shared(), beside(first(sharing=None), volume(first(), THEIRS, staged=COMMIT))),
        (shared(), beside(first(source={"revision": "v2"}))),
        (shared(), beside(first(source={"ignorePatterns": ["*.pth"]}))),
        (shared(), beside(first(), meant=False)),
        (shared(), beside(first(**TERMINATING))),
        (shared(), beside(first(**TERMINATING), volume(first(), THEIRS, staged=COMMIT))),
        (shared(), beside(first(annotations={labels.PAUSED: "true"}))),
        (shared(), beside(shared("third", "2026-11-23T11:30:00Z"))),
    ],
    ids=[
        "it-does-not-ask",
        "the-other-does-not",
        "another-revision",
        "other-files",
        "the-other-is-not-meant-for-that-cluster",
        "the-other-is-being-deleted",
        "the-other-is-being-deleted-with-its-volume",
        "the-other-is-paused",
        "the-other-is-younger",
    ],
)
def test_without_a_partner_a_cache_fills_a_volume_of_its_own(of: ModelCache, neighbour: Neighbour) -> None:
    made = decided(of, neighbour)

    assert {"PersistentVolumeClaim", "Job"} <= {*applied(made)}
    assert line(made).volume_of is None


def test_the_younger_shares_what_it_has_with_the_older() -> None:
    younger = shared("third", "2026-11-23T11:30:00Z")

    shares = decided(shared(), beside(first(source={"revision": "v2"})), beside(younger, volume(younger, "third")))

    assert (line(shares).volume_of, phase(shares)) == ("third", "Pending")


def test_whoever_has_a_volume_already_keeps_it() -> None:
    kept = decided(
        shared(),
        beside(first(), volume(first(), THEIRS, staged=COMMIT)),
        children=(volume(shared(), staged=COMMIT),),
    )

    assert (line(kept).volume, line(kept).volume_of, deleted(kept)) == (PLAIN, None, set())


def test_a_partner_that_goes_before_its_volume_is_complete_is_replaced() -> None:
    waiting = shared(status={"clusters": [{"name": "berlin", "phase": "Hydrating", "volumeOf": "first"}]})

    assert "Job" in applied(decided(waiting, beside(first(**TERMINATING), volume(first(), THEIRS))))
    assert "Job" in applied(decided(waiting))


def starts_from_theirs(**changes: Any) -> ModelCache:
    there = {"name": "berlin", "phase": "Ready", "volume": THEIRS, "volumeOf": "first"}
    return shared(status={"clusters": [there]}, **changes)


def test_a_volume_that_is_started_from_stays_shared_whatever_becomes_of_the_other() -> None:
    filled = volume(first(), THEIRS, staged=COMMIT)
    for other in (first(**TERMINATING), first(sharing=None), first(source={"revision": "v2"})):
        kept = decided(starts_from_theirs(), beside(other, filled))

        assert (line(kept).volume, line(kept).volume_of) == (THEIRS, "first")
        assert "Job" not in applied(kept)


def test_another_content_is_staged_while_replicas_start_from_the_shared_one() -> None:
    filled, changed = volume(first(), THEIRS, staged=COMMIT), starts_from_theirs(source={"revision": "v2"})

    comes = decided(changed, beside(first(), filled))
    done = decided(changed, beside(first(), filled), children=(volume(changed, staged="d" * 40),))

    assert "Job" in applied(comes)
    assert (line(comes).phase, line(comes).volume, line(comes).volume_of) == ("Pending", THEIRS, "first")
    assert (line(done).volume, line(done).volume_of) == (PLAIN, None)


def test_whoever_ceases_to_share_stages_its_own_and_switches_then() -> None:
    filled, alone = volume(first(), THEIRS, staged=COMMIT), starts_from_theirs(sharing=None, spec={})

    comes = decided(alone, beside(first(), filled))

    assert "Job" in applied(comes)
    assert (line(comes).volume, line(comes).volume_of) == (THEIRS, "first")


def test_a_volume_that_is_being_deleted_is_shared_with_nobody() -> None:
    filled = volume(first(), THEIRS, staged=COMMIT)
    filled["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"

    alone = decided(starts_from_theirs(), beside(first(), filled))

    assert "Job" not in applied(alone), "the other makes a new one"
    assert (line(alone).volume, line(alone).volume_of) == (None, "first")


SHARER, REPLICA = User("qwen", THEIRS, "ModelCache"), User("r", THEIRS)


def owning(*users: User, **changes: Any) -> ClusterState:
    return cluster(volume(first(), THEIRS, staged=COMMIT), users=users, **changes)


def test_who_uses_what_is_in_the_status() -> None:
    used = plan(seen(first(), owning(SHARER, REPLICA)))
    many = plan(seen(first(), owning(*(User(f"r{number:02}", THEIRS) for number in range(20)))))

    assert (line(used).used_by, line(used).users) == (("ModelCache/qwen", "ModelReplica/r"), 2)
    assert (len(line(many).used_by), line(many).users) == (16, 20)


def test_a_volume_stays_for_whoever_shares_it_through_a_change_a_narrower_footprint_and_a_deletion() -> None:
    changed = plan(seen(first(source={"revision": "v2"}), owning(SHARER)))
    narrowed = plan(seen(first(), owning(SHARER, meant=False)))
    going = plan(seen(first(**TERMINATING), owning(SHARER, REPLICA)))

    assert [deleted(one) for one in (changed, narrowed, going)] == [set(), set(), set()]
    assert LET_GO not in going.steps
    told_ = str(going.status and going.status.to_manifest())
    assert (
        "Replicas on cluster berlin start from the cache: r; caches on cluster berlin share its volume: qwen" in told_
    )
    assert deleted(plan(seen(first(**TERMINATING), owning()))) == {f"PersistentVolumeClaim {THEIRS}"}


def test_whoever_shares_waits_for_its_own_replicas_only() -> None:
    neighbour = beside(first(), volume(first(), THEIRS, staged=COMMIT))

    used = plan(seen(starts_from_theirs(**TERMINATING), cluster(neighbours=(neighbour,), users=(REPLICA,))))
    free = plan(seen(starts_from_theirs(**TERMINATING), cluster(neighbours=(neighbour,))))

    assert LET_GO not in used.steps
    assert "start from the cache: r" in str(used.status)
    assert free.steps == (LET_GO,)


def test_a_job_of_ones_own_that_is_under_way_goes_on() -> None:
    both = decided(shared(), beside(first()), children=(volume(shared()), job(shared())))

    assert (line(both).volume_of, deleted(both)) == (None, set())
