"""Derive the health of a replica from its pods, workloads and routes: does an engine answer, and what is wrong.

Messages are stable while nothing changes: they leave out what changes by itself, such as back-off times.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, cast

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, entries, is_terminating, section
from kubeloop.remote_messages import describe_condition, is_formed, sanitize
from kubeloop.words import count_of
from modelplane_operator.api import labels
from modelplane_operator.api.model_replica import ModelReady
from modelplane_operator.models.replica.plan.nodes import Unfit

SIGNALS = {137: "SIGKILL", 143: "SIGTERM"}  # 128 plus the signal's number; the kubelet sends these two
"""Signals by the exit code of a process that they ended."""
GRACE = 120.0  # a container that fails its startup probe has some seconds to end
"""Longest time that a container is expected to run after its startup probe has failed, in seconds."""
LENGTH = 400  # a scheduler may name every node
"""Longest text that is retained of a scheduler's or a registry's message, in characters."""
# Waiting does not resolve these. The kubelet's other reasons, such as ContainerCreating, are normal steps of a start.
_BLOCKED_REASONS = {
    **dict.fromkeys(("ErrImagePull", "ImagePullBackOff", "InvalidImageName"), ModelReady.IMAGE_PULL_FAILED),
    **dict.fromkeys(("ErrImageNeverPull", "ImageInspectError"), ModelReady.IMAGE_PULL_FAILED),
    **dict.fromkeys(("RegistryUnavailable", "SignatureValidationFailed"), ModelReady.IMAGE_PULL_FAILED),
    **dict.fromkeys(("CreateContainerConfigError", "CreateContainerError"), ModelReady.CANNOT_START),
    "RunContainerError": ModelReady.CANNOT_START,
}
"""Reasons of ModelReady for the kubelet's reasons of a waiting container."""

_NOT_RUN = frozenset({"StartError", "ContainerCannotRun"})
"""Reasons of containers whose command could not be run. They have no log; the message of the runtime says why."""

_ADVICE = {
    ModelReady.IMAGE_PULL_FAILED: (
        "; correct the image of the container, or name the Secret with the registry's credentials in imagePullSecrets"
    ),
}
"""Advice that is appended to the message of a reason."""


@dataclass(frozen=True, slots=True)
class Symptom:
    """A problem of one pod; messages report the gravest first."""

    gravity: int
    """0: it cannot run at all; 1: it has no node, or one that is not ready; 2: it is starting or ending."""
    pod: str
    """Name of the pod."""
    message: str
    """Message about the pod, without its name."""
    reason: ModelReady = ModelReady.MODEL_STARTING
    """Reason for the condition ModelReady."""

    def __str__(self) -> str:
        return f"pod {self.pod} {self.message}"


def prune_pod(pod: Manifest) -> Manifest:
    """Return the fields of a pod that the operator reads. Tenants write the others, which may have a megabyte.

    A cluster may return anything. A field that does not have the expected type is left out. A pod with a malformed
    name is returned without a name, so that the informer ignores it.
    """
    metadata, spec, status = section(pod, "metadata"), object_in(pod.get("spec")), object_in(pod.get("status"))
    conditions = [
        pruned
        for entry in objects_in(status.get("conditions"))
        if (pruned := shorten(entry, _CONDITION)).get("type") in _POD_CONDITIONS
    ]
    containers = {
        name: [
            {**fields, **_prune_states(pruned)}
            for pruned in statuses
            if (fields := shorten(pruned, _CONTAINER)).get("name")
        ]
        for name in _CONTAINERS
        if (statuses := objects_in(status.get(name)))
    }
    selector = shorten(object_in(spec.get("nodeSelector")), (labels.POOL,))
    return {
        "metadata": {name: metadata[name] for name in _METADATA if is_formed(name, metadata.get(name))},
        "spec": {
            **shorten(spec, ("nodeName",)),
            **({"nodeSelector": selector} if selector else {}),
            **({"resourceClaims": [{}]} if spec.get("resourceClaims") else {}),
            "containers": [
                {**fields, **_prune_probes(pruned)}
                for pruned in objects_in(spec.get("containers"))
                if (fields := shorten(pruned, ("name",)))
            ],
        },
        "status": {**shorten(status, _STATUS), "conditions": conditions, **containers},
    }


