"""A cluster under two names is told by a mark that one writes and the other sees; to look alike is not enough."""

from __future__ import annotations

from datetime import timedelta
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.cache.informer import Informer
from kubeloop.errors import Forbidden, Unreachable
from kubeloop.loop import Change, Clients
from kubeloop.objects import Key
from kubeloop.reading import Cluster
from kubeloop.reads import Reads
from kubeloop.types import SECRET, ResourceType
from modelplane_operator.api import InferenceCluster
from modelplane_operator.clusters.cluster.controller import CLUSTERS
from modelplane_operator.clusters.cluster.plan import Registered
from modelplane_operator.clusters.cluster.registration import mark_key, render_mark
from modelplane_operator.clusters.cluster.registrations import (
    PATIENCE,
    READ_LIFETIME,
    Registrations,
    identity_of,
    on_another,
)
from tests.support.builders import EPOCH
from tests.support.informers import holding, stored

Manifest = dict[str, Any]


class Server:
    """One API server, with the marks that were written there."""

    def __init__(self, system: str = "u", root: str | None = "CA") -> None:
        self.system, self.root, self.reads = system, root, 0
        self.marks: dict[Key, Manifest] = {}

    async def find(self, kind: ResourceType, key: Key) -> Manifest | None:
        self.reads += 1
        if kind == SECRET:
            return self.marks.get(key)
        if kind.kind == "Namespace":
            return {"metadata": {"uid": self.system}}
        if self.root is None:
            raise Forbidden("no")
        return {"data": {"ca.crt": self.root}} if self.root else None

    def marked(self, by: str, *others: str) -> Server:
        one = InferenceCluster.parse(known(by, 1))
        self.marks[mark_key(by)] = render_mark(one, others)
        return self


def known(
    name: str,
    day: int,
    reason: str = "ClusterRunning",
    *,
    identity: str = "",
    serves: str = "",
    reached: str = "False",
) -> Manifest:
    """A cluster that was brought on that day, and what it says of itself; its uid is its name."""
    at = {"lastTransitionTime": "2026-01-01T00:00:00Z"}
    told = [{"type": "ClusterReady", "status": reached, "reason": reason, **at}]
    told += [{"type": "BackendReady", "status": serves, "reason": "BackendHealthy", **at}] if serves else []
    metadata = {"uid": name, "creationTimestamp": f"2026-01-{day:02}T00:00:00Z"}
    status = {"observed": {"identity": identity}, "conditions": told} if identity else {}
    spec = {"cluster": {"source": "Existing", "existing": {"secretRef": {"name": "k"}}}, "nodePools": []}
    return {**stored(CLUSTERS, name, **metadata), "spec": spec, **({"status": status} if status else {})}


class World:
    """InferenceClusters, each with the server that it leads to; `late`: whose watches have not seen the marks yet."""

    def __init__(self, *clusters: tuple[Manifest, Server], late: str = "", silent: str = "") -> None:
        self.servers = {one["metadata"]["name"]: server for one, server in clusters}
        self.held = holding(CLUSTERS, [one for one, _ in clusters], identity=identity_of)
        self.hub = cast("Cluster", SimpleNamespace(name="", find={CLUSTERS: self.held}.get))
        self.late, self.silent = late, silent
        self.registrations = Registrations()
        self.clients = cast("Clients", SimpleNamespace(hub=self.hub, fleet=self.remote, reads=Reads()))

    def remote(self, name: str) -> Cluster:
        if name == self.silent:
            raise Unreachable("no")
        server = self.servers[name]
        secrets = Informer(SECRET, now=lambda: 0.0)
        for mark in server.marks.values() if name != self.late else ():
            secrets.on_write({**mark, "metadata": {**mark["metadata"], "uid": "m", "resourceVersion": "1"}})
        told = {"name": name, "server": name, "kube": server, "health": SimpleNamespace(answers=True)}
        return cast("Cluster", SimpleNamespace(**told, find={SECRET: secrets}.get))

    async def of(self, name: str, *, after: timedelta = timedelta()) -> Registered:
        cluster = InferenceCluster.parse(self.held.get(Key("", name)) or {})
        return await self.registrations.of(cluster, self.remote(name), self.clients, EPOCH + after)


async def identity(server: Server) -> str:
    return (await World((known("a", 1), server)).of("a")).identity


