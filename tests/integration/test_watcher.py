"""The watcher notices what it is there for."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tests.integration.kinds import cluster
from tests.integration.watcher import Watcher, nodes
from tests.support.manifests import Manifest


def replica(name: str, *, copies: int = 1, generation: int = 1, observed: int = 1) -> Manifest:
    member = {"role": "Standalone", "nodePoolName": "h100", "deviceRequests": [{"name": "gpu"}]}
    engines = [{"name": "vllm", "copies": copies, "members": [member]}]
    ready = {"type": "Ready", "status": "True", "observedGeneration": observed}
    return {
        "metadata": {"name": name, "uid": name, "generation": generation},
        "spec": {"clusterName": "worker-1", "engines": engines},
        "status": {"conditions": [ready]},
    }


def watcher(*replicas: Manifest) -> Watcher:
    def mirror(*manifests: Manifest) -> Any:
        return SimpleNamespace(objects={("", one["metadata"]["name"]): one for one in manifests})

    return Watcher(stage=SimpleNamespace(), replicas=mirror(*replicas), clusters=mirror(cluster("worker-1")))  # type: ignore[arg-type]


def seen(watching: Watcher) -> list[str]:
    for key in watching.replicas.objects:
        watching.changed(key)
    return watching.problems


def test_a_pool_that_is_just_full_is_not_overcommitted() -> None:
    assert seen(watcher(replica("a"), replica("b"))) == []


def test_one_node_more_than_a_pool_has_is_noticed() -> None:
    (problem,) = seen(watcher(replica("a"), replica("b", copies=2)))
    assert problem == "I4: pool h100 of worker-1 has 2 nodes, replicas have 3"


def test_a_gang_takes_a_node_for_each_pod_that_claims_devices() -> None:
    gang = replica("a")
    (leader,) = gang["spec"]["engines"][0]["members"]
    worker = {**leader, "role": "Worker", "worker": {"nodes": 3}}
    gang["spec"]["engines"][0] |= {"members": [{**leader, "role": "Leader"}, worker], "copies": 2}
    assert len(list(nodes(gang))) == 8
    del gang["spec"]["engines"][0]["members"][0]["deviceRequests"]
    assert len(list(nodes(gang))) == 6


def test_a_condition_of_a_generation_that_is_not_there_yet_is_noticed() -> None:
    assert "generation 3" in seen(watcher(replica("a", generation=2, observed=3)))[0]


def test_a_condition_that_goes_back_is_noticed() -> None:
    watching = watcher(replica("a", generation=2, observed=2))
    seen(watching)
    watching.replicas.objects["", "a"] = replica("a", generation=2, observed=1)
    assert "generation 1" in seen(watching)[0]
