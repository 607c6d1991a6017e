"""docs/sharing.md, typed: three pods share the clusters with the permissions that the chart gives them, Helm runs at
whoever holds a cluster, one of them is killed, and it is switched off again.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import orjson
import pytest
import yaml

from modelplane_operator.api.serving_stack import Versions
from scripts.kind import charts, clusters
from scripts.kind.commands import run
from tests.e2e.conftest import NAME, TEAM, answers
from tests.e2e.kind import Cluster, Manifest, is_true, until
from tests.e2e.reader import types
from tests.support.console import Command, commands
from tests.support.manifests import ROOT
from tests.support.pages import blocks

PAGE = ROOT / "docs/sharing.md"
CLUSTERS = {one.name for one in clusters.WORKLOAD}
WHO_HAS_WHICH = "kubectl get lease"
ONE_MORE = {
    "name": "one-more",
    "namespace": "one-more",
    "chart": "cert-manager",  # a pod that does nothing, under that name
    "repository": "https://charts.example.com",
    "version": Versions().cert_manager,
}
KILL = """
for one in $(pgrep -f 'modelplane_operator run'); do
    grep -qz '^HOSTNAME=POD$' /proc/$one/environ && kill -9 $one
done
true
"""
PODS = "app.kubernetes.io/name=modelplane-operator"


@pytest.fixture
async def shared(tmp_path: Path, measured: Callable[[str], None]) -> AsyncIterator[Command]:
    """Pods that share the clusters, by what the page says; gives what it says to type to see who has which."""
    (tmp_path / "charts").symlink_to(ROOT / "charts")
    switch = [one for one in commands(PAGE) if not one.text.startswith(WHO_HAS_WHICH)]
    (look,) = (one for one in commands(PAGE) if one.text.startswith(WHO_HAS_WHICH))
    installed: dict[str, Any] = yaml.safe_load(charts.values())

    async def with_values(**changed: Any) -> None:
        (tmp_path / "values.yaml").write_text(yaml.safe_dump({**installed, **changed}))
        began = time.monotonic()
        await types(switch, tmp_path, clusters.HUB.kubeconfig)
        on = "on" if changed else "off"
        measured(f"docs/sharing.md, switching it {on}: {time.monotonic() - began:.0f} s")

    (values,) = blocks(PAGE)
    try:
        await with_values(**yaml.safe_load(values))
        yield look
    finally:
        await with_values()
    clusters.wait("inferenceclusters", "--all", "--for=condition=Ready", seconds=300)


async def pods(hub: Cluster) -> set[str]:
    """Those of the operator that are ready."""
    found = await hub.list("Pod", clusters.SYSTEM, "v1", label_selector=PODS)
    return {one["metadata"]["name"] for one in found if is_true(one)}


async def holders(look: Command, folder: Path) -> dict[str, str]:
    """Who has each cluster, as the page has one look: a pod's name, and which of its lives that is."""
    ((_, printed),) = await types([look], folder, clusters.HUB.kubeconfig)
    head, *rows = (line.split() for line in printed.splitlines() if line)
    assert head == ["CLUSTER", "POD"]
    return {row[0]: row[1] for row in rows if row[0] in CLUSTERS and len(row) == 2}  # one that changes hands has none


def pod_of(holder: str) -> str:
    return holder.rpartition("_")[0]


async def kill(pod: str) -> None:
    """End its operator with no chance to say a word; the kubelet starts another in its place."""
    script = KILL.replace("POD", pod)
    await asyncio.to_thread(run, "docker", "exec", f"{clusters.HUB.kind}-control-plane", "sh", "-c", script)


@pytest.mark.timeout(1800)
async def test_pods_share_the_clusters_run_helm_for_them_and_take_those_of_one_that_is_killed(
    hub: Cluster, shared: Command, url: str, tmp_path: Path, measured: Callable[[str], None]
) -> None:
    async def all_held() -> dict[str, str] | None:
        found, there = await holders(shared, tmp_path), await pods(hub)
        return found if found.keys() == CLUSTERS and {*map(pod_of, found.values())} <= there else None

    before = await until(all_held, "each cluster to be held by a pod that is ready")
    assert len(await pods(hub)) == 3

    for cluster in sorted(CLUSTERS):  # by the pod that holds it, whichever that is
        await helm_runs(hub, cluster)
    (replica,) = await hub.list("ModelReplica", TEAM)
    killed = before[replica["spec"]["clusterName"]]
    began = time.monotonic()
    await kill(pod_of(killed))

    async def taken() -> bool:
        return killed not in (await holders(shared, tmp_path)).values() and bool(await all_held())

    await until(taken, "another to take what the killed one had")
    measured(f"from an operator that is killed to its clusters at another: {time.monotonic() - began:.0f} s")
    assert await answers(url)
    more = '--patch={"spec": {"replicas": 2}}'
    clusters.HUB.kubectl("patch", "modeldeployment", NAME, f"--namespace={TEAM}", "--type=merge", more)
    await until(lambda: both_ready(hub), "a replica on each cluster")


async def both_ready(hub: Cluster) -> bool:
    replicas = await hub.list("ModelReplica", TEAM)
    ready = {one["spec"]["clusterName"] for one in replicas if is_true(one)}
    return ready == CLUSTERS


async def helm_runs(hub: Cluster, cluster: str) -> None:
    """One more chart comes to a cluster, and goes."""
    name, place = clusters.stack_of(cluster), f"{ONE_MORE['namespace']}/{ONE_MORE['name']}"

    async def stack() -> Manifest:
        found = await hub.get("ServingStack", name, clusters.SYSTEM, "infrastructure.modelplane.ai/v1alpha1")
        assert found
        return found

    async def states() -> dict[str, str]:
        return {one["name"]: one["state"] for one in (await stack())["status"]["components"]}

    async def deployed() -> bool:
        return (await states()).get(place) == "Deployed"

    async def gone() -> bool:
        return place not in await states()

    others: list[Manifest] = (await stack())["spec"].get("extraCharts") or []
    for extra, there in (([*others, ONE_MORE], deployed), (others, gone)):
        patch = orjson.dumps({"spec": {"extraCharts": extra}}).decode()
        where = (f"--namespace={clusters.SYSTEM}", "--type=merge", f"--patch={patch}")
        clusters.HUB.kubectl("patch", "servingstack", name, *where)
        await until(there, f"{place} on {cluster} to be {there.__name__}")
