"""Tokens of clusters on clouds: made once the cloud has told where they are, and others before those end."""

from __future__ import annotations

import asyncio
import base64
import json
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import pytest

from kubeloop.cache.connection import Connection
from kubeloop.cache.fleet import Fleet
from kubeloop.cache.informer import Informer
from kubeloop.cache.store import Store
from kubeloop.client.access import Access
from kubeloop.client.kube import Event
from kubeloop.errors import ApiError, NotFound, Unauthorized
from kubeloop.loop import Change
from kubeloop.objects import Key, Manifest
from kubeloop.resource import of
from kubeloop.types import SECRET
from modelplane_operator.api.clusters.eks import EKSCluster
from modelplane_operator.clouds.accounts import Accounts
from modelplane_operator.clouds.eks import cloud as aws
from modelplane_operator.clouds.eks import controller as eks_cluster
from modelplane_operator.clouds.gke import cloud as gke_cloud
from modelplane_operator.clouds.gke.session import Credentials
from modelplane_operator.clouds.resources import Account, Endpoint
from modelplane_operator.clouds.tokens import CHECK_INTERVAL, CLUSTERS, LASTS, RETRY_AFTER, Tokens
from modelplane_operator.clouds.work import CloudWork
from modelplane_operator.clusters.cluster.connections import Connections
from tests.support.builders import EPOCH
from tests.support.virtual_time import run

ENDPOINT = {"server": "https://berlin.eks", "authority": "Y2E=", "cluster": "berlin-0123456789"}
NAME = Key("modelplane-system", "berlin")
Told = Callable[[Key, Manifest | None, Manifest | None], None]


@dataclass
class _Fleet:
    known: dict[str, Access] = field(default_factory=dict[str, Access])
    sets: int = 0

    def set(self, name: str, access: Access) -> bool:
        before, self.known[name] = self.known.get(name), access
        self.sets += 1
        return before is None or before.without_token() != access.without_token()

    def remove(self, name: str) -> None:
        self.known.pop(name, None)


EKS = of(EKSCluster)


@dataclass
class _Informer:
    type: Any = EKS
    told: Told | None = None
    known: dict[Key, Manifest] = field(default_factory=dict[Key, Manifest])

    def get(self, key: Key) -> Manifest | None:
        return self.known.get(key)

    def subscribe(self, told: Told) -> None:
        self.told = told


@dataclass
class _World:
    tokens: Tokens
    fleet: _Fleet
    known: Connections
    say: Told
    clock: list[float]
    clusters: _Informer

    def name(self, old: Manifest | None, new: Manifest | None) -> None:
        """Have an InferenceCluster say something else."""
        assert self.clusters.told is not None
        self.clusters.told(Key("", "berlin"), old, new)


@dataclass(slots=True)
class _Accounts(Accounts):
    """Of a cloud that says of every cluster where it is, until it does not."""

    asked: list[tuple[Account, str]] = field(default_factory=list[tuple[Account, str]])
    error: ApiError | None = None

    async def endpoint(self, account: Account, cluster: str) -> Endpoint:
        self.asked.append((account, cluster))
        if self.error is not None:
            raise self.error
        return Endpoint(f"https://{len(self.asked)}.{cluster}", "Y2E=")


@dataclass(slots=True)
class _Made(_Accounts):
    """Whose tokens have a number each."""

    async def fetch_token(self, account: Account, cluster: str) -> str:
        return f"{cluster}-{len(self.asked)}"

    async def endpoint(self, account: Account, cluster: str) -> Endpoint:
        self.asked.append((account, cluster))
        return Endpoint(f"https://{cluster}", "Y2E=")


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> _World:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIAEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    fleet, clock, informer = _Fleet(), [1000.0], _Informer()
    known = Connections(cast(Fleet, fleet), lambda _: None)
    connect = {"EKS": aws.connect, "GKE": partial(gke_cloud.connect, hosts={})}
    tokens = Tokens(_Accounts(connect), known, lambda: clock[0])
    clusters = _Informer(CLUSTERS)
    clusters.known[Key("", "berlin")] = {"metadata": {"uid": "its"}, "spec": {"cluster": {"source": "EKS"}}}
    tokens.add_event_handlers(cast(Informer, informer))
    tokens.add_event_handlers(cast(Informer, clusters))
    assert informer.told is not None
    return _World(tokens, fleet, known, informer.told, clock, clusters)


