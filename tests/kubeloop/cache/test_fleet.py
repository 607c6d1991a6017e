"""Connections to clusters: what they survive, that none waits for another, and that nothing is left of them."""

from __future__ import annotations

import asyncio
import ssl
from asyncio.sslproto import SSLProtocol
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise
from typing import Any

import orjson
import pytest

from kubeloop.backoff import Backoff
from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.prober import ConnectionPace, Health
from kubeloop.cache.reflector import WatchPace
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access, read_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.client.sockets import shrink_tls_buffers
from kubeloop.errors import Forbidden, KubeconfigError, Misbehaving, Unauthorized, Unreachable
from kubeloop.objects import Key, key_of
from kubeloop.types import CONFIG_MAP
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Answer, CloseWatch, Drop, Flood, Hang, Match, Rule
from modelplane_operator.api import labels
from tests.support.api_fixtures import ConfigMap
from tests.support.waiting import SECONDS, until

pytestmark = pytest.mark.fleet

SHORT = Backoff(first=0.02, longest=0.1)
PAUSE = Backoff(first=1.0, longest=60.0)
QUICK = ConnectionPace(
    probe_interval=0.1,
    deadline=0.5,
    retry=0.05,
    backoff=SHORT,
    rebuild=SHORT,
    pause=PAUSE,
    probation=0.5,
    watch=WatchPace(backoff=SHORT),
)
OURS = {labels.OWNER_UID: "o1"}
CONFIG_MAPS = Watched(CONFIG_MAP)


@asynccontextmanager
async def a_fleet(pace: ConnectionPace = QUICK, *, watched: Watched = CONFIG_MAPS, **more: Any) -> AsyncIterator[Fleet]:
    store = Store(asyncio.get_running_loop().time)

    def opened(name: str, access: Access) -> Connection:
        return Connection(name, access, [watched], store, jitter=lambda: 0.5, pace=pace, **more)

    fleet = Fleet(store, opened)
    async with asyncio.TaskGroup() as group:
        running = group.create_task(fleet.run())
        await asyncio.sleep(0)
        yield fleet
        running.cancel()


def seen(connection: Connection, key: Key) -> bool:
    informer = connection.find(CONFIG_MAP)
    return informer is not None and informer.get(key) is not None


async def test_our_objects_on_a_cluster_are_seen_and_others_are_not(
    kube: Kube, access: Access, config_map: ConfigMap, namespace: str
) -> None:
    await kube.create(config_map("theirs"))
    async with a_fleet() as fleet:
        fleet.set("one", access)
        one = fleet.cluster("one")
        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")
        await kube.create(config_map("ours", labels=OURS))

        await until(lambda: seen(one, Key(namespace, "ours")), "our object")
        assert not seen(one, Key(namespace, "theirs"))
        assert one.health.latency is not None


async def test_a_cluster_that_refuses_to_show_what_can_be_spared_is_known_without(
    access_through: Access, proxy: FaultProxy
) -> None:
    await proxy.add(Rule(Match(resource="configmaps"), Answer(403)))
    async with a_fleet(watched=replace(CONFIG_MAPS, spare=True)) as fleet:
        fleet.set("one", access_through)
        one = fleet.cluster("one")

        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")
        assert isinstance(one.find_failing(CONFIG_MAP), Forbidden)


async def test_a_cluster_that_is_cut_off_is_refused_at_once_and_comes_back_with_what_was_missed(
    kube: Kube, access_through: Access, proxy: FaultProxy, config_map: ConfigMap, namespace: str
) -> None:
    changes: list[bool] = []
    asked_with: list[Kube] = []
    async with a_fleet(
        on_health=lambda _, health: changes.append(health.answers),
        on_return=lambda name: asked_with.append(fleet.cluster(name).kube),
    ) as fleet:
        fleet.set("one", access_through)
        one = fleet.cluster("one")
        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")
        cut = await proxy.add(Rule(Match(), Drop()))
        await until(lambda: one.health.error is not None, "the outage to be noticed")
        with pytest.raises(Unreachable):
            _ = one.kube
        assert one.synced, "what was seen stands"
        await kube.create(config_map("missed", labels=OURS))
        await proxy.remove(cut)

        await until(lambda: one.health.answers, "the cluster to be back")
        await until(lambda: seen(one, Key(namespace, "missed")), "what happened meanwhile")
        assert changes == [True, False, True]
        await until(lambda: bool(asked_with), "its return to be told")
        assert asked_with == [one.kube], "whoever is woken by its return can ask it"
        assert [watch.lists for watch in one.watches] == [1], "it resumed where it was"


