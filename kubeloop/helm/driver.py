"""Helm: one run at a time for a release, some at once for the whole fleet, none of them ever cancelled.

    helm.install(cluster, release, wait=False)        begins, and returns at once
    helm.runs(cluster.name)[release.key]              how it went, or goes

A run takes seconds to minutes, so nobody waits for it: it is begun, and whoever wants to know looks again. What Helm
has done is not remembered here but read from the release's own Secrets (`releases.py`), which hold it before and after
a restart of the operator. Only what Helm says when it fails before it has written anything is known here alone.

A Helm that is ended in the middle leaves its release pending, which Helm itself never mends. So nobody ends one: it is
a session of its own, and writes what it says into files. It loses its cluster with the operator alone, whose proxy
leads there (`helm_proxy.py`); what is pending then is gone on with by the next one.
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
from kubeloop.helm.command import OUTLIVED, WORDS, HelmCommand, HelmError
from kubeloop.helm.proxy import proxy_to
from kubeloop.helm.records import content, may_be_a_release, revisions
from kubeloop.helm.release import ARCHIVE, VERSION_PATTERN, Release, Revision, RevisionContent, Run, Verb
from kubeloop.naming import names
from kubeloop.objects import Key, Manifest, key_of
from kubeloop.tracing import begun
from kubeloop.types import SECRET, ResourceType

OF_ONE_CLUSTER = 2  # a cluster on which everything hangs must not keep the others waiting
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


def _anybody() -> None:
    """There is no other who writes."""


@dataclass(slots=True)
class Helm:
    """Runs Helm. `environment` is what its processes see beside their own folders: PATH, proxies, registry logins."""

    now: Callable[[], datetime]
    executable: str = "helm"
    mirror: str = ""
    """Where all charts are, whatever repository they are of: a folder, a repository's URL, or `oci://...`."""
    tested: Callable[[Release], str | None] | None = None
    """What a chart's archive was when it was tested, where that is known; no other is installed unless asked for."""
    at_once: int = 8  # each takes some 60 MB
    timeout: float = 300.0
    memory: int = 384 * MIB
    """What one may take: a cluster's API server says what it reads, and without end if it is hostile."""
    environment: Mapping[str, str] = field(default_factory=dict[str, str])
    folder: Path = field(default_factory=lambda: Path(tempfile.gettempdir()))
    may_write: Callable[[], None] = _anybody
    """Raises NotLeading when another operator may be writing: a run may wait for its turn for long."""
    _runs: dict[tuple[str, Key], Run] = field(default_factory=dict[tuple[str, Key], Run], init=False)
    _tasks: set[asyncio.Task[None]] = field(default_factory=set[asyncio.Task[None]], init=False)
    _slots: asyncio.Semaphore = field(init=False)
    _slots_by_cluster: dict[str, asyncio.Semaphore] = field(default_factory=dict[str, asyncio.Semaphore], init=False)
    _contents: dict[str, dict[tuple[str, str], RevisionContent]] = field(
        default_factory=dict[str, dict[tuple[str, str], RevisionContent]], init=False
    )

    def __post_init__(self) -> None:
        self._slots = asyncio.Semaphore(self.at_once)

    @property
    def patience(self) -> float:
        """The seconds after which no Helm can be at work on what it last wrote then, whoever began it."""
        return self.timeout + 2 * OUTLIVED

    # What is known ----------------------------------------------------------------------------------------------------

    def runs(self, cluster: str) -> Mapping[Key, Run]:
        """By release, the run that is under way on a cluster, or was the latest since we began."""
        return {release: run for (where, release), run in self._runs.items() if where == cluster}

    async def contents(
        self, cluster: HelmTarget, wanted: Iterable[Revision]
    ) -> Mapping[tuple[Key, int], RevisionContent]:
        """What these revisions hold. Each is read once; those that are not asked for are forgotten."""
        known = self._contents.get(cluster.name, {})
        found: dict[tuple[str, str], RevisionContent] = {}
        answer: dict[tuple[Key, int], RevisionContent] = {}
        for revision in wanted:
            identity = (revision.uid, revision.version)
            if (read := known.get(identity)) is None:
                secret = await cluster.kube.find(SECRET, revision.secret)
                if secret is None:
                    continue
                read = await asyncio.to_thread(content, secret)
            found[identity] = answer[revision.release, revision.number] = read
        self._contents[cluster.name] = found
        return answer

    # What can be done -------------------------------------------------------------------------------------------------

    def install(self, cluster: HelmTarget, release: Release, *, wait: bool) -> None:
        """Begin to install a release, or to bring it to what is asked. `wait`: it fails unless its pods come up."""

        async def run(command: HelmCommand) -> None:
            await self._refuse_strangers(cluster, release)
            package = await command.fetched(*located(release, self.mirror), release.version)
            archive = await asyncio.to_thread(digest_of, package)
            if complaint := self._of_another(release, archive):
                raise HelmError(f"the archive of chart {release.chart} {release.version} is {archive}, {complaint}")
            marks = {**release.labels, names().release: release.digest}
            command.extra = ("--labels", ",".join(f"{name}={value}" for name, value in sorted(marks.items())))
            await command.install_or_upgrade(
                release.key.name,
                package,
                release.values,
                namespace=release.key.namespace,
                description=f"{ARCHIVE}{archive}",
                reset_values=True,
                wait=wait,
            )

        self._begin(cluster, release.key, "install", run, digest=release.digest)

    def rollback(self, cluster: HelmTarget, release: Key, revision: int) -> None:
        """Begin to bring back what a revision was."""

        async def run(command: HelmCommand) -> None:
            await command.rollback(release.name, revision, namespace=release.namespace)

        self._begin(cluster, release, "rollback", run)

    def uninstall(self, cluster: HelmTarget, release: Key) -> None:
        """Begin to take a release away."""

        async def run(command: HelmCommand) -> None:
            await command.uninstall(release.name, namespace=release.namespace)

        self._begin(cluster, release, "uninstall", run)

    def forgive(self, cluster: str) -> None:
        """The cluster was away and is back: what failed there is tried again at once, and counted anew."""
        for place, run in self._runs.items():
            if place[0] == cluster and run.error:
                self._runs[place] = replace(run, failures=0)

    def forget(self, cluster: str) -> None:
        """Drop how runs went there: it is another cluster of that name."""
        self._contents.pop(cluster, None)
        for place in [place for place, run in self._runs.items() if place[0] == cluster and run.ended is not None]:
            del self._runs[place]

    async def close(self, seconds: float) -> None:
        """Wait so long for the runs that are under way; those that then still are go on by themselves."""
        if self._tasks:
            await asyncio.wait(self._tasks, timeout=seconds)

    # How it is done ---------------------------------------------------------------------------------------------------

    def _begin(
        self,
        cluster: HelmTarget,
        release: Key,
        verb: Verb,
        work: Callable[[HelmCommand], Awaitable[None]],
        *,
        digest: str = "",
    ) -> None:
        if not may_be_a_release(release):
            raise HelmError(f"{str(release)[:WORDS]!r} cannot be a Helm release")
        place = (cluster.name, release)
        known = self._runs.get(place)
        if known is not None and known.ended is None:
            return
        again = known is not None and (known.verb, known.digest) == (verb, digest)
        self._runs[place] = Run(verb, self.now(), digest, failures=known.failures if known and again else 0)
        task = asyncio.create_task(self._run(cluster, release, work), name=f"helm {verb} {release} on {cluster.name}")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    async def _run(self, cluster: HelmTarget, release: Key, work: Callable[[HelmCommand], Awaitable[None]]) -> None:
        place = (cluster.name, release)
        run, error = self._runs[place], ""
        slots = self._slots_by_cluster.setdefault(cluster.name, asyncio.Semaphore(OF_ONE_CLUSTER))
        told = {"modelplane.cluster": cluster.name or "hub", "modelplane.namespace": release.namespace}
        try:
            with begun(f"helm {run.verb}", {**told, "modelplane.release": release.name}):
                async with slots, self._slots:
                    access = cluster.kube.access
                    with _private_folder(self.folder, self.patience) as folder:
                        async with proxy_to(access) as proxy:
                            await work(self._command(cluster.name, replace(access, proxy=proxy), folder))
        except NotLeading:
            del self._runs[place]  # it is the other's to do
            return
        except ClientError as caught:
            error = str(caught)
        except Exception as caught:  # a defect of ours must not leave the release locked
            log.exception("helm run failed", cluster=cluster.name, release=str(release))
            error = f"internal error ({type(caught).__name__}); the operator's log has the details"
        try:
            with suppress(ClientError):  # the watch tells it too, a little later
                await self._look(cluster, release)
        finally:
            failures = run.failures + 1 if error else 0
            self._runs[place] = replace(run, ended=self.now(), error=error, failures=failures)
        log.info("helm run ended", cluster=cluster.name, release=str(release), verb=run.verb, error=error)

    def _command(self, cluster: str, access: Access, folder: Path) -> HelmCommand:
        kubeconfig = folder / "kubeconfig"
        kubeconfig.touch(mode=0o600)
        kubeconfig.write_text(write_kubeconfig(access))
        parts = {f"HELM_{part}_HOME": str(folder / part.lower()) for part in ("CACHE", "CONFIG", "DATA")}
        return HelmCommand(
            self.executable,
            kubeconfig,
            {"HOME": str(folder), "GOMEMLIMIT": str(self.memory * 3 // 4), **self.environment, **parts},
            self.timeout,
            self.memory,
            self.may_write,
        )

    def _of_another(self, release: Release, archive: str) -> str:
        """Why a chart's archive is not installed; empty when it is."""
        tested = self.tested(release) if self.tested else None
        match release.archive, tested:
            case (str(wanted), _) if wanted != archive:
                return f"and {wanted} is asked for: nothing was installed"
            case (None, str(wanted)) if wanted != archive:
                return f"and {wanted} was tested: nothing was installed (setting chart-digests)"
            case _:
                return ""

    async def _refuse_strangers(self, cluster: HelmTarget, release: Release) -> None:
        """Somebody else's release must not become ours; one that the reference made, `mp-CHART`, is taken over."""
        known = revisions(await _records(cluster, release.key)).get(release.key, ())
        if not known or known[0].owner == release.labels.get(names().owner_uid, ""):
            return
        if known[0].owner or release.key.name != f"mp-{release.chart}":
            raise Foreign(f"Helm release {release.key} exists and is another owner's; it is left alone")
        secret = await cluster.kube.get(SECRET, known[0].secret)
        if (held := (await asyncio.to_thread(content, secret)).chart) != release.chart:
            raise Foreign(f"Helm release {release.key} exists and is of chart {held}; it is left alone")

    async def _look(self, cluster: HelmTarget, release: Key) -> None:
        """Take in what Helm wrote, as every write of ours is taken in at once."""
        seen = cluster.find(SECRET)
        if seen is None or not seen.bare:
            return  # that watch is not for Helm's records
        known = {one.secret: one.uid for one in revisions(seen).get(release, ())}
        for record in await _records(cluster, release):
            known.pop(key_of(record), None)
            seen.written(record)
        for key, uid in known.items():
            seen.gone(key, uid)


async def _records(cluster: HelmTarget, release: Key) -> Sequence[Manifest]:
    """The Secrets of a release, whoever made it."""
    selector = f"owner=helm,name={release.name}"
    return (await cluster.kube.list(SECRET, namespace=release.namespace, selector=selector, bare=True)).items


def located(release: Release, mirror: str) -> tuple[str, str | None]:
    """Where Helm finds the chart: what to call it, and the repository to look in; raises HelmError."""
    source = mirror or release.repository
    if not _CHART.fullmatch(release.chart) or not _VERSION.fullmatch(release.version):
        # Helm takes a folder for a chart where there is one, and what begins with a dash for an option of its own.
        raise HelmError(f"{f'{release.chart} {release.version}'[:WORDS]!r} cannot be a chart and its version")
    if source.startswith("oci://"):
        return f"{source.rstrip('/')}/{release.chart}", None
    if source.startswith(("http://", "https://")):
        return release.chart, source
    if not mirror:
        raise HelmError(f"{source[:WORDS]!r} is no repository: only the chart mirror may be a folder")
    plain = release.version.removeprefix("v")
    packages = [Path(source) / f"{release.chart}-{version}.tgz" for version in (release.version, plain, f"v{plain}")]
    for package in packages:
        if package.is_file():
            return str(package), None
    raise HelmError(f"the chart mirror has no {packages[0].name}: add it to {source}")


def digest_of(package: Path) -> str:
    with package.open("rb") as file:
        return f"sha256:{hashlib.file_digest(file, 'sha256').hexdigest()}"


@contextmanager
def _private_folder(parent: Path, patience: float) -> Generator[Path]:
    """A folder that nobody else can read, gone afterwards; those that a killed operator left go first."""
    for left in parent.glob(f"{FOLDER}*"):
        with suppress(OSError):
            if left.stat().st_mtime < time.time() - patience:
                shutil.rmtree(left)
    folder = Path(tempfile.mkdtemp(prefix=FOLDER, dir=parent))
    over = True
    try:
        yield folder
    except asyncio.CancelledError:
        over = False  # we end, and Helm goes on: it may still need what is in there
        raise
    finally:
        if over:
            shutil.rmtree(folder)