def _cluster(
    endpoint: Mapping[str, str] | None = None, *, owned: bool = True, credentials: str = "default"
) -> Manifest:
    labels = {"modelplane.ai/owner-kind": "InferenceCluster", "modelplane.ai/owner-uid": "its"} if owned else {}
    return {
        "apiVersion": EKS.api_version,
        "kind": EKS.kind,
        "metadata": {"namespace": NAME.namespace, "name": NAME.name, "uid": "u", "labels": labels},
        "spec": {"region": "eu-west-1", "credentials": {"name": credentials}, "nodePools": []},
        "status": {"endpoint": {**endpoint}} if endpoint else {},
    }


async def test_a_cluster_is_reached_once_the_cloud_tells_where_it_is(world: _World) -> None:
    world.say(NAME, None, _cluster())
    await world.tokens.renew()
    assert world.fleet.known == {}

    world.say(NAME, _cluster(), _cluster(ENDPOINT))
    await world.tokens.renew()

    access = world.fleet.known["berlin"]
    assert (access.server, access.authority) == ("https://berlin.eks", "ca")
    assert access.token.startswith("k8s-aws-v1.")
    assert access.token not in repr(access)
    await world.tokens.renew()
    assert world.fleet.sets == 1, "a token that is good is kept"


async def test_a_token_is_renewed_before_it_ends_and_when_it_is_refused(world: _World) -> None:
    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()

    world.clock[0] += LASTS
    await world.tokens.renew()
    assert world.fleet.sets == 2

    world.known.on_unauthorized("berlin")
    await world.tokens.renew()
    assert world.fleet.sets == 3


async def test_tokens_that_are_refused_one_after_the_other_are_made_less_and_less_often(world: _World) -> None:
    """As of a role without an access entry: the first may have been revoked, the next is no better than the last."""
    world.say(NAME, None, _cluster(ENDPOINT))

    async def made(seconds: float) -> list[float]:
        """When tokens are made, by a clock that begins now, for a cluster that refuses each of them at once."""
        began, found = world.clock[0], list[float]()
        while world.clock[0] - began < seconds:
            world.known.on_unauthorized("berlin")
            before = world.fleet.sets
            await world.tokens.renew()
            if world.fleet.sets > before:
                found.append(world.clock[0] - began)
            world.clock[0] += CHECK_INTERVAL
        return found

    await world.tokens.renew()
    assert await made(1600.0) == [0, 2, 6, 14, 30, 62, 126, 254, 510, 810, 1110, 1410]

    for _ in range(2):  # the one that is taken lasts, and then what was before counts no more
        world.clock[0] += LASTS
        world.tokens._sources[EKS, "berlin"].is_refused = False
        await world.tokens.renew()
    assert await made(10.0) == [0, 2, 6]


def test_a_cluster_that_refuses_us_costs_little_and_wakes_nobody_again(monkeypatch: pytest.MonkeyPatch) -> None:
    tries, woken, accounts = list[str](), list[str](), _Made({})

    @asynccontextmanager
    async def refusing(access: Access, **_: Any) -> AsyncIterator[None]:
        tries.append(access.token)
        raise Unauthorized("401")
        yield

    async def hour() -> None:
        loop = asyncio.get_running_loop()
        store = Store(loop.time)

        def opened(name: str, access: Access) -> Connection:
            return Connection(name, access, (), store, jitter=lambda: 0.5, on_unauthorized=refused)

        def refused(name: str) -> None:
            known.on_unauthorized(name)

        fleet = Fleet(store, opened)
        known = Connections(fleet, woken.append)
        tokens = Tokens(accounts, known, loop.time)
        tokens._on_inference_cluster(Key("", "berlin"), None, NAMED)
        async with asyncio.TaskGroup() as group:
            tasks = [group.create_task(one.run()) for one in (fleet, tokens)]
            await asyncio.sleep(3600)
            for task in tasks:
                task.cancel()

    monkeypatch.setattr("kubeloop.cache.connection.connect", refusing)
    run(hour())

    assert len(accounts.asked) == len({*tries}) < 25
    assert len(tries) < 100, "the connection's own backoff goes on: some 45 s"
    assert woken == ["berlin"], "when it was new"