def prune_workload(workload: Manifest) -> Manifest:
    """Return the metadata and the status fields of a Deployment or LeaderWorkerSet that the operator reads.

    The spec has all that a tenant writes and is left out: an annotation shows whether it is current.
    """
    status = object_in(workload.get("status"))
    failures = [
        # without the name of the rejected pod, which differs each time
        {**pruned, "message": _REJECTED_POD.sub("a pod is forbidden", pruned.get("message", ""))[:LENGTH]}
        for entry in objects_in(status.get("conditions"))
        if (pruned := shorten(entry, ("type", "status", "reason", "message"))).get("type") == _REPLICA_FAILURE
    ]
    status_fields = shorten(status, WORKLOAD_STATUS) | ({"conditions": failures} if failures else {})
    return {"metadata": section(workload, "metadata"), "status": status_fields}


def prune_route(route: Manifest) -> Manifest:
    """Return the fields of an HTTPRoute that the operator reads: parents and their conditions, without times."""
    spec, status = object_in(route.get("spec")), object_in(route.get("status"))
    parent_statuses = [
        {
            "parentRef": shorten(object_in(parent.get("parentRef")), _PARENT),
            "conditions": [shorten(entry, _ROUTE_CONDITION) for entry in objects_in(parent.get("conditions"))],
        }
        for parent in objects_in(status.get("parents"))
    ]
    parents = [shorten(parent, _PARENT) for parent in objects_in(spec.get("parentRefs"))]
    return {
        "metadata": section(route, "metadata"),
        "spec": {"parentRefs": parents},
        "status": {"parents": parent_statuses},
    }


def prune_policy(policy: Manifest) -> Manifest:
    """Return the fields of a policy that the operator reads: the conditions that gateways report."""
    ancestors = [
        {"conditions": [shorten(entry, _ROUTE_CONDITION) for entry in objects_in(ancestor.get("conditions"))]}
        for ancestor in objects_in(object_in(policy.get("status")).get("ancestors"))
    ]
    return {"metadata": section(policy, "metadata"), "status": {"ancestors": ancestors}}


_PARENT = ("kind", "namespace", "name")
"""Fields that identify a gateway."""
_REJECTED_POD = re.compile(r'pods "[^"]*" is forbidden')
_REPLICA_FAILURE = "ReplicaFailure"  # condition type: pods cannot be created, because of a quota for example
WORKLOAD_STATUS = ("observedGeneration", "replicas", "readyReplicas", "updatedReplicas")
"""Fields of a workload's status that are retained."""
_METADATA = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")
_POD_CONDITIONS = frozenset({"Ready", "PodScheduled"})
"""Types of a pod's conditions that are retained."""
_CONDITION = ("type", "status", "reason", "message", "lastTransitionTime")
_ROUTE_CONDITION = ("type", "status", "reason", "message", "observedGeneration")
_STATUS = ("phase", "reason", "message")
_CONTAINERS = ("initContainerStatuses", "containerStatuses")
_CONTAINER = ("name", "ready", "started", "restartCount")
_STATES = {"state": ("waiting", "running", "terminated"), "lastState": ("terminated",)}
"""Fields of a container's states that are retained, by state."""
_STATE = ("reason", "message", "exitCode", "startedAt", "finishedAt")
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    **dict.fromkeys(("ready", "started"), bool),
    **dict.fromkeys(("restartCount", "exitCode", "periodSeconds", "failureThreshold", *WORKLOAD_STATUS), int),
    "port": (int, str),
}
"""Types of fields that are not text."""


