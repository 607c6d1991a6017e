"""Several processes of the operator that share the clusters, on a real API server."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, asynccontextmanager
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from modelplane_operator.api import InferenceCluster, LLMInference, ModelCache, ModelReplica, ServingStack, labels
from modelplane_operator.api.types import of
from modelplane_operator.clients.access import Access
from modelplane_operator.clients.fleet import Fleet
from modelplane_operator.clients.kube import Kube
from modelplane_operator.clients.shares import holder_of, preferred
from modelplane_operator.clients.store import Store
from modelplane_operator.controllers.kinds import kinds
from modelplane_operator.kube.objects import Key, Manifest, key_of, labels_of
from modelplane_operator.kube.resources import CONFIG_MAP, LEASE
from modelplane_operator.runtime.reading import Cluster
from modelplane_operator.runtime.shared import share_of
from modelplane_operator.runtime.wiring import Runners
from modelplane_operator.runtime.world import World
from modelplane_operator.settings import Settings
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.informers import holding, stored
from tests.support.processes import Process, eventually, operating

# As short as a pod on a busy machine can still keep it.
QUICK = ("--lease-duration=8", "--lease-deadline=6", "--lease-retry=0.3", "--share-clusters=on")
CLUSTERS = tuple(f"cluster-{number}" for number in range(12))
MOVED = 60.0  # seconds on a machine that has other things to do


WORLD = cast(
    "World",
    SimpleNamespace(
        settings=Settings(),
        fleet=Fleet(Store(lambda: 0.0), cast("Any", None)),
        hub=None,
        now=None,
        connection_changed=None,
        scheduled=None,
        wake=None,
        checked=None,
        helm=object(),
    ),
)


# Which objects are of which cluster -----------------------------------------------------------------------------------


def test_kinds_of_which_an_object_is_of_one_cluster_say_so_and_no_other() -> None:
    found = {one.kind: one for one in kinds(WORLD) if one.cluster_of}
    assert set(found) == {InferenceCluster, ModelReplica, ServingStack}
    told = {
        InferenceCluster: {"metadata": {"name": "berlin"}},
        ModelReplica: {"metadata": {"name": "m", "namespace": "team"}, "spec": {"clusterName": "berlin"}},
        ServingStack: {
            "metadata": {
                "name": "s",
                "namespace": "modelplane-system",
                "labels": {labels.OWNER_KIND: "InferenceCluster", labels.OWNER_NAME: "berlin"},
            }
        },
    }
    assert {share_of(found[kind], manifest) for kind, manifest in told.items()} == {"berlin"}
    alone = {"metadata": {"name": "s", "namespace": "team"}}
    assert share_of(found[ServingStack], alone) == "team/s"
    assert share_of(found[ModelReplica], {"metadata": {}}) == "", "what cannot be read is somebody's, too"


def test_what_runs_beside_reconciles_runs_once_in_a_process() -> None:
    async def both() -> None: ...
    async def leaders() -> None: ...

    def declared(cluster_of: Callable[[Manifest], str] | None, *beside: Any) -> Any:
        return SimpleNamespace(controller=SimpleNamespace(cluster_of=cluster_of, while_leading=beside))

    runners = Runners()
    runners.add(declared(lambda _: "berlin", both))
    runners.add(declared(None, both, leaders))
    of_clusters, rest = runners.apart()
    assert [*map(set, (of_clusters.while_leading, rest.while_leading))] == [{both}, {leaders}]
    assert set(runners.while_leading) == {both, leaders}


@pytest.mark.parametrize(
    ("kind", "manifest", "used"),
    [
        (ModelCache, {"status": {"clusters": [{"name": "berlin"}, {"name": "paris"}]}}, {"berlin", "paris"}),
        (ModelCache, {"spec": {}}, set[str]()),
        (LLMInference, {"spec": {"providerConfigName": "berlin"}}, {"berlin"}),
        (LLMInference, {"spec": {"providerConfigName": "secret"}}, set[str]()),
        (LLMInference, {"spec": {}, "status": {"locations": [{"name": "berlin"}]}}, {"berlin"}),
    ],
)
def test_the_leader_is_connected_to_what_objects_of_several_clusters_are_on(
    kind: Any, manifest: Manifest, used: set[str]
) -> None:
    (controller,) = [one for one in kinds(WORLD) if one.kind is kind]
    clusters = holding(of(InferenceCluster), [stored(of(InferenceCluster), name) for name in ("berlin", "rome")])
    found = holding(of(kind), [{**stored(of(kind), "one", "team"), **manifest}])
    hub = SimpleNamespace(find={of(kind): found, of(InferenceCluster): clusters}.get)

    assert set(controller.clusters_used(cast("Cluster", hub))) == used


def test_a_process_is_connected_to_no_cluster_that_it_does_not_admit() -> None:
    opened, admitted = list[str](), set[str]()

    def connection(name: str, _: Access) -> Any:
        opened.append(name)
        return SimpleNamespace(name=name, update=lambda _: None)

    fleet = Fleet(Store(lambda: 0.0), connection)
    fleet.admits = admitted.__contains__
    access = Access("https://berlin.example")
    fleet.set("berlin", access)
    assert opened == []
    admitted.add("berlin")
    fleet.review("berlin")
    fleet.review("paris")
    assert opened == ["berlin"]
    admitted.clear()
    fleet.review("berlin")
    assert fleet.find("berlin") is None
    admitted.add("berlin")
    fleet.review("berlin")
    assert opened == ["berlin", "berlin"]
    fleet.remove("berlin")
    fleet.review("berlin")
    assert fleet.find("berlin") is None, "nobody knows the way any more"


# Processes ------------------------------------------------------------------------------------------------------------


@pytest.fixture
async def lease(kube: Kube) -> Key:
    made = await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "lease-"}})
    return Key(made["metadata"]["name"], "modelplane-operator")


@pytest.fixture
async def subjects(kube: Kube, namespace: str) -> AsyncIterator[list[Key]]:
    """What there is to reconcile: a ModelCache for each cluster."""
    made = list[Manifest]()
    for name in CLUSTERS:
        manifest = {**rich()["ModelCache"], "metadata": {"name": name, "namespace": namespace}}
        made.append(await kube.create({part: value for part, value in manifest.items() if part != "status"}))
    yield [key_of(one) for one in made]
    for one in made:
        await kube.delete(of(ModelCache), key_of(one), uid=one["metadata"]["uid"])


Begin = Callable[..., AbstractContextManager[Process]]


@pytest.fixture
def begin(api: Api, lease: Key, tmp_path: Path) -> Iterator[Begin]:
    flags = (f"--lease-namespace={lease.namespace}", *QUICK)
    yield partial(
        operating, api.server.kubeconfig, tmp_path, *flags, environment={"TOY_SHARED": "1", "TOY_RESTLESS": "1"}
    )


async def writers(kube: Kube, subjects: list[Key]) -> dict[str, int]:
    """Which process wrote for each cluster last."""
    found = {key.name: await kube.find(CONFIG_MAP, key) for key in subjects}
    return {name: int(one["data"]["writer"]) for name, one in found.items() if one}


async def split(kube: Kube, lease: Key, subjects: list[Key], *pods: Process) -> dict[str, int]:
    """Wait until these processes and no other write, each for the clusters that it should have and says it holds.

    Which these are follows from the pods' identities; it may be none.
    """

    async def ask() -> tuple[list[str], dict[str, int], list[float | None]]:
        leases = (await kube.list(LEASE, namespace=lease.namespace)).items
        identities = {holder_of(one) for one in leases if labels.SHARING in labels_of(one)}
        members = [one for one in identities if one.rpartition("_")[0] in {pod.name for pod in pods}]
        return members, await writers(kube, subjects), [await pod.value("modelplane_clusters_held") for pod in pods]

    def holds(answer: tuple[list[str], dict[str, int], list[float | None]]) -> bool:
        members, told, counts = answer
        pid_of = {member: pod.pid for member in members for pod in pods if member.rpartition("_")[0] == pod.name}
        wanted = {key.name: pid_of.get(preferred(key.name, members) or "") for key in subjects}
        mine = [sum(pid == pod.pid for pid in told.values()) for pod in pods]
        return len(members) == len(pods) and told == wanted and counts == mine

    _, told, _ = await eventually(ask, holds, f"{[pod.name for pod in pods]} to share the clusters", MOVED)
    return told


@asynccontextmanager
async def written(kube: Kube, namespace: str) -> AsyncIterator[list[tuple[str, int]]]:
    """Who writes for which cluster meanwhile, in this order."""
    seen = list[tuple[str, int]]()
    listing = await kube.list(CONFIG_MAP, namespace=namespace)

    async def follow() -> None:
        async for one in kube.watch(CONFIG_MAP, listing.version, seconds=300, namespace=namespace):
            if one.type != "BOOKMARK":
                seen.append((one.manifest["metadata"]["name"], int(one.manifest["data"]["writer"])))

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        yield seen
        following.cancel()


def changes(seen: list[tuple[str, int]]) -> dict[str, list[int]]:
    """By cluster, who wrote after whom."""
    found = dict[str, list[int]]()
    for name, pid in seen:
        if found.setdefault(name, [])[-1:] != [pid]:
            found[name].append(pid)
    return found


def assert_nobody_came_back(seen: list[tuple[str, int]]) -> None:
    """For one cluster a process writes, and then another, and never the first again; what was seen is forgotten."""
    follow = changes(seen)
    seen.clear()
    assert all(len(set(pids)) == len(pids) for pids in follow.values()), follow


@pytest.mark.fleet
async def test_clusters_are_shared_follow_pods_that_come_and_go_and_no_two_write_for_one(
    kube: Kube, subjects: list[Key], lease: Key, begin: Begin
) -> None:
    async with written(kube, subjects[0].namespace) as seen:
        with begin() as first:
            await split(kube, lease, subjects, first)
            with begin() as second, begin() as third:
                told = await split(kube, lease, subjects, first, second, third)
                assert_nobody_came_back(seen)
                leaders = [await pod.value("modelplane_leading") for pod in (first, second, third)]
                assert sum(filter(None, leaders)) == 1.0
                assert [await pod.page("/healthz") for pod in (first, second, third)] == [(200, "ok\n")] * 3
                first.signal(signal.SIGKILL)  # who leads, too
                after = await split(kube, lease, subjects, second, third)
                assert_nobody_came_back(seen)
                assert all(after[name] == pid for name, pid in told.items() if pid != first.pid)
                third.signal(signal.SIGTERM)
                assert await third.ended(60.0) == 0
                await split(kube, lease, subjects, second)
                assert_nobody_came_back(seen)
                second.signal(signal.SIGTERM)
                assert await second.ended(60.0) == 0
    left = (await kube.list(LEASE, namespace=lease.namespace)).items
    assert {
        one["spec"]["holderIdentity"] for one in left if labels.CLUSTER in (one["metadata"].get("annotations") or {})
    } == {""}


@pytest.mark.fleet
@pytest.mark.slow
async def test_a_pod_that_slept_through_its_lease_writes_nothing_when_it_wakes(
    kube: Kube, subjects: list[Key], lease: Key, begin: Begin
) -> None:
    with begin() as sleeper, begin() as other:
        await split(kube, lease, subjects, sleeper, other)
        sleeper.signal(signal.SIGSTOP)
        await eventually(
            lambda: writers(kube, subjects), lambda told: set(told.values()) == {other.pid}, "the other's work", MOVED
        )
        async with written(kube, subjects[0].namespace) as seen:
            sleeper.signal(signal.SIGCONT)
            await split(kube, lease, subjects, sleeper, other)
        assert_nobody_came_back(seen)


@pytest.mark.fleet
@pytest.mark.slow
async def test_a_lease_that_somebody_deletes_is_made_again_and_its_cluster_has_one_pod(
    kube: Kube, subjects: list[Key], lease: Key, begin: Begin
) -> None:
    with begin() as first, begin() as second:
        await split(kube, lease, subjects, first, second)
        async with written(kube, subjects[0].namespace) as seen:
            for one in (await kube.list(LEASE, namespace=lease.namespace)).items:
                if one["metadata"].get("labels", {}).get(labels.SHARING):
                    await kube.delete(LEASE, key_of(one), uid=one["metadata"]["uid"])
            await eventually(
                lambda: first.value("modelplane_clusters_held"), lambda count: count == 0.0, "them to be let go"
            )
            seen.clear()
            await split(kube, lease, subjects, first, second)
            assert_nobody_came_back(seen)


@pytest.mark.fleet
async def test_without_the_setting_one_pod_does_it_all_and_there_is_one_lease(
    kube: Kube, subjects: list[Key], lease: Key, begin: Begin
) -> None:
    with begin("--share-clusters=off") as first:
        await first.leads()
        with begin("--share-clusters=off") as second:
            await eventually(lambda: second.page("/readyz"), lambda page: page[0] == 200, "the standby to be ready")
            told = await eventually(
                lambda: writers(kube, subjects), lambda told: len(told) == len(subjects), "all to be written"
            )
            assert set(told.values()) == {first.pid}
            assert await first.value("modelplane_clusters_held") is None
            found = (await kube.list(LEASE, namespace=lease.namespace)).items
            assert [one["metadata"]["name"] for one in found] == [lease.name]
