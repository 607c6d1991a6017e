"""The operator's process on a real API server: it begins, leads, tells how it is, is replaced, and ends."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kubeloop.client.access import Access
from kubeloop.client.kube import Kube
from kubeloop.objects import Key, key_of
from kubeloop.resource import of
from kubeloop.types import CONFIG_MAP, EVENT, LEASE
from localfleet import binaries, control_plane
from localfleet.apiserver import etcd_running, on_loopback
from localfleet.processes import start
from modelplane_operator.api import ModelCache
from modelplane_operator.operator import assemble
from modelplane_operator.settings import Settings
from tests.api.contract import rich
from tests.support.api import Api
from tests.support.manifests import ROOT
from tests.support.processes import REAL, START_SECONDS, eventually, operating
from tests.support.toy_operator import toy
from tests.support.waiting import until

pytestmark = [pytest.mark.fleet, pytest.mark.server]
# As short as a leader on a busy machine can still keep it.
QUICK = ("--lease-duration=8",)


@pytest.fixture
async def lease(kube: Kube) -> Key:
    """Where the lease of a test's operators is, and nobody else's."""
    made = await kube.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"generateName": "lease-"}})
    return Key(made["metadata"]["name"], "modelplane-operator")


@pytest.fixture
async def subject(kube: Kube, namespace: str) -> AsyncIterator[Key]:
    """What there is to reconcile: a ModelCache, the only one."""
    key = Key(namespace, "subject")
    manifest = {**rich()["ModelCache"], "metadata": {"name": key.name, "namespace": namespace}}
    made = await kube.create({part: value for part, value in manifest.items() if part != "status"})
    yield key
    await kube.delete(of(ModelCache), key, uid=made["metadata"]["uid"])


async def writer(kube: Kube, subject: Key) -> int | None:
    """The process that wrote the toy's child last."""
    found = await kube.find(CONFIG_MAP, subject)
    return int(found["data"]["writer"]) if found else None


async def test_it_leads_reconciles_tells_how_it_is_and_gives_the_lease_back(
    api: Api,
    kube: Kube,
    subject: Key,
    lease: Key,
    tmp_path: Path,
) -> None:
    with operating(api.server.kubeconfig, tmp_path, f"--lease-namespace={lease.namespace}", *QUICK) as operator:
        await operator.leads()
        assert await operator.page("/readyz") == (200, "ok\n")
        assert await operator.page("/healthz") == (200, "ok\n")

        await eventually(lambda: writer(kube, subject), lambda pid: pid == operator.pid, "the child")
        events = await eventually(
            lambda: kube.list(EVENT, namespace=subject.namespace), lambda found: len(found.items) == 1, "the event"
        )
        told = events.items[0]
        assert (told["involvedObject"]["name"], told["reason"], told["type"]) == ("subject", "Available", "Normal")
        assert told["message"] == "Ready is True: All of it"
        assert (told["count"], bool(told["lastTimestamp"])) == (1, True)
        assert "Available" in await api.kubectl("-n", subject.namespace, "describe", "modelcache", "subject")
        wrote = 'modelplane_writes_total{outcome="OK",resource="configmaps",side="hub",verb="apply"}'
        assert await operator.value(wrote) == 1.0
        assert await operator.value('modelplane_events_total{kind="ModelCache",outcome="written"}') == 1.0
        assert (await operator.value('modelplane_reconcile_seconds_count{kind="ModelCache",outcome="Done"}') or 0) >= 1

        operator.signal(signal.SIGTERM)
        assert await operator.ended(60.0) == 0
    assert (await kube.get(LEASE, lease))["spec"]["holderIdentity"] == ""
    assert [line["event"] for line in operator.lines() if line["level"] not in {"debug", "info"}] == []


async def test_it_runs_as_a_user_that_has_no_name(api: Api, lease: Key, tmp_path: Path) -> None:
    """As in its own image, and in any container whose user is but a number."""
    unnamed = ("env", *(f"--unset={name}" for name in ("LOGNAME", "USER", "LNAME", "USERNAME")))
    number = ("unshare", "--user", "--map-user=65532", "--")
    where = f"--lease-namespace={lease.namespace}"
    with operating(api.server.kubeconfig, tmp_path, where, *QUICK, within=(*unnamed, *number)) as operator:
        await operator.leads()


