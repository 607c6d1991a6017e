"""Runs Helm: one run at a time for a release, a limited number for the fleet, none of them ever cancelled.

    helm.install(cluster, release, wait=False)        starts a run and returns at once
    helm.runs(cluster.name)[release.key]              the state of the latest run

A run takes seconds to minutes, so reconciles start it and observe the result later. The state of a release is not
remembered here but read from Helm's Secrets (`records.py`), which survive a restart of the operator. Only the message
of a run that fails before it has written anything is kept here.

A Helm process that is killed leaves its release pending, which Helm itself never repairs. So none is killed: each runs
in its own session, and writes its output to files. When the operator ends, a run loses the proxy to its cluster
(`proxy.py`) and stays pending; the next process of the operator handles that.
"""

from __future__ import annotations

import asyncio
import hashlib
import re
import shutil
import tempfile
import time
from collections.abc import Awaitable, Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from datetime import datetime
from pathlib import Path
from typing import Protocol

import structlog

from kubeloop.cache.informer import Informer
from kubeloop.client.access import Access, write_kubeconfig
from kubeloop.client.kube import Kube
from kubeloop.client.limits import MIB
from kubeloop.errors import ClientError, Foreign, NotLeading
from kubeloop.helm.command import MAX_MESSAGE, OUTLIVED, HelmCommand, HelmError
from kubeloop.helm.definitions import read_chart_definitions, upgrade_definitions
from kubeloop.helm.proxy import proxy_to
from kubeloop.helm.records import content, may_be_a_release, revisions
from kubeloop.helm.release import ARCHIVE, VERSION_PATTERN, Release, Revision, RevisionContent, Run, Verb
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.tracing import start_span
from kubeloop.types import SECRET, ResourceType

MAX_PER_CLUSTER = 2  # concurrent runs, so that a cluster that hangs does not delay others
FOLDER = "modelplane-helm-"
_CHART = re.compile("[a-zA-Z0-9][-a-zA-Z0-9._]{0,127}")
_VERSION = re.compile(VERSION_PATTERN)

log = structlog.get_logger()


class HelmTarget(Protocol):
    """A cluster, as Helm needs it."""

    @property
    def name(self) -> str: ...

    @property
    def kube(self) -> Kube: ...

    def find(self, kind: ResourceType) -> Informer | None: ...


