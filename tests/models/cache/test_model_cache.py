"""What is done for a cache on its clusters, from the first volume to the last."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from datetime import datetime, timedelta
from typing import Any

import pytest

from kubeloop.condition_types import Synced
from kubeloop.errors import ClientError, Forbidden, TooMany, Unreachable
from kubeloop.objects import Manifest, key_of
from kubeloop.plan import LET_GO, Apply, Delete, Failure, Plan
from kubeloop.types import JOB, NAMESPACE, PERSISTENT_VOLUME_CLAIM, SECRET, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.models.cache.cache_status import find_awaited, must_hold
from modelplane_operator.models.cache.cached_cluster import ClusterState, User
from modelplane_operator.models.cache.plan import plan
from modelplane_operator.models.cache.render import Hydrator, render_token
from modelplane_operator.models.replica.plan.observed import Awaited
from tests.support.caches import (
    COMMIT,
    NOW,
    PLAIN,
    TOKEN,
    applied,
    cache,
    cluster,
    deleted,
    ended,
    job,
    live,
    phase,
    rest,
    seen,
    told,
    volume,
)
from tests.support.kept import of_cluster
from tests.support.manifests import change

pytestmark = pytest.mark.usefixtures("well_worded")


def test_a_cluster_gets_a_volume_and_a_job_that_fills_it() -> None:
    decided = plan(seen(cache(), cluster()))

    fences = ["Namespace", "NetworkPolicy", "NetworkPolicy", "LimitRange"]
    account = ["ServiceAccount", "Role", "RoleBinding"]
    assert applied(decided) == [*fences, "PersistentVolumeClaim", *account, "Job"]
    assert (told(decided, "ArtifactReady"), phase(decided)) == ("False/Hydrating", "Pending")
    assert told(decided, "ClustersMatched") == "True/Matched"


def test_no_cluster_with_storage_is_told() -> None:
    decided = plan(seen(cache()))

    assert (decided.steps, told(decided, "ArtifactReady"), told(decided, "Ready")) == (
        (),
        "False/NoClusters",
        "False/NoClusters",
    )


def test_a_namespace_with_as_many_as_it_may_have_keeps_what_it_has_and_gets_nothing_more() -> None:
    """Else a tenant's thousands would be more than the API server of an honest cluster is let say."""
    crowded = plan(replace(seen(cache(), cluster()), crowded=True))
    kept = plan(replace(seen(cache(), cluster(volume(cache()))), crowded=True))
    unseen = plan(
        replace(seen(cache(status={"clusters": [{"name": "berlin"}]}), cluster(connected=False)), crowded=True)
    )

    assert (crowded.steps, told(crowded, "ArtifactReady"), told(crowded, "Ready")) == (
        (),
        "False/TooMany",
        "False/TooMany",
    )
    assert "Job" in applied(kept)
    assert told(unseen, "ArtifactReady") == "False/Hydrating"


def test_without_its_token_there_is_a_volume_and_no_job() -> None:
    gated = cache(source={"authSecret": {"name": "token"}})

    without, with_it = plan(seen(gated, cluster())), plan(seen(gated, cluster(), token=TOKEN))

    assert "Job" not in applied(without)
    assert "PersistentVolumeClaim" in applied(without)
    assert told(without, "ArtifactReady") == "False/AuthSecretMissing"
    assert [one for one in applied(with_it) if one in {"Secret", "Job"}] == ["Secret", "Job"]
    steps = [one.manifest for one in with_it.steps if isinstance(one, Apply) and one.manifest["kind"] != "Secret"]
    assert TOKEN not in json.dumps(steps)


def test_a_job_is_made_once_and_what_it_says_is_told() -> None:
    at = "2026-11-23T12:00:00+00:00"
    running = job(cache(), at=at, files=1, totalFiles=4, bytes=41, totalBytes=100, bytesPerSecond=1, revision=COMMIT)
    decided = plan(seen(cache(), cluster(volume(cache()), running, *rest(cache()))))

    assert "Job" not in applied(decided)
    assert deleted(decided) == set()
    assert decided.status is not None
    status = decided.status.to_manifest()
    assert status["summary"] == {"source": "org/model", "ready": "0/1", "size": "20Gi", "progress": "41%"}
    assert status["clusters"][0]["phase"] == "Hydrating"
    assert status["clusters"][0]["progress"]["estimatedCompletion"] == "2026-11-23T12:00:00Z"
    assert "volume" not in status["clusters"][0], "it holds not all of it"


@pytest.mark.parametrize(
    "facts", ["[]", "{", '{"totalBytes": "x"}', '{"totalBytes": 1e99, "bytes": -1}', '{"totalBytes": 9, "at": 1}']
)
def test_what_is_no_progress_is_none(facts: str) -> None:
    running = job(cache())
    running["metadata"]["annotations"][labels.PROGRESS] = facts

    assert phase(plan(seen(cache(), cluster(volume(cache()), running)))) == "Hydrating"


def test_a_volume_is_marked_with_the_commit_before_the_job_goes() -> None:
    done = job(cache(), "Complete", totalBytes=9, revision="d" * 40)
    last = ended(json.dumps({"revision": COMMIT, "totalBytes": 9}), "Succeeded")

    decided = plan(seen(cache(), cluster(volume(cache()), done, *rest(cache()), pods=(last,))))
    (claim,) = (
        one.manifest
        for one in decided.steps
        if isinstance(one, Apply) and type_of(one.manifest) == PERSISTENT_VOLUME_CLAIM
    )
    marked = cluster(volume(cache(), staged=COMMIT), done, *rest(cache()))
    assert decided.status is not None
    after = plan(seen(cache(status=decided.status.to_manifest()), marked))

    assert claim["metadata"]["annotations"][labels.STAGED] == COMMIT
    assert deleted(decided) == set()
    assert {one.split()[0] for one in deleted(after)} == {"Job", "ServiceAccount", "Role", "RoleBinding"}
    assert (told(after, "ArtifactReady"), told(after, "Ready")) == ("True/Staged", "True/Available")