def _prune_states(container: Section) -> Manifest:
    """Return the current and last state of a container, cut to the fields that messages use."""
    return {
        name: {phase: shorten(state, _STATE) for phase in phases if (state := object_in(states_by_kind.get(phase)))}
        for name, phases in _STATES.items()
        if (states_by_kind := object_in(container.get(name)))
    }


def _prune_probes(container: Section) -> Manifest:
    """Return the address of a container's HTTP readiness probe and the timing of its other probes, if it has them."""
    http_get = object_in(object_in(container.get("readinessProbe")).get("httpGet"))
    timings = {
        name: timing
        for name in ("startupProbe", "livenessProbe")
        if (timing := shorten(object_in(container.get(name)), ("periodSeconds", "failureThreshold")))
    }
    return {**({"readinessProbe": {"httpGet": shorten(http_get, ("path", "port"))}} if http_get else {}), **timings}


def object_in(value: Any) -> Section:
    """Return a value if it is an object, else an empty one."""
    return cast(Section, value) if isinstance(value, dict) else {}


def objects_in(value: Any) -> Sequence[Section]:
    """Return the objects in a value if it is a list, else nothing."""
    return (
        [cast(Section, item) for item in cast(list[Any], value) if isinstance(item, dict)]
        if isinstance(value, list)
        else ()
    )


def shorten(text: Section, fields: Iterable[str]) -> Manifest:
    """Return some fields of an object, if they have the expected type and form; text is cut to LENGTH characters."""
    typed = {name: value for name in fields if isinstance(value := text.get(name), _TYPES.get(name, str))}
    valid = {name: value for name, value in typed.items() if is_formed(name, value)}
    return {name: value[:LENGTH] if isinstance(value, str) else value for name, value in valid.items()}


def is_ready(pod: Manifest) -> bool:
    """True if a pod takes requests."""
    return condition(pod, "Ready").is_true and not is_terminating(pod)


ALL_FIT = Unfit()
"""Value for clusters whose nodes are unknown."""


def symptoms(pods: Iterable[Manifest], nodes: Unfit = ALL_FIT) -> tuple[Symptom, ...]:
    """Return the symptoms of the pods that are not ready or whose node is not ready, the gravest first."""
    unsorted = [_diagnose(pod, nodes) for pod in pods if not is_ready(pod) or nodes.under(pod)]
    return tuple(sorted(unsorted, key=lambda symptom: (symptom.gravity, symptom.pod)))


def summarize(symptoms: Sequence[Symptom]) -> str:
    """Return a message with the first symptom and the number of further ones; "" without any."""
    if not symptoms:
        return ""
    count_suffix = f" (and {len(symptoms) - 1} more)" if len(symptoms) > 1 else ""
    return f"{symptoms[0]}{count_suffix}"


def _diagnose(pod: Manifest, nodes: Unfit) -> Symptom:
    """Return the symptom of a pod that is not ready. Causes are checked from the most to the least specific."""
    name, status, down_node = pod["metadata"]["name"], section(pod, "status"), nodes.under(pod)
    if is_terminating(pod):
        return Symptom(2, name, f"is ending on {down_node}" if down_node else "is ending")
    if down_node:
        return Symptom(1, name, f"is on {down_node}", ModelReady.NOT_ANSWERING)
    unfinished = (  # init containers that have not succeeded; engines never finish
        container
        for container in entries(status, "initContainerStatuses")
        if section(container, "state", "terminated").get("exitCode") != 0
    )
    # A kubelet that ends a pod, as Evicted for one, leaves the states of its containers beside that: mostly 137.
    ended = status.get("phase") == "Failed" and status.get("reason")
    for container in () if ended else (*unfinished, *entries(status, "containerStatuses")):
        reason, message = _describe_container(pod, container)
        if message:
            message = f"{message}{_describe_restarts(pod, container)}{_hint_at_exit_log(pod, container)}"
            return Symptom(0, name, f"{container['name']}: {message}", reason)
    if status.get("phase") == "Failed":
        message = sanitize(status.get("reason"), status.get("message")) or "no reason given"
        return Symptom(0, name, f"failed: {message}", ModelReady.CANNOT_START)
    scheduled = condition(pod, "PodScheduled")
    if scheduled.status == "False":
        unfit_nodes = nodes.describe_taints(pod)
        message = "; ".join(filter(None, (f"has no node: {describe_condition(scheduled)}", unfit_nodes)))
        return Symptom(1, name, message, ModelReady.UNSCHEDULABLE)
    for container in entries(status, "containerStatuses"):
        if message := _describe_silence(pod, container):
            answered_before = container.get("restartCount") or _find_silence_start(pod, container)
            reason = ModelReady.NOT_ANSWERING if answered_before else ModelReady.MODEL_STARTING
            return Symptom(2, name, f"{container['name']}: {message}", reason)
    return _describe_start(pod)


