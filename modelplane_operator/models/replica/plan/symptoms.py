"""What the objects of a replica say of its health: does an engine answer, is all of it there, and what is wrong.

The words are stable while nothing changes: they leave out what counts up by itself, such as back-off times.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, entries, is_terminating, section
from kubeloop.remote_messages import is_formed, why, worded
from kubeloop.words import counted
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.models.replica.plan.nodes import Unfit

KILLED = 137  # the exit code of a process that was sent SIGKILL
LENGTH = 400  # of what a scheduler or a registry says: it may name every node
# Waiting for these mends nothing by itself; the kubelet's other words (ContainerCreating) are steps on the way.
_STUCK = {
    "ErrImagePull": ModelReady.IMAGE_PULL_FAILED,
    "ImagePullBackOff": ModelReady.IMAGE_PULL_FAILED,
    "InvalidImageName": ModelReady.IMAGE_PULL_FAILED,
    "ErrImageNeverPull": ModelReady.IMAGE_PULL_FAILED,
    "CreateContainerConfigError": ModelReady.CANNOT_START,
    "CreateContainerError": ModelReady.CANNOT_START,
    "RunContainerError": ModelReady.CANNOT_START,
}

_HELPS = {
    ModelReady.IMAGE_PULL_FAILED: (
        "; correct the image of the container, or name the Secret with the registry's credentials in imagePullSecrets"
    ),
}


@dataclass(frozen=True, slots=True)
class Symptom:
    """What is the matter with one pod; the graver is told first."""

    gravity: int
    """0: it cannot run at all; 1: it has no node, or one that is not ready; 2: it is on its way."""
    pod: str
    words: str
    reason: ModelReady = ModelReady.MODEL_STARTING

    def __str__(self) -> str:
        return f"pod {self.pod} {self.words}"


def cut_pod(pod: Manifest) -> Manifest:
    """What matters of a pod: the rest is what a tenant writes, up to a megabyte of arguments in each copy.

    Here and below, a cluster may answer anything: what has not the shape of a pod is not there. One whose name is none
    is kept without it, so that its informer does not take it.
    """
    metadata, spec, status = section(pod, "metadata"), object_in(pod.get("spec")), object_in(pod.get("status"))
    conditions = [
        one for told in objects_in(status.get("conditions")) if (one := cut(told, _CONDITION)).get("type") in _TOLD
    ]
    containers = {
        name: [{**kept, **_states(one)} for one in found if (kept := cut(one, _CONTAINER)).get("name")]
        for name in _CONTAINERS
        if (found := objects_in(status.get(name)))
    }
    selector = cut(object_in(spec.get("nodeSelector")), (labels.POOL,))
    return {
        "metadata": {name: metadata[name] for name in _METADATA if is_formed(name, metadata.get(name))},
        "spec": {
            **cut(spec, ("nodeName",)),
            **({"nodeSelector": selector} if selector else {}),
            **({"resourceClaims": [{}]} if spec.get("resourceClaims") else {}),
            "containers": [
                {**kept, **_probe(one)} for one in objects_in(spec.get("containers")) if (kept := cut(one, ("name",)))
            ],
        },
        "status": {**cut(status, _STATUS), "conditions": conditions, **containers},
    }


def cut_workload(workload: Manifest) -> Manifest:
    """What is judged of a Deployment or LeaderWorkerSet; whether it says what is wanted, its annotation tells.

    Its spec is the pods', with all that a tenant writes.
    """
    status = object_in(workload.get("status"))
    refused = [
        {**one, "message": _stable(one.get("message", ""))}
        for told in objects_in(status.get("conditions"))
        if (one := cut(told, ("type", "status", "reason", "message"))).get("type") == _REFUSED_PODS
    ]
    kept = cut(status, WORKLOAD_STATUS) | ({"conditions": refused} if refused else {})
    return {"metadata": section(workload, "metadata"), "status": kept}


def cut_route(route: Manifest) -> Manifest:
    """What is judged of a route to a replica: what gateways say of it, but not since when."""
    spec, status = object_in(route.get("spec")), object_in(route.get("status"))
    told = [
        {
            "parentRef": cut(object_in(one.get("parentRef")), _PARENT),
            "conditions": [cut(each, _JUDGEMENT) for each in objects_in(one.get("conditions"))],
        }
        for one in objects_in(status.get("parents"))
    ]
    parents = [cut(one, _PARENT) for one in objects_in(spec.get("parentRefs"))]
    return {
        "metadata": section(route, "metadata"),
        "spec": {"parentRefs": parents},
        "status": {"parents": told},
    }


def cut_policy(policy: Manifest) -> Manifest:
    """Return what is judged of a policy: what gateways say of it."""
    ancestors = [
        {"conditions": [cut(each, _JUDGEMENT) for each in objects_in(one.get("conditions"))]}
        for one in objects_in(object_in(policy.get("status")).get("ancestors"))
    ]
    return {"metadata": section(policy, "metadata"), "status": {"ancestors": ancestors}}


_PARENT = ("kind", "namespace", "name")  # of a gateway that a route names
_REFUSED_PODS = "ReplicaFailure"  # a condition: pods cannot be made, for a quota, say
WORKLOAD_STATUS = ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas")  # of a workload's status
_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")
_TOLD = frozenset({"Ready", "PodScheduled"})
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_JUDGEMENT = ("type", "status", "reason", "message", "observedGeneration")
_STATUS = ("phase", "reason", "message")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_CONTAINER = ("name", "ready", "started", "restartCount")
_STATES = {"state": ("waiting", "running", "terminated"), "lastState": ("terminated",)}
_STATE = ("reason", "message", "exitCode", "startedAt")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("ready", "started"), bool),
    **dict.fromkeys(("restartCount", "exitCode", *WORKLOAD_STATUS), int),
    "port": (int, str),
}
"""Of fields that are no texts."""


def _states(container: Section) -> Manifest:
    return {
        name: {kind: cut(said, _STATE) for kind in kinds if (said := object_in(found.get(kind)))}
        for name, kinds in _STATES.items()
        if (found := object_in(container.get(name)))
    }


def _probe(container: Section) -> Manifest:
    asked = object_in(object_in(container.get("readinessProbe")).get("httpGet"))
    return {"readinessProbe": {"httpGet": cut(asked, ("path", "port"))}} if asked else {}


def object_in(value: Any) -> Section:
    return cast(Section, value) if isinstance(value, dict) else {}


def objects_in(value: Any) -> Sequence[Section]:
    return (
        [cast(Section, one) for one in cast(list[Any], value) if isinstance(one, dict)]
        if isinstance(value, list)
        else ()
    )


def cut(said: Section, fields: Iterable[str]) -> Manifest:
    """Some fields, where they are of their type and form, and of a text no more than is told."""
    found = {name: value for name in fields if isinstance(value := said.get(name), _TYPES.get(name, str))}
    kept = {name: value for name, value in found.items() if is_formed(name, value)}
    return {name: value[:LENGTH] if isinstance(value, str) else value for name, value in kept.items()}


def is_ready(pod: Manifest) -> bool:
    """Whether a pod takes requests."""
    return condition(pod, "Ready").is_true and not is_terminating(pod)


ALL_FIT = Unfit()


def symptoms(pods: Iterable[Manifest], nodes: Unfit = ALL_FIT) -> tuple[Symptom, ...]:
    """What is the matter with those pods that are not ready, the gravest first."""
    found = [_symptom(pod, nodes) for pod in pods if not is_ready(pod) or nodes.under(pod)]
    return tuple(sorted(found, key=lambda one: (one.gravity, one.pod)))


def told(found: Sequence[Symptom]) -> str:
    """The first symptom, and how many more pods have one; empty without any."""
    if not found:
        return ""
    more = f" (and {len(found) - 1} more)" if len(found) > 1 else ""
    return f"{found[0]}{more}"


def _symptom(pod: Manifest, nodes: Unfit) -> Symptom:
    name, status, down = pod["metadata"]["name"], section(pod, "status"), nodes.under(pod)
    if is_terminating(pod):
        return Symptom(2, name, f"is ending on {down}" if down else "is ending")
    if down:
        return Symptom(1, name, f"is on {down}", ModelReady.NOT_ANSWERING)
    for container in (*_unfinished(status), *entries(status, "containerStatuses")):
        reason, words = _container(container)
        if words:
            words = f"{words}{_so_far(pod, container)}{_log_of(pod, container)}"
            return Symptom(0, name, f"{container['name']}: {words}", reason)
    if status.get("phase") == "Failed":
        words = worded(status.get("reason"), status.get("message")) or "no reason given"
        return Symptom(0, name, f"failed: {words}", ModelReady.CANNOT_START)
    scheduled = condition(pod, "PodScheduled")
    if scheduled.status == "False":
        kept = nodes.kept_from(pod)
        words = "; ".join(filter(None, (f"has no node: {why(scheduled)}", kept)))
        return Symptom(1, name, words, ModelReady.UNSCHEDULABLE)
    for container in entries(status, "containerStatuses"):
        if words := _unanswered(pod, container):
            known = container.get("restartCount") or _lost(pod, container)
            reason = ModelReady.NOT_ANSWERING if known else ModelReady.MODEL_STARTING
            return Symptom(2, name, f"{container['name']}: {words}", reason)
    return _on_its_way(pod)


def _on_its_way(pod: Manifest) -> Symptom:
    """What a pod does with whose containers nothing seems wrong."""
    name, containers = pod["metadata"]["name"], entries(pod, "status", "containerStatuses")
    if containers and all(one.get("ready") for one in containers):
        since = condition(pod, "Ready").last_transition_time
        words = f"is not ready{f' since {since}' if since else ''}, though its containers are"
        return Symptom(2, name, words, ModelReady.NOT_ANSWERING)
    since = condition(pod, "PodScheduled").last_transition_time
    # The steps on the way would each be a write, and are soon over.
    return Symptom(2, name, f"is starting{f', on its node since {since}' if since else ''}")


def _unfinished(status: Section) -> Iterable[Section]:
    """Those init containers that have not done what they are for. An engine is never done."""
    for one in entries(status, "initContainerStatuses"):
        if section(one, "state", "terminated").get("exitCode") != 0:
            yield one


def _container(status: Section) -> tuple[ModelReady, str]:
    """Why a container does not run; no words when it does, or is about to."""
    waiting = section(status, "state", "waiting")
    if waiting.get("reason") == "CrashLoopBackOff":
        return ModelReady.CRASH_LOOP, f"crash loop, {_end(section(status, 'lastState', 'terminated'))}"
    if stuck := _STUCK.get(waiting.get("reason", "")):
        return stuck, f"{worded(waiting.get('reason'), waiting.get('message'))}{_HELPS.get(stuck, '')}"
    ended = section(status, "state", "terminated")
    return ModelReady.CRASH_LOOP, _end(ended) if ended else ""


def _unanswered(pod: Manifest, status: Section) -> str:
    """Since when and where a container that runs does not answer, and how to see why; empty when it does."""
    since = section(status, "state", "running").get("startedAt")
    asked = section(_spec_of(pod, status["name"]), "readinessProbe", "httpGet")
    if status.get("ready") or not since:
        return ""
    path = f" at {asked['path']}" if "path" in asked else ""
    where = f"no answer on port {asked['port']}{path}" if "port" in asked else "not ready"
    ended, restarts = section(status, "lastState", "terminated"), status.get("restartCount") or 0
    before = f", after {counted(restarts, 'restart')}" if restarts else ""
    why = f", the last with {_end(ended)}" if restarts and ended else ""
    return f"{where} since {_lost(pod, status) or since}{before}{why}{_log(pod, status)}"


def _lost(pod: Manifest, status: Section) -> str | None:
    """When a container that had answered ceased to; None of one whose first answer the kubelet still waits for."""
    since, changed = section(status, "state", "running").get("startedAt"), condition(pod, "Ready").last_transition_time
    return changed if status.get("started") and since and changed and changed > since else None


def _so_far(pod: Manifest, status: Section) -> str:
    """How often a container that has ended was begun again, and since when its pod takes no requests."""
    if not section(status, "state", "terminated") and not section(status, "lastState", "terminated"):
        return ""
    restarts, since = status.get("restartCount") or 0, condition(pod, "Ready").last_transition_time
    so_far = f", {counted(restarts, 'restart')} so far" if restarts else ""
    return f"{so_far}{f', not ready since {since}' if since else ''}"


def _log_of(pod: Manifest, status: Section) -> str:
    """How to see why a container has ended; empty when it has not."""
    if section(status, "state", "terminated"):
        return _log(pod, status)
    return _log(pod, status, "--previous") if section(status, "lastState", "terminated") else ""


def _log(pod: Manifest, status: Section, *which: str) -> str:
    metadata = pod["metadata"]
    names = metadata.get("namespace", ""), metadata["name"], "-c", status["name"]
    return f"; its log says more: {shlex.join(('kubectl', 'logs', '-n', *names, *which))}"


def _spec_of(pod: Manifest, container: str) -> Section:
    nothing: Section = {}
    return next((one for one in entries(pod, "spec", "containers") if one["name"] == container), nothing)


def _end(ended: Section) -> str:
    code, why = ended.get("exitCode", "unknown"), worded(ended.get("reason"))
    words = [why] if why and why != "Error" else []
    if why == "OOMKilled":
        words.append("it takes more memory than its limit: raise that, or have it take less")
    elif code == KILLED:
        words.append("killed, mostly for want of memory on the node or after its liveness probe")
    told = f" ({': '.join(words)})" if words else ""
    return f"exit code {code}{told}"


# Workloads and routes ------------------------------------------------------------------------------------------------


def is_behind(workload: Manifest) -> bool:
    """Whether a workload's status is about its content of before. A LeaderWorkerSet does not say."""
    seen: int | None = section(workload, "status").get("observedGeneration")
    return seen is not None and seen < workload["metadata"].get("generation", 0)


