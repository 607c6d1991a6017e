"""Plan a ModelCache on one cluster.

    claim      a PersistentVolumeClaim for the current content; another content gets another one, next to it
    Job        fills the claim; created again some time after a failure
    staged     once the Job has succeeded, the claim is annotated with the revision; from then on only that counts
    rest       Job, token and account are deleted; an old claim is deleted when no replica starts from it

A cluster that the cache does not select any longer keeps the claims that replicas there start from.
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
from kubeloop.remote_messages import sanitize
from kubeloop.types import JOB, PERSISTENT_VOLUME_CLAIM, SECRET, type_of
from modelplane_operator.api import labels, names
from modelplane_operator.api.cache_sources import HuggingFace
from modelplane_operator.api.isolation import Isolation
from modelplane_operator.api.model_cache import MOST_USERS, ArtifactReady, CachedCluster, ModelCache, Phase
from modelplane_operator.api.model_replica import ModelReplica
from modelplane_operator.models.cache.cache_sources import claim_of, content_of, credentials, remote_source, source_of
from modelplane_operator.models.cache.cache_status import describe_missing_secret
from modelplane_operator.models.cache.hydration import (
    Reported,
    attempt,
    find_problem,
    has_failed,
    is_failing,
    job_succeeded,
    read_report,
    silence,
    validate_revision,
)
from modelplane_operator.models.cache.render import Hydrator, render_account, render_job, render_token, render_volume
from modelplane_operator.models.replica.render.fences import render_fences

REQUEUE_SOON: Final = 2.0
"""Seconds to wait for the first lists of a cluster."""
PAUSE: Final = timedelta(minutes=1)  # doubled up to LONGEST
"""Time between the first failure of a hydration and the next Job; doubled after each further failure."""
LONGEST: Final = timedelta(hours=1)
"""Longest time between two Jobs."""
UNBOUND: Final = timedelta(seconds=30)
"""Time in which a volume must be bound."""
CLAIMS: Final = "a volume of it is not bound"
"""Phrase in the symptom of a pod that waits for its volume."""
UNNAMED: Final = "the hydrator's image is not set: set --hydrator-image of the operator to the operator's own image"
"""Message while the operator has no hydrator image."""


@dataclass(frozen=True, slots=True)
class User:
    """A replica that starts from the cache."""

    name: str
    """Name of the ModelReplica."""
    volume: str
    """Name of the claim that it mounts."""


@dataclass(frozen=True, slots=True)
class ClusterState:
    """A cluster that the cache selects or has objects on."""

    name: str
    is_selected: bool
    """True if it must hold the weights."""
    storage_class: str = ""
    """StorageClass for caches on the cluster."""
    isolation: Isolation = Isolation()  # noqa: RUF009 - frozen
    """Isolation settings of the InferenceCluster."""
    users: tuple[User, ...] = ()
    """Replicas there that start from the cache."""
    connected: bool = True
    """True if the informers of the cluster can be relied on."""
    error: ClientError | None = None
    """Reason why the cluster is unreachable, or None."""
    children: tuple[Manifest, ...] = ()
    """Objects that the operator applied there for this cache."""
    pods: tuple[Manifest, ...] = ()
    """Pods of the hydration Job."""
    fences: tuple[Manifest, ...] = ()
    """Isolation policies that the operator applied in the namespace there."""
    existing: Manifest | None = None
    """The user's PersistentVolumeClaim to mount as it is, or None."""
    namespace: Manifest | None = None
    """The namespace there if no other object needs it, else None."""


@dataclass(frozen=True, slots=True)
class Observed:
    """A ModelCache and the clusters that it selects or has objects on."""

    cache: ModelCache
    """Cache as its spec and its last status describe it."""
    clusters: tuple[ClusterState, ...]
    """State of each cluster that concerns the cache."""
    namespace_uid: str
    """Uid of the namespace on the hub; "" until the informer has it."""
    hydrator: Hydrator
    """Image and endpoint of the hydrator."""
    now: datetime
    secret: Mapping[str, str] = field(default_factory=dict[str, str])
    """Base64 values of the Secret for the hydrator, by environment variable."""
    recheck: float = 30.0
    """Seconds until the Secret is read again."""
    crowded: bool = False
    """True if the namespace has reached its limit with older caches."""
    without_storage: tuple[str, ...] = ()
    """Selected clusters without storage for the cache."""
    refusals: Mapping[str, Failure] = field(default_factory=dict[str, Failure])
    """Writes that clusters have just rejected, by cluster."""

    @property
    def secret_missing(self) -> bool:
        """True if the Secret lacks a key that the source requires."""
        required = credentials(source_of(self.cache))
        return required is not None and not self.secret.keys() >= required.variables.keys()