def test_a_job_stays_until_the_status_has_how_many_there_were() -> None:
    """An operator that ended between the mark and the status leaves that to the next one."""
    marked = cluster(volume(cache(), staged=COMMIT), job(cache(), "Complete"), *rest(cache()))

    first = plan(seen(cache(), marked))
    assert first.status is not None
    second = plan(seen(cache(status=first.status.to_manifest()), marked))

    assert first.status.to_manifest()["clusters"][0]["attempts"] == 1
    assert not any(one.startswith("Job") for one in deleted(first))
    assert first.requeue_after == 1.0
    assert any(one.startswith("Job") for one in deleted(second))


def test_a_complete_volume_stays_without_job_token_or_secret() -> None:
    gated = cache(source={"authSecret": {"name": "token"}})
    decided = plan(seen(gated, cluster(volume(gated, staged=COMMIT))))

    assert {"Job", "Secret"}.isdisjoint(applied(decided))
    assert told(decided, "ArtifactReady") == "True/Staged"
    assert decided.status is not None
    assert decided.status.to_manifest()["clusters"][0]["revision"] == COMMIT


def test_a_failed_job_is_begun_again_after_a_while_and_the_hydrators_word_is_told() -> None:
    broken = cluster(volume(cache()), job(cache(), "Failed", attempt=2), pods=(ended("repository org/model is gated"),))
    first = plan(seen(cache(), broken))
    assert first.status is not None
    later = cache(status=first.status.to_manifest())

    waiting = plan(replace(seen(later, broken), now=NOW + timedelta(seconds=119)))
    again = plan(replace(seen(later, broken), now=NOW + timedelta(seconds=120)))
    anew = plan(seen(later, cluster(volume(cache()))))

    assert (told(first, "ArtifactReady"), first.requeue_after) == ("False/Failed", 120.0)
    assert "is gated" in json.dumps(first.status.to_manifest())
    assert (deleted(waiting), waiting.requeue_after) == (set(), 1.0)
    assert {one.split()[0] for one in deleted(again)} == {"Job"}
    (made,) = (one.manifest for one in anew.steps if isinstance(one, Apply) and type_of(one.manifest) == JOB)
    assert made["metadata"]["annotations"][labels.ATTEMPT] == "3"


def test_another_token_is_tried_at_once() -> None:
    gated = cache(source={"authSecret": {"name": "token"}})
    broken = cluster(volume(gated), job(gated, "Failed"), live(render_token(gated, {"HF_TOKEN": TOKEN})))

    same, other = plan(seen(gated, broken, token=TOKEN)), plan(seen(gated, broken, token="b3RoZXI="))  # noqa: S106 - of nobody

    assert deleted(same) == set()
    assert {one.split()[0] for one in deleted(other)} == {"Job"}
    assert applied(other) == []


def test_a_change_of_revision_is_staged_beside_and_switched_to_when_complete() -> None:
    old, new = cache(), cache(source={"revision": "v2"})
    beside = names.cache_volume("team", "qwen", volume(new)["metadata"]["annotations"][labels.CONTENT])
    users = (User("r", PLAIN),)

    first = plan(seen(new, cluster(volume(old, staged=COMMIT), users=users)))
    done = plan(seen(new, cluster(volume(old, staged=COMMIT), volume(new, beside, staged="d" * 40), users=users)))
    moved = cluster(volume(old, staged=COMMIT), volume(new, beside, staged="d" * 40), users=(User("r", beside),))
    after = plan(seen(new, moved))

    claims = [
        key_of(one.manifest).name
        for one in first.steps
        if isinstance(one, Apply) and type_of(one.manifest) == PERSISTENT_VOLUME_CLAIM
    ]
    assert (claims, deleted(first)) == ([beside], set())
    assert [volume_of(one) for one in (first, done)] == [PLAIN, beside]
    assert deleted(done) == set(), "a replica still starts from the one before"
    assert deleted(after) == {f"PersistentVolumeClaim {PLAIN}"}


def volume_of(decided: Plan) -> str | None:
    assert decided.status is not None
    return decided.status.to_manifest()["clusters"][0].get("volume")


@pytest.mark.parametrize(
    "there",
    [
        (volume(cache(), staged=COMMIT),),
        (volume(cache(), staged="refs/pr/7"),),
        (volume(cache()), job(cache(), totalBytes=9, revision=COMMIT)),
    ],
    ids=["a mark", "a mark that is no commit", "progress"],
)
def test_what_one_cluster_says_decides_nothing_on_another(there: tuple[Manifest, ...]) -> None:
    alone = plan(seen(cache(), cluster(name="paris")))
    beside = plan(seen(cache(), cluster(*there), cluster(name="paris")))

    assert hydrator_of(beside, "paris") == hydrator_of(alone, "paris")
    assert "--revision=main" in hydrator_of(beside, "paris")["args"]


@pytest.mark.parametrize("said", ["refs/pr/7", "z" * 300, "--x y\nq", "A" * 40, "sha256:abc"])
def test_a_mark_that_no_source_resolves_to_is_told_as_none(said: str) -> None:
    decided = plan(seen(cache(), cluster(volume(cache(), staged=said))))

    assert decided.status is not None
    (line,) = decided.status.to_manifest()["clusters"]
    assert (line["phase"], line["volume"], line.get("revision")) == ("Ready", PLAIN, None)