async def test_a_token_that_is_renewed_wakes_nobody(world: _World) -> None:
    woken = list[str]()
    world.known.changed = woken.append
    world.say(NAME, None, _cluster(ENDPOINT))
    for _ in range(3):
        await world.tokens.renew()
        world.clock[0] += LASTS
    assert (world.fleet.sets, woken) == (3, ["berlin"])

    world.say(NAME, None, _cluster(ENDPOINT, credentials="lab"))
    for _ in range(3):
        await world.tokens.renew()
        world.clock[0] += RETRY_AFTER
    assert woken == ["berlin"] * 2, "that none can be made is told once"

    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()
    assert woken == ["berlin"] * 3, "and that one can"

    world.say(NAME, None, _cluster({**ENDPOINT, "server": "https://elsewhere.eks"}))
    await world.tokens.renew()
    assert woken == ["berlin"] * 4


async def test_the_first_token_of_a_cluster_is_waited_for_until_it_is_made_or_cannot_be(world: _World) -> None:
    assert not world.tokens.awaits("berlin")

    world.say(NAME, None, _cluster(ENDPOINT, credentials="lab"))
    assert world.tokens.awaits("berlin")
    await world.tokens.renew()
    assert not world.tokens.awaits("berlin"), "something is wrong, and is told"

    world.say(NAME, None, None)
    world.name(None, NAMED)
    world.known.unfollow("berlin")
    assert world.tokens.awaits("berlin")
    await world.tokens.renew()
    assert not world.tokens.awaits("berlin")


async def test_labels_alone_have_nobody_wait(world: _World) -> None:
    world.clusters.known.clear()

    world.say(NAME, None, _cluster(ENDPOINT))

    assert not world.tokens.awaits("berlin")


async def test_whoever_leads_once_more_has_no_way_but_by_a_token_of_now(world: _World) -> None:
    """While another led, nobody renewed the one of before, and clusters refuse it: that is no news of theirs."""
    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()
    world.known.on_unauthorized("berlin")

    async with asyncio.TaskGroup() as group:
        leading = group.create_task(world.tokens.run())
        await asyncio.sleep(0)
        leading.cancel()
    assert (world.fleet.known, world.tokens.awaits("berlin")) == ({}, True)

    await world.tokens.renew()
    assert world.fleet.known["berlin"].token


async def test_a_status_that_says_the_same_makes_no_other_token(world: _World) -> None:
    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()

    world.say(NAME, _cluster(ENDPOINT), _cluster(dict(ENDPOINT)))
    await world.tokens.renew()

    assert world.fleet.sets == 1


async def test_credentials_that_are_missing_are_told_and_asked_for_again(world: _World) -> None:
    world.say(NAME, None, _cluster(ENDPOINT, credentials="lab"))
    await world.tokens.renew()

    error = world.known.error_of("berlin")
    assert error is not None
    assert "Secret modelplane-system/lab does not exist" in str(error)
    assert world.fleet.known == {}

    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()
    assert world.fleet.known == {}, "not before a while"
    world.clock[0] += RETRY_AFTER
    await world.tokens.renew()
    assert "berlin" in world.fleet.known
    assert world.known.error_of("berlin") is None


