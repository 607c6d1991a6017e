"""The watcher notices what it is there for."""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import orjson
import pytest

from kubeloop.client import kube
from kubeloop.client.access import read_kubeconfig
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP
from localfleet.apiserver import api_server, on_loopback
from localfleet.control_plane import AUDIT_LOG, audit_flags, write_audit_policy
from tests.integration import readiness
from tests.integration import watcher as invariants
from tests.integration.harness import SECONDS
from tests.integration.kinds import cluster, secret
from tests.integration.trail import ALL, Asked, Trail, audited, busiest, recorded
from tests.integration.watcher import RATE, RATE_OF_ALL, RATE_SECONDS, Watcher, nodes
from tests.support.manifests import Manifest

MADE = ("worker-1", "Service")
KEY = "sk-canary-0b6d"


def replica(name: str, *, copies: int = 1, generation: int = 1, observed: int = 1) -> Manifest:
    member = {"role": "Standalone", "nodePoolName": "h100", "deviceRequests": [{"name": "gpu"}]}
    engines = [{"name": "vllm", "copies": copies, "members": [member]}]
    ready = {"type": "Ready", "status": "True", "observedGeneration": observed}
    return {
        "metadata": {"name": name, "uid": name, "generation": generation, "labels": {invariants.OWNER: "deployment"}},
        "spec": {"clusterName": "worker-1", "engines": engines},
        "status": {"conditions": [ready]},
    }


def made(uid: str, owner: str = "a") -> Manifest:
    return {"kind": "Service", "metadata": {"name": "model", "uid": uid, "labels": {invariants.OWNER: owner}}}


def mirror(*manifests: Manifest) -> Any:
    return SimpleNamespace(objects={("", one["metadata"]["name"]): one for one in manifests})


def watcher(*replicas: Manifest, stage: Any = None, trails: Sequence[Any] = ()) -> Watcher:
    there = {(name, MADE[1]): mirror() for name in ("worker-1", "worker-2")}
    return Watcher(stage, mirror(*replicas), mirror(cluster("worker-1")), mirror(), trails, there)


def seen(watching: Watcher) -> list[str]:
    for key in watching.replicas.objects:
        watching.changed(key)
    return watching.problems


def appears(watching: Watcher, what: Manifest, where: str = "worker-1") -> list[str]:
    watching.made[where, MADE[1]].objects["", "model"] = what
    watching.appeared(where, MADE[1], ("", "model"))
    return watching.problems


# I2 -------------------------------------------------------------------------------------------------------------------


def test_what_a_replica_has_on_its_own_cluster_is_in_order() -> None:
    watching = watcher(replica("a"))
    assert appears(watching, made("1")) == []
    assert appears(watching, made("1")) == []  # it has changed, and is the same


def test_what_is_made_anew_for_the_same_replica_is_noticed() -> None:
    watching = watcher(replica("a"))
    appears(watching, made("1"))
    assert appears(watching, made("2")) == ["I2: Service model on worker-1 was made twice for the same replica"]


def test_the_same_name_for_another_replica_is_another_object() -> None:
    watching = watcher(replica("a"))
    appears(watching, made("1"))
    assert appears(watching, made("2", owner="the next of that name")) == []


def test_what_is_on_another_cluster_than_its_replica_is_noticed() -> None:
    (problem,) = appears(watcher(replica("a")), made("1"), where="worker-2")
    assert problem == "I2: Service model is on worker-2, its replica is placed on worker-1"


# I4 -------------------------------------------------------------------------------------------------------------------


def test_a_pool_that_is_just_full_is_not_overcommitted() -> None:
    assert seen(watcher(replica("a"), replica("b"))) == []


def test_one_node_more_than_a_pool_has_is_noticed() -> None:
    (problem,) = seen(watcher(replica("a"), replica("b", copies=2)))
    assert problem == "I4: pool h100 of worker-1 has 2 nodes, replicas have 3"


def test_what_a_user_has_placed_is_not_our_overcommitment() -> None:
    theirs = replica("b", copies=2)
    del theirs["metadata"]["labels"]
    assert seen(watcher(replica("a"), theirs)) == []


def test_a_gang_takes_a_node_for_each_pod_that_claims_devices() -> None:
    gang = replica("a")
    (leader,) = gang["spec"]["engines"][0]["members"]
    worker = {**leader, "role": "Worker", "worker": {"nodes": 3}}
    gang["spec"]["engines"][0] |= {"members": [{**leader, "role": "Leader"}, worker], "copies": 2}
    assert len(list(nodes(gang))) == 8
    del gang["spec"]["engines"][0]["members"][0]["deviceRequests"]
    assert len(list(nodes(gang))) == 6