@pytest.mark.parametrize(
    ("one", "other", "alike"),
    [
        (Server(), Server(), True),
        (Server(), Server(system="v"), False),
        (Server(), Server(root="another"), False),
        (Server(root=None), Server(root=None), True),
    ],
    ids=["same", "another kube-system", "another root certificate", "a certificate that may not be seen"],
)
async def test_what_a_cluster_says_of_itself_is_a_hint(one: Server, other: Server, alike: bool) -> None:  # noqa: FBT001
    assert (await identity(one) == await identity(other)) is alike


async def test_a_cluster_that_does_not_tell_is_like_no_other() -> None:
    assert await identity(Server(root="")) == ""


async def test_a_cluster_is_asked_once_which_it_is() -> None:
    server = Server()
    world = World((known("a", 1), server))

    for _ in range(3):
        await world.of("a")

    assert server.reads == 2


async def test_the_first_marks_and_the_second_finds_its_own_uid() -> None:
    one = Server()
    same = await identity(one)
    first, second = known("a", 1, identity=same), known("b", 2, "Identifying", identity=same)
    before = World((first, one), (second, one))

    assert await before.of("a") == Registered(same, later=("b",))
    assert await before.of("b") == Registered(same, unsure="a")

    one.marked("a", "b")
    for after in (World((first, one), (second, one)), World((first, one), (second, one), late="b")):
        assert await after.of("b") == Registered(same, first="a")


async def test_a_cluster_that_was_restored_from_a_backup_of_another_is_not_that_one() -> None:
    """It says the same of itself, and has what was marked before: not its own uid."""
    one, restored = Server().marked("a", "b"), Server().marked("a", "older")
    same = await identity(one)
    world = World((known("a", 1, identity=same), one), (known("b", 2, "Identifying", identity=same), restored))

    assert await world.of("b") == Registered(same)
    reads = restored.reads
    assert await world.of("b", after=READ_LIFETIME / 2) == Registered(same)
    assert restored.reads == reads, "the mark is looked for every few minutes"


async def test_nobody_waits_for_who_does_not_answer_nor_long_for_who_does_not_mark() -> None:
    one = Server()
    same = await identity(one)
    clusters = (known("a", 1, identity=same), one), (known("b", 2, "Identifying", identity=same), one)

    assert await World(*clusters, silent="a").of("b") == Registered(same)
    world = World(*clusters)
    assert (await world.of("b")).unsure == "a"
    assert (await world.of("b", after=PATIENCE)).unsure == ""


async def test_who_is_at_another_pod_is_waited_for_as_who_is_here() -> None:
    one = Server()
    same = await identity(one)
    clusters = (
        (known("a", 1, identity=same, reached="True"), one),
        (known("b", 2, "Identifying", identity=same), one),
    )
    world = World(*clusters, silent="a")

    assert (await world.of("b")).unsure == "a"
    assert (await world.of("b", after=PATIENCE)).unsure == ""
    one.marked("a", "b")
    assert await World(*clusters, silent="a").of("b") == Registered(same, first="a")


@pytest.mark.parametrize(
    ("mine", "other", "first"),
    [
        (("b", 2), ("a", 1), "a"),
        (("b", 1), ("a", 1), "a"),
        (("b", 1, "Identifying"), ("a", 2), "a"),
        (("b", 1, "RegisteredTwice"), ("a", 2), "a"),
        (("b", 1), ("a", 2, "ClusterRunning", "True"), "a"),
        (("b", 1), ("a", 2), ""),
        (("b", 2), ("a", 1, "RegisteredTwice"), ""),
    ],
    ids=[
        "younger",
        "of the same second",
        "older, and the other has it",
        "older, and told so before",
        "older, and the other's gateway serves",
        "older",
        "the other was told so before",
    ],
)
async def test_whose_a_cluster_is(mine: tuple[Any, ...], other: tuple[Any, ...], first: str) -> None:
    one = Server().marked("a", "b").marked("b", "a")
    same = await identity(one)
    world = World(*((known(*it[:3], identity=same, serves=it[3] if len(it) > 3 else ""), one) for it in (mine, other)))

    assert (await world.of("b")).first == first


def test_who_looks_alike_is_woken_when_one_comes_stands_otherwise_or_goes() -> None:
    a, b = (known(name, 1, identity="x") for name in "ab")
    world = World((a, Server()), (b, Server()), (known("c", 1, identity="y"), Server()))

    def woken(old: Manifest | None, new: Manifest | None) -> list[Key]:
        return list(on_another(Change(old, new), world.hub))

    assert woken(None, a) == woken(a, None) == woken(known("a", 1), a) == [Key("", "b")]
    assert woken(a, known("a", 1, "RegisteredTwice", identity="x")) == [Key("", "b")]
    assert woken(a, {**a, "spec": {}}) == []