async def test_a_cluster_that_is_gone_is_reached_no_more(world: _World) -> None:
    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()

    world.say(NAME, _cluster(ENDPOINT), None)
    await world.tokens.renew()

    assert world.fleet.known == {}


async def test_an_object_that_no_cluster_has_takes_no_connection(world: _World) -> None:
    """Nor may it take the name of a cluster that somebody else brings."""
    world.say(NAME, None, _cluster(ENDPOINT, owned=False))
    world.say(Key("elsewhere", "berlin"), None, _cluster(ENDPOINT))
    await world.tokens.renew()
    world.say(NAME, _cluster(ENDPOINT, owned=False), None)

    assert world.fleet.known == {}


@pytest.mark.parametrize(
    "cluster",
    [
        None,
        {"metadata": {"uid": "another"}, "spec": {"cluster": {"source": "EKS"}}},
        {"metadata": {"uid": "its"}, "spec": {"cluster": {"source": "Existing"}}},
    ],
)
async def test_labels_alone_do_not_lead_a_cluster_elsewhere(world: _World, cluster: Manifest | None) -> None:
    world.clusters.known = {Key("", "berlin"): cluster} if cluster else {}

    world.say(NAME, None, _cluster(ENDPOINT))
    await world.tokens.renew()

    assert world.fleet.known == {}


async def test_an_object_that_nobody_can_read_holds_up_no_other_clusters_token(world: _World) -> None:
    broken = _cluster(ENDPOINT)
    del broken["spec"]["region"]
    other = Key("modelplane-system", "aachen")
    world.clusters.known[Key("", "aachen")] = world.clusters.known[Key("", "berlin")]

    world.say(NAME, None, broken)
    world.say(other, None, {**_cluster(ENDPOINT), "metadata": {**_cluster()["metadata"], "name": "aachen"}})
    await world.tokens.renew()

    assert {*world.fleet.known} == {"aachen"}
    assert "internal error" in str(world.known.error_of("berlin"))


@pytest.mark.parametrize(
    ("before", "after", "wakes"),
    [
        ({}, {"deletionTimestamp": "2026-01-01T00:00:00Z"}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, {"phase": "DeleteCluster"}, True),
        ({"phase": "DeleteCluster"}, {"phase": "DeleteCluster"}, False),
        ({"deletionTimestamp": "2026-01-01T00:00:00Z"}, None, True),
        (None, {}, False),
    ],
)
def test_the_clouds_object_is_woken_when_its_cluster_lets_it_go(
    before: Mapping[str, str] | None, after: Mapping[str, str] | None, *, wakes: bool
) -> None:
    """Somebody may have deleted it long before: it waits then until nothing that runs there needs it."""

    def cluster(said: Mapping[str, str] | None) -> Manifest | None:
        if said is None:
            return None
        terminating = {"deletionTimestamp": "2026-01-01T00:00:00Z"} if said else {}
        deletion = {"deletion": {"phase": said["phase"]}} if "phase" in said else {}
        return {"metadata": {"name": "berlin", "uid": "its", **terminating}, "status": deletion}

    accounts = Accounts({})
    tokens = Tokens(accounts, cast(Connections, None), lambda: 0.0)
    mapper = eks_cluster.controller(CloudWork(accounts, tokens, lambda: EPOCH)).watches[CLUSTERS]

    assert [*mapper(Change(cluster(before), cluster(after)), cast(Any, None))] == ([NAME] if wakes else [])