async def test_a_cluster_that_misbehaves_is_left_alone_and_another_is_heard_meanwhile(
    kube: Kube, access: Access, access_through: Access, proxy: FaultProxy, config_map: ConfigMap
) -> None:
    before = key_of(await kube.create(config_map("before", labels=OURS)))
    async with a_fleet() as fleet:
        fleet.set("hostile", access_through)
        fleet.set("honest", access)
        hostile, honest = fleet.cluster("hostile"), fleet.cluster("honest")
        await until(lambda: hostile.synced and honest.synced and hostile.health.answers, "both to be seen")
        flood = await proxy.add(Rule(Match(verbs=("watch",)), Flood("endless")))
        closed = await proxy.add(Rule(Match(verbs=("watch",)), CloseWatch()))  # those that are open
        await until(lambda: isinstance(hostile.health.error, Misbehaving), "it to be found out")
        with pytest.raises(Misbehaving, match="more than the 4 MiB that are allowed"):
            _ = hostile.kube
        meanwhile = key_of(await kube.create(config_map("meanwhile", labels=OURS)))
        await until(lambda: seen(honest, meanwhile), "the other to be heard")
        assert seen(hostile, before), "what was seen stands"

        await until(lambda: hostile._prober.offences == 2, "it to be found out again")
        begins = [record.time for record in await proxy.calls()]
        gaps = [after - before for before, after in pairwise(sorted(begins))]
        assert max(gaps) > 0.7 * PAUSE.first, "it is asked nothing in a pause"
        for rule in (flood, closed):
            await proxy.remove(rule)
        await until(lambda: hostile.health.answers, "it to be taken back")
        await until(lambda: seen(hostile, meanwhile), "what was missed")


async def test_one_lost_answer_is_no_outage(access_through: Access, proxy: FaultProxy) -> None:
    heard: list[Health] = []
    async with a_fleet(on_health=lambda _, health: heard.append(health)) as fleet:
        fleet.set("one", access_through)
        await until(lambda: fleet.cluster("one").health.answers, "the cluster to be connected")
        lost = await proxy.add(Rule(Match(), Answer(503), times=1))
        await proxy.wait_for("the lost answer", lambda call: call.status == 503, seconds=SECONDS)
        position = await proxy.position()
        await proxy.wait_for("the next answer", lambda call: call.status == 200, since=position, seconds=SECONDS)

        assert await proxy.fired(lost) == 1
        assert [health.answers for health in heard] == [True]


async def test_a_cluster_that_hangs_does_not_hold_up_another(
    kube: Kube, access: Access, access_through: Access, proxy: FaultProxy, config_map: ConfigMap
) -> None:
    await proxy.add(Rule(Match(), Hang()))
    async with a_fleet() as fleet:
        fleet.set("hanging", access_through)
        fleet.set("lively", access)
        lively, hanging = fleet.cluster("lively"), fleet.cluster("hanging")
        await until(lambda: lively.synced and hanging.health.error is not None, "one to answer and one to be given up")
        ours = key_of(await kube.create(config_map("ours", labels=OURS)))

        await until(lambda: seen(lively, ours), "our object on the lively one")
        assert not hanging.synced


async def test_clusters_in_turn_wait_for_one_that_hangs_until_it_is_given_up(
    access: Access, access_through: Access, proxy: FaultProxy
) -> None:
    await proxy.add(Rule(Match(), Hang()))
    told: list[tuple[str, bool]] = []
    slots = asyncio.Semaphore(1)
    async with a_fleet(slots=slots, on_health=lambda name, health: told.append((name, health.answers))) as fleet:
        fleet.set("hanging", access_through)
        fleet.set("lively", access)
        await until(lambda: fleet.cluster("lively").synced, "the lively one to be seen")
        await until(lambda: not slots.locked(), "the turn to be over")

        assert told == [("hanging", False), ("lively", True)]


async def test_a_new_leader_looks_again_cluster_by_cluster(
    kube: Kube, access: Access, config_map: ConfigMap, namespace: str
) -> None:
    slots = asyncio.Semaphore(1)
    async with a_fleet(slots=slots, watched=replace(CONFIG_MAPS, namespace=namespace, only_ours=True)) as fleet:
        fleet.set("one", access)
        one = fleet.cluster("one")
        await until(lambda: any(watch.idle for watch in one.watches) and not slots.locked(), "nothing to watch")
        theirs = key_of(await kube.create(config_map("theirs", labels=OURS)))
        async with slots:
            one.invalidate()
            await asyncio.sleep(3 * QUICK.probe_interval)
            assert [watch.lists for watch in one.watches] == [1], "it is another one's turn"
            assert not one.synced

        await until(lambda: one.synced, "the cluster to be seen again")
        assert seen(one, theirs)


