"""A cache on one cluster: what was seen there, and what is done about it.

    claim      our PersistentVolumeClaim for the present content; another content gets another one, beside it
    Job        fills it; begun again a while after it has failed
    staged     the claim is marked with the revision as soon as the Job has succeeded: that is all that counts from then
    rest       Job, token and account go; a claim of before goes when no replica starts from it any more

A cluster that is no longer meant keeps what replicas there start from.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import Final

from modelplane_operator.api import labels, names
from modelplane_operator.api.cache_sources import HuggingFace
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.model_cache import CachedCluster, ModelCache, Phase
from modelplane_operator.api.types import type_of
from modelplane_operator.kube.conditions import condition
from modelplane_operator.kube.errors import ClientError
from modelplane_operator.kube.objects import Manifest, annotations_of, is_terminating, key_of, section
from modelplane_operator.kube.ownership import was_applied
from modelplane_operator.kube.resources import JOB, PERSISTENT_VOLUME_CLAIM, SECRET
from modelplane_operator.planning.hydration import attempt, failed, reported, succeeded, trouble
from modelplane_operator.planning.plan import Apply, Step, delete, prune
from modelplane_operator.rendering.cache_sources import claim_of, content_of, credentials, fetched_by, source_of
from modelplane_operator.rendering.model_cache import Hydrator, render_account, render_job, render_token, render_volume
from modelplane_operator.rendering.model_replica.fences import render_fences

REQUEUE_SOON: Final = 2.0  # until the first lists of a cluster are in
PAUSE: Final = timedelta(minutes=1)  # after the first failure of a hydration; twice as long after each further one
LONGEST: Final = timedelta(hours=1)
UNNAMED: Final = (
    "nobody has said which image clusters pull the hydrator in: set --hydrator-image of the operator to its own image"
)


@dataclass(frozen=True, slots=True)
class User:
    """A replica that starts from the cache."""

    name: str
    volume: str
    """Which of its claims."""


@dataclass(frozen=True, slots=True)
class Site:
    """A cluster that the cache is meant for, or has something on."""

    name: str
    meant: bool
    """Whether it is to hold the weights."""
    storage_class: str = ""
    isolation: Isolation = Isolation()  # noqa: RUF009 - frozen
    users: tuple[User, ...] = ()
    connected: bool = True
    """Whether what was seen there can be relied on."""
    error: ClientError | None = None
    """Why it cannot be reached."""
    children: tuple[Manifest, ...] = ()
    """What we applied there for this cache."""
    pods: tuple[Manifest, ...] = ()
    fences: tuple[Manifest, ...] = ()
    existing: Manifest | None = None
    """The claim that is to be mounted as it is."""
    namespace: Manifest | None = None
    """The namespace there, when nothing else is in it that needs it."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A cache, and its clusters."""

    cache: ModelCache
    sites: tuple[Site, ...]
    namespace_uid: str
    """Of its namespace on the hub; empty before that has been seen."""
    hydrator: Hydrator
    now: datetime
    secret: Mapping[str, str] = field(default_factory=dict[str, str])
    """What of it the hydrator gets, as the Secret has it: encoded, by variable."""
    recheck: float = 30.0
    """When the Secret is to be read again."""
    crowded: bool = False
    """Whether its namespace has as many older ones as it may have."""

    @property
    def secret_missing(self) -> bool:
        asked = credentials(source_of(self.cache))
        return asked is not None and not self.secret.keys() >= asked.variables.keys()


@dataclass(frozen=True, slots=True)
class Look:
    """What is said of a cluster, what is done there, and when to look again."""

    told: CachedCluster
    steps: tuple[Step, ...] = ()
    again: float | None = None
    counts: bool = True


def look(seen: Observed, site: Site) -> Look | None:
    last = seen.cache.on(site.name)
    if not site.connected:
        why = f"cluster {site.name} does not answer: {site.error}" if site.error else "cluster is being got to know"
        told = last or CachedCluster(name=site.name, phase="Pending", since=seen.now)
        told = told.model_copy(update={"message": why[:1000]}) if site.error else told
        return Look(told, again=None if site.error else REQUEUE_SOON, counts=site.meant)
    if not site.meant and not site.users:
        return _leaving(site, last)
    if claim_of(seen.cache):
        return existing(seen, site, last)
    present = _Present(seen, site)
    if present.claim is None and not site.meant:  # it keeps what replicas start from, and gets nothing new
        return Look(last, counts=False) if last else None
    return present.look(last)


