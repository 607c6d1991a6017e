"""What to create and delete for one LeaderWorkerSet, and what its status says: a function of what was observed.

Planning over the result of a plan gives no steps. A group is replaced by deleting it: its pods have fixed names, so a
new group can only be made once the old pods are gone, and then its absence is reason enough to make it.
"""

from collections.abc import Iterator, Set
from dataclasses import dataclass
from typing import TypeAlias

from localfleet.kubeclient import Manifest, entries, section
from localfleet.leaderworkerset.groups import (
    GROUP_INDEX,
    GROUP_KEY,
    LEADER_NAME,
    NAME,
    REVISION,
    SIZE,
    WORKER_INDEX,
    Group,
    LeaderWorkerSet,
    Member,
    group_key,
)

API_VERSION, KIND = "leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet"


@dataclass(frozen=True, slots=True)
class Create:
    """Make an object that is not there."""

    resource: str
    manifest: Manifest


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete this very pod, and no namesake."""

    name: str
    uid: str


Step: TypeAlias = Create | Delete


def steps(wanted: LeaderWorkerSet, groups: dict[int, Group], services: Set[str], bereaved: Set[str]) -> Iterator[Step]:
    """The next steps towards the spec.

    `services` are the names in the namespace that are taken; `bereaved` are the uids of leaders that have lost a
    worker, which a look at what is there cannot tell from one that has yet to be made.
    """
    if wanted.deleting:
        return  # the garbage collector takes what we own
    yield from _missing_services(wanted, groups, services)
    doomed = _surplus(wanted, groups) | _broken(wanted, groups, bereaved)
    doomed |= _outdated(wanted, groups, doomed)
    for index in sorted(doomed):
        yield from (Delete(pod.name, pod.uid) for pod in groups[index].members.values() if not pod.terminating)
    for index in range(wanted.replicas):
        if index not in doomed:
            pods = groups[index].members.values() if index in groups else ()
            yield from (Delete(pod.name, pod.uid) for pod in pods if pod.failed and not pod.terminating)
            yield from _missing_pods(wanted, groups.get(index) or Group(index, {}))


def status(wanted: LeaderWorkerSet, groups: dict[int, Group], before: Manifest, now: str) -> Manifest:
    """The status of the set; `before` where nothing has changed, transition times included."""
    asked = [groups[index] for index in range(wanted.replicas) if index in groups]
    ready = sum(group.ready(wanted.size) for group in asked)
    updated = sum(group.current(wanted) for group in asked)
    available = ready == wanted.replicas
    updating = any(group.index >= wanted.partition and not group.current(wanted) for group in asked)
    progress = f"{ready} of {wanted.replicas} groups are ready"
    conditions = [
        ("Available", available, "AllGroupsReady" if available else "GroupsNotReady", progress),
        ("Progressing", not available, "GroupsProgressing" if not available else "AllGroupsReady", progress),
        (
            "UpdateInProgress",
            updating,
            "GroupsUpdating" if updating else "GroupsUpdated",
            f"{updated} of {wanted.replicas} groups are of the current template",
        ),
    ]
    return {
        "observedGeneration": wanted.generation,
        "replicas": len(asked),
        "readyReplicas": ready,
        "updatedReplicas": updated,
        "hpaPodSelector": f"{NAME}={wanted.name},{WORKER_INDEX}=0",
        "conditions": [
            {
                "type": kind,
                "status": str(holds),
                "reason": reason,
                "message": message,
                "observedGeneration": wanted.generation,
                "lastTransitionTime": _since(before, kind, str(holds)) or now,
            }
            for kind, holds, reason, message in conditions
        ],
    }


def _since(before: Manifest, kind: str, status: str) -> str | None:
    """Since when a condition has had this status already; None when it has not."""
    same = (entry for entry in entries(before, "conditions") if (entry["type"], entry["status"]) == (kind, status))
    return next((entry["lastTransitionTime"] for entry in same), None)


def _surplus(wanted: LeaderWorkerSet, groups: dict[int, Group]) -> set[int]:
    return {index for index in groups if index >= wanted.replicas}


def _broken(wanted: LeaderWorkerSet, groups: dict[int, Group], bereaved: Set[str]) -> set[int]:
    """Groups that can only be had back as a whole."""
    return {group.index for group in groups.values() if _is_broken(wanted, group, bereaved)}


def _is_broken(wanted: LeaderWorkerSet, group: Group, bereaved: Set[str]) -> bool:
    leader, pods = group.leader, group.members.values()
    if leader is None or leader.terminating or any(pod.index and pod.leader_uid != leader.uid for pod in pods):
        return True  # workers without their own leader are lost under every policy
    if not wanted.recreates or (wanted.only_after_start and any(pod.pending for pod in pods)):
        return False
    return leader.uid in bereaved or any(pod.failed or pod.restarted or pod.terminating for pod in pods)


def _outdated(wanted: LeaderWorkerSet, groups: dict[int, Group], doomed: set[int]) -> set[int]:
    """The groups of an old template whose turn it is: those that do not serve anyway, and from the top so many more."""
    old = [
        index
        for index in range(wanted.replicas - 1, wanted.partition - 1, -1)
        if index in groups and index not in doomed and not groups[index].current(wanted)
    ]
    serving = {
        index for index in range(wanted.replicas) if index in groups and groups[index].ready(wanted.size)
    } - doomed
    spare = max(0, wanted.max_unavailable - (wanted.replicas - len(serving)))
    idle = [index for index in old if index not in serving]
    return {*idle, *[index for index in old if index in serving][:spare]}


def _missing_services(wanted: LeaderWorkerSet, groups: dict[int, Group], services: Set[str]) -> Iterator[Create]:
    if wanted.own_subdomains:
        for index, group in sorted(groups.items()):
            name = f"{wanted.name}-{index}"
            if group.leader is not None and not group.leader.terminating and name not in services:
                selector = {NAME: wanted.name, GROUP_INDEX: str(index)}
                yield Create("services", _headless_service(wanted, name, selector, _leader_reference(group.leader)))
    elif wanted.name not in services:
        yield Create("services", _headless_service(wanted, wanted.name, {NAME: wanted.name}, _set_reference(wanted)))


def _missing_pods(wanted: LeaderWorkerSet, group: Group) -> Iterator[Create]:
    if group.leader is None:
        yield Create("pods", render_pod(wanted, group.index, 0, leader=None))
        return
    if wanted.workers_wait and not group.leader.ready:
        return
    if (group.leader.revision, group.leader.size) != (wanted.revision, str(wanted.size)):
        return  # the template it was made from is gone: its turn to be replaced will come
    for index in range(1, wanted.size):
        if index not in group.members:
            yield Create("pods", render_pod(wanted, group.index, index, leader=group.leader))


def render_pod(wanted: LeaderWorkerSet, group: int, index: int, *, leader: Member | None) -> Manifest:
    """One pod of a group; `leader` None: the leader itself."""
    leader_name = f"{wanted.name}-{group}"
    name = leader_name if leader is None else f"{leader_name}-{index}"
    subdomain = leader_name if wanted.own_subdomains else wanted.name
    template = wanted.leader_template if leader is None else wanted.worker_template
    spec = section(template, "spec")
    variables = [
        {"name": "LWS_LEADER_ADDRESS", "value": f"{leader_name}.{subdomain}.{wanted.namespace}"},
        {"name": "LWS_GROUP_SIZE", "value": str(wanted.size)},
        {"name": "LWS_WORKER_INDEX", "value": str(index)},
    ]
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": wanted.namespace,
            "labels": {
                **section(template, "metadata", "labels"),
                NAME: wanted.name,
                GROUP_INDEX: str(group),
                WORKER_INDEX: str(index),
                GROUP_KEY: group_key(wanted, group),
                REVISION: wanted.revision,
            },
            "annotations": {
                **section(template, "metadata", "annotations"),
                SIZE: str(wanted.size),
                **({} if leader is None else {LEADER_NAME: leader_name}),
            },
            "ownerReferences": [_set_reference(wanted) if leader is None else _leader_reference(leader)],
        },
        "spec": {
            **spec,
            "hostname": name,
            "subdomain": subdomain,
            **{
                kind: [{**entry, "env": [*variables, *entries(entry, "env")]} for entry in entries(spec, kind)]
                for kind in ("initContainers", "containers")
                if kind in spec
            },
        },
    }


def _headless_service(wanted: LeaderWorkerSet, name: str, selector: dict[str, str], owner: Manifest) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": wanted.namespace, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "selector": selector, "publishNotReadyAddresses": True},
    }


def _set_reference(wanted: LeaderWorkerSet) -> Manifest:
    return _reference(API_VERSION, KIND, wanted.name, wanted.uid)


def _leader_reference(leader: Member) -> Manifest:
    return _reference("v1", "Pod", leader.name, leader.uid)


def _reference(api_version: str, kind: str, name: str, uid: str) -> Manifest:
    owner = {"apiVersion": api_version, "kind": kind, "name": name, "uid": uid}
    return {**owner, "controller": True, "blockOwnerDeletion": True}
