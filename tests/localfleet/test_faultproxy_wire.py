"""The fault proxy before a real API server: nothing is lost in it, and every fault is what it says."""

import asyncio
import json
import signal
import stat
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from localfleet.apiserver import ApiServer
from localfleet.faultproxy.client import FaultProxy, FaultProxyError, attach, start
from localfleet.faultproxy.rules import (
    Answer,
    CloseWatch,
    Delay,
    Drop,
    Hang,
    HoldEvents,
    InjectGone,
    LoseReply,
    Match,
    OmitEvents,
    Reset,
    Rule,
    Signal,
    Slow,
    Truncate,
    When,
)
from localfleet.kubeclient import APPLY, ApiError, KubeClient, connect, read_kubeconfig
from tests.localfleet.engine_support import Manifest, eventually
from tests.support.api import Api

pytestmark = pytest.mark.fleet

MAPS = "/api/v1/namespaces/default/configmaps"
CREATE = Match(verbs=("create",), resource="configmaps")


@pytest.fixture(scope="module")
def server(api: Api) -> ApiServer:
    return api.server


@pytest.fixture(scope="module")
def folder(server: ApiServer, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The files of one proxy, which all tests here share; each begins with a reset."""
    folder = tmp_path_factory.mktemp("proxy")
    options = {"upstream-kubeconfig": server.kubeconfig, "write-kubeconfig": folder / "kubeconfig"}
    options |= {"control-socket": folder / "control.sock", "record": folder / "calls.jsonl"}
    command = [sys.executable, "-m", "localfleet.faultproxy", "--record-bodies"]
    arguments = [f"--{name}={value}" for name, value in options.items()]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(b"ready")
        yield folder
        process.terminate()
    assert process.returncode == 0


Between = tuple[FaultProxy, KubeClient, KubeClient]


@pytest.fixture
async def between(server: ApiServer, folder: Path) -> AsyncGenerator[Between]:
    """The proxy, a client through it, and one beside it; the config maps of the test go at the end."""
    async with (
        attach(folder / "kubeconfig", folder / "control.sock") as proxy,
        connect(proxy.kubeconfig) as through,
        connect(server.kubeconfig) as beside,
    ):
        await proxy.reset(seed=0)
        (folder / "calls.jsonl").write_bytes(b"")
        yield proxy, through, beside
        await beside.request("DELETE", MAPS)


def config_map(name: str, **data: str) -> Manifest:
    return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": data}


async def names(client: KubeClient) -> set[str]:
    return {item["metadata"]["name"] for item in (await client.request("GET", MAPS))["items"]}


async def test_a_client_sees_the_api_server_as_it_is(between: Between) -> None:
    proxy, through, beside = between
    large = config_map("a", text="x" * 1_000_000)
    large["metadata"]["annotations"] = {"more": "x" * 200_000}
    await through.request("POST", MAPS, large)
    applied = {"fieldManager": "test", "force": "true"}
    await through.request("PATCH", f"{MAPS}/b", config_map("b"), content_type=APPLY, params=applied)

    assert await through.request("GET", f"{MAPS}/a") == await beside.request("GET", f"{MAPS}/a")
    assert await names(through) == {"a", "b"}
    with pytest.raises(ApiError, match=r"404 NotFound: configmaps \"c\" not found"):
        await through.request("GET", f"{MAPS}/c")
    assert stat.S_IMODE(proxy.kubeconfig.stat().st_mode) == 0o600


async def test_every_call_is_recorded_and_mutating_ones_are_numbered(between: Between, folder: Path) -> None:
    proxy, through, _ = between
    await through.request("GET", MAPS)
    await through.request("POST", MAPS, config_map("a"))
    await through.request("POST", MAPS, config_map("z"), params={"dryRun": "All"})
    await through.request("PATCH", f"{MAPS}/a", config_map("a"), content_type=APPLY, params={"fieldManager": "t"})
    await through.request("DELETE", f"{MAPS}/a")

    records = await proxy.calls()
    seen = [(r.seq, r.mutating_call, r.call.verb, r.call.apply, r.call.name, r.status) for r in records]
    assert seen == [
        (1, None, "list", False, "", 200),
        (2, 1, "create", False, "", 201),
        (3, None, "create", False, "", 201),
        (4, 2, "patch", True, "a", 200),
        (5, 3, "delete", False, "a", 200),
    ]
    assert json.loads(records[1].body or "") == config_map("a")
    assert [record.mutating_call for record in await proxy.calls(mutating=True)] == [1, 2, 3]
    written = [json.loads(line) for line in (folder / "calls.jsonl").read_text().splitlines()]
    assert [line["seq"] for line in written] == [1, 2, 3, 4, 5]
    assert written[1]["call"]["resource"] == "configmaps"


async def test_a_callers_own_token_reaches_the_server(between: Between) -> None:
    proxy, _, _ = between
    access = read_kubeconfig(proxy.kubeconfig)
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
        for token, status in (("somebody-else", 401), (access.token, 200), (None, 200)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            async with session.get(f"{access.server}{MAPS}", headers=headers) as response:
                assert response.status == status, token


@pytest.mark.parametrize(
    ("action", "arrived", "outcome"),
    [
        (Drop(), False, "dropped before forwarding"),
        (Reset(), False, "dropped before forwarding"),
        (LoseReply(), True, "reply lost"),
        (Reset(When.AFTER), True, "reply lost"),
    ],
)
async def test_a_lost_call_had_its_effect_or_had_none(
    between: Between, action: Any, outcome: str, *, arrived: bool
) -> None:
    proxy, through, beside = between
    await proxy.add(Rule(CREATE, action, times=1))

    with pytest.raises(aiohttp.ClientConnectionError):
        await through.request("POST", MAPS, config_map("a"))

    assert ("a" in await names(beside)) is arrived
    assert (await proxy.calls())[-1].outcome == outcome
    await through.request("POST", MAPS, config_map("b"))


@pytest.mark.parametrize("status", [409, 410, 429, 500, 503, 504])
async def test_an_answer_by_rule_is_a_status_object(between: Between, status: int) -> None:
    proxy, through, beside = between
    await proxy.add(Rule(CREATE, Answer(status, retry_after=7, message="told to"), times=1))
    access = through.access

    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(ssl=access.tls)) as session:
        headers = {"Authorization": f"Bearer {access.token}"}
        async with session.post(f"{access.server}{MAPS}", json=config_map("a"), headers=headers) as response:
            body = await response.json()

    assert (response.status, response.headers["Retry-After"]) == (status, "7")
    assert (body["kind"], body["status"], body["code"], body["message"]) == ("Status", "Failure", status, "told to")
    assert body["reason"]
    assert "a" not in await names(beside)


async def test_an_answer_after_the_effect_hides_that_it_happened(between: Between) -> None:
    proxy, through, beside = between
    await proxy.add(Rule(CREATE, Answer(504, when=When.AFTER), times=1))

    with pytest.raises(ApiError, match="504 Timeout"):
        await through.request("POST", MAPS, config_map("a"))

    assert "a" in await names(beside)


async def test_delays_and_slow_bodies_take_their_time_and_change_nothing(between: Between) -> None:
    proxy, through, beside = between
    await beside.request("POST", MAPS, config_map("a", text="x" * 5000))
    await proxy.add(Rule(Match(verbs=("get",)), Delay(0.3)))
    await proxy.add(Rule(Match(verbs=("list",)), Slow(10_000)))

    assert await through.request("GET", f"{MAPS}/a") == await beside.request("GET", f"{MAPS}/a")
    assert await names(through) == await names(beside)

    seconds = {record.call.verb: record.seconds for record in await proxy.calls()}
    assert seconds["get"] > 0.3
    assert seconds["list"] > 0.4


async def test_a_truncated_answer_breaks_off(between: Between) -> None:
    proxy, through, _ = between
    await proxy.add(Rule(Match(verbs=("list",)), Truncate(40)))

    with pytest.raises(aiohttp.ClientError):
        await through.request("GET", MAPS)


async def test_a_hanging_call_goes_on_when_its_rule_is_removed(between: Between) -> None:
    proxy, through, beside = between
    rule = await proxy.add(Rule(CREATE, Hang()))
    asked = asyncio.ensure_future(through.request("POST", MAPS, config_map("a")))

    async def fired() -> bool:
        return await proxy.fired(rule) == 1

    await eventually("the call to hang", fired)
    assert "a" not in await names(beside)
    assert not asked.done()
    await proxy.remove(rule)

    assert (await asked)["metadata"]["name"] == "a"


@pytest.mark.parametrize(("when", "arrived"), [(When.BEFORE, False), (When.AFTER, True)])
async def test_a_signal_hits_before_or_after_the_effect_of_one_numbered_call(
    between: Between, when: When, *, arrived: bool
) -> None:
    proxy, _, beside = between
    victim = await asyncio.create_subprocess_exec(sys.executable, "-c", WRITER, str(proxy.kubeconfig), stdin=-1)
    assert victim.stdin is not None
    await proxy.add(Rule(Match(mutating_call=3), Signal(victim.pid, signal.SIGKILL, when)))
    victim.stdin.close()

    async with asyncio.timeout(30):
        assert await victim.wait() == -signal.SIGKILL

    assert await names(beside) == {"a-1", "a-2", *(["a-3"] if arrived else [])}
    await proxy.wait_for("call 3 to be recorded", lambda record: record.mutating_call == 3)
    assert (await proxy.status())["mutating_calls"] == 3


WRITER = """
import asyncio, sys
from pathlib import Path
from localfleet.kubeclient import connect
async def main():
    sys.stdin.read()
    async with connect(Path(sys.argv[1])) as client:
        for number in range(1, 10):
            body = {"metadata": {"name": f"a-{number}"}}
            await client.request("POST", "/api/v1/namespaces/default/configmaps", body)
asyncio.run(main())
"""


class Watch:
    """One watch through the proxy, read as it comes."""

    def __init__(self, events: AsyncIterator[Manifest]) -> None:
        self.seen: list[str] = []
        self.codes: list[int] = []
        self.ended = False
        self._events = events

    async def read(self) -> None:
        async for event in self._events:
            if event["type"] == "ERROR":
                self.codes.append(event["object"]["code"])
            elif event["type"] != "BOOKMARK":
                self.seen.append(f"{event['type']} {event['object']['metadata']['name']}")
        self.ended = True

    async def until(self, *wanted: str) -> None:
        async def all_seen() -> bool:
            return self.seen[-len(wanted) :] == list(wanted)

        await eventually(f"the watch to end with {wanted}, it has {self.seen}", all_seen)

    async def until_ended(self) -> None:
        async def over() -> bool:
            return self.ended

        await eventually("the watch to end", over)


@asynccontextmanager
async def watching(proxy: FaultProxy, client: KubeClient) -> AsyncGenerator[Watch]:
    """A watch from now on, open on both sides of the proxy."""
    version = (await client.request("GET", MAPS))["metadata"]["resourceVersion"]
    watch = Watch(client.watch(MAPS, {"resourceVersion": version}))
    reading = asyncio.ensure_future(watch.read())

    async def opened() -> bool:
        return (await proxy.status())["open_watches"] == 1

    try:
        await eventually("the watch to be open", opened)
        yield watch
    finally:
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)


async def test_a_watch_passes_events_on_and_its_end_is_recorded(between: Between) -> None:
    proxy, through, beside = between
    async with watching(proxy, through) as watch:
        await beside.request("POST", MAPS, config_map("a"))
        await beside.request("DELETE", f"{MAPS}/a")
        await watch.until("ADDED a", "DELETED a")

    record = await proxy.wait_for("the watch to be recorded", lambda record: record.call.verb == "watch")
    assert record.outcome == "watch cut by the client"
    assert (await proxy.status())["open_watches"] == 0


async def test_held_events_come_late_in_order_and_all(between: Between) -> None:
    proxy, through, beside = between
    async with watching(proxy, through) as watch:
        rule = await proxy.add(Rule(Match(resource="configmaps"), HoldEvents()))
        for name in ("a", "b"):
            await beside.request("POST", MAPS, config_map(name))

        async def holding() -> bool:
            return await proxy.fired(rule) == 1

        await eventually("the proxy to hold", holding)
        assert watch.seen == []
        await proxy.remove(rule)
        await watch.until("ADDED a", "ADDED b")

        await proxy.add(Rule(Match(resource="configmaps"), HoldEvents(seconds=0.2)))
        await beside.request("POST", MAPS, config_map("c"))
        await watch.until("ADDED b", "ADDED c")


async def test_omitted_events_never_come(between: Between) -> None:
    proxy, through, beside = between
    async with watching(proxy, through) as watch:
        await proxy.add(Rule(Match(), OmitEvents(types=("DELETED",), name="a")))
        await beside.request("POST", MAPS, config_map("a"))
        await beside.request("DELETE", f"{MAPS}/a")
        await beside.request("POST", MAPS, config_map("a"))

        await watch.until("ADDED a", "ADDED a")


async def test_watches_are_closed_and_declared_gone_on_demand(between: Between) -> None:
    proxy, through, beside = between
    async with watching(proxy, through) as watch:
        await proxy.add(Rule(Match(resource="configmaps"), CloseWatch(), times=1))
        await watch.until_ended()
    async with watching(proxy, through) as watch:
        await proxy.add(Rule(Match(resource="secrets"), InjectGone(), times=1))
        await beside.request("POST", MAPS, config_map("a"))
        await watch.until("ADDED a")
        await proxy.add(Rule(Match(resource="configmaps"), InjectGone(), times=1))
        await watch.until_ended()
        assert watch.codes == [410]

    outcomes = [record.outcome for record in await proxy.calls() if record.call.verb == "watch"]
    assert outcomes == ["closed by a rule", "declared gone"]


async def test_watches_close_after_their_time(between: Between) -> None:
    proxy, through, _ = between
    await proxy.add(Rule(Match(verbs=("watch",)), CloseWatch(seconds=0.3)))
    async with watching(proxy, through) as watch:
        await watch.until_ended()

    record = await proxy.wait_for("the watch to be recorded", lambda record: record.call.verb == "watch")
    assert record.seconds >= 0.3


async def test_a_reset_replays_from_its_seed(between: Between) -> None:
    proxy, through, _ = between

    await proxy.reset(seed=4)

    async def pattern() -> list[str]:
        await proxy.add(Rule(Match(verbs=("list",), probability=0.5), Answer(503)))
        for _ in range(12):
            try:
                await through.request("GET", MAPS)
            except ApiError as error:
                assert error.status == 503
        return [record.outcome for record in await proxy.calls()]

    first = await pattern()
    await proxy.reset(seed=4)
    second = await pattern()
    await proxy.reset(seed=5)

    assert first == second != await pattern()
    assert set(first) == {"answered", "answered by a rule"}


async def test_a_rule_without_meaning_is_refused_with_its_reason(between: Between) -> None:
    proxy, _, _ = between
    with pytest.raises(FaultProxyError, match="no rule 99"):
        await proxy.remove(99)


async def test_kubectl_works_through_it(between: Between, server: ApiServer, folder: Path) -> None:
    _, _, beside = between
    kubectl = [server.binaries["kubectl"], "--kubeconfig", folder / "kubeconfig"]

    async def run(*arguments: str, text: str = "") -> str:
        process = await asyncio.create_subprocess_exec(*kubectl, *arguments, stdin=-1, stdout=-1)
        output, _ = await process.communicate(text.encode())
        assert process.returncode == 0, arguments
        return output.decode()

    await run("apply", "--server-side", "-f-", text=json.dumps(config_map("a", key="1")))
    assert await run("get", "configmap", "a", "-o", "jsonpath={.data.key}") == "1"
    await run("wait", "configmap/a", "--for=jsonpath={.data.key}=1", "--timeout=60s")
    await run("delete", "configmap", "a")
    assert "a" not in await names(beside)


async def test_start_runs_a_proxy_of_its_own_and_ends_it(server: ApiServer, tmp_path: Path) -> None:
    async with start(server.kubeconfig, tmp_path, seed=9) as proxy, connect(proxy.kubeconfig) as client:
        assert (await proxy.status())["seed"] == 9
        assert (await client.request("GET", "/version"))["gitVersion"]

    async with connect(tmp_path / "faultproxy.kubeconfig") as client:
        with pytest.raises(aiohttp.ClientConnectionError):
            await client.request("GET", "/version")
