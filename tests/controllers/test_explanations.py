"""What `explain` says of clusters: every one when asked, and what is wrong with those that replicas run on."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from modelplane_operator.api.inference_cluster import InferenceCluster
from modelplane_operator.api.model_cache import ModelCache
from modelplane_operator.controllers.explain import explained
from modelplane_operator.scheduling.requirement import NoCache
from tests.support import builders as b


def said(clusters: Sequence[InferenceCluster], replicas: int, *, every_cluster: bool = False) -> Sequence[str]:
    mine = [b.replica("a")]
    text = explained(
        b.deployment(replicas=replicas), NoCache.NOT_READ, clusters, mine, now=b.EPOCH, every_cluster=every_cluster
    )
    return text.splitlines()


def test_a_replica_that_runs_is_told_with_what_is_wrong_with_its_cluster() -> None:
    manifest = b.cluster("a", ready=False).to_manifest()
    manifest["status"]["conditions"][0] |= {"reason": "Unreachable", "message": "It does not answer\nsince 11:40"}
    ill = InferenceCluster.parse(manifest)

    assert said([ill, b.cluster("b")], 1) == [
        "1 of 1 replica placed on 1 cluster; no cluster had to be checked",
        "placed:",
        "  a #0: main on default (1 node); its cluster is not Ready (Unreachable): It does not answer since 11:40",
    ]


def test_a_cluster_that_has_to_get_the_weights_first_comes_last_and_says_so() -> None:
    cache = b.model_cache().to_manifest()
    coming = {"bytes": 41, "totalBytes": 100, "estimatedCompletion": "2026-01-01T12:30:00Z"}
    cache["status"] = {
        "clusters": [
            {"name": "a", "phase": "Hydrating", "progress": coming},
            {"name": "b", "phase": "Ready", "volume": "weights"},
        ]
    }
    clusters = [b.cluster("a"), b.cluster("b", nodes=1)]

    def lines(replicas: int) -> list[str]:
        wanted = b.deployment(replicas=replicas, cache="qwen")
        text = explained(wanted, ModelCache.parse(cache), clusters, [], now=b.EPOCH, every_cluster=True)
        return text.splitlines()

    waits = "the weights of ModelCache qwen are not on cluster a yet: 41%, until about 12:30 UTC"
    assert "  b #0: main on default (1 node) (new)" in lines(1)
    assert f"  a #0: main on default (1 node) (new); {waits}" in lines(2)
    assert f"  a: 0 replicas; one more: it has room; {waits}" in lines(1)


@pytest.mark.parametrize("replicas", [1, 2])
def test_every_cluster_is_named_whether_or_not_a_place_is_looked_for(replicas: int) -> None:
    far = (b.cluster(f"far-{number}", nodes=0) for number in range(60))
    clusters = [b.cluster("a"), b.cluster("b", nodes=1), *far]

    lines = said(clusters, replicas, every_cluster=True)

    named = lines[lines.index("every cluster:") + 1 :]
    full = "engine main needs 1 node of pool default, 0 of 1 free (free nodes of that pool, or enlarge it)"
    assert len(named) == len(clusters)
    assert named[0] == "  a: 1 replica; one more: it has room"
    assert named[1] == ("  b: 0 replicas; one more: it has room", f"  b: 1 replica; one more: {full}")[replicas - 1]