@pytest.mark.parametrize(
    ("source", "marks", "says"),
    [
        ({}, (COMMIT, COMMIT), "True/Staged: Repository org/model is staged on 2 clusters"),
        ({}, (COMMIT, "main"), "True/Staged: Repository org/model is staged on 2 clusters"),
        (
            {},
            (COMMIT, "d" * 40),
            f"False/ContentsDiffer: Clusters hold different contents of repository org/model: {COMMIT} (berlin), "
            f"{'d' * 40} (paris); name a commit in huggingFace.revision",
        ),
        ({"revision": COMMIT}, (COMMIT, COMMIT), "True/Staged: Repository org/model is staged on 2 clusters"),
        (
            {"revision": COMMIT},
            ("d" * 40, COMMIT),
            "False/ContentsDiffer: Clusters hold different contents of repository org/model: "
            f"{COMMIT} (the spec, paris), {'d' * 40} (berlin); name a commit in huggingFace.revision",
        ),
    ],
)
def test_clusters_that_hold_different_contents_are_told(
    source: dict[str, str], marks: tuple[str, str], says: str
) -> None:
    of = cache(source=source)
    sites = (cluster(volume(of, staged=mark), name=name) for name, mark in zip(("berlin", "paris"), marks, strict=True))
    decided = plan(seen(of, *sites))

    assert decided.status is not None
    (artifact,) = (one for one in decided.status.conditions if one.type == "ArtifactReady")
    assert f"{artifact.status}/{artifact.reason}: {artifact.message}" == says
    assert [one.volume for one in decided.status.clusters] == [PLAIN, PLAIN]  # type: ignore[attr-defined]


def test_differences_are_told_while_other_clusters_are_on_their_way() -> None:
    known = [cluster(volume(cache(), staged=one * 40), name=one) for one in ("a", "b")]
    decided = plan(seen(cache(), *known, cluster(name="paris")))

    assert decided.status is not None
    (artifact,) = (one for one in decided.status.conditions if one.type == "ArtifactReady")
    assert artifact.reason == "Partial"
    assert "; clusters hold different contents of repository org/model: " in (artifact.message or "")


def annotated(made: Manifest, **said: str) -> Manifest:
    return {**made, "metadata": {**made["metadata"], "annotations": {**made["metadata"]["annotations"], **said}}}


GARBAGE = {
    "a claim's status": lambda: cluster({**volume(cache()), "status": "x"}),
    "a claim's spec": lambda: cluster({**volume(cache()), "spec": []}),
    "a claim's request": lambda: cluster({**volume(cache()), "spec": {"resources": {"requests": {"storage": 20}}}}),
    "a claim's size": lambda: cluster(
        {**volume(cache()), "spec": {"resources": {"requests": {"storage": f"{'9' * 5000}Gi"}}}}
    ),
    "a claim's name": lambda: cluster(volume(cache(), "v" * 253, staged=COMMIT)),
    "a job's status": lambda: cluster(volume(cache()), {**job(cache()), "status": "x"}),
    "a job's conditions": lambda: cluster(volume(cache()), {**job(cache()), "status": {"conditions": [1, None]}}),
    "a job's age": lambda: cluster(
        volume(cache()), {**job(cache()), "metadata": {**job(cache())["metadata"], "creationTimestamp": 1}}
    ),
    "progress": lambda: cluster(volume(cache()), annotated(job(cache()), **{labels.PROGRESS: "[" * 100_000})),
    "a last word": lambda: cluster(
        volume(cache()), job(cache(), "Complete"), pods=(ended("[" * 100_000, "Succeeded"),)
    ),
    "a mark": lambda: cluster(volume(cache(), staged="z" * 300)),
    "a pod": lambda: cluster(
        volume(cache()), job(cache()), pods=({"metadata": {"name": "p", "namespace": "n"}, "status": {"phase": []}},)
    ),
}


@pytest.mark.parametrize("said", GARBAGE.values(), ids=GARBAGE)
@pytest.mark.parametrize("changes", [{}, {"deletionTimestamp": NOW.isoformat()}], ids=["staged", "deleted"])
def test_what_one_cluster_says_holds_up_no_other(said: Callable[[], ClusterState], changes: dict[str, Any]) -> None:
    there = cluster(volume(cache()), name="paris")
    alone = plan(seen(cache(**changes), there))
    decided = plan(seen(cache(**changes), replace(said(), name="a"), there))

    assert [one for one in decided.steps if getattr(one, "cluster", "") == "paris"] == [
        one for one in alone.steps if one != LET_GO
    ]
    assert LET_GO not in decided.steps


@pytest.mark.parametrize("changes", [{}, {"deletionTimestamp": NOW.isoformat()}], ids=["staged", "deleted"])
def test_a_cluster_that_cannot_be_read_is_told_and_nothing_is_done_there(changes: dict[str, Any]) -> None:
    unreadable = {**volume(cache()), "metadata": {**volume(cache())["metadata"], "annotations": "x", "labels": "x"}}
    decided = plan(seen(cache(**changes), cluster(unreadable), cluster(name="paris")))

    why = (
        "the answer of cluster berlin cannot be read: internal error (AttributeError); the operator's log has the"
        " details"
    )
    assert decided.status is not None
    assert any(why[1:] in (one.message or "") for one in decided.status.conditions)
    assert [one for one in decided.steps if getattr(one, "cluster", "") == "berlin"] == []
    assert {name: type(one) for name, one in decided.defects.items()} == {"berlin": AttributeError}
    assert LET_GO not in decided.steps


