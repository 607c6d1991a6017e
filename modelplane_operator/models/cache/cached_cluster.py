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
from typing import Any, Final

from kubeloop.condition_types import Synced
from kubeloop.conditions import condition
from kubeloop.errors import ClientError
from kubeloop.objects import Manifest, annotations_of, is_terminating, key_of, section
from kubeloop.ownership import was_applied
from kubeloop.plan import Apply, Failure, Step, delete, prune
from kubeloop.remote_messages import worded
from kubeloop.types import JOB, PERSISTENT_VOLUME_CLAIM, SECRET, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.cache_sources import HuggingFace
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.model_cache import MOST_USERS, CachedCluster, ModelCache, Phase
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.cache.cache_sources import claim_of, content_of, credentials, fetched_by, source_of
from modelplane_operator.models.cache.hydration import (
    Reported,
    attempt,
    failed,
    reported,
    resolved,
    silence,
    succeeded,
    trouble,
)
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job, render_token, render_volume
from modelplane_operator.models.replica.render.fences import render_fences

REQUEUE_SOON: Final = 2.0  # until the first lists of a cluster are in
PAUSE: Final = timedelta(minutes=1)  # after the first failure of a hydration; twice as long after each further one
LONGEST: Final = timedelta(hours=1)
CLAIMS: Final = "a volume of it is not bound"  # what is said of a pod that waits for its volume
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
class ClusterState:
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
    clusters: tuple[ClusterState, ...]
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
    left_out: tuple[str, ...] = ()
    """Clusters that it selects, and that have no storage for it."""
    refusals: Mapping[str, Failure] = field(default_factory=dict[str, Failure])
    """What clusters have just refused, by cluster."""

    @property
    def secret_missing(self) -> bool:
        asked = credentials(source_of(self.cache))
        return asked is not None and not self.secret.keys() >= asked.variables.keys()


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """What is said of a cluster, what is done there, and when to look again."""

    told: CachedCluster
    steps: tuple[Step, ...] = ()
    requeue_after: float | None = None
    counts: bool = True
    """Whether it is one of those that the cache is meant for."""
    why: str = ""
    """What the cache waits for there, when it is being deleted."""
    defect: Exception | None = None
    """What we failed on in what the cluster says."""


def plan_cluster(seen: Observed, cluster: ClusterState) -> ClusterPlan | None:
    """Return what is done there; None where there is nothing to say of the cluster."""
    last = seen.cache.on(cluster.name)
    if not cluster.connected:
        why = (
            f"cluster {cluster.name} does not answer: see ClusterReady of that InferenceCluster"
            if cluster.error
            else "cluster has not been listed yet"
        )
        told = last or CachedCluster(name=cluster.name, phase="Pending", since=seen.now)
        told = settled(told).model_copy(update={"message": why[:1000]}) if cluster.error else told
        return ClusterPlan(told, requeue_after=None if cluster.error else REQUEUE_SOON, counts=cluster.meant)
    if not cluster.meant and not cluster.users:
        return _plan_removal(cluster, last)
    if claim_of(seen.cache):
        return _plan_existing(seen, cluster, last)
    present = _Present(seen, cluster)
    if present.claim is None and not cluster.meant:  # it keeps what replicas start from, and gets nothing new
        return ClusterPlan(settled(last).model_copy(update=used(cluster)), counts=False) if last else None
    return present.plan(last)