async def test_a_killed_leader_is_replaced(
    api: Api,
    kube: Kube,
    subject: Key,
    lease: Key,
    tmp_path: Path,
) -> None:
    """With the lease times that an operator has when nobody says otherwise; how long it takes is no matter here."""
    flags = (api.server.kubeconfig, tmp_path, f"--lease-namespace={lease.namespace}")
    with operating(*flags) as leader:
        await leader.leads()
        await eventually(lambda: writer(kube, subject), lambda pid: pid == leader.pid, "the child")
        with operating(*flags) as standby:
            await eventually(lambda: standby.page("/readyz"), lambda page: page[0] == 200, "the standby to be ready")
            assert await standby.value("modelplane_leading") == 0.0

            leader.signal(signal.SIGKILL)
            await eventually(lambda: writer(kube, subject), lambda pid: pid == standby.pid, "its work")


async def test_a_leader_that_slept_through_its_lease_writes_nothing_when_it_wakes(
    api: Api,
    kube: Kube,
    subject: Key,
    lease: Key,
    tmp_path: Path,
) -> None:
    flags = (api.server.kubeconfig, tmp_path, f"--lease-namespace={lease.namespace}", *QUICK)
    restless = {"TOY_RESTLESS": "1"}
    with operating(*flags, environment=restless) as sleeper:
        await sleeper.leads()
        await eventually(lambda: writer(kube, subject), lambda pid: pid == sleeper.pid, "the child")
        with operating(*flags, environment=restless) as standby:
            await eventually(lambda: standby.page("/readyz"), lambda page: page[0] == 200, "the standby to be ready")
            sleeper.signal(signal.SIGSTOP)
            await eventually(lambda: writer(kube, subject), lambda pid: pid == standby.pid, "the standby's work")
            async with wrote(kube, subject.namespace) as writers:
                sleeper.signal(signal.SIGCONT)
                await eventually(lambda: asyncio.sleep(0, sleeper.said("lease lost")), bool, "it to notice")
                seen = len(writers)
                await until(lambda: len(writers) > seen + 2, "the standby to go on")
            assert set(writers) == {standby.pid}


@asynccontextmanager
async def wrote(kube: Kube, namespace: str) -> AsyncIterator[list[int]]:
    """The processes that write the toy's child meanwhile, each time they do."""
    writers: list[int] = []
    listing = await kube.list(CONFIG_MAP, namespace=namespace)

    async def follow() -> None:
        async for seen in kube.watch(CONFIG_MAP, listing.version, seconds=120, namespace=namespace):
            if seen.type != "BOOKMARK":
                writers.append(int(seen.manifest["data"]["writer"]))

    async with asyncio.TaskGroup() as group:
        following = group.create_task(follow())
        yield writers
        following.cancel()


async def test_whoever_tells_it_twice_is_in_a_hurry(
    api: Api,
    kube: Kube,
    subject: Key,
    lease: Key,
    tmp_path: Path,
) -> None:
    flags = (f"--lease-namespace={lease.namespace}", *QUICK)
    with operating(api.server.kubeconfig, tmp_path, *flags, environment={"TOY_SLOWLY": "1"}) as operator:
        await operator.leads()
        running = 'modelplane_reconciles_running{kind="ModelCache"}'
        await eventually(lambda: operator.value(running), lambda value: value == 1.0, "a reconcile under way")
        operator.signal(signal.SIGINT)
        await eventually(lambda: asyncio.sleep(0, operator.said("stopping")), bool, "it to hear")
        operator.signal(signal.SIGINT)

        assert await operator.ended(50.0) == 128 + signal.SIGINT, "it ended as after one signal"


async def test_a_stop_waits_for_what_is_under_way(
    access: Access,
    kube: Kube,
    subject: Key,
    lease: Key,
) -> None:
    began, go_on, stop = asyncio.Event(), asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        began.set()
        await go_on.wait()

    settings = Settings(lease_namespace=lease.namespace, listen=("127.0.0.1", 0))
    async with asyncio.timeout(START_SECONDS), asyncio.TaskGroup() as group:
        running = group.create_task(assemble(settings, access, toy(pause)).run(stop))
        await began.wait()
        stop.set()
        await asyncio.sleep(0.1)
        assert not running.done()
        assert (await kube.get(LEASE, lease))["spec"]["holderIdentity"], "the lease is kept while something runs"
        go_on.set()
        await running

    assert await writer(kube, subject) == os.getpid()
    assert (await kube.get(LEASE, lease))["spec"]["holderIdentity"] == ""


async def test_a_stop_does_not_wait_for_ever(access: Access, kube: Kube, subject: Key, lease: Key) -> None:
    began, stop = asyncio.Event(), asyncio.Event()

    async def pause() -> None:
        began.set()
        await asyncio.Event().wait()

    settings = Settings(lease_namespace=lease.namespace, listen=("127.0.0.1", 0))
    async with asyncio.timeout(START_SECONDS), asyncio.TaskGroup() as group:
        group.create_task(replace(assemble(settings, access, toy(pause)), stop_grace=0.2).run(stop))
        await began.wait()
        stop.set()

    assert (await kube.get(LEASE, lease))["spec"]["holderIdentity"] == ""