@pytest.mark.parametrize("named", sorted(GARBAGE.keys() - {"a claim's name"}))
def test_of_claims_and_jobs_nothing_is_kept_that_cannot_be_read(named: str) -> None:
    whole = GARBAGE[named]()
    pods = of_cluster({"apiVersion": "v1", "kind": "Pod", **one} for one in whole.pods)
    decided = plan(seen(cache(), replace(whole, children=of_cluster(whole.children), pods=pods)))

    assert decided.defects == {}


@pytest.mark.parametrize(
    "there",
    [
        (volume(cache()), job(cache(), totalBytes=9, revision=COMMIT), *rest(cache())),
        (volume(cache(), phase="Pending"), job(cache(), "Failed", attempt=3), *rest(cache())),
        (volume(cache()), job(cache(), "Complete", totalBytes=9, revision=COMMIT), *rest(cache())),
        (volume(cache(), staged=COMMIT),),
        (volume(cache(), phase="Lost"),),
        (volume(cache(source={"sizeGiB": 5})),),
        (volume(cache(), staged=COMMIT, phase="Pending"), volume(cache(source={"revision": "v2"}), "other")),
    ],
)
@pytest.mark.parametrize("changes", [{}, {"deletionTimestamp": NOW.isoformat()}], ids=["staged", "deleted"])
def test_a_cache_is_planned_by_what_is_kept(there: tuple[Manifest, ...], changes: dict[str, Any]) -> None:
    dated = tuple(change(one, "metadata.creationTimestamp", "2026-11-23T11:00:00Z") for one in there)
    of = cache(**changes)

    assert plan(seen(of, cluster(*of_cluster(dated)))) == plan(seen(of, cluster(*dated)))


def test_a_volume_grows_and_never_shrinks_or_changes_its_class() -> None:
    smaller, larger = cache(source={"sizeGiB": 5}), cache(source={"sizeGiB": 50})
    sizes = []
    for one in (smaller, larger):
        decided = plan(seen(one, replace(cluster(volume(cache(), staged=COMMIT)), storage_class="other")))
        (claim,) = (
            step.manifest
            for step in decided.steps
            if isinstance(step, Apply) and type_of(step.manifest) == PERSISTENT_VOLUME_CLAIM
        )
        assert claim["spec"]["storageClassName"] == "fast"
        sizes.append(claim["spec"]["resources"]["requests"]["storage"])
    assert sizes == ["20Gi", "50Gi"]


def test_a_narrower_footprint_keeps_what_replicas_start_from() -> None:
    used = cluster(volume(cache(), staged=COMMIT), meant=False, users=(User("r", PLAIN),))
    free = replace(used, users=())

    assert deleted(plan(seen(cache(), used))) == set()
    assert deleted(plan(seen(cache(), free))) == {f"PersistentVolumeClaim {PLAIN}"}


def test_a_cluster_that_is_meant_no_more_gets_nothing_new() -> None:
    before = plan(seen(cache(), cluster(volume(cache(), staged=COMMIT))))
    assert before.status is not None
    changed = cache(source={"revision": "v2"}, status=before.status.to_manifest())
    used = cluster(volume(cache(), staged=COMMIT), meant=False, users=(User("r", PLAIN),))

    decided = plan(seen(changed, used))

    assert decided.steps == ()
    assert volume_of(decided) == PLAIN
    assert told(decided, "ClustersMatched") == "False/NoClusters"


def test_a_cluster_that_does_not_answer_holds_up_no_other() -> None:
    silent = cluster(name="berlin", connected=False, error=Unreachable("connection refused"))
    decided = plan(seen(cache(), silent, cluster(name="paris")))

    assert {one.cluster for one in decided.steps if isinstance(one, Apply)} == {"paris"}
    assert decided.failure is None
    assert "does not answer" in json.dumps(decided.status and decided.status.to_manifest())


def test_a_cache_goes_when_nobody_starts_from_it_and_says_who_does() -> None:
    terminating = cache(deletionTimestamp="2026-11-23T12:00:00Z")
    filled = (volume(terminating, staged=COMMIT), job(terminating))
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "modelplane-team", "uid": "n"}}

    used = plan(seen(terminating, cluster(*filled, users=(User("r", PLAIN),))))
    free, empty = plan(seen(terminating, cluster(*filled))), plan(seen(terminating, cluster(namespace=home)))
    silent = plan(seen(terminating, cluster(connected=False, error=Unreachable("no route"))))

    assert {one.split()[0] for one in deleted(used)} == {"Job"}
    assert used.status is not None
    assert "Replicas on cluster berlin start from the cache: r" in json.dumps(used.status.to_manifest())
    assert {one.split()[0] for one in deleted(free)} == {"Job", "PersistentVolumeClaim"}
    assert LET_GO not in (*free.steps, *silent.steps)
    assert [one.type for one in empty.steps if isinstance(one, Delete)] == [NAMESPACE]
    assert empty.steps[-1] == LET_GO


def test_the_status_names_replicas_that_start_from_a_volume() -> None:
    filled = volume(cache(), staged=COMMIT)
    few, many = (
        reported_by(
            plan(seen(cache(), cluster(filled, users=tuple(User(f"r{one:02}", PLAIN) for one in range(count)))))
        ).on("berlin")
        for count in (2, 20)
    )

    assert few is not None
    assert many is not None
    assert (few.used_by, few.users) == (("ModelReplica/r00", "ModelReplica/r01"), 2)
    assert (len(many.used_by or ()), many.users) == (16, 20)


def test_without_an_image_the_remedy_is_told() -> None:
    decided = plan(replace(seen(cache(), cluster()), hydrator=Hydrator()))

    assert "Job" not in applied(decided)
    assert "--hydrator-image" in json.dumps(decided.status and decided.status.to_manifest())