def _describe_start(pod: Manifest) -> Symptom:
    """Return the symptom of a pod whose containers have no problem: it starts, or is not ready although they are."""
    name, containers = pod["metadata"]["name"], entries(pod, "status", "containerStatuses")
    if containers and all(container.get("ready") for container in containers):
        since = condition(pod, "Ready").last_transition_time
        message = f"is not ready{f' since {since}' if since else ''}, though its containers are"
        return Symptom(2, name, message, ModelReady.NOT_ANSWERING)
    since = condition(pod, "PodScheduled").last_transition_time
    # Naming each step of the start would cost a status write, and each is short.
    return Symptom(2, name, f"is starting{f', on its node since {since}' if since else ''}")


def _describe_container(pod: Manifest, status: Section) -> tuple[ModelReady, str]:
    """Return why a container does not run; the message is "" if it runs or is about to."""
    waiting = section(status, "state", "waiting")
    if waiting.get("reason") == "CrashLoopBackOff":
        exited = _describe_exit(pod, status, section(status, "lastState", "terminated"))
        return ModelReady.CRASH_LOOP, f"crash loop, {exited}"
    if blocked_reason := _BLOCKED_REASONS.get(waiting.get("reason", "")):
        return (
            blocked_reason,
            f"{sanitize(waiting.get('reason'), waiting.get('message'))}{_ADVICE.get(blocked_reason, '')}",
        )
    terminated = section(status, "state", "terminated")
    return ModelReady.CRASH_LOOP, _describe_exit(pod, status, terminated) if terminated else ""


def _describe_silence(pod: Manifest, status: Section) -> str:
    """Return since when and where a running container does not answer, with the command for its log; "" if it does."""
    since = section(status, "state", "running").get("startedAt")
    http_get = section(_find_spec(pod, status), "readinessProbe", "httpGet")
    if status.get("ready") or not since:
        return ""
    path = f" at {http_get['path']}" if "path" in http_get else ""
    where = f"no answer on port {http_get['port']}{path}" if "port" in http_get else "not ready"
    terminated, restarts = section(status, "lastState", "terminated"), status.get("restartCount") or 0
    restarted = f", after {count_of(restarts, 'restart')}" if restarts else ""
    exited = f", the last: {_describe_exit(pod, status, terminated)}" if restarts and terminated else ""
    return f"{where} since {_find_silence_start(pod, status) or since}{restarted}{exited}{_hint_at_log(pod, status)}"


def _find_silence_start(pod: Manifest, status: Section) -> str | None:
    """Return the time when a container stopped answering; None if it has not answered since it started."""
    started_at, changed_at = (
        section(status, "state", "running").get("startedAt"),
        condition(pod, "Ready").last_transition_time,
    )
    return changed_at if status.get("started") and started_at and changed_at and changed_at > started_at else None