# I9 -------------------------------------------------------------------------------------------------------------------


def test_a_condition_of_a_generation_that_is_not_there_yet_is_noticed() -> None:
    assert "generation 3" in seen(watcher(replica("a", generation=2, observed=3)))[0]


def test_a_condition_that_goes_back_is_noticed() -> None:
    watching = watcher(replica("a", generation=2, observed=2))
    seen(watching)
    watching.replicas.objects["", "a"] = replica("a", generation=2, observed=1)
    assert "generation 1" in seen(watching)[0]


# What is checked when it is over --------------------------------------------------------------------------------------


def quiet_stage(folder: Path, *objects: Manifest) -> Any:
    """A stage on which nothing happens any more; `objects` are what its hub has."""
    (log := folder / "operator.log").touch()

    async def list_(kind: str, *_: str) -> list[Manifest]:
        return [one for one in objects if one["kind"] == kind]

    hub = SimpleNamespace(name="hub", list=list_)
    return SimpleNamespace(
        operator=SimpleNamespace(log=log, stops=0), hub=hub, clusters=[hub], readiness=readiness.Readiness()
    )


def asked(verb: str = "patch", what: str = "services space/model") -> Asked:
    return Asked(time.time(), "hub", verb, what)


class Told:
    """A trail on which somebody says what is new at each look."""

    def __init__(self, *news: Asked, again: Sequence[str] = ()) -> None:
        self._news, self._again = list(news), again

    def news(self) -> list[Asked]:
        news, self._news = self._news, []
        return news + [asked(verb) for verb in self._again]


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch) -> None:
    """Time enough to see whether somebody writes again and again, and no more."""
    monkeypatch.setattr(invariants, "QUIET_SECONDS", 0.3)
    monkeypatch.setattr(invariants, "REST_SECONDS", 1.0)


@pytest.mark.usefixtures("hurried")
async def test_nothing_is_wrong_where_nothing_happens(tmp_path: Path) -> None:
    assert await watcher(replica("a"), stage=quiet_stage(tmp_path)).check() == []


@pytest.mark.usefixtures("hurried")
async def test_an_operator_that_does_not_cease_to_write_is_noticed(tmp_path: Path) -> None:
    """I7."""
    (problem,) = await watcher(stage=quiet_stage(tmp_path), trails=[Told(again=["patch"])]).check()
    assert problem.startswith("I7: it writes and writes: {'patch services space/model on hub'")


@pytest.mark.usefixtures("hurried")
async def test_an_operator_that_reads_or_has_written_is_at_rest(tmp_path: Path) -> None:
    trail = Told(asked(), again=["get", "watch"])
    assert await watcher(stage=quiet_stage(tmp_path), trails=[trail]).check() == []


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("extra", [0, 1])
async def test_what_is_asked_for_too_often_is_noticed(tmp_path: Path, extra: int) -> None:
    """I10."""
    often = [asked("list", "pods")] * (RATE + extra)
    found = await watcher(stage=quiet_stage(tmp_path), trails=[Told(*often)]).check()
    assert found == [f"I10: list pods on hub: {RATE + 1} times in {RATE_SECONDS:g} s"][: bool(extra)]


@pytest.mark.usefixtures("hurried")
async def test_too_many_requests_of_all_kinds_are_noticed(tmp_path: Path) -> None:
    often = [asked("get", f"pods space/{number}") for number in range(RATE_OF_ALL + 1)]
    (problem,) = await watcher(stage=quiet_stage(tmp_path), trails=[Told(*often)]).check()
    assert problem == f"I10: {ALL}: {RATE_OF_ALL + 1} times in {RATE_SECONDS:g} s"


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("text", [KEY, base64.b64encode(KEY.encode()).decode()])
async def test_a_secrets_text_outside_of_secrets_is_noticed(tmp_path: Path, text: str) -> None:
    """I11."""
    event = {"kind": "Event", "metadata": {"name": "told"}, "message": f"refused: {text}"}
    watching = watcher(stage=quiet_stage(tmp_path, event))
    watching.hide(KEY)
    assert await watching.check() == ["I11: a Secret's text is in Event told of hub"]


