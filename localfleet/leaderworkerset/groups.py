"""What a LeaderWorkerSet asks for, and what its groups of pods are: parsed from manifests once, frozen."""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import orjson

from localfleet.kubeclient import Manifest, entries, section

PREFIX = "leaderworkerset.sigs.k8s.io/"
NAME, GROUP_INDEX, WORKER_INDEX = f"{PREFIX}name", f"{PREFIX}group-index", f"{PREFIX}worker-index"
GROUP_KEY, REVISION = f"{PREFIX}group-key", f"{PREFIX}template-revision-hash"
SIZE, LEADER_NAME = f"{PREFIX}size", f"{PREFIX}leader-name"


@dataclass(frozen=True, slots=True)
class LeaderWorkerSet:
    """The spec as it counts here, with the API's defaults filled in."""

    namespace: str
    name: str
    uid: str
    generation: int
    replicas: int
    size: int
    leader_template: Manifest
    worker_template: Manifest
    revision: str
    recreates: bool
    only_after_start: bool
    workers_wait: bool
    own_subdomains: bool
    partition: int
    max_unavailable: int
    deleting: bool


@dataclass(frozen=True, slots=True)
class Member:
    """One pod of a group, as observed."""

    name: str
    uid: str
    index: int
    revision: str
    size: str
    leader_uid: str | None
    ready: bool
    pending: bool
    failed: bool
    restarted: bool
    terminating: bool


@dataclass(frozen=True, slots=True)
class Group:
    """The pods of one group index, by worker index."""

    index: int
    members: Mapping[int, Member]

    @property
    def leader(self) -> Member | None:
        """The pod with worker index 0."""
        return self.members.get(0)

    def ready(self, size: int) -> bool:
        """Whether the whole group is there and ready."""
        return len(self.members) == size and all(pod.ready and not pod.terminating for pod in self.members.values())

    def current(self, wanted: LeaderWorkerSet) -> bool:
        """Whether every pod comes from the template of now, at the size of now."""
        return bool(self.members) and all(
            (pod.revision, pod.size) == (wanted.revision, str(wanted.size)) for pod in self.members.values()
        )


def read_set(manifest: Manifest) -> LeaderWorkerSet:
    """The set that a manifest describes."""
    metadata, spec = section(manifest, "metadata"), section(manifest, "spec")
    template = section(spec, "leaderWorkerTemplate")
    rollout = section(spec, "rolloutStrategy", "rollingUpdateConfiguration")
    policy = template.get("restartPolicy", "RecreateGroupOnPodRestart")
    replicas: int = spec.get("replicas", 1)
    worker = section(template, "workerTemplate")
    return LeaderWorkerSet(
        namespace=metadata["namespace"],
        name=metadata["name"],
        uid=metadata["uid"],
        generation=metadata["generation"],
        replicas=replicas,
        size=template.get("size", 1),
        leader_template=section(template, "leaderTemplate") or worker,
        worker_template=worker,
        revision=_digest({**template, "size": None, "restartPolicy": None, "network": spec.get("networkConfig")})[:10],
        recreates=policy in ("RecreateGroupOnPodRestart", "RecreateGroupAfterStart"),
        only_after_start=policy == "RecreateGroupAfterStart",
        workers_wait=spec.get("startupPolicy") == "LeaderReady",
        own_subdomains=section(spec, "networkConfig").get("subdomainPolicy") == "UniquePerReplica",
        partition=rollout.get("partition", 0),
        max_unavailable=_count(rollout.get("maxUnavailable", 1), replicas),
        deleting="deletionTimestamp" in metadata,
    )


def read_groups(wanted: LeaderWorkerSet, pods: Iterable[Manifest]) -> dict[int, Group]:
    """The groups that exist, by index."""
    found: dict[int, dict[int, Member]] = {}
    for pod in pods:
        labels = section(pod, "metadata", "labels")
        if labels.get(NAME) == wanted.name and GROUP_INDEX in labels and WORKER_INDEX in labels:
            member = _read_member(pod)
            found.setdefault(int(labels[GROUP_INDEX]), {})[member.index] = member
    return {index: Group(index, members) for index, members in found.items()}


def group_key(wanted: LeaderWorkerSet, group: int) -> str:
    """A value that all pods of one group share and no other group has."""
    return hashlib.sha1(f"{wanted.namespace}/{wanted.name}-{group}".encode(), usedforsecurity=False).hexdigest()


def _read_member(pod: Manifest) -> Member:
    metadata, status = section(pod, "metadata"), section(pod, "status")
    labels = section(metadata, "labels")
    containers = entries(status, "containerStatuses") + entries(status, "initContainerStatuses")
    conditions = {entry["type"]: entry["status"] for entry in entries(status, "conditions")}
    owners = [owner["uid"] for owner in entries(metadata, "ownerReferences") if owner["kind"] == "Pod"]
    phase = status.get("phase", "Pending")
    return Member(
        name=metadata["name"],
        uid=metadata["uid"],
        index=int(labels[WORKER_INDEX]),
        revision=labels.get(REVISION, ""),
        size=section(metadata, "annotations").get(SIZE, ""),
        leader_uid=owners[0] if owners else None,
        ready=conditions.get("Ready") == "True",
        pending=phase == "Pending",
        failed=phase == "Failed",
        restarted=any(entry.get("restartCount", 0) > 0 for entry in containers),
        terminating="deletionTimestamp" in metadata,
    )


def _digest(value: object) -> str:
    return hashlib.sha256(orjson.dumps(value, option=orjson.OPT_SORT_KEYS)).hexdigest()


def _count(value: int | str, total: int) -> int:
    """An absolute number, or a percentage of `total` rounded down; at least one, or nothing would ever be updated."""
    if isinstance(value, str) and value.endswith("%"):
        value = int(value.removesuffix("%")) * total // 100
    return max(1, int(value))