def test_a_replica_waits_for_its_weights_and_says_where_none_will_come() -> None:
    cluster = {"metadata": {"name": "berlin"}, "spec": {}, "status": {"cache": {"storageClassName": "fast"}}}
    staged = {"clusters": [{"name": "berlin", "phase": "Ready", "volume": PLAIN}]}
    coming = {"clusters": [{"name": "berlin", "phase": "Hydrating", "progress": {"bytes": 41, "totalBytes": 100}}]}

    unbound = {"clusters": [{"name": "berlin", "phase": "Pending", "message": "no volume", "reason": "VolumeNotBound"}]}

    def awaited(status: Manifest, where: Manifest = cluster, **spec: Any) -> Awaited:
        found = find_awaited(cache(status=status, **spec), where)
        assert found is not None
        return found

    assert find_awaited(cache(status=staged), cluster) is None
    assert "are to come to cluster berlin" in awaited({}).message
    assert awaited({}).reason == ""
    assert "not on cluster berlin yet: 41%" in awaited(coming).message
    assert awaited(unbound).reason == "VolumeNotBound"
    excluded = awaited({}, {**cluster, "status": {}})
    assert "as it has no storage for caches: name a StorageClass" in excluded.message
    assert excluded.reason == "ModelCacheFailed"
    elsewhere = awaited({}, spec={"clusterSelector": {"matchLabels": {"region": "eu"}}})
    assert "clusterSelector of ModelCache qwen does not select it" in elsewhere.message


def test_the_token_goes_with_the_job() -> None:
    gated = cache(source={"authSecret": {"name": "token"}})
    filled = cluster(volume(gated, staged=COMMIT), live(render_token(gated, {"HF_TOKEN": TOKEN})))

    assert [one.type for one in plan(seen(gated, filled, token=TOKEN)).steps if isinstance(one, Delete)] == [SECRET]


def sourced(kind: str, field: str, **block: Any) -> ModelCache:
    """The same cache from elsewhere."""
    spec = {"source": kind, field: block}
    return ModelCache.parse({"metadata": cache().metadata.to_manifest(), "spec": spec})


def hydrator_of(decided: Plan, cluster: str = "berlin") -> Manifest:
    (made,) = (
        one.manifest
        for one in decided.steps
        if isinstance(one, Apply) and type_of(one.manifest) == JOB and one.cluster == cluster
    )
    (found,) = made["spec"]["template"]["spec"]["containers"]
    return found


def test_keys_of_s3_come_by_variables_and_the_session_may_be_absent() -> None:
    bucket = sourced("S3", "s3", bucket="models", prefix="qwen", sizeGiB=20, authSecret={"name": "keys"})
    keys = {"AWS_ACCESS_KEY_ID": "YQ==", "AWS_SECRET_ACCESS_KEY": TOKEN}

    half = plan(replace(seen(bucket, cluster()), secret={"AWS_ACCESS_KEY_ID": "YQ=="}))
    whole = plan(replace(seen(bucket, cluster()), secret=keys))

    assert told(half, "ArtifactReady") == "False/AuthSecretMissing"
    assert "Job" not in applied(half)
    found = hydrator_of(whole)
    assert {"--source=S3", "--bucket=models", "--prefix=qwen"} <= set(found["args"])
    references = {one["name"]: one["valueFrom"]["secretKeyRef"] for one in found["env"] if "valueFrom" in one}
    optional = {name: reference.get("optional", False) for name, reference in references.items()}
    assert optional == {**dict.fromkeys(keys, False), "AWS_SESSION_TOKEN": True}
    assert TOKEN not in json.dumps(found)


@pytest.mark.parametrize(
    ("kind", "field", "block", "says"),
    [
        ("S3", "s3", {"bucket": "models", "prefix": "/a/"}, "s3://models/a"),
        ("GoogleCloudStorage", "googleCloudStorage", {"bucket": "models"}, "gs://models"),
        ("OCI", "oci", {"reference": "ghcr.io/a/b:v1"}, "oci://ghcr.io/a/b:v1"),
        ("HTTP", "http", {"manifest": "https://a.example.com/m.json?key=secret"}, "https://a.example.com/m.json"),
    ],
)
def test_every_source_is_told_in_short_and_asked_by_itself_on_each_cluster(
    kind: str, field: str, block: dict[str, Any], says: str
) -> None:
    of = sourced(kind, field, sizeGiB=20, **block)
    decided = plan(seen(of, cluster(volume(of, staged="sha256:" + "a" * 64)), cluster(name="paris")))

    assert decided.status is not None
    assert decided.status.to_manifest()["summary"]["source"] == says
    assert not [one for one in hydrator_of(decided, "paris")["args"] if one.startswith("--revision")]


def test_a_claim_that_is_there_already_is_mounted_as_it_is() -> None:
    of = sourced("PersistentVolumeClaim", "persistentVolumeClaim", claimName="weights")
    bound, pending = {"status": {"phase": "Bound"}}, {"status": {"phase": "Pending"}}

    there, unbound, missing = (plan(seen(of, replace(cluster(), existing=one))) for one in (bound, pending, None))

    assert {"Job", "PersistentVolumeClaim"}.isdisjoint(applied(there))
    assert (phase(there), volume_of(there), told(there, "Ready")) == ("Ready", "weights", "True/Available")
    assert [phase(one) for one in (unbound, missing)] == ["Pending", "Pending"]
    assert "modelplane-team/weights is not bound" in json.dumps(unbound.status and unbound.status.to_manifest())
    assert "modelplane-team/weights does not exist" in json.dumps(missing.status and missing.status.to_manifest())
    assert missing.requeue_after == 30.0
    assert told(missing, "Ready") == "False/VolumeNotBound"
    assert told(unbound, "Ready") == "False/Creating", "a volume takes a moment"