def unfinished(workload: Manifest, copies: int) -> str:
    """What a Deployment or LeaderWorkerSet lacks of so many copies of its present content; empty when nothing."""
    status = section(workload, "status")
    if is_behind(workload):
        return "its controller has not seen the latest change"
    ready, updated, total = (status.get(name) or 0 for name in ("readyReplicas", "updatedReplicas", "replicas"))
    if ready < copies:
        figures, refused = f"{ready} of {counted(copies, 'copy', 'copies')} ready", condition(workload, _REFUSED_PODS)
        return f"{figures}, and no more pods can be made: {why(refused)}" if refused.is_true else figures
    if updated < copies or total > copies:
        return f"{min(updated, copies)} of {counted(copies, 'copy', 'copies')} updated"
    return ""


def _stable(why: str) -> str:
    """What an API server says of a pod that it refuses, without the pod's name, which is another one each time."""
    return re.sub(r'pods "[^"]*" is forbidden', "a pod is forbidden", why)[:LENGTH]


def is_unseen(route: Manifest) -> bool:
    """Whether the gateway of a route has not looked at its latest change yet."""
    return not any(condition(route, "Accepted", one).current for one in _judgements(route))


def is_refused(route: Manifest) -> bool:
    """Whether the gateway of a route has looked at it as it is now, and does not accept it."""
    return unrouted(route).startswith(_REFUSED)


