"""The real Helm on a real API server: what it does, what it says, and what is left when it is ended in the middle."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web

from kubeloop.cache.connection import Connection
from kubeloop.cache.store import Store
from kubeloop.cache.watches import Watched
from kubeloop.client.access import Access, read_kubeconfig, write_kubeconfig
from kubeloop.client.kube import connect
from kubeloop.errors import NotLeading
from kubeloop.helm.command import CPU_SECONDS, OF_A_FILE, HelmError
from kubeloop.helm.driver import Helm, digest_of, locate_chart
from kubeloop.helm.records import mark_failed, revisions
from kubeloop.helm.release import Release, Revision, Run
from kubeloop.objects import Key
from kubeloop.types import CONFIG_MAP, SECRET
from localfleet.faultproxy.client import FaultProxy
from localfleet.faultproxy.rules import Answer, Match, Rule
from localfleet.network import free_ports
from modelplane_operator.api import labels
from tests.support.api import Api
from tests.support.charts import pack
from tests.support.helm import kill, noted_helm, process
from tests.support.waiting import until

CANARY = "canary-of-a-token"
OURS = {labels.OWNER_UID: "o1", labels.OWNER_KIND: "ServingStack", labels.OWNER_NAME: "east"}


class Scene:
    """A cluster, a mirror with charts of one name, and a Helm that notes how it is called."""

    def __init__(self, cluster: Connection, namespace: str, folder: Path, helm: Helm) -> None:
        self.cluster, self.namespace, self.folder, self.helm = cluster, namespace, folder, helm
        self.key = Key(namespace, "mp-cert-manager")

    def release(self, version: str = "v1.0.0", owner: str = "o1", **values: object) -> Release:
        return Release(
            self.key, "cert-manager", "https://charts.example", version, values, {**OURS, labels.OWNER_UID: owner}
        )

    async def ended(self, key: Key | None = None) -> Run:
        def over() -> bool:
            run = self.helm.runs(self.cluster.name).get(key or self.key)
            return run is not None and run.ended is not None

        await until(over, "Helm to end")
        run = self.helm.runs(self.cluster.name).get(key or self.key)
        assert run is not None
        return run

    async def install(self, release: Release | None = None, *, wait: bool = False) -> Run:
        self.helm.install(self.cluster, release or self.release(), wait=wait)
        return await self.ended()

    def records(self) -> tuple[Revision, ...]:
        """What is known of the release without asking anybody."""
        seen = self.cluster.find(SECRET)
        return revisions(seen or ()).get(self.key, ())

    def states(self) -> list[tuple[int, str]]:
        return [(revision.number, revision.status) for revision in self.records()]

    async def running(self) -> None:
        """Wait until Helm hangs in its hook."""
        await until(lambda: any(one.status.startswith("pending") for one in self.records()), "Helm to be at work")

    async def deployed(self) -> dict[str, object]:
        config = await self.cluster.kube.get(CONFIG_MAP, self.key)
        return json.loads(config["data"]["values"])


@pytest.fixture
async def cluster(access: Access) -> AsyncIterator[Connection]:
    async with connected(access) as cluster:
        yield cluster


@asynccontextmanager
async def connected(access: Access) -> AsyncIterator[Connection]:
    async with asyncio.TaskGroup() as group:
        store = Store(asyncio.get_running_loop().time)
        cluster = Connection("east", access, [Watched(SECRET, bare=True)], store, jitter=lambda: 0.5)
        running = group.create_task(cluster.run())
        await until(lambda: cluster.synced and cluster.health.answers, "the first list")
        yield cluster
        running.cancel()


@pytest.fixture
async def scene(cluster: Connection, namespace: str, tmp_path: Path) -> AsyncIterator[Scene]:
    mirror, folder = tmp_path / "mirror", tmp_path / "runs"
    mirror.mkdir()
    folder.mkdir()
    for version in ("v1.0.0", "v1.1.0"):
        pack(mirror, "cert-manager", version)
    helm = Helm(
        lambda: datetime.now(UTC),
        executable=str(noted_helm(tmp_path)),
        mirror=str(mirror),
        timeout=20.0,
        environment={"PATH": os.environ["PATH"]},
        folder=folder,
    )
    yield Scene(cluster, namespace, tmp_path, helm)
    kill(tmp_path)
    await helm.close(20)


@pytest.mark.parametrize(
    ("repository", "mirror", "found"),
    [
        ("https://a.example/charts", "", ("toy", "https://a.example/charts")),
        ("oci://a.example/charts/", "", ("oci://a.example/charts/toy", None)),
        ("https://a.example/charts", "oci://m.example/all", ("oci://m.example/all/toy", None)),
        ("oci://a.example/charts", "http://m.example:8080", ("toy", "http://m.example:8080")),
    ],
)
def test_a_mirror_stands_for_every_repository(repository: str, mirror: str, found: tuple[str, str | None]) -> None:
    assert locate_chart(Release(Key("a", "b"), "toy", repository, "v1"), mirror) == found


@pytest.mark.parametrize("packed", ["v1.0.0", "1.0.0"])
def test_a_folder_has_a_chart_with_or_without_the_v_of_its_version(packed: str, tmp_path: Path) -> None:
    package = pack(tmp_path, "toy", packed)
    asked = Release(Key("a", "b"), "toy", "oci://a.example", "v1.0.0")

    assert locate_chart(asked, str(tmp_path)) == (str(package), None)
    with pytest.raises(HelmError, match=r"the chart mirror has no toy-v2\.0\.0\.tgz: add it to "):
        locate_chart(replace(asked, version="v2.0.0"), str(tmp_path))


@pytest.mark.fleet
@pytest.mark.parametrize(
    "wrong",
    [
        {"chart": "../../etc/charts/toy"},
        {"chart": "/etc/charts/toy"},
        {"chart": "--post-renderer=/bin/sh"},
        {"chart": ""},
        {"version": "../../v1.0.0"},
        {"version": "--devel"},
        {"version": "1.0.0\n"},
        {"repository": "/var/run/secrets"},
        {"repository": "file:///var/run/secrets"},
    ],
    ids=str,
)
def test_what_is_no_chart_is_not_given_to_helm(wrong: dict[str, str]) -> None:
    with pytest.raises(HelmError, match=r"cannot be a chart|is no repository"):
        locate_chart(replace(Release(Key("a", "b"), "toy", "https://a.example/charts", "v1"), **wrong), "")


@pytest.mark.parametrize("version", ["v1.0.0", "1.x", ">=1.2, <2.0", "^1.2", "~1.2.3-beta.1+build", "*"])
def test_a_range_of_versions_is_a_version(version: str) -> None:
    asked = Release(Key("a", "b"), "toy", "https://a.example/charts", version)
    assert locate_chart(asked, "") == ("toy", "https://a.example/charts")


@pytest.mark.parametrize(
    ("namespace", "name", "version"),
    [
        ("apps", "--kube-apiserver=https://elsewhere.example.com", "1"),
        ("apps", "-A", "1"),
        ("apps", "a,owner!=helm", "1"),
        ("--all", "a", "1"),
        ("apps", "a" * 54, "1"),
        ("apps", "", "1"),
        ("apps", "a", "²"),
        ("apps", "a", "9" * 5000),
        ("apps", "a", "1"),
    ],
    ids=lambda text: text[:30],
)
def test_records_that_helm_cannot_have_written_are_passed_over(namespace: str, name: str, version: str) -> None:
    metadata = {
        "namespace": namespace,
        "name": "record",
        "uid": "1",
        "resourceVersion": "1",
        "creationTimestamp": "2026-11-22T12:00:00Z",
        "labels": {"owner": "helm", "name": name, "version": version, "modifiedAt": "²"},
    }
    found = revisions([{"metadata": metadata}])
    assert bool(found) == ((namespace, name, version) == ("apps", "a", "1"))


@pytest.mark.fleet
async def test_what_cannot_be_a_release_is_not_given_to_helm(scene: Scene) -> None:
    for key in (Key("apps", "--kubeconfig=/etc/other"), Key("--all-namespaces", "a"), Key("apps", "a b")):
        with pytest.raises(HelmError, match="cannot be a Helm release"):
            scene.helm.uninstall(scene.cluster, key)
    assert scene.helm.runs(scene.cluster.name) == {}


@pytest.mark.fleet
def test_a_kubeconfig_that_is_written_is_read_the_same(api: Api) -> None:
    access = read_kubeconfig(api.server.kubeconfig.read_text())
    proxied = replace(access, token=CANARY, proxy="http://proxy.example", server_name="other")
    waived = replace(access, authority="", verify=False)

    assert [read_kubeconfig(write_kubeconfig(one)) for one in (access, proxied, waived)] == [access, proxied, waived]


@pytest.mark.fleet
async def test_an_install_is_known_as_soon_as_it_ends(scene: Scene) -> None:
    release = scene.release(replicas=2)
    run = await scene.install(release)

    assert (run.verb, run.error, run.digest) == ("install", "", release.digest)
    (record,) = scene.records()
    assert (record.status, record.digest, record.owner) == ("deployed", release.digest, "o1")
    contents = await scene.helm.contents(scene.cluster, [record])
    held = contents[scene.key, 1]
    assert (held.chart, held.version, held.values) == ("cert-manager", "v1.0.0", {"replicas": 2})
    assert await scene.deployed() == {"replicas": 2}


@pytest.mark.fleet
async def test_what_failed_is_said_in_helms_words_and_rolled_back(scene: Scene) -> None:
    await scene.install(scene.release(replicas=1))
    bad = scene.release("v1.1.0", replicas=2, refused=True)
    runs = [await scene.install(bad), await scene.install(bad)]

    assert [run.failures for run in runs] == [1, 2]
    assert "spec.ports[0].port: Invalid value: 99999" in runs[0].error
    assert str(scene.folder) not in runs[0].error
    assert scene.states() == [(3, "failed"), (2, "failed"), (1, "deployed")]
    scene.helm.rollback(scene.cluster, scene.key, 1)
    assert (await scene.ended()).error == ""
    assert scene.states() == [(4, "deployed"), (3, "failed"), (2, "failed"), (1, "superseded")]
    assert scene.records()[0].digest == scene.records()[3].digest
    assert await scene.deployed() == {"replicas": 1}


@pytest.mark.fleet
async def test_what_is_uninstalled_is_gone_at_once(scene: Scene) -> None:
    await scene.install()
    scene.helm.uninstall(scene.cluster, scene.key)

    assert (await scene.ended()).error == ""
    assert scene.states() == []


@pytest.mark.fleet
async def test_a_chart_that_is_missing_leaves_nothing_but_words(scene: Scene) -> None:
    run = await scene.install(scene.release("v9.9.9"))

    assert run.error.startswith("the chart mirror has no cert-manager-v9.9.9.tgz")
    assert scene.states() == []


@pytest.mark.fleet
async def test_how_runs_went_is_forgotten_with_a_cluster_and_what_goes_on_is_not(scene: Scene) -> None:
    where = scene.cluster.name
    scene.helm.install(scene.cluster, scene.release("v9.9.9"), wait=False)
    scene.helm.forget(where)
    assert scene.helm.runs(where)

    await scene.ended()
    assert scene.helm.runs(where)
    scene.helm.forget(where)
    assert not scene.helm.runs(where)


@pytest.mark.fleet
async def test_a_chart_is_installed_only_as_the_archive_that_is_wanted(scene: Scene) -> None:
    asked, of_another = scene.release(), f"sha256:{'0f' * 32}"
    archive = digest_of(scene.folder / "mirror" / "cert-manager-v1.0.0.tgz")

    scene.helm.tested = lambda _: of_another
    said = f"the archive of chart cert-manager v1.0.0 is {archive}, and {of_another} {{}}: nothing was installed"
    untested = await scene.install(asked)
    assert untested.error == f"{said.format('was tested')} (setting chart-digests)"
    other = await scene.install(replace(asked, archive=of_another))
    assert other.error == said.format("is required")
    assert scene.states() == []
    assert not (scene.folder / "argv").exists(), "Helm was not even called"
    run = await scene.install(replace(asked, archive=archive))
    assert run.error == "", "whoever asks for another archive than the tested one gets that"
    (record,) = scene.records()
    assert (await scene.helm.contents(scene.cluster, [record]))[scene.key, 1].archive == archive


@pytest.mark.fleet
async def test_a_chart_of_a_repository_is_checked_before_it_is_installed(scene: Scene) -> None:
    """By the real Helm, from a repository on loopback that gives another archive than was tested."""
    mirror = scene.folder / "mirror"
    archive = digest_of(mirror / "cert-manager-v1.0.0.tgz")
    chart = {"name": "cert-manager", "version": "v1.0.0", "urls": ["cert-manager-v1.0.0.tgz"]}
    (mirror / "index.yaml").write_text(json.dumps({"apiVersion": "v1", "entries": {"cert-manager": [chart]}}))
    async with serving(mirror) as url:
        scene.helm.mirror = url
        wrong = await scene.install(replace(scene.release(), archive=f"sha256:{'0f' * 32}"))
        right = await scene.install(replace(scene.release(), archive=archive))

    assert archive in wrong.error
    assert right.error == ""
    assert await scene.deployed() == {}


@pytest.mark.fleet
async def test_charts_come_by_the_proxies_of_the_environment_and_the_cluster_is_reached_as_its_kubeconfig_says(
    scene: Scene,
) -> None:
    mirror = scene.folder / "mirror"
    chart = {"name": "cert-manager", "version": "v1.0.0", "urls": ["cert-manager-v1.0.0.tgz"]}
    (mirror / "index.yaml").write_text(json.dumps({"apiVersion": "v1", "entries": {"cert-manager": [chart]}}))
    scene.helm.mirror = "http://charts.invalid"
    async with serving(mirror) as url:
        assert "charts.invalid" in (await scene.install()).error
        scene.helm.environment = {**scene.helm.environment, "HTTP_PROXY": url, "HTTPS_PROXY": "http://127.0.0.1:1"}
        assert (await scene.install()).error == ""

    kube = scene.cluster.kube
    valid = kube.access
    for access, said in (
        (replace(valid, authority=""), "x509: certificate signed by unknown authority"),
        (replace(valid, server="https://cluster.invalid"), "cluster.invalid:443: host unreachable"),
    ):
        kube.renew(access)
        scene.helm.uninstall(scene.cluster, scene.key)
        assert said in (await scene.ended()).error
    kube.renew(valid)


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """The URL at which the files of a folder are served."""
    app = web.Application()
    app.router.add_static("/", folder)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


@pytest.mark.fleet
@pytest.mark.parametrize("owner", ["o2", ""])
async def test_a_strangers_release_is_left_alone(scene: Scene, owner: str) -> None:
    pack(scene.folder / "mirror", "another", "v1.0.0")
    theirs = replace(
        scene.release(owner="o2"), chart="another", labels={labels.OWNER_UID: owner} if owner else {"a": "b"}
    )
    await scene.install(theirs)
    run = await scene.install()

    assert run.error.endswith("it is left alone")
    assert run.error.startswith(f"Helm release {scene.key} exists and is ")
    (record,) = revisions((await scene.cluster.kube.list(SECRET, namespace=scene.namespace)).items)[scene.key]
    assert (record.number, record.owner) == (1, owner)


@pytest.mark.fleet
async def test_a_release_of_the_reference_is_taken_over(scene: Scene) -> None:
    await scene.install(replace(scene.release(), labels={"a": "b"}))
    assert (await scene.install()).error == ""

    assert scene.states()[0] == (2, "deployed")


@pytest.mark.fleet
async def test_a_killed_helm_leaves_a_release_that_goes_on_without_being_uninstalled(scene: Scene) -> None:
    await scene.install(scene.release(replicas=1))
    scene.helm.install(scene.cluster, scene.release(replicas=2, hang=True), wait=False)
    await scene.running()
    kill(scene.folder)
    await scene.ended()
    assert scene.states() == [(2, "pending-upgrade"), (1, "deployed")]
    blocked = await scene.install(scene.release(replicas=2))
    assert "another operation (install/upgrade/rollback) is in progress" in blocked.error

    stuck = await scene.cluster.kube.get(SECRET, scene.records()[0].secret)
    await scene.cluster.kube.replace(mark_failed(stuck))
    assert (await scene.install(scene.release(replicas=2))).error == ""
    assert scene.states() == [(3, "deployed"), (2, "failed"), (1, "superseded")]
    assert [one.interrupted for one in scene.records()] == [False, True, False]
    assert await scene.deployed() == {"replicas": 2}


@pytest.mark.fleet
async def test_a_killed_first_install_goes_on_over_what_is_there(scene: Scene) -> None:
    scene.helm.install(scene.cluster, scene.release(hang=True), wait=False)
    await scene.running()
    kill(scene.folder)
    await scene.ended()
    stuck = await scene.cluster.kube.get(SECRET, scene.records()[0].secret)
    await scene.cluster.kube.replace(mark_failed(stuck))

    assert (await scene.install()).error == ""
    assert scene.states() == [(2, "deployed"), (1, "superseded")]


@pytest.mark.fleet
@pytest.mark.skipif(sys.platform != "linux", reason="elsewhere nobody can bound another process")
async def test_a_helm_has_bounds_of_its_own_and_ends_before_the_operator_where_memory_is_short(scene: Scene) -> None:
    scene.helm.install(scene.cluster, scene.release(hang=True), wait=False)
    await scene.running()

    bounds = bounds_of(process(scene.folder, scene.key.name))
    assert bounds["Max data size"] == str(scene.helm.memory)
    assert (bounds["Max cpu time"], bounds["Max file size"]) == (str(CPU_SECONDS), str(OF_A_FILE))
    assert bounds["oom_score_adj"] == "1000"
    assert f"GOMEMLIMIT={scene.helm.memory * 3 // 4}\n" in (scene.folder / "environment").read_text()


def bounds_of(pid: int | None) -> dict[str, str]:
    """What Linux lets a process take."""
    place = Path(f"/proc/{pid}")
    limits = {line[:26].strip(): line[26:].split()[0] for line in (place / "limits").read_text().splitlines()}
    return {**limits, "oom_score_adj": (place / "oom_score_adj").read_text().strip()}


@pytest.mark.fleet
async def test_a_helm_that_nobody_waits_for_any_more_is_left_to_end_without_its_cluster(scene: Scene) -> None:
    """So it is when an operator ends outside a container; the next one goes on as after one that was killed."""
    scene.helm.timeout = 2.0
    scene.helm.install(scene.cluster, scene.release(hang=True), wait=False)
    await scene.running()
    (task,) = scene.helm._tasks
    task.cancel()
    await asyncio.wait({task})

    assert process(scene.folder, "mp-cert-manager")
    await until(lambda: not process(scene.folder, "mp-cert-manager"), "Helm to end by itself")
    assert scene.states() == [(1, "pending-install")]


@pytest.mark.fleet
@pytest.mark.parametrize("of", ["fleet", "cluster"])
async def test_a_release_has_one_run_at_a_time_and_the_fleet_and_each_cluster_a_few(scene: Scene, of: str) -> None:
    other = replace(scene.release(), key=Key(scene.namespace, "mp-other"))
    if of == "fleet":
        scene.helm._slots = asyncio.Semaphore(1)
    else:
        scene.helm._slots_by_cluster[scene.cluster.name] = asyncio.Semaphore(1)
    scene.helm.install(scene.cluster, scene.release(hang=True), wait=False)
    await scene.running()
    scene.helm.install(scene.cluster, scene.release(hang=True, again=True), wait=False)
    scene.helm.install(scene.cluster, other, wait=False)
    assert len(scene.helm._tasks) == 2
    assert scene.states() == [(1, "pending-install")]

    kill(scene.folder)
    await scene.ended()
    assert (await scene.ended(other.key)).error == ""
    assert (scene.folder / "argv").read_text().split().count("upgrade") == 2


@pytest.mark.fleet
async def test_who_no_longer_leads_once_its_turn_comes_begins_nothing(scene: Scene) -> None:
    held = True

    def may_write() -> None:
        if not held:
            raise NotLeading("another operator may be writing")

    scene.helm.may_write = may_write
    scene.helm._slots = asyncio.Semaphore(0)
    scene.helm.install(scene.cluster, scene.release(), wait=False)
    await asyncio.sleep(0.1)
    held = False
    scene.helm._slots.release()
    await until(lambda: not scene.helm.runs(scene.cluster.name), "the run to be given up")
    assert not scene.records()
    held = True
    assert not (await scene.install()).error


@pytest.mark.fleet
async def test_a_server_that_is_gone_is_said_and_nothing_else_happens(scene: Scene, access: Access) -> None:
    (port,) = free_ports(1)
    async with connect(replace(access, server=f"https://127.0.0.1:{port}")) as gone:
        kube, scene.cluster._kube = scene.cluster._kube, gone
        run = await scene.install()
        scene.cluster._kube = kube

    assert "Unreachable" in run.error or "refused" in run.error.lower(), run.error
    assert not (scene.folder / "argv").exists()


@pytest.mark.fleet
async def test_a_server_that_stops_answering_in_the_middle_leaves_a_release_that_goes_on(
    scene: Scene, proxy: FaultProxy
) -> None:
    await proxy.add(Rule(Match(verbs=("update",), resource="secrets"), Answer(503)))  # what Helm writes when it is done
    kube = scene.cluster.kube
    async with connected(read_kubeconfig(proxy.kubeconfig.read_text())) as behind:
        scene.helm.install(behind, scene.release(), wait=False)
        await scene.ended()  # Helm says that it went well

    await until(lambda: bool(scene.records()), "the watch to show it")
    assert scene.states() == [(1, "pending-install")]
    stuck = await kube.get(SECRET, scene.records()[0].secret)
    await kube.replace(mark_failed(stuck))
    assert (await scene.install()).error == ""
    assert scene.states()[0] == (2, "deployed")


@pytest.mark.fleet
async def test_each_run_has_the_credentials_of_its_moment(scene: Scene) -> None:
    kube = scene.cluster.kube
    valid = kube.access
    kube.renew(replace(valid, certificate="", key="", token=CANARY))
    refused = await scene.install()
    kube.renew(valid)

    assert "provide credentials" in refused.error or "Unauthorized" in refused.error, refused.error
    assert (await scene.install()).error == ""


@pytest.mark.fleet
async def test_no_credential_is_left_or_shown_anywhere(
    scene: Scene, access: Access, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    kube = scene.cluster.kube
    kube.renew(replace(access, token=CANARY))
    scene.helm.install(scene.cluster, scene.release(hang=True), wait=False)
    await scene.running()
    (folder,) = (scene.folder / "runs").iterdir()
    modes = [oct((folder / name).stat().st_mode & 0o777) for name in ("", "kubeconfig")]
    kubeconfig = (folder / "kubeconfig").read_text()
    assert CANARY in kubeconfig
    assert "proxy-url: socks5://127.0.0.1:" in kubeconfig
    kill(scene.folder)
    run = await scene.ended()

    assert modes == ["0o700", "0o600"]
    assert list((scene.folder / "runs").iterdir()) == []
    told = "".join(
        (run.error, caplog.text, (scene.folder / "argv").read_text(), (scene.folder / "environment").read_text())
    )
    assert CANARY not in told