def test_a_volume_that_is_not_bound_for_long_is_the_reason_of_the_cache() -> None:
    def after(seconds: int, *pods: Manifest) -> Plan:
        waits = {"name": "berlin", "phase": "Pending", "since": (NOW - timedelta(seconds=seconds)).isoformat()}
        subject = cache(status={"clusters": [waits]})
        return plan(seen(subject, cluster(volume(subject, phase="Pending"), job(subject), pods=pods)))

    assert told(after(29), "Ready") == "False/Creating"
    assert after(29).requeue_after == 1.0
    assert told(after(30), "Ready") == told(after(30), "ArtifactReady") == "False/VolumeNotBound"


def test_a_hydrator_that_cannot_run_is_the_reason_of_the_cache() -> None:
    pulling = {"name": "hydrator", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "not found"}}}
    status = {"phase": "Pending", "containerStatuses": [pulling]}
    pod = {"metadata": {"name": "pod", "namespace": "n"}, "spec": {"containers": []}, "status": status}
    decided = plan(seen(cache(), cluster(volume(cache()), job(cache()), pods=(pod,))))

    assert told(decided, "Ready") == told(decided, "ArtifactReady") == "False/Failed"
    assert decided.status is not None
    assert decided.status.clusters[0].reason == "Failed"


def test_a_change_to_a_claim_keeps_the_volume_that_replicas_start_from() -> None:
    of = sourced("PersistentVolumeClaim", "persistentVolumeClaim", claimName="weights")
    before = cluster(volume(cache(), staged=COMMIT), users=(User("r", PLAIN),))

    assert deleted(plan(seen(of, before))) == set()
    assert deleted(plan(seen(of, replace(before, users=())))) == {f"PersistentVolumeClaim {PLAIN}"}


def test_a_claim_needs_no_storage_of_the_cluster() -> None:
    of = sourced("PersistentVolumeClaim", "persistentVolumeClaim", claimName="weights")
    plain = {"metadata": {"name": "berlin"}, "spec": {}, "status": {}}

    assert must_hold(of, plain)
    assert not must_hold(cache(), plain)


# What does not go as it should ----------------------------------------------------------------------------------------


def running(since: str) -> Manifest:
    states = [{"name": "hydrator", "ready": True, "state": {"running": {"startedAt": since}}}]
    status = {"phase": "Running", "containerStatuses": states, "conditions": [{"type": "Ready", "status": "True"}]}
    return {"metadata": {"name": "pod", "namespace": "n"}, "spec": {"containers": []}, "status": status}


def message(decided: Plan) -> str:
    (one,) = decided.status.clusters if decided.status else ()  # type: ignore[attr-defined]
    return one.message or ""


def test_clusters_without_storage_are_named_with_the_remedy() -> None:
    none = plan(replace(seen(cache()), without_storage=("berlin", "rome")))
    some = plan(replace(seen(cache(), cluster()), without_storage=("rome",)))

    def says(decided: Plan) -> str:
        found = decided.status.conditions if decided.status else ()
        return next(one.message or "" for one in found if one.type == "ClustersMatched")

    assert says(none) == (
        "Clusters without storage for caches are left out: berlin, rome: "
        "name a StorageClass in spec.cluster.existing.cache of the InferenceClusters"
    )
    assert says(some) == "1 cluster: berlin. Clusters without storage for caches are left out: rome"
    assert says(plan(seen(cache()))) == "No cluster is there: label one, or correct it"


def test_a_volume_that_is_not_bound_says_where_to_look_with_a_pod_that_waits_too() -> None:
    starting = {"metadata": {"name": "pod", "namespace": "n"}, "spec": {"containers": []}, "status": {}}
    said = {
        "reason": "Unschedulable",
        "message": "0/6 nodes are available: pod has unbound immediate PersistentVolumeClaims. not found",
    }
    unscheduled = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False", **said}]}
    for pods in ((), (starting,), ({**starting, "status": unscheduled},)):
        decided = plan(seen(cache(), cluster(volume(cache(), phase="Pending"), job(cache()), pods=pods)))

        assert phase(decided) == "Pending"
        assert message(decided).startswith("the volume is not bound: check that StorageClass "), message(decided)
        assert "`kubectl describe pvc -n modelplane-team" in message(decided)


def test_a_volume_that_is_lost_says_what_to_do() -> None:
    decided = plan(seen(cache(), cluster(volume(cache(), phase="Lost"))))

    assert (phase(decided), message(decided)) == ("Failed", f"volume {PLAIN} is lost: delete its claim")


def test_a_job_without_a_pod_says_so_after_a_while() -> None:
    made = job(cache())
    made["metadata"]["creationTimestamp"] = "2026-11-23T12:00:00Z"
    there = seen(cache(), cluster(volume(cache()), made))

    early, late = plan(there), plan(replace(there, now=NOW + timedelta(minutes=2)))

    assert (message(early), early.requeue_after) == ("", 120.0)
    assert (message(late).partition(":")[0], late.requeue_after) == ("the Job has no pod", None)
    assert "kubectl describe job -n modelplane-team" in message(late)