@dataclass(frozen=True, slots=True)
class _Present:
    """One cluster on which the cache is to be."""

    seen: Observed
    site: Site

    @property
    def claims(self) -> Sequence[Manifest]:
        return claims(self.site)

    @property
    def claim(self) -> Manifest | None:
        """The volume of the present content."""
        wanted = content_of(self.seen.cache)
        alive = (one for one in self.claims if not is_terminating(one))
        return next((one for one in alive if annotations_of(one).get(labels.CONTENT) == wanted), None)

    @property
    def staged(self) -> str:
        """The revision of which it holds all."""
        return annotations_of(self.claim).get(labels.STAGED, "") if self.claim else ""

    @property
    def job(self) -> Manifest | None:
        return next((one for one in self._hydration() if type_of(one) == JOB), None)

    @property
    def serving(self) -> Manifest | None:
        """The volume that replicas start from: of the present content, or, while that comes, of the one before."""
        if self.staged:
            return self.claim
        last = self.seen.cache.on(self.site.name)
        complete = [one for one in self.claims if labels.STAGED in annotations_of(one) and not is_terminating(one)]
        complete.sort(key=lambda one: (key_of(one).name != (last.volume if last else None), key_of(one)))
        return next(iter(complete), None)

    def look(self, last: CachedCluster | None) -> Look:
        job, cluster, now = self.job, self.site.name, self.seen.now
        ended = job is not None and succeeded(job)
        told = reported(job, self.site.pods) if job else None
        source = source_of(self.seen.cache)
        asked = source.revision if isinstance(source, HuggingFace) else ""
        revision = self.staged or ((told and told.revision) or asked or "unnamed" if ended else "")
        volume = self._volume(revision)
        base = [*render_fences(self.seen.cache.key.namespace, self.seen.namespace_uid, self.site.isolation), volume]
        phase, message, again, more = self._course(job, staged=bool(revision), last=last)
        steps: list[Step] = [Apply(one, cluster) for one in (*base, *more)]
        # Until the mark is on the volume the Job is what tells of it.
        done = bool(self.staged)
        keep = [*base, *more, *(() if done else self._hydration()), *volumes_in_use(self.site, self.serving)]
        steps += prune(self.site.children, keep, owner=self.seen.cache.metadata.uid or "", cluster=cluster)
        steps += prune(self.site.fences, base, owner=self.seen.namespace_uid, cluster=cluster)
        retry = again is not None and again <= now
        if job and not done and (retry or self._has_other_token(job)):
            steps = [delete(job, cluster=cluster)] if not is_terminating(job) else []
        serving = self.serving
        was = last.since if last and last.phase == phase else None
        return Look(
            CachedCluster(
                name=cluster,
                phase=phase,
                message=message[:1000] or None,
                since=was or now,
                attempts=attempt(job) if job else last.attempts if last else None,
                progress=None if done or not told else told.progress,
                volume=key_of(serving).name if serving else None,
                revision=annotations_of(serving)[labels.STAGED] if serving else None,
            ),
            tuple(steps),
            max((again - now).total_seconds(), 1.0) if again and not retry else None,
            counts=self.site.meant,
        )

    def _course(
        self, job: Manifest | None, *, staged: bool, last: CachedCluster | None
    ) -> tuple[Phase, str, datetime | None, Sequence[Manifest]]:
        """The phase, what is said of it, when a failed Job is begun again, and what is needed besides the volume."""
        bound = section(self.claim or {}, "status").get("phase")
        if bound == "Lost":
            return "Failed", f"volume {key_of(self.claim or {}).name} is lost: delete its claim", None, ()
        if staged:
            return "Ready", "", None, ()
        if job and failed(job):
            since = last.since if last and last.phase == "Failed" and last.since else self.seen.now
            pause = min(PAUSE * 2 ** min(attempt(job) - 1, 10), LONGEST)
            return "Failed", trouble(self.site.pods) or _why(job), since + pause, ()
        phase: Phase = "Hydrating" if bound == "Bound" else "Pending"
        if job is None and self.seen.secret_missing:
            return phase, "", None, ()
        if job is None and not self.seen.hydrator.image:
            return phase, UNNAMED, None, ()
        token = [render_token(self.seen.cache, self.seen.secret)] if self.seen.secret else []
        more = [*token, *render_account(self.seen.cache)]
        if job is None:
            before = last.attempts or 0 if last else 0
            more.append(
                render_job(
                    self.seen.cache,
                    self._volume("")["metadata"]["name"],
                    self.seen.hydrator,
                    attempt=before + 1,
                    revision=_found_elsewhere(self.seen),
                )
            )
            return phase, "", None, more
        message = trouble(self.site.pods) if self.site.pods else "" if bound == "Bound" else self._unbound()
        return phase, message, None, more

    def _unbound(self) -> str:
        namespace, name = key_of(self.claim) if self.claim else ("", "")
        return f"the volume is not bound: `kubectl describe pvc -n {namespace} {name}` on the cluster says why"

    def _volume(self, staged: str) -> Manifest:
        cache, claim, gib = self.seen.cache, self.claim, fetched_by(self.seen.cache).size_gib
        if claim is None:
            plain = names.cache_volume(*cache.key)
            taken = any(key_of(one).name == plain for one in self.claims)
            name = names.cache_volume(*cache.key, content_of(cache)) if taken else plain
            return render_volume(cache, name, self.site.storage_class, gib, staged)
        spec = section(claim, "spec")  # of one that is there, nothing changes but that it grows
        given = section(spec, "resources", "requests").get("storage", "")
        there = int(given[:-2]) if given.endswith("Gi") and given[:-2].isdigit() else 0
        return render_volume(cache, key_of(claim).name, spec.get("storageClassName", ""), max(gib, there), staged)

    def _hydration(self) -> Iterator[Manifest]:
        """What there is of the present hydration."""
        name = names.hydration(*self.seen.cache.key, content_of(self.seen.cache))
        return (one for one in self.site.children if key_of(one).name == name)

    def _has_other_token(self, job: Manifest) -> bool:
        """Whether a Job has failed with another token than there is now."""
        if not failed(job) or not self.seen.secret:
            return False
        wanted = render_token(self.seen.cache, self.seen.secret)
        copies = [one for one in self.site.children if type_of(one) == SECRET and key_of(one) == key_of(wanted)]
        return any(not was_applied(one, wanted) for one in copies)