@dataclass(frozen=True, slots=True)
class ClusterPlan:
    """The status row, the steps and the requeue time of one cluster."""

    row: CachedCluster
    """Row of the cluster in the cache's status."""
    steps: tuple[Step, ...] = ()
    """Steps in the order in which to carry them out."""
    requeue_after: float | None = None
    """Seconds until the next reconcile, or None."""
    counts: bool = True
    """True if the cache must be on this cluster."""
    reason: str = ""
    """Reason why a cache that is being deleted waits for this cluster."""
    defect: Exception | None = None
    """Exception that the cluster's data caused in the plan, or None."""


def plan_cluster(observed: Observed, cluster: ClusterState) -> ClusterPlan | None:
    """Return the plan for one cluster; None if the cache has nothing to report or to do there."""
    last = observed.cache.on(cluster.name)
    if not cluster.connected:
        message = (
            f"cluster {cluster.name} does not answer: see ClusterReady of that InferenceCluster"
            if cluster.error
            else "cluster has not been listed yet"
        )
        row = last or CachedCluster(name=cluster.name, phase="Pending", since=observed.now)
        row = (
            clear_rejection(row).model_copy(update={"message": message[:1000], "reason": None})
            if cluster.error
            else row
        )
        return ClusterPlan(row, requeue_after=None if cluster.error else REQUEUE_SOON, counts=cluster.is_selected)
    if not cluster.is_selected and not cluster.users:
        return _plan_removal(cluster, last)
    if claim_of(observed.cache):
        return _plan_existing(observed, cluster, last)
    cache_on_cluster = _CacheOnCluster(observed, cluster)
    if cache_on_cluster.claim is None and not cluster.is_selected:  # it keeps the volumes in use and gets no new one
        return ClusterPlan(clear_rejection(last).model_copy(update=used(cluster)), counts=False) if last else None
    return cache_on_cluster.plan(last)