def test_a_hydrator_that_hangs_is_told_and_left_alone() -> None:
    """Nobody knows whether it does anything: what hangs on a network file system is not helped by another beside it."""
    told = job(cache(), at="2026-11-23T12:05:00+00:00", files=1, totalFiles=2, bytes=1, totalBytes=2)
    silent, said = (
        seen(cache(), cluster(volume(cache()), one, pods=(running("2026-11-23T12:00:00Z"),)))
        for one in (job(cache()), told)
    )

    assert [plan(one).requeue_after for one in (silent, said)] == [600.0, 900.0]
    at = NOW + timedelta(minutes=10)
    assert "the hydrator reports no progress" in message(plan(replace(silent, now=at)))
    assert message(plan(replace(said, now=at))) == ""
    hanging = plan(replace(said, now=NOW + timedelta(minutes=15)))
    assert (phase(hanging), deleted(hanging)) == ("Hydrating", set())
    assert "kubectl logs -n modelplane-team job/" in message(hanging)


def test_an_eviction_is_told_and_is_no_failure() -> None:
    evicted = {
        "metadata": {"name": "pod-1", "namespace": "n"},
        "spec": {"containers": []},
        "status": {"phase": "Failed", "reason": "Evicted", "message": "The node was low on resource: memory."},
    }
    pods = (evicted, running("2026-11-23T12:00:00Z"))
    decided = plan(seen(cache(), cluster(volume(cache()), job(cache()), pods=pods)))

    assert (phase(decided), told(decided, "ArtifactReady")) == ("Hydrating", "False/Hydrating")
    assert "tried again after: Evicted: its node was low on memory" in message(decided)


def test_attempts_are_those_of_the_present_weights() -> None:
    there = {"clusters": [{"name": "berlin", "phase": "Ready", "attempts": 3}]}
    changed = cache(source={"revision": "v2"}, status=there)

    decided = plan(seen(changed, cluster(volume(cache(), staged=COMMIT))))

    assert attempt_of(decided) == "1"


def test_a_write_that_was_cut_short_is_no_attempt() -> None:
    """The volume of other weights is there, and the Job that follows it not yet."""
    there = {"clusters": [{"name": "berlin", "phase": "Ready", "attempts": 1}]}
    before, changed = volume(cache(), staged=COMMIT), cache(source={"revision": "v2"}, status=there)
    first = plan(seen(changed, cluster(before)))
    assert first.status is not None
    told = cache(source={"revision": "v2"}, status=first.status.to_manifest())

    assert attempt_of(plan(seen(told, cluster(before, volume(told))))) == "1"


def attempt_of(decided: Plan) -> str:
    (made,) = (one.manifest for one in decided.steps if isinstance(one, Apply) and type_of(one.manifest) == JOB)
    return made["metadata"]["annotations"][labels.ATTEMPT]


def test_an_edit_has_what_has_failed_tried_at_once() -> None:
    broken = cluster(volume(cache()), job(cache(), "Failed"), pods=(ended("raise sizeGiB"),))
    first = plan(seen(cache(generation=1), broken))
    assert first.status is not None
    assert first.status.to_manifest()["clusters"][0]["nextAttempt"] == "2026-11-23T12:01:00Z"

    assert deleted(plan(seen(reported_by(first), broken))) == set()
    larger = reported_by(first, generation=2, source={"sizeGiB": 50})
    assert {one.split()[0] for one in deleted(plan(seen(larger, broken)))} == {"Job"}


def test_a_cluster_that_returns_with_its_volume_has_the_weights_at_once() -> None:
    """Its line in the status went with it; the mark on the claim is what counts."""
    decided = plan(seen(cache(status={"clusters": []}), cluster(volume(cache(), staged=COMMIT))))

    assert ({"Job", "Secret"} & {*applied(decided)}, phase(decided)) == (set(), "Ready")


def test_what_a_deletion_waits_for_is_named() -> None:
    terminating = cache(deletionTimestamp="2026-11-23T12:00:00Z")
    pinned = volume(terminating, staged=COMMIT)
    pinned["metadata"]["deletionTimestamp"] = "2026-11-23T12:00:00Z"

    decided = plan(seen(terminating, cluster(pinned)))

    assert decided.steps == ()
    assert f"deletions on cluster berlin: PersistentVolumeClaim {PLAIN}" in str(decided.status)


# What clusters refuse -------------------------------------------------------------------------------------------------


def refused(of: ModelCache, *clusters: ClusterState, error: ClientError, at: datetime = NOW) -> Plan:
    """What is told after the first of those clusters has refused a step."""
    now = replace(seen(of, *clusters), now=at)
    step = next(one for one in plan(now).steps if getattr(one, "cluster", "") == clusters[0].name)
    return plan(replace(now, refusals={clusters[0].name: Failure(step, error)}))


def reported_by(decided: Plan, *, generation: int = 1, **metadata: Any) -> ModelCache:
    """The cache as it is when that was stored."""
    assert decided.status is not None
    synced = Synced.RECONCILE_ERROR.condition(NOW, message=decided.refused, generation=generation)
    status = decided.status.to_manifest()
    conditions = [*status.get("conditions", []), synced.to_manifest()]
    return cache(status={**status, "conditions": conditions}, **{"generation": 1, **metadata})