@pytest.mark.usefixtures("hurried")
async def test_a_kubeconfigs_token_in_any_operators_log_is_noticed(tmp_path: Path) -> None:
    """I11."""
    kubeconfig = base64.b64encode(f"users:\n- user:\n    token: {KEY}\n".encode()).decode()
    stage = quiet_stage(tmp_path, {**secret("system", "worker-1"), "data": {"kubeconfig": kubeconfig}})
    (tmp_path / "operator-2.log").write_text(f'{{"event": "connecting with {KEY}"}}')
    assert await watcher(stage=stage).check() == ["I11: a Secret's text is in the log operator-2.log"]


@pytest.mark.usefixtures("hurried")
@pytest.mark.parametrize("text", [KEY, base64.b64encode(KEY.encode()).decode()])
async def test_what_one_namespace_keeps_is_noticed_in_another(tmp_path: Path, text: str) -> None:
    """I12."""
    own = {"kind": "Secret", "metadata": {"name": "own", "namespace": "theirs"}, "data": {"key": text}}
    copy = {"kind": "Secret", "metadata": {"name": "copy", "namespace": "mine"}, "data": {"key": text}}
    route = {"kind": "HTTPRoute", "metadata": {"name": "route", "namespace": "mine"}, "spec": {"value": text}}
    watching = watcher(stage=quiet_stage(tmp_path, own))
    watching.keep("theirs", KEY)
    assert await watching.check() == []
    watching.stage = quiet_stage(tmp_path, own, copy, route)
    assert await watching.check() == [
        "I12: what namespace theirs keeps is in HTTPRoute mine/route of hub",
        "I12: what namespace theirs keeps is in Secret mine/copy of hub",
    ]


@pytest.mark.usefixtures("hurried")
async def test_a_copy_on_a_workload_cluster_is_in_what_stands_for_its_namespace(tmp_path: Path) -> None:
    """I12."""
    stage = quiet_stage(tmp_path)
    worker = quiet_stage(
        tmp_path,
        {"kind": "Secret", "metadata": {"name": "a", "namespace": "modelplane-theirs"}, "data": {"key": KEY}},
        {"kind": "Secret", "metadata": {"name": "b", "namespace": "modelplane-mine"}, "data": {"key": KEY}},
    ).hub
    worker.name = "worker-1"
    stage.clusters.append(worker)
    watching = watcher(stage=stage)
    watching.keep("theirs", KEY)
    assert await watching.check() == ["I12: what namespace theirs keeps is in Secret modelplane-mine/b of worker-1"]


@pytest.mark.usefixtures("hurried")
async def test_a_watcher_that_watches_no_more_says_so(tmp_path: Path) -> None:
    watching = watcher(stage=quiet_stage(tmp_path))
    watching.tasks = [ended := asyncio.create_task(asyncio.sleep(0))]
    await ended
    (problem,) = await watching.check()
    assert problem.startswith("the watcher itself has ended")


@pytest.mark.usefixtures("hurried")
async def test_a_watcher_that_sees_nothing_says_so(tmp_path: Path) -> None:
    problems = await watcher(stage=quiet_stage(tmp_path), trails=[Told()]).check()
    assert problems == ["nothing of what the operator asks is seen"]


# Trails ---------------------------------------------------------------------------------------------------------------


def event(**other: Any) -> bytes:
    """A line of an audit log."""
    target = {"resource": "modelservices", "subresource": "status", "namespace": "space", "name": "model"}
    told = {
        "stage": "ResponseComplete",
        "verb": "update",
        "userAgent": "modelplane-operator",
        "requestURI": "/apis",
        "requestReceivedTimestamp": "1970-01-01T00:00:07.500000Z",
        "objectRef": target,
        **other,
    }
    return orjson.dumps(told) + b"\n"


def test_an_audit_event_is_read_as_what_was_asked() -> None:
    assert audited("hub", event()) == Asked(7.5, "hub", "update", "modelservices/status space/model")


def test_a_request_for_no_resource_is_known_by_its_path() -> None:
    found = audited("hub", event(verb="get", objectRef=None, requestURI="/readyz"))
    assert found == Asked(7.5, "hub", "get", "/readyz")


@pytest.mark.parametrize(
    "other",
    [
        {"userAgent": "kubectl/modelplane-operator"},
        {"verb": "watch"},  # its end
        {"objectRef": {"resource": "leases"}},
    ],
)
def test_what_others_ask_and_what_was_told_before_does_not_count(other: dict[str, Any]) -> None:
    assert audited("hub", event(**other)) is None


def test_a_watch_counts_when_it_begins() -> None:
    found = audited("hub", event(verb="watch", stage="ResponseStarted"))
    assert found and not found.writes