def claims(site: Site) -> Sequence[Manifest]:
    """The volumes that the cache has made on a cluster."""
    return [one for one in site.children if type_of(one) == PERSISTENT_VOLUME_CLAIM]


def volumes_in_use(site: Site, serving: Manifest | None = None) -> Iterator[Manifest]:
    """Those that replicas start from, or that new ones would."""
    used = {user.volume for user in site.users} | {key_of(one).name for one in (serving,) if one}
    return (one for one in claims(site) if key_of(one).name in used)


def existing(seen: Observed, site: Site, last: CachedCluster | None) -> Look:
    """A cluster on which the cache is a claim that somebody else has made."""
    name, home = claim_of(seen.cache), names.remote_namespace(seen.cache.key.namespace)
    fences = render_fences(seen.cache.key.namespace, seen.namespace_uid, site.isolation)
    keep = [*fences, *volumes_in_use(site)]
    steps: list[Step] = [Apply(one, site.name) for one in fences] if site.meant else []
    steps += prune(site.children, keep, owner=seen.cache.metadata.uid or "", cluster=site.name)
    bound = section(site.existing or {}, "status").get("phase")
    phase: Phase = "Ready" if bound == "Bound" else "Pending"
    unbound = f"is not bound: `kubectl describe pvc -n {home} {name}` on the cluster says why"
    missing = "does not exist: make it on the cluster, with the weights in it" if site.existing is None else unbound
    why = f"PersistentVolumeClaim {home}/{name} {missing}"
    was = last.since if last and last.phase == phase else None
    told = CachedCluster(
        name=site.name,
        phase=phase,
        message=None if phase == "Ready" else why,
        since=was or seen.now,
        volume=name if phase == "Ready" else None,
    )
    return Look(told, tuple(steps), None if phase == "Ready" else seen.recheck, counts=site.meant)


def _found_elsewhere(seen: Observed) -> str:
    """The commit that a branch was on the first cluster that has found it out: all are to hold the same."""
    wanted = content_of(seen.cache)
    for site in seen.sites:
        for one in site.children:
            staged = annotations_of(one).get(labels.STAGED)
            of_claim = type_of(one) == PERSISTENT_VOLUME_CLAIM and annotations_of(one).get(labels.CONTENT) == wanted
            if staged and of_claim:
                return staged
            name = names.hydration(*seen.cache.key, wanted)
            if type_of(one) == JOB and key_of(one).name == name and (found := reported(one, site.pods).revision):
                return found
    return ""


def _why(job: Manifest) -> str:
    return f"the Job has failed: {condition(job, 'Failed').why or 'no reason given'}"


def _leaving(site: Site, last: CachedCluster | None) -> Look | None:
    """The cache has nothing to do on a cluster any more."""
    steps = tuple(delete(one, cluster=site.name) for one in site.children if not is_terminating(one))
    if site.children:
        told = last or CachedCluster(name=site.name)
        return Look(told.model_copy(update={"message": "what is there is being deleted"}), steps, counts=False)
    if last is None or site.namespace is None:
        return None
    return Look(last, (delete(site.namespace, cluster=site.name),), counts=False)