@dataclass(slots=True)
class Helm:
    """Runs Helm. `environment` is passed to its processes: PATH, proxies, registry logins."""

    now: Callable[[], datetime]
    executable: str = "helm"
    """The Helm binary."""
    mirror: str = ""
    """The source of all charts, instead of their repositories: a folder, a URL, or `oci://...`; empty for none."""
    tested: Callable[[Release], str | None] | None = None
    """Returns the digest of the chart archive that was tested, if known. Another archive is installed only on
    request."""
    at_once: int = 8  # each takes some 60 MB
    """The number of concurrent runs."""
    timeout: float = 300.0
    """The timeout of a run in seconds."""
    memory: int = 384 * MIB
    """The memory limit of a run in bytes. A hostile API server may send data without end."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    """The parent of the runs' temporary folders."""
    may_write: Callable[[], None] = lambda: None  # without a lease there is no other process that writes
    """Raises NotLeading if another process may be writing. Checked when a run starts, which may have waited long."""
    _runs: dict[tuple[str, Key], Run] = field(default_factory=dict[tuple[str, Key], Run], init=False)
    """The current or latest run by cluster and release."""
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    """The tasks of current runs."""
    _slots: asyncio.Semaphore = field(init=False)
    _slots_by_cluster: dict[str, asyncio.Semaphore] = field(default_factory=dict[str, asyncio.Semaphore], init=False)
    """The limits on concurrent runs by cluster."""
    _contents: dict[str, dict[tuple[str, str], RevisionContent]] = field(
        default_factory=dict[str, dict[tuple[str, str], RevisionContent]], init=False
    )
    """The contents of revisions by cluster, uid and resourceVersion."""

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)

    @property
    def patience(self) -> float:
        """The seconds after which no Helm process can still be working on its last write, including those of other
        processes."""
        return self.timeout + 2 * OUTLIVED

    # State ------------------------------------------------------------------------------------------------------------

    def runs(self, cluster: str) -> Mapping[Key, Run]:
        """Return the current or latest runs on a cluster by release."""
        return {release: run for (run_cluster, release), run in self._runs.items() if run_cluster == cluster}

    async def contents(
        self, cluster: HelmTarget, revisions: Iterable[Revision]
    ) -> Mapping[tuple[Key, int], RevisionContent]:
        """Return the contents of these revisions.

        Each is read once, and dropped when it is not requested any longer.
        """
        cached = self._contents.get(cluster.name, {})
        retained: dict[tuple[str, str], RevisionContent] = {}
        result: dict[tuple[Key, int], RevisionContent] = {}
        for revision in revisions:
            identity = (revision.uid, revision.version)
            if (revision_content := cached.get(identity)) is None:
                secret = await cluster.kube.find(SECRET, revision.secret)
                if secret is None:
                    continue
                revision_content = await asyncio.to_thread(content, secret)
            retained[identity] = result[revision.release, revision.number] = revision_content
        self._contents[cluster.name] = retained
        return result

    # Runs -------------------------------------------------------------------------------------------------------------

    def install(self, cluster: HelmTarget, release: Release, *, wait: bool, definitions: bool = False) -> None:
        """Start to install or upgrade a release. `wait`: the run fails if its pods do not become ready. `definitions`:
        those in the chart's `crds/` are upgraded before it, which Helm never does.
        """

        async def install_release(command: HelmCommand) -> None:
            """Check the owner of the release, fetch and check the chart, and install it."""
            await self._reject_foreign(cluster, release)
            package = await command.fetch(*locate_chart(release, self.mirror), release.version)
            archive = await asyncio.to_thread(digest_of, package)
            if rejection := self._check_archive(release, archive):
                raise HelmError(f"the archive of chart {release.chart} {release.version} is {archive}, {rejection}")
            if definitions:
                chart_definitions = await asyncio.to_thread(read_chart_definitions, package)
                await upgrade_definitions(cluster.kube, chart_definitions, self.may_write)
            labels = {**release.labels, names().release: release.digest}
            command.extra = ("--labels", ",".join(f"{name}={value}" for name, value in sorted(labels.items())))
            await command.install_or_upgrade(
                release.key.name,
                package,
                release.values,
                namespace=release.key.namespace,
                description=f"{ARCHIVE}{archive}",
                reset_values=True,
                wait=wait,
            )

        self._begin(cluster, release.key, "install", install_release, digest=release.digest)

    def rollback(self, cluster: HelmTarget, release: Key, revision: int) -> None:
        """Start to roll a release back to a revision."""

        async def roll_back(command: HelmCommand) -> None:
            await command.rollback(release.name, revision, namespace=release.namespace)

        self._begin(cluster, release, "rollback", roll_back)

    def uninstall(self, cluster: HelmTarget, release: Key) -> None:
        """Start to uninstall a release."""

        async def uninstall_release(command: HelmCommand) -> None:
            await command.uninstall(release.name, namespace=release.namespace)

        self._begin(cluster, release, "uninstall", uninstall_release)

    def forgive(self, cluster: str) -> None:
        """Reset the failure counts of a cluster that is reachable again, so that its runs are retried at once."""
        for location, run in self._runs.items():
            if location[0] == cluster and run.error:
                self._runs[location] = replace(run, failures=0)

    def forget(self, cluster: str) -> None:
        """Drop finished runs of a cluster, because its name now belongs to another cluster."""
        self._contents.pop(cluster, None)
        for location in [
            location for location, run in self._runs.items() if location[0] == cluster and run.ended is not None
        ]:
            del self._runs[location]

    async def close(self, seconds: float) -> None:
        """Wait for current runs for this many seconds. Those that take longer continue by themselves."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # Implementation ---------------------------------------------------------------------------------------------------

    def _begin(
        self,
        cluster: HelmTarget,
        release: Key,
        verb: Verb,
        work: Callable[[HelmCommand], Awaitable[None]],
        *,
        digest: str = "",
    ) -> None:
        """Start a run in a task, unless one is in progress for the release; raises HelmError for an invalid name."""
        if not may_be_a_release(release):
            raise HelmError(f"{str(release)[:MAX_MESSAGE]!r} cannot be a Helm release")
        location = (cluster.name, release)
        previous = self._runs.get(location)
        if previous is not None and previous.ended is None:
            return
        is_retry = previous is not None and (previous.verb, previous.digest) == (verb, digest)
        self._runs[location] = Run(verb, self.now(), digest, failures=previous.failures if previous and is_retry else 0)
        task = asyncio.create_task(self._run(cluster, release, work), name=f"helm {verb} {release} on {cluster.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, cluster: HelmTarget, release: Key, work: Callable[[HelmCommand], Awaitable[None]]) -> None:
        """Run Helm when there is a slot, and record the result."""
        location = (cluster.name, release)
        run, error = self._runs[location], ""
        slots = self._slots_by_cluster.setdefault(cluster.name, asyncio.Semaphore(MAX_PER_CLUSTER))
        attributes = {"modelplane.cluster": cluster.name or "hub", "modelplane.namespace": release.namespace}
        try:
            with start_span(f"helm {run.verb}", {**attributes, "modelplane.release": release.name}):
                async with slots, self._slots:
                    access = cluster.kube.access
                    with _private_folder(self.folder, self.patience) as folder:
                        async with proxy_to(access) as proxy:
                            await work(self._create_command(cluster.name, replace(access, proxy=proxy), folder))
        except NotLeading:
            del self._runs[location]  # left to the process that leads now
            return
        except ClientError as caught:
            error = str(caught)
        except Exception as caught:  # a defect of ours must not leave the release locked
            log.exception("helm run failed", cluster=cluster.name, release=str(release))
            error = f"internal error ({type(caught).__name__}); the operator's log has the details"
        try:
            with suppress(ClientError):  # the watch delivers the records too, a little later
                await self._refresh_records(cluster, release)
        finally:
            failures = run.failures + 1 if error else 0
            self._runs[location] = replace(run, ended=self.now(), error=error, failures=failures)
        log.info("helm run ended", cluster=cluster.name, release=str(release), verb=run.verb, error=error)

    def _create_command(self, cluster: str, access: Access, folder: Path) -> HelmCommand:
        """Create the command for a run, with a kubeconfig and home folders of its own."""
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(write_kubeconfig(access))
        homes = {f"HELM_{kind}_HOME": str(folder / kind.lower()) for kind in ("CACHE", "CONFIG", "DATA")}
        return HelmCommand(
            self.executable,
            kubeconfig,
            {"HOME": str(folder), "GOMEMLIMIT": str(self.memory * 3 // 4), **self.environment, **homes},
            self.timeout,
            self.memory,
            self.may_write,
        )

    def _check_archive(self, release: Release, archive: str) -> str:
        """Return why a chart's archive must not be installed; empty if it may."""
        tested = self.tested(release) if self.tested else None
        match release.archive, tested:
            case (str(expected), _) if expected != archive:
                return f"and {expected} is required: nothing was installed"
            case (None, str(expected)) if expected != archive:
                return f"and {expected} was tested: nothing was installed (setting chart-digests)"
            case _:
                return ""

    async def _reject_foreign(self, cluster: HelmTarget, release: Release) -> None:
        """Raise Foreign if the release belongs to another owner.

        A release `mp-CHART` of the reference operator is taken over.
        """
        existing = revisions(await _records(cluster, release.key)).get(release.key, ())
        if not existing or existing[0].owner == release.labels.get(names().owner_uid, ""):
            return
        if existing[0].owner or release.key.name != f"mp-{release.chart}":
            raise Foreign(f"Helm release {release.key} exists and is another owner's; it is left alone")
        secret = await cluster.kube.get(SECRET, existing[0].secret)
        if (actual_chart := (await asyncio.to_thread(content, secret)).chart) != release.chart:
            raise Foreign(f"Helm release {release.key} exists and is of chart {actual_chart}; it is left alone")

    async def _refresh_records(self, cluster: HelmTarget, release: Key) -> None:
        """Read the release's records after a run, and put them into the cache like our own writes."""
        informer = cluster.find(SECRET)
        if informer is None or not informer.bare:
            return  # the watch of Secrets is not the one for Helm's records
        outdated = {revision.secret: revision.uid for revision in revisions(informer).get(release, ())}
        for record in await _records(cluster, release):
            outdated.pop(key_of(record), None)
            informer.on_write(record)
        for key, uid in outdated.items():
            informer.on_delete(key, uid)