@pytest.mark.fleet
async def test_an_api_servers_own_words_are_understood(tmp_path: Path) -> None:
    layout = on_loopback(tmp_path)  # only for its folder
    write_audit_policy(layout)
    with api_server(*audit_flags(layout)) as server:
        trail = Trail("hub", tmp_path / AUDIT_LOG, audited)
        async with kube.connect(read_kubeconfig(server.kubeconfig.read_bytes())) as operator:
            config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"namespace": "default", "name": "one"}}
            await operator.ping()
            stored = await operator.create(config)
            await operator.apply(config)
            version = (await operator.list(CONFIG_MAP)).version
            async for _ in operator.watch(CONFIG_MAP, version, seconds=1):
                pass
            await operator.delete(CONFIG_MAP, Key("default", "one"), uid=stored["metadata"]["uid"])
        found = trail.news()
        trail.close()
    assert [str(one) for one in found] == [
        "get /readyz on hub",
        "create configmaps default/one on hub",
        "patch configmaps default/one on hub",
        "list configmaps on hub",
        "watch configmaps on hub",
        "delete configmaps default/one on hub",
    ]
    assert [one.writes for one in found] == [False, True, True, False, False, True]
    assert all(abs(one.time - time.time()) < SECONDS for one in found)


def test_a_proxys_record_is_read_as_what_was_asked() -> None:
    call = {"method": "PATCH", "path": "/", "verb": "patch", "resource": "pods", "namespace": "space", "name": "one"}
    assert recorded("hub", orjson.dumps({"time": 7.5, "call": call})) == Asked(7.5, "hub", "patch", "pods space/one")


def test_a_trail_tells_whole_lines_once_and_follows_a_log_that_begins_anew(tmp_path: Path) -> None:
    log = tmp_path / "audit.jsonl"
    log.write_bytes(event())
    trail = Trail("hub", log, audited)
    assert trail.news() == []  # that was before
    with log.open("ab") as file:
        file.write(event() + event()[:40])
    assert len(trail.news()) == 1
    with log.open("ab") as file:
        file.write(event()[40:] + event())
    log.rename(tmp_path / "audit-1.jsonl")
    log.write_bytes(event())
    assert len(trail.news()) == 3
    assert trail.news() == []
    trail.close()


def test_the_busiest_moment_is_found_wherever_it_begins() -> None:
    times = [0.0, 5.0, 9.5, 10.5, 14.0, 30.0]
    found = dict(busiest([Asked(at, "hub", "get", "pods") for at in reversed(times)], 10.0))
    assert found == {"get pods on hub": 4, ALL: 4}


# I13 ------------------------------------------------------------------------------------------------------------------

CHAT = ("space", "chat")


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    now = [0.0]
    monkeypatch.setattr(readiness.time, "monotonic", lambda: now[0])
    return now


def says(status: str, reason: str = "Any") -> Manifest:
    return {"status": {"conditions": [{"type": "Ready", "status": status, "reason": reason}]}}


def lived(clock: list[float], ready: Manifest, seconds: int, status: int, asked: readiness.Readiness) -> list[str]:
    """What is noticed when a service says so for some seconds, while requests have this status."""
    asked.observe(CHAT, ready)
    for _ in range(seconds):
        began, clock[0] = clock[0], clock[0] + 1.0
        asked.answered(*CHAT, began, status)
    return [*asked.problems()]


def test_a_service_that_says_for_long_that_it_is_ready_while_requests_fail_is_noticed(clock: list[float]) -> None:
    asked = readiness.Readiness()
    assert lived(clock, says("True"), 14, 503, asked) == []
    (problem,) = lived(clock, says("True"), 5, 0, asked)
    assert problem == "I13: service ('space', 'chat') said for 19 s that it is Ready, and all requests failed"


def test_a_service_that_says_that_it_is_not_ready_while_requests_succeed_is_noticed(clock: list[float]) -> None:
    asked = readiness.Readiness()
    assert lived(clock, says("False"), 20, 200, asked) == [], "it has not been Ready yet"
    assert lived(clock, says("True"), 20, 200, asked) == []
    assert lived(clock, says("False", "Partial"), 20, 200, asked) == []
    assert lived(clock, says("False"), 20, 503, asked) == []
    (problem,) = lived(clock, says("False"), 10, 200, asked)
    assert problem == "I13: service ('space', 'chat') said for 10 s that it is not Ready, and requests succeeded"