def _describe_restarts(pod: Manifest, status: Section) -> str:
    """Return how often a container has restarted and since when its pod is not ready; "" if it has not ended."""
    if not section(status, "state", "terminated") and not section(status, "lastState", "terminated"):
        return ""
    restarts, not_ready_at = status.get("restartCount") or 0, condition(pod, "Ready").last_transition_time
    restarted = f", {count_of(restarts, 'restart')} so far" if restarts else ""
    return f"{restarted}{f', not ready since {not_ready_at}' if not_ready_at else ''}"


def _hint_at_exit_log(pod: Manifest, status: Section) -> str:
    """Return the command for the log of a container that has ended; "" if none has."""
    if section(status, "state", "terminated"):
        return _hint_at_log(pod, status)
    return _hint_at_log(pod, status, "--previous") if section(status, "lastState", "terminated") else ""


def _hint_at_log(pod: Manifest, status: Section, *flags: str) -> str:
    """Return a hint with the kubectl command that shows a container's log."""
    metadata = pod["metadata"]
    arguments = metadata.get("namespace", ""), metadata["name"], "-c", status["name"]
    return f"; its log says more: {shlex.join(('kubectl', 'logs', '-n', *arguments, *flags))}"


def _describe_exit(pod: Manifest, status: Section, terminated: Section) -> str:
    """Return the exit code of a terminated container with its likely cause, as a message."""
    code, reason = terminated.get("exitCode", "unknown"), sanitize(terminated.get("reason"))
    if reason == "OOMKilled":
        # With cgroup v2 also where the node has none left; engines have no limit by default.
        remedy = "raise the limit, or make it use less"
        return f"exit code {code} (OOMKilled: it used more memory than its limit or its node has: {remedy})"
    if reason in _NOT_RUN:
        return f"exit code {code} ({sanitize(reason, terminated.get('message'))})"
    if reason in {"", "Error"} and code in SIGNALS:
        return f"killed by {SIGNALS[code]}: {_explain_kill(_find_spec(pod, status), terminated)}"
    return f"exit code {code}{f' ({reason})' if reason and reason != 'Error' else ''}"