def _plan_existing(observed: Observed, cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan:
    """Return the plan for a cluster where the cache is a claim that a user has created."""
    name, namespace = claim_of(observed.cache), names.remote_namespace(observed.cache.key.namespace)
    fences = render_fences(observed.cache.key.namespace, observed.namespace_uid, cluster.isolation)
    retained = [*fences, *volumes_in_use(cluster)]
    steps: list[Step] = [Apply(manifest, cluster.name) for manifest in fences] if cluster.is_selected else []
    steps += prune(cluster.children, retained, owner=observed.cache.metadata.uid or "", cluster=cluster.name)
    bound = section(cluster.existing or {}, "status").get("phase")
    phase: Phase = "Ready" if bound == "Bound" else "Pending"
    not_bound = f"is not bound: `kubectl describe pvc -n {namespace} {name}` on the cluster says why"
    problem = (
        "does not exist: create it on the cluster, with the weights in it" if cluster.existing is None else not_bound
    )
    message = f"PersistentVolumeClaim {namespace}/{name} {problem}"
    since = (last.since if last and last.phase == phase else None) or observed.now
    is_stuck = phase == "Pending" and (cluster.existing is None or observed.now - since >= UNBOUND)
    row = CachedCluster(
        name=cluster.name,
        phase=phase,
        message=None if phase == "Ready" else message,
        reason=ArtifactReady.VOLUME_NOT_BOUND.reason if is_stuck else None,
        since=since,
        volume=name if phase == "Ready" else None,
        **used(cluster),
    )
    return ClusterPlan(row, tuple(steps), None if phase == "Ready" else observed.recheck, counts=cluster.is_selected)


def _plan_removal(cluster: ClusterState, last: CachedCluster | None) -> ClusterPlan | None:
    """Return the steps to delete the cache from a cluster that does not need it any longer."""
    steps = tuple(delete(child, cluster=cluster.name) for child in cluster.children if not is_terminating(child))
    if cluster.children:
        row = clear_rejection(last or CachedCluster(name=cluster.name))
        return ClusterPlan(
            row.model_copy(update={"message": "the copy on the cluster is being deleted"}), steps, counts=False
        )
    if last is None or cluster.namespace is None:
        return None
    return ClusterPlan(clear_rejection(last), (delete(cluster.namespace, cluster=cluster.name),), counts=False)


@dataclass(frozen=True, slots=True)
class _VolumePlan:
    """The state of a volume and the objects that it needs."""

    phase: Phase
    """Phase for the status row."""
    message: str = ""
    """Message for the status row; "" if nothing is wrong."""
    reason: ArtifactReady | None = None
    """What a person has to do something about; None if nothing."""
    retry: datetime | None = None
    """Time when a failed Job is created again."""
    recheck: datetime | None = None
    """Time of the next reconcile if no event arrives."""
    needed: Sequence[Manifest] = ()
    """Objects that hydration needs besides the volume."""


@dataclass(frozen=True, slots=True)
class _CacheOnCluster:
    """A cluster on which the cache has a claim or must get one."""

    observed: Observed
    """Cache with its surroundings on the hub."""
    cluster: ClusterState
    """State of the one cluster."""

    @property
    def claim(self) -> Manifest | None:
        """Return the claim of the current content, or None."""
        content = content_of(self.observed.cache)
        live_claims = (claim for claim in claims(self.cluster) if not is_terminating(claim))
        return next((claim for claim in live_claims if annotations_of(claim).get(labels.CONTENT) == content), None)

    @property
    def staged(self) -> bool:
        """True if the claim holds the complete content."""
        return self.claim is not None and labels.STAGED in annotations_of(self.claim)

    @property
    def job(self) -> Manifest | None:
        """Return the hydration Job of the current content, or None."""
        return next((child for child in self._hydration_objects() if type_of(child) == JOB), None)

    @property
    def serving(self) -> Manifest | None:
        """Return the claim that new replicas start from: the current one once it is staged, or an older complete
        one.
        """
        if self.staged:
            return self.claim
        last = self.observed.cache.on(self.cluster.name)
        live_claims = (claim for claim in claims(self.cluster) if not is_terminating(claim))
        complete = (claim for claim in live_claims if labels.STAGED in annotations_of(claim))
        return min(
            complete, key=lambda claim: (key_of(claim).name != (last and last.volume), key_of(claim)), default=None
        )

    def plan(self, last: CachedCluster | None) -> ClusterPlan:
        """Return the plan for this cluster: apply what hydration needs, retry failed Jobs, and prune the rest."""
        job, cluster, now = self.job, self.cluster.name, self.observed.now
        has_succeeded = job is not None and job_succeeded(job)
        report = read_report(job, self.cluster.pods) if job else None
        source = source_of(self.observed.cache)
        requested = source.revision if isinstance(source, HuggingFace) else ""
        candidate = revision_of(self.claim) or (report and report.revision) or requested or "unnamed"
        revision = candidate if self.staged or has_succeeded else ""
        volume = self._render_claim(revision)
        base = [
            *render_fences(self.observed.cache.key.namespace, self.observed.namespace_uid, self.cluster.isolation),
            volume,
        ]
        volume_plan = self._plan_volume(job, staged=bool(revision), last=last)
        steps: list[Step] = [Apply(manifest, cluster) for manifest in (*base, *volume_plan.needed)]
        # The Job is retained until the volume has its annotation and the status has the attempts and the digest.
        is_staged = self.staged
        verification = self._verification(report, last)
        stored = last and (last.attempts, last.digest)
        unreported = [job] if job and stored != (attempt(job), verification.get("digest")) else []
        needed = [*volume_plan.needed, *(unreported if is_staged else self._hydration_objects())]
        retained = [*base, *needed, *volumes_in_use(self.cluster, self.serving)]
        steps += prune(self.cluster.children, retained, owner=self.observed.cache.metadata.uid or "", cluster=cluster)
        steps += prune(self.cluster.fences, base, owner=self.observed.namespace_uid, cluster=cluster)
        retry_now = volume_plan.retry is not None and (volume_plan.retry <= now or is_edited(self.observed.cache))
        if job and not is_staged and (retry_now or self._is_token_changed(job)):
            steps = [delete(job, cluster=cluster)] if not is_terminating(job) else []
        serving = self.serving
        since = last.since if last and last.phase == volume_plan.phase else None
        requeue_at = (
            None
            if retry_now
            else volume_plan.retry or volume_plan.recheck or (now if is_staged and unreported else None)
        )
        return ClusterPlan(
            CachedCluster(
                name=cluster,
                phase=volume_plan.phase,
                message=volume_plan.message[:1000] or None,
                reason=volume_plan.reason.reason if volume_plan.reason else None,
                since=since or now,
                attempts=attempt(job) if job else self._previous_attempts(last),
                next_attempt=volume_plan.retry,
                progress=None if is_staged or not report else report.progress,
                volume=key_of(serving).name if serving else None,
                revision=revision_of(serving) or None,
                **verification,
                **used(self.cluster),
            ),
            tuple(steps),
            max((requeue_at - now).total_seconds(), 1.0) if requeue_at else None,
            counts=self.cluster.is_selected,
        )

    def _verification(self, report: Reported | None, last: CachedCluster | None) -> dict[str, Any]:
        """Return the digest and file counts of the serving volume, from when it was filled or verified."""
        if self.staged and report and report.digest:
            return {
                "digest": report.digest,
                "changed_files": report.changed or None,
                "unlisted_files": report.unlisted or None,
            }
        serving = key_of(self.serving).name if self.serving else None
        if last is None or (serving and last.volume not in {None, serving}):
            return {}
        return {name: getattr(last, name) for name in ("digest", "changed_files", "unlisted_files")}

    def _plan_volume(self, job: Manifest | None, *, staged: bool, last: CachedCluster | None) -> _VolumePlan:
        """Return the phase of the volume, and the objects that its hydration needs."""
        bound = section(self.claim or {}, "status").get("phase")
        if bound == "Lost":
            message = f"volume {key_of(self.claim or {}).name} is lost: delete its claim"
            return _VolumePlan("Failed", message, ArtifactReady.FAILED)
        if staged:
            return _VolumePlan("Ready")
        if job and has_failed(job):
            since = last.since if last and last.phase == "Failed" and last.since else self.observed.now
            pause = min(PAUSE * 2 ** min(attempt(job) - 1, 10), LONGEST)
            reason = f"the Job has failed: {sanitize(condition(job, 'Failed').reason) or 'no reason given'}"
            problem = find_problem(self.cluster.pods) or reason
            return _VolumePlan("Failed", problem, ArtifactReady.FAILED, retry=since + pause)
        phase: Phase = "Hydrating" if bound == "Bound" else "Pending"
        if job is None and self.observed.secret_missing:
            return _VolumePlan(phase, describe_missing_secret(self.observed.cache), ArtifactReady.AUTH_SECRET_MISSING)
        if job is None and not self.observed.hydrator.image:
            return _VolumePlan(phase, UNNAMED, ArtifactReady.FAILED)
        token = [render_token(self.observed.cache, self.observed.secret)] if self.observed.secret else []
        needed = [*token, *render_account(self.observed.cache)]
        if job is None:
            needed.append(
                render_job(
                    self.observed.cache,
                    self._render_claim("")["metadata"]["name"],
                    self.observed.hydrator,
                    attempt=(self._previous_attempts(last) or 0) + 1,
                    verified=(last and last.digest) or "",
                )
            )
            return _VolumePlan(phase, needed=needed)
        silent, recheck = silence(job, self.cluster.pods, self.observed.now)
        unbound, pod_problem = "" if bound == "Bound" else self._unbound_message(), find_problem(self.cluster.pods)
        # If the volume is not bound, pods only report that they wait for it.
        message = unbound if unbound and CLAIMS in pod_problem else pod_problem or silent or unbound
        reason = ArtifactReady.FAILED if silent or is_failing(self.cluster.pods) else None
        if message == unbound != "":
            since = (last.since if last and last.phase == phase else None) or self.observed.now
            is_stuck = self.observed.now - since >= UNBOUND
            reason = ArtifactReady.VOLUME_NOT_BOUND if is_stuck else None
            recheck = recheck if is_stuck else min(filter(None, (recheck, since + UNBOUND)))
        return _VolumePlan(phase, message, reason, recheck=recheck, needed=needed)

    def _previous_attempts(self, last: CachedCluster | None) -> int | None:
        """Return the number of earlier Jobs for the current content, if there is no Job now."""
        is_current = self.staged or (self.claim is not None and last is not None and last.phase != "Ready")
        return last.attempts if last and is_current else None

    def _unbound_message(self) -> str:
        """Return a message about a claim that is not bound."""
        namespace, name = key_of(self.claim) if self.claim else ("", "")
        storage_class = section(self.claim or {}, "spec").get("storageClassName") or self.cluster.storage_class
        return (
            f"the volume is not bound: check that StorageClass {storage_class} exists and provides such volumes; "
            f"`kubectl describe pvc -n {namespace} {name}` on the cluster says why"
        )

    def _render_claim(self, staged: str) -> Manifest:
        """Render the claim, annotated with `staged`, the revision that it holds completely."""
        cache, claim, gib = self.observed.cache, self.claim, remote_source(self.observed.cache).size_gib
        if claim is None:
            default_name = names.cache_volume(*cache.key)
            is_taken = any(key_of(existing).name == default_name for existing in claims(self.cluster))
            name = names.cache_volume(*cache.key, content_of(cache)) if is_taken else default_name
            return render_volume(cache, name, self.cluster.storage_class, gib, staged)
        spec = section(claim, "spec")  # an existing claim only ever grows
        requested = section(spec, "resources", "requests").get("storage", "")
        current = int(requested[:-2]) if requested.endswith("Gi") and requested[:-2].isdigit() else 0
        return render_volume(cache, key_of(claim).name, spec.get("storageClassName", ""), max(gib, current), staged)

    def _hydration_objects(self) -> Iterator[Manifest]:
        """Yield the existing objects of the current hydration."""
        name = names.hydration(*self.observed.cache.key, content_of(self.observed.cache))
        return (child for child in self.cluster.children if key_of(child).name == name)

    def _is_token_changed(self, job: Manifest) -> bool:
        """True if a Job has failed and the Secret has changed since."""
        if not has_failed(job) or not self.observed.secret:
            return False
        desired = render_token(self.observed.cache, self.observed.secret)
        copies = (
            child for child in self.cluster.children if type_of(child) == SECRET and key_of(child) == key_of(desired)
        )
        return any(not was_applied(child, desired) for child in copies)


def is_edited(cache: ModelCache) -> bool:
    """True if a user has changed the cache since it was last reconciled."""
    conditions = cache.status.conditions if cache.status else ()
    observed_generation = next((item.observed_generation for item in conditions if item.type == Synced.__name__), None)
    return observed_generation != cache.metadata.generation


def clear_rejection(row: CachedCluster) -> CachedCluster:
    """Return the last row of a cluster without its rejection."""
    return row.model_copy(update={"refusals": None, "next_attempt": None, "message": None}) if row.refusals else row


def revision_of(claim: Manifest | None) -> str:
    """Return the revision that a volume holds completely; "" if that is unknown."""
    return validate_revision(annotations_of(claim).get(labels.STAGED)) if claim else ""


def claims(cluster: ClusterState) -> Sequence[Manifest]:
    """Return the claims that the operator has created for the cache on a cluster."""
    return [child for child in cluster.children if type_of(child) == PERSISTENT_VOLUME_CLAIM]


def used(cluster: ClusterState) -> dict[str, Any]:
    """Return the status fields about the replicas that start from the cache on a cluster."""
    user_names = sorted(f"{ModelReplica.definition.kind}/{user.name}" for user in cluster.users)
    return {"used_by": tuple(user_names[:MOST_USERS]) or None, "users": len(user_names) or None}


def volumes_in_use(cluster: ClusterState, serving: Manifest | None = None) -> Iterator[Manifest]:
    """Yield the claims that replicas start from, and the one that new replicas would start from."""
    used = {user.volume for user in cluster.users} | {key_of(claim).name for claim in (serving,) if claim}
    return (claim for claim in claims(cluster) if key_of(claim).name in used)