async def _records(cluster: HelmTarget, release: Key) -> Sequence[Manifest]:
    """Return the Secrets of a release's revisions."""
    selector = f"owner=helm,name={release.name}"
    return (await cluster.kube.list(SECRET, namespace=release.namespace, selector=selector, bare=True)).items


def locate_chart(release: Release, mirror: str) -> tuple[str, str | None]:
    """Return the chart argument for Helm, and the repository or None; raises HelmError."""
    source = mirror or release.repository
    if not _CHART.fullmatch(release.chart) or not _VERSION.fullmatch(release.version):
        # Helm would take an existing folder for the chart, and an argument that begins with a dash for an option.
        raise HelmError(f"{f'{release.chart} {release.version}'[:MAX_MESSAGE]!r} cannot be a chart and its version")
    if source.startswith("oci://"):
        return f"{source.rstrip('/')}/{release.chart}", None
    if source.startswith(("http://", "https://")):
        return release.chart, source
    if not mirror:
        raise HelmError(f"{source[:MAX_MESSAGE]!r} is no repository: only the chart mirror may be a folder")
    plain = release.version.removeprefix("v")
    packages = [Path(source) / f"{release.chart}-{version}.tgz" for version in (release.version, plain, f"v{plain}")]
    for package in packages:
        if package.is_file():
            return str(package), None
    raise HelmError(f"the chart mirror has no {packages[0].name}: add it to {source}")


def digest_of(package: Path) -> str:
    """Return the digest of a file, as `sha256:...`."""
    with package.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def _private_folder(parent: Path, patience: float) -> Generator[Path]:
    """Create a folder that only we can read, and delete it afterwards.

    Old ones of killed processes are deleted first.
    """
    for stale in parent.glob(f"{FOLDER}*"):
        with suppress(OSError):
            if stale.stat().st_mtime < time.time() - patience:
                shutil.rmtree(stale)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=parent))
    may_delete = True
    try:
        yield folder
    except asyncio.CancelledError:
        may_delete = False  # the operator ends, and Helm may still need its files
        raise
    finally:
        if may_delete:
            shutil.rmtree(folder)