def _plan_existing(seen: Observed, cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan:
    """Return what is done on a cluster on which the cache is a claim that somebody else has made."""
    name, home = claim_of(seen.cache), names.remote_namespace(seen.cache.key.namespace)
    fences = render_fences(seen.cache.key.namespace, seen.namespace_uid, cluster.isolation)
    keep = [*fences, *volumes_in_use(cluster)]
    steps: list[Step] = [Apply(one, cluster.name) for one in fences] if cluster.meant else []
    steps += prune(cluster.children, keep, owner=seen.cache.metadata.uid or "", cluster=cluster.name)
    bound = section(cluster.existing or {}, "status").get("phase")
    phase: Phase = "Ready" if bound == "Bound" else "Pending"
    unbound = f"is not bound: `kubectl describe pvc -n {home} {name}` on the cluster says why"
    missing = "does not exist: make it on the cluster, with the weights in it" if cluster.existing is None else unbound
    why = f"PersistentVolumeClaim {home}/{name} {missing}"
    was = last.since if last and last.phase == phase else None
    told = CachedCluster(
        name=cluster.name,
        phase=phase,
        message=None if phase == "Ready" else why,
        since=was or seen.now,
        volume=name if phase == "Ready" else None,
        **used(cluster),
    )
    return ClusterPlan(told, tuple(steps), None if phase == "Ready" else seen.recheck, counts=cluster.meant)


def _plan_removal(cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan | None:
    """Return what is deleted on a cluster on which the cache has nothing to do any more."""
    steps = tuple(delete(one, cluster=cluster.name) for one in cluster.children if not is_terminating(one))
    if cluster.children:
        told = settled(last or CachedCluster(name=cluster.name))
        return ClusterPlan(told.model_copy(update={"message": "what is there is being deleted"}), steps, counts=False)
    if last is None or cluster.namespace is None:
        return None
    return ClusterPlan(settled(last), (delete(cluster.namespace, cluster=cluster.name),), counts=False)


@dataclass(frozen=True, slots=True)
class _Course:
    """How it goes with a volume."""

    phase: Phase
    message: str = ""
    retry: datetime | None = None
    """When a Job that has failed is begun again."""
    recheck: datetime | None = None
    """When to look again without any news."""
    needed: Sequence[Manifest] = ()
    """What is needed besides the volume."""


@dataclass(frozen=True, slots=True)
class _Present:
    """One cluster on which the cache is to be."""

    seen: Observed
    cluster: ClusterState

    @property
    def claim(self) -> Manifest | None:
        """The volume of the present content."""
        wanted = content_of(self.seen.cache)
        alive = (one for one in claims(self.cluster) if not is_terminating(one))
        return next((one for one in alive if annotations_of(one).get(labels.CONTENT) == wanted), None)

    @property
    def staged(self) -> bool:
        """Whether it holds all of it."""
        return self.claim is not None and labels.STAGED in annotations_of(self.claim)

    @property
    def job(self) -> Manifest | None:
        return next((one for one in self._hydration() if type_of(one) == JOB), None)

    @property
    def serving(self) -> Manifest | None:
        """The volume that replicas start from: of the present content, or, while that comes, of the one before."""
        if self.staged:
            return self.claim
        last = self.seen.cache.on(self.cluster.name)
        alive = (one for one in claims(self.cluster) if not is_terminating(one))
        complete = (one for one in alive if labels.STAGED in annotations_of(one))
        return min(complete, key=lambda one: (key_of(one).name != (last and last.volume), key_of(one)), default=None)

    def plan(self, last: CachedCluster | None) -> ClusterPlan:
        job, cluster, now = self.job, self.cluster.name, self.seen.now
        ended = job is not None and succeeded(job)
        told = reported(job, self.cluster.pods) if job else None
        source = source_of(self.seen.cache)
        asked = source.revision if isinstance(source, HuggingFace) else ""
        known = revision_of(self.claim) or (told and told.revision) or asked or "unnamed"
        revision = known if self.staged or ended else ""
        volume = self._volume(revision)
        base = [*render_fences(self.seen.cache.key.namespace, self.seen.namespace_uid, self.cluster.isolation), volume]
        course = self._course(job, staged=bool(revision), last=last)
        steps: list[Step] = [Apply(one, cluster) for one in (*base, *course.needed)]
        # Until the mark is on the volume the Job is what tells of it, and of the attempts until the status does.
        done = self.staged
        found = self._found(told, last)
        stored = last and (last.attempts, last.digest)
        untold = [job] if job and stored != (attempt(job), found.get("digest")) else []
        needed = [*course.needed, *(untold if done else self._hydration())]
        keep = [*base, *needed, *volumes_in_use(self.cluster, self.serving)]
        steps += prune(self.cluster.children, keep, owner=self.seen.cache.metadata.uid or "", cluster=cluster)
        steps += prune(self.cluster.fences, base, owner=self.seen.namespace_uid, cluster=cluster)
        retry = course.retry is not None and (course.retry <= now or edited(self.seen.cache))
        if job and not done and (retry or self._has_other_token(job)):
            steps = [delete(job, cluster=cluster)] if not is_terminating(job) else []
        serving = self.serving
        was = last.since if last and last.phase == course.phase else None
        due = None if retry else course.retry or course.recheck or (now if done and untold else None)
        return ClusterPlan(
            CachedCluster(
                name=cluster,
                phase=course.phase,
                message=course.message[:1000] or None,
                since=was or now,
                attempts=attempt(job) if job else self._attempts(last),
                next_attempt=course.retry,
                progress=None if done or not told else told.progress,
                volume=key_of(serving).name if serving else None,
                revision=revision_of(serving) or None,
                **found,
                **used(self.cluster),
            ),
            tuple(steps),
            max((due - now).total_seconds(), 1.0) if due else None,
            counts=self.cluster.meant,
        )

    def _found(self, told: Reported | None, last: CachedCluster | None) -> dict[str, Any]:
        """Return what was found in the volume that replicas start from, when it was filled or verified."""
        if self.staged and told and told.digest:
            return {
                "digest": told.digest,
                "changed_files": told.changed or None,
                "unlisted_files": told.unlisted or None,
            }
        serving = key_of(self.serving).name if self.serving else None
        if last is None or (serving and last.volume not in {None, serving}):
            return {}
        return {name: getattr(last, name) for name in ("digest", "changed_files", "unlisted_files")}

    def _course(self, job: Manifest | None, *, staged: bool, last: CachedCluster | None) -> _Course:
        bound = section(self.claim or {}, "status").get("phase")
        if bound == "Lost":
            return _Course("Failed", f"volume {key_of(self.claim or {}).name} is lost: delete its claim")
        if staged:
            return _Course("Ready")
        if job and failed(job):
            since = last.since if last and last.phase == "Failed" and last.since else self.seen.now
            pause = min(PAUSE * 2 ** min(attempt(job) - 1, 10), LONGEST)
            why = f"the Job has failed: {worded(condition(job, 'Failed').reason) or 'no reason given'}"
            return _Course("Failed", trouble(self.cluster.pods) or why, retry=since + pause)
        phase: Phase = "Hydrating" if bound == "Bound" else "Pending"
        if job is None and self.seen.secret_missing:
            return _Course(phase)
        if job is None and not self.seen.hydrator.image:
            return _Course(phase, UNNAMED)
        token = [render_token(self.seen.cache, self.seen.secret)] if self.seen.secret else []
        needed = [*token, *render_account(self.seen.cache)]
        if job is None:
            needed.append(
                render_job(
                    self.seen.cache,
                    self._volume("")["metadata"]["name"],
                    self.seen.hydrator,
                    attempt=(self._attempts(last) or 0) + 1,
                    verified=(last and last.digest) or "",
                )
            )
            return _Course(phase, needed=needed)
        silent, recheck = silence(job, self.cluster.pods, self.seen.now)
        unbound, ill = "" if bound == "Bound" else self._unbound(), trouble(self.cluster.pods)
        # Of a volume that does not come, pods only say that it does not.
        message = unbound if unbound and CLAIMS in ill else ill or silent or unbound
        return _Course(phase, message, recheck=recheck, needed=needed)

    def _attempts(self, last: CachedCluster | None) -> int | None:
        """How many Jobs there were for these weights, and not for those before, when there is none now."""
        begun = self.staged or (self.claim is not None and last is not None and last.phase != "Ready")
        return last.attempts if last and begun else None

    def _unbound(self) -> str:
        namespace, name = key_of(self.claim) if self.claim else ("", "")
        named = section(self.claim or {}, "spec").get("storageClassName") or self.cluster.storage_class
        return (
            f"the volume is not bound: see that StorageClass {named} is there and gives such volumes; "
            f"`kubectl describe pvc -n {namespace} {name}` on the cluster says why"
        )

    def _volume(self, staged: str) -> Manifest:
        cache, claim, gib = self.seen.cache, self.claim, fetched_by(self.seen.cache).size_gib
        if claim is None:
            plain = names.cache_volume(*cache.key)
            taken = any(key_of(one).name == plain for one in claims(self.cluster))
            name = names.cache_volume(*cache.key, content_of(cache)) if taken else plain
            return render_volume(cache, name, self.cluster.storage_class, gib, staged)
        spec = section(claim, "spec")  # of one that is there, nothing changes but that it grows
        given = section(spec, "resources", "requests").get("storage", "")
        there = int(given[:-2]) if given.endswith("Gi") and given[:-2].isdigit() else 0
        return render_volume(cache, key_of(claim).name, spec.get("storageClassName", ""), max(gib, there), staged)

    def _hydration(self) -> Iterator[Manifest]:
        """What there is of the present hydration."""
        name = names.hydration(*self.seen.cache.key, content_of(self.seen.cache))
        return (one for one in self.cluster.children if key_of(one).name == name)

    def _has_other_token(self, job: Manifest) -> bool:
        """Whether a Job has failed with another token than there is now."""
        if not failed(job) or not self.seen.secret:
            return False
        wanted = render_token(self.seen.cache, self.seen.secret)
        copies = (one for one in self.cluster.children if type_of(one) == SECRET and key_of(one) == key_of(wanted))
        return any(not was_applied(one, wanted) for one in copies)


def edited(cache: ModelCache) -> bool:
    """Whether somebody has changed the cache since it was last reconciled."""
    conditions = cache.status.conditions if cache.status else ()
    of = next((one.observed_generation for one in conditions if one.type == Synced.__name__), None)
    return of != cache.metadata.generation


def settled(told: CachedCluster) -> CachedCluster:
    """What was last said of a cluster, without what it has refused."""
    return told.model_copy(update={"refusals": None, "next_attempt": None, "message": None}) if told.refusals else told


def revision_of(claim: Manifest | None) -> str:
    """The revision that a volume holds all of, as its cluster has it; empty where that is not known."""
    return resolved(annotations_of(claim).get(labels.STAGED)) if claim else ""


def claims(cluster: ClusterState) -> Sequence[Manifest]:
    """The volumes that the cache has made on a cluster."""
    return [one for one in cluster.children if type_of(one) == PERSISTENT_VOLUME_CLAIM]


def used(cluster: ClusterState) -> dict[str, Any]:
    """Return which replicas start from it there, for its status."""
    every = sorted(f"{ModelReplica.definition.kind}/{one.name}" for one in cluster.users)
    return {"used_by": tuple(every[:MOST_USERS]) or None, "users": len(every) or None}


def volumes_in_use(cluster: ClusterState, serving: Manifest | None = None) -> Iterator[Manifest]:
    """Those that replicas start from, or that new ones would."""
    used = {user.volume for user in cluster.users} | {key_of(one).name for one in (serving,) if one}
    return (one for one in claims(cluster) if key_of(one).name in used)