async def test_an_operator_that_is_there_before_its_hub_waits_and_says_what_for(tmp_path: Path) -> None:
    programs = binaries.ensure("etcd", "kube-apiserver", "kubectl")
    layout = on_loopback(tmp_path / "hub")
    layout.folder.mkdir()
    control_plane.write_credentials(layout)
    with ExitStack() as undo:
        operator = undo.enter_context(operating(layout.kubeconfig, tmp_path, module=REAL))
        await eventually(lambda: operator.page("/readyz"), lambda page: page[0] == 503, "it to listen")
        assert await operator.page("/healthz") == (200, "ok\n"), "no restart brings the hub back"
        said = await eventually(lambda: asyncio.sleep(0, operator.said("cluster health")), bool, "it to say so")
        assert said[0]["error"].startswith("GET /readyz: Connection refused: nothing listens there; check ")

        await asyncio.to_thread(undo.enter_context, etcd_running(layout, programs))
        server = start(control_plane.api_server(layout, programs, "--disable-admission-plugins=ServiceAccount"))
        undo.callback(server.end)
        said = await eventually(lambda: asyncio.sleep(0, operator.said("CRDs missing")), bool, "it to ask for them")
        assert "ModelDeployment" in said[0]["kinds"]
        assert said[0]["remedy"].startswith("kubectl apply --server-side --force-conflicts -f ")
        status, text = await operator.page("/readyz")
        assert (status, text.startswith("the hub has no definitions of ")) == (503, True)
        assert await operator.value("modelplane_leading") == 0.0

        operator.signal(signal.SIGTERM)
        assert await operator.ended(60.0) == 0


async def test_an_address_that_is_taken_is_said_in_one_line(api: Api, tmp_path: Path) -> None:
    async with AsyncExitStack() as undo:
        taken = await undo.enter_async_context(await asyncio.start_server(lambda *_: None, "127.0.0.1", 0))
        address = f"--listen=127.0.0.1:{taken.sockets[0].getsockname()[1]}"
        process = await asyncio.create_subprocess_exec(
            sys.executable, "-m", REAL, "run", f"--kubeconfig={api.server.kubeconfig}", address,
            stderr=asyncio.subprocess.PIPE, cwd=ROOT,
        )  # fmt: skip
        async with asyncio.timeout(START_SECONDS):
            _, said = await process.communicate()
    assert process.returncode == 1
    assert "address already in use" in said.decode().splitlines()[-1]


async def test_an_object_that_ends_the_process_twice_is_quarantined_until_it_is_changed(
    api: Api, kube: Kube, namespace: str, lease: Key, tmp_path: Path
) -> None:
    caches, folder = of(ModelCache), tmp_path / "record"
    flags = (*QUICK, f"--lease-namespace={lease.namespace}", f"--crash-record={folder}")
    made = [
        await kube.create({**rich()["ModelCache"], "metadata": {"name": name, "namespace": namespace}})
        for name in ("deadly", *(f"other-{number}" for number in range(8)))
    ]
    for _ in range(2):
        with operating(api.server.kubeconfig, tmp_path, *flags) as process:
            assert await process.ended(START_SECONDS) == -signal.SIGKILL
        await kube.delete(LEASE, lease, uid=(await kube.get(LEASE, lease))["metadata"]["uid"])

    def synced(name: str) -> Callable[[], Any]:
        async def ask() -> tuple[str, str]:
            conditions = (await kube.get(caches, Key(namespace, name))).get("status", {}).get("conditions", [])
            return next(((one["reason"], one["message"]) for one in conditions if one["type"] == "Synced"), ("", ""))

        return ask

    with operating(api.server.kubeconfig, tmp_path, *flags) as process:
        _, told = await eventually(synced("deadly"), lambda said: said[0] == "Quarantined", "the quarantine to be told")
        assert "modelplane.ai/retry" in told
        for number in range(8):
            await eventually(synced(f"other-{number}"), lambda said: said[0] == "ReconcileSuccess", "the others' turns")
        assert await process.value('modelplane_quarantined{kind="ModelCache"}') == 1.0

        await api.kubectl("-n", namespace, "annotate", "modelcache", "deadly", "modelplane.ai/retry=mended")
        await eventually(synced("deadly"), lambda said: said[0] == "ReconcileSuccess", "it to be tried again")
        assert await process.value('modelplane_quarantined{kind="ModelCache"}') == 0.0
        process.signal(signal.SIGTERM)
        assert await process.ended(60) == 0
    for one in made:
        await kube.delete(caches, key_of(one), uid=one["metadata"]["uid"])