async def test_a_new_leader_that_looks_again_at_a_cluster_that_is_being_met_does_not_wait_for_it(
    access_through: Access, proxy: FaultProxy, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kubeloop.cache.initial_sync.INITIAL_SYNC_SECONDS", 1000.0)
    unanswered = await proxy.add(Rule(Match(verbs=("",)), Hang()))
    async with a_fleet(
        replace(QUICK, deadline=1000.0), watched=replace(CONFIG_MAPS, namespace=namespace, only_ours=True)
    ) as fleet:
        fleet.set("one", access_through)
        one = fleet.cluster("one")
        await until(lambda: any(watch.idle for watch in one.watches), "all but the answer")
        assert one.health.last_contact is None
        one.invalidate()
        await proxy.remove(unanswered)

        await until(lambda: one.synced and one.health.answers, "the cluster to be seen")


async def test_credentials_that_end_are_asked_for_and_new_ones_taken(
    access_through: Access, proxy: FaultProxy, access: Access
) -> None:
    asked: list[str] = []
    async with a_fleet(on_unauthorized=asked.append) as fleet:
        fleet.set("one", access_through)
        one = fleet.cluster("one")
        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")
        await proxy.add(Rule(Match(), Answer(401)))
        await until(lambda: bool(asked), "the 401 to be told")
        assert isinstance(one.health.error, Unauthorized)
        fleet.set("one", replace(access, proxy=None))

        await until(lambda: one.synced and one.health.answers, "the cluster to be connected again")
        assert set(asked) == {"one"}


async def test_a_renewed_token_disturbs_nothing(access_through: Access, proxy: FaultProxy) -> None:
    async with a_fleet() as fleet:
        fleet.set("one", access_through)
        one = fleet.cluster("one")
        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")
        kube = one.kube
        fleet.set("one", replace(access_through, token=access_through.token + "-renewed"))
        await asyncio.sleep(0)

        assert one.kube is kube
        assert kube.access.token.endswith("-renewed")


async def test_a_kubeconfig_that_cannot_be_used_says_why_and_waits_for_another(access: Access) -> None:
    async with a_fleet() as fleet:
        fleet.set("one", replace(access, authority="no certificate"))
        one = fleet.cluster("one")
        await until(lambda: isinstance(one.health.error, KubeconfigError), "the kubeconfig to be refused")
        fleet.set("one", access)

        await until(lambda: one.synced and one.health.answers, "the cluster to be connected")


async def test_another_server_under_the_same_name_replaces_all_that_was_seen(
    kube: Kube, access: Access, access_through: Access, config_map: ConfigMap, namespace: str
) -> None:
    await kube.create(config_map("ours", labels=OURS))
    async with a_fleet() as fleet:
        fleet.set("one", access)
        one = fleet.cluster("one")
        await until(lambda: one.synced, "the first server")
        fleet.set("one", access_through)
        assert not one.synced

        await until(lambda: one.synced and seen(one, Key(namespace, "ours")), "the second server")


async def test_a_cluster_that_is_removed_leaves_nothing_behind(access: Access) -> None:
    before = asyncio.all_tasks()
    async with a_fleet() as fleet:
        fleet.set("one", access)
        await until(lambda: fleet.cluster("one").synced, "the cluster to be connected")
        fleet.remove("one")

        with pytest.raises(Unreachable):
            fleet.cluster("one")
        assert fleet.store.find("one", CONFIG_MAP) is None
        await until(lambda: len(asyncio.all_tasks() - before) <= 1, "its tasks to end")

    assert asyncio.all_tasks() <= before


@pytest.mark.parametrize(
    ("user", "why"),
    [
        ({"exec": {"command": "sh"}}, "exec"),
        ({"tokenFile": "/var/run/secrets/kubernetes.io/serviceaccount/token"}, "tokenFile"),
        ({"client-certificate": "/etc/passwd", "client-key": "/etc/shadow"}, "names a file"),
        ({"client-certificate-data": "YQ=="}, "without its key"),
    ],
)
def test_a_kubeconfig_from_a_secret_may_not_run_commands_or_read_files(user: dict[str, Any], why: str) -> None:

    config = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "https://example.org"}}],
        "users": [{"name": "u", "user": user}],
    }

    with pytest.raises(KubeconfigError, match=why):
        read_kubeconfig(orjson.dumps(config))


def test_tls_is_read_by_the_record(monkeypatch: pytest.MonkeyPatch) -> None:
    """A private corner of asyncio: this fails when it moves."""
    monkeypatch.setattr(SSLProtocol, "max_size", SSLProtocol.max_size)
    shrink_tls_buffers()

    with asyncio.Runner() as runner:
        protocol = SSLProtocol(runner.get_loop(), asyncio.Protocol(), ssl.create_default_context(), None)
        protocol._app_transport._closed = True  # pyright: ignore[reportAttributeAccessIssue]  # it was never opened
        assert len(protocol._ssl_buffer) == 16 * 1024  # pyright: ignore[reportAttributeAccessIssue]