async def test_keys_that_were_replaced_leave_no_connection_open(monkeypatch: pytest.MonkeyPatch) -> None:
    closed: list[str] = []

    class Session:
        def __init__(self, region: str, project: str, credentials: Credentials, hosts: Mapping[str, str]) -> None:
            self.token = str(credentials.content["refresh_token"])

        async def close(self) -> None:
            closed.append(self.token)

    monkeypatch.setattr(gke_cloud, "OVER", 0.0)
    monkeypatch.setattr(gke_cloud, "Session", Session)
    accounts, account = (
        Accounts({"GKE": partial(gke_cloud.connect, hosts={})}),
        Account("GKE", "us-central1", "google", "lab"),
    )
    secrets = Informer(SECRET, now=lambda: 0.0)
    accounts.add_event_handlers(secrets)
    for number in ("1", "2"):
        said = json.dumps({"type": "authorized_user", "refresh_token": number}).encode()
        metadata = {"name": "google", "namespace": "modelplane-system", "uid": "u", "resourceVersion": number}
        data = {"credentials": base64.b64encode(said).decode()}
        secrets.on_event(Event("ADDED" if number == "1" else "MODIFIED", {"metadata": metadata, "data": data}))
        for _ in range(2):
            accounts.cloud(account)
    for _ in range(5):
        await asyncio.sleep(0)

    assert closed == ["1"]


def test_credentials_are_not_in_the_text_of_the_accounts() -> None:
    accounts, account = Accounts({"EKS": aws.connect}), Account("EKS", "eu-west-1", "amazon")
    secrets = Informer(SECRET, now=lambda: 0.0)
    accounts.add_event_handlers(secrets)
    metadata = {"name": "amazon", "namespace": "modelplane-system", "uid": "u", "resourceVersion": "1"}
    text = b"[default]\naws_access_key_id=AKIA\naws_secret_access_key=hush\n"
    data = {"credentials": base64.b64encode(text).decode()}
    secrets.on_event(Event("ADDED", {"metadata": metadata, "data": data}))
    accounts.cloud(account)

    assert "hush" not in repr(accounts)


def _brought(**existing: Any) -> Manifest:
    return {
        "metadata": {"name": "berlin", "uid": "its"},
        "spec": {"cluster": {"source": "Existing", "existing": existing}},
    }


NAMED = _brought(cloud={"eks": {"region": "eu-west-1", "cluster": "models"}})


async def test_a_cluster_that_is_named_on_a_cloud_is_looked_for_there_with_each_token(world: _World) -> None:
    world.name(None, NAMED)
    await world.tokens.renew()

    access = world.fleet.known["berlin"]
    assert (access.server, access.authority) == ("https://1.models", "ca")
    assert access.token.startswith("k8s-aws-v1.")
    world.name(NAMED, {**NAMED, "status": {"pools": 1}})
    await world.tokens.renew()
    assert world.fleet.sets == 1, "nothing is asked again while a token is good"

    world.clock[0] += LASTS
    await world.tokens.renew()
    assert world.fleet.known["berlin"].server == "https://2.models", "it may be elsewhere by then"


async def test_what_no_cloud_knows_is_told_and_cuts_nothing_off(world: _World) -> None:
    accounts = cast(_Accounts, world.tokens.accounts)
    world.name(None, NAMED)
    await world.tokens.renew()
    accounts.error = NotFound("eks describe_cluster: No cluster found for name: models.")
    world.clock[0] += LASTS
    await world.tokens.renew()

    assert "InferenceCluster berlin" in str(world.known.error_of("berlin"))
    assert "No cluster found" in str(world.known.error_of("berlin"))
    assert world.fleet.known["berlin"].server == "https://1.models"


async def test_another_name_is_followed_and_a_kubeconfig_instead_ends_it(world: _World) -> None:
    other = _brought(cloud={"gke": {"location": "us-central1", "cluster": "x", "credentials": {"name": "lab"}}})
    world.name(None, NAMED)
    await world.tokens.renew()
    world.name(NAMED, other)
    await world.tokens.renew()
    asked = cast(_Accounts, world.tokens.accounts).asked
    assert asked == [(Account("EKS", "eu-west-1", "default"), "models"), (Account("GKE", "us-central1", "lab"), "x")]
    assert "Secret modelplane-system/lab does not exist" in str(world.known.error_of("berlin"))

    world.name(other, _brought(secretRef={"name": "own"}))
    world.clock[0] += LASTS
    await world.tokens.renew()
    assert len(asked) == 2