def _explain_kill(container: Section, terminated: Section) -> str:
    """Return who ended a container by a signal, judged by how long it ran: its probes, or its node.

    An engine may have answered long before its startup probe would have failed, so its liveness probe comes after that.
    """
    startup, liveness = (section(container, name) for name in ("startupProbe", "livenessProbe"))
    allowed, period, ran = _count_allowed(startup), startup.get("periodSeconds", 0), _count_seconds(terminated)
    if not allowed or ran is None:
        return "its node ran out of memory, or a probe failed"
    if allowed - period <= ran <= allowed + GRACE:
        time = count_of(allowed // 60, "minute") if allowed >= 60 else count_of(allowed, "second")
        return f"failed its startup probe for {time}"
    if ran < _count_allowed(liveness) - liveness.get("periodSeconds", 0):
        return "probably its node ran out of memory"
    return "failed its liveness probe, or its node ran out of memory"


def _count_allowed(probe: Section) -> int:
    """Return the seconds that a probe lets a container be silent; 0 without a probe."""
    return probe.get("periodSeconds", 0) * probe.get("failureThreshold", 0)


def _count_seconds(terminated: Section) -> float | None:
    """Return how long a container ran; None if its times are missing or cannot be read."""
    try:
        started, finished = (datetime.fromisoformat(terminated.get(name, "")) for name in ("startedAt", "finishedAt"))
        return (finished - started).total_seconds()
    except (TypeError, ValueError):
        return None


def _find_spec(pod: Manifest, status: Section) -> Section:
    """Return the spec of a container; empty for an init container."""
    specs = (item for item in entries(pod, "spec", "containers") if item["name"] == status["name"])
    return next(specs, Manifest())


# Workloads and routes -------------------------------------------------------------------------------------------------


def is_behind(workload: Manifest) -> bool:
    """True if a workload's status is older than its spec.

    A LeaderWorkerSet does not report that and is never behind.
    """
    observed_generation: int | None = section(workload, "status").get("observedGeneration")
    return observed_generation is not None and observed_generation < workload["metadata"].get("generation", 0)


def has_rejected_pods(workload: Manifest) -> bool:
    """True if the API server rejects the pods of a Deployment."""
    return condition(workload, _REPLICA_FAILURE).is_true


def describe_starting(*awaited: str) -> str:
    """Return the message about something that starts, and the parts that it waits for."""
    return f"starting (waiting for: {', '.join(awaited)})"


def describe_unfinished(workload: Manifest, copies: int) -> str:
    """Return what a Deployment or LeaderWorkerSet lacks of the requested copies; "" if all have the current content."""
    status = section(workload, "status")
    if is_behind(workload):
        return "its controller has not seen the latest change"
    ready, updated, total = (status.get(name) or 0 for name in ("readyReplicas", "updatedReplicas", "replicas"))
    if ready < copies:
        figures = f"{ready} of {count_of(copies, 'copy', 'copies')} ready"
    elif updated < copies or total > copies:
        figures = f"{min(updated, copies)} of {count_of(copies, 'copy', 'copies')} updated"
    else:
        return ""
    failure = condition(workload, _REPLICA_FAILURE)
    return f"{figures}, and no more pods can be made: {describe_condition(failure)}" if failure.is_true else figures


def is_unseen(route: Manifest) -> bool:
    """True if no gateway has observed the latest change of a route."""
    return not any(condition(route, "Accepted", parent).current for parent in _find_parent_statuses(route))


def is_refused(route: Manifest) -> bool:
    """True if the gateway of a route has observed its latest change and does not accept it."""
    return describe_unrouted(route).startswith(_NOT_ACCEPTED)


def is_pending(route: Manifest) -> bool:
    """True if a gateway accepted the route before and has not observed its latest change yet."""
    return describe_unrouted(route) == _NOT_OBSERVED


_NOT_ACCEPTED = "the gateway does not accept the route"
_NOT_OBSERVED = "the gateway has not seen the latest change of the route"


def describe_unrouted(route: Manifest) -> str:
    """Return why requests do not pass a route at its gateway; "" if they do.

    A controller that no longer owns the gateway leaves its status behind. One positive status is therefore enough,
    and of negative ones those about the current generation are preferred.
    """
    problems = [_check_parent(route, parent) for parent in _find_parent_statuses(route)]
    if not problems:
        return describe_starting("route")
    return min(problems, key=lambda problem: (bool(problem), problem == _NOT_OBSERVED))


def _check_parent(route: Manifest, parent: Section) -> str:
    """Return why a parent does not accept the current generation of a route; "" if it does."""
    for type_name in ("Accepted", "ResolvedRefs"):
        current = condition(route, type_name, parent)
        if not current.current:
            return _NOT_OBSERVED
        if not current.is_true:
            return f"{_NOT_ACCEPTED}: {describe_condition(current)}"
    return ""


def refusal(policy: Manifest) -> str:
    """Return why a gateway rejects a policy; "" if it accepts it or has not observed the current generation."""
    judgements = (condition(policy, "Accepted", item) for item in entries(policy, "status", "ancestors"))
    return next((describe_condition(item) for item in judgements if item.current and item.status == "False"), "")


def _find_parent_statuses(route: Manifest) -> Sequence[Section]:
    """Return the parent statuses of a route that belong to gateways in its spec. Others may write there, too."""
    parents = {_parent(entry, route) for entry in entries(route, "spec", "parentRefs")}
    return [
        entry for entry in entries(route, "status", "parents") if _parent(section(entry, "parentRef"), route) in parents
    ]


def _parent(reference: Section, route: Manifest) -> tuple[str, str, str]:
    """Return kind, namespace and name of the gateway that a parent reference means."""
    namespace = reference.get("namespace") or route["metadata"].get("namespace", "")
    return reference.get("kind") or "Gateway", namespace, reference.get("name", "")