def test_a_cluster_that_refuses_is_asked_again_at_its_own_pace_and_the_others_at_once() -> None:
    clusters = (cluster(name="berlin"), cluster(volume(cache()), job(cache()), name="paris"))

    first = refused(cache(generation=1), *clusters, error=Forbidden("exceeded quota"))
    waiting = plan(replace(seen(reported_by(first), *clusters), now=NOW + timedelta(seconds=29)))
    due = plan(replace(seen(reported_by(first), *clusters), now=NOW + timedelta(seconds=30)))
    second = refused(reported_by(first), *clusters, error=Unreachable("silence"), at=NOW + timedelta(seconds=30))

    assert first.status is not None
    assert second.status is not None
    berlin, paris = first.status.to_manifest()["clusters"]
    assert (berlin["refusals"], berlin["nextAttempt"]) == (1, "2026-11-23T12:00:30Z")
    assert "on cluster berlin: Forbidden: exceeded quota; mend that there, and edit the cache" in berlin["message"]
    assert not {"refusals", "nextAttempt"} & paris.keys()
    assert (first.requeue_after, waiting.requeue_after, first.failure) == (30.0, 1.0, None)
    assert "exceeded quota" in waiting.refused, "it is still told"
    assert {getattr(one, "cluster", "") for one in waiting.steps} == {"paris"}
    assert {getattr(one, "cluster", "") for one in due.steps} == {"berlin", "paris"}
    assert due.refused == ""
    again = second.status.to_manifest()["clusters"][0]
    assert (again["refusals"], second.requeue_after) == (2, 4.0)


@pytest.mark.parametrize(
    ("error", "seconds"),
    [(Unreachable("silence"), 2.0), (Forbidden("no permission"), 30.0), (TooMany("later"), 75.0)],
    ids=["passes", "needs-help", "says-when"],
)
def test_how_long_a_cluster_is_left_alone_follows_what_it_has_said(error: ClientError, seconds: float) -> None:
    if isinstance(error, TooMany):
        error.retry_after = 60.0

    assert refused(cache(generation=1), cluster(), error=error).requeue_after == seconds


def test_an_edit_and_a_return_have_a_cluster_asked_at_once() -> None:
    first = refused(cache(generation=1), cluster(), error=Forbidden("no"))
    away = plan(seen(reported_by(first), cluster(connected=False, error=Unreachable("no route"))))
    unknown = plan(seen(reported_by(first), cluster(connected=False)))

    assert plan(seen(reported_by(first), cluster())).steps == ()
    assert "PersistentVolumeClaim" in applied(plan(seen(reported_by(first, generation=2), cluster())))
    assert "PersistentVolumeClaim" in applied(plan(seen(reported_by(away), cluster())))
    assert plan(seen(reported_by(unknown), cluster())).steps == (), (
        "nobody has seen it away: the operator has just begun"
    )


def test_a_cache_is_not_let_go_while_a_cluster_refuses_to_delete() -> None:
    home = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "modelplane-team", "uid": "n"}}
    terminating = {"deletionTimestamp": "2026-11-23T12:00:00Z", "generation": 1}
    known = {"clusters": [{"name": "berlin"}, {"name": "paris"}]}
    clusters = (cluster(namespace=home), cluster(volume(cache()), name="paris"))

    first = refused(cache(**terminating, status=known), *clusters, error=Forbidden("no permission"))
    waiting = plan(seen(reported_by(first, **terminating), *clusters))
    alone = plan(seen(reported_by(first, **terminating), clusters[0]))

    assert {getattr(one, "cluster", "") for one in waiting.steps} == {"paris"}
    assert alone.steps == ()
    assert "Forbidden" in str(alone.status and alone.status.to_manifest())
    assert LET_GO not in first.steps


DIGEST = f"sha256:{'d' * 64}"


def test_what_was_verified_is_kept_and_held_against_the_volume_when_it_is_hydrated_again() -> None:
    """The digest is on the hub, where nobody who has the volume can change it; the list of files is in the volume."""
    facts = {"totalBytes": 9, "bytes": 9, "revision": "c" * 40, "digest": DIGEST, "changed": 2, "unlisted": 1}
    marked = volume(cache(), staged="c" * 40)

    first = plan(seen(cache(), cluster(marked, job(cache(), "Complete", **facts))))
    line = reported_by(first).on("berlin")
    assert line is not None
    assert (line.digest, line.changed_files, line.unlisted_files) == (DIGEST, 2, 1)
    assert not any(one.startswith("Job ") for one in deleted(first)), "it stays until the status has the digest"
    later = plan(seen(reported_by(first), cluster(marked, job(cache(), "Complete", **facts))))
    assert any(one.startswith("Job ") for one in deleted(later))
    for there in (later, plan(seen(reported_by(later), cluster(marked)))):
        kept = reported_by(there).on("berlin")
        assert kept is not None
        assert kept.digest == DIGEST
        assert there.status is not None
        said = next(one.message for one in there.status.conditions if one.type == "ArtifactReady")
        assert "on cluster berlin 2 files differed from the verified content and were fetched again" in (said or "")
        assert "1 file in the volume that the source does not list; find out what else writes into these volumes" in (
            said or ""
        )

    again = plan(seen(reported_by(later), cluster(volume(cache()))))
    (begun,) = (one.manifest for one in again.steps if isinstance(one, Apply) and one.manifest["kind"] == "Job")
    assert f"--verified={DIGEST}" in begun["spec"]["template"]["spec"]["containers"][0]["args"]


@pytest.mark.parametrize("digest", ["x", "sha256:" + "D" * 64, 7, None, DIGEST + "\n", ["a"]])
def test_a_digest_that_is_none_is_not_taken(digest: object) -> None:
    made = job(cache(), "Complete", totalBytes=9, bytes=9, revision="c" * 40, digest=digest)
    line = reported_by(plan(seen(cache(), cluster(volume(cache(), staged="c" * 40), made)))).on("berlin")

    assert line is not None
    assert line.digest is None


def test_the_digest_of_another_volume_is_not_told_of_this_one() -> None:
    of_before = {"clusters": [{"name": "berlin", "volume": "another", "digest": DIGEST}]}
    line = reported_by(plan(seen(cache(status=of_before), cluster(volume(cache(), staged="c" * 40))))).on("berlin")

    assert line is not None
    assert line.digest is None