def is_pending(route: Manifest) -> bool:
    """True if the gateway of a route, which it has taken before, has not looked at its latest change yet."""
    return unrouted(route) == _UNSEEN


_REFUSED = "the gateway does not accept the route"
_UNSEEN = "the gateway has not seen the latest change of the route"


def unrouted(route: Manifest) -> str:
    """Why requests do not pass a route of ours at its gateway; empty when they do.

    A controller that has the gateway no more leaves its word, so that one good word is enough, and of others those
    that are about the route as it is now are told.
    """
    told = [_lack(route, one) for one in _judgements(route)]
    if not told:
        return "no gateway has taken the route yet"
    return min(told, key=lambda why: (bool(why), why == _UNSEEN))


def _lack(route: Manifest, told: Section) -> str:
    for kind in ("Accepted", "ResolvedRefs"):
        found = condition(route, kind, told)
        if not found.current:
            return _UNSEEN
        if not found.is_true:
            return f"{_REFUSED}: {why(found)}"
    return ""


def refusal(policy: Manifest) -> str:
    """Return why a gateway does not take a policy; empty when it does, or has not looked at it as it is now."""
    judgements = (condition(policy, "Accepted", one) for one in entries(policy, "status", "ancestors"))
    return next((why(one) for one in judgements if one.current and one.status == "False"), "")


def _judgements(route: Manifest) -> Sequence[Section]:
    """What is said of a route at the gateways that it names, whoever else has written into its status."""
    asked = {_parent(one, route) for one in entries(route, "spec", "parentRefs")}
    return [one for one in entries(route, "status", "parents") if _parent(section(one, "parentRef"), route) in asked]


def _parent(reference: Section, route: Manifest) -> tuple[str, str, str]:
    namespace = reference.get("namespace") or route["metadata"].get("namespace", "")
    return reference.get("kind") or "Gateway", namespace, reference.get("name", "")
