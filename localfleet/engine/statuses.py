"""How a pod's status tells its containers' lives, and how lives are read back from it."""

from dataclasses import replace
from datetime import UTC, datetime

from localfleet.engine.lifecycle import Exit, Life, Lives, begin
from localfleet.engine.pods import ENGINE, Container, Pod
from localfleet.engine.settings import Pull
from localfleet.kubeclient import Manifest, entries, section


def read_lives(pod: Pod, status: Manifest, now: float, *, scale: float) -> Lives:
    """What a pod's status says of its containers; those it does not mention start now."""
    said = {entry["name"]: entry for entry in entries(status, "containerStatuses")}
    return {
        container.name: _read_life(pod, container, said.get(container.name, {}), now, scale=scale)
        for container in pod.containers
    }


def status_changes(pod: Pod, lives: Lives, status: Manifest, now: float) -> Manifest:
    """The part of the pod's status that is to be written; empty when it says all this already."""
    said = {entry["name"]: entry for entry in entries(status, "containerStatuses")}
    containers = [
        {**said.get(container.name, {}), **_container_status(pod, container, lives[container.name])}
        for container in pod.containers
    ]
    conditions = _changed_conditions(pod, lives, status, now)
    return {
        **({"conditions": conditions} if conditions else {}),
        **({"containerStatuses": containers} if containers != status.get("containerStatuses") else {}),
    }


def visible(lives: Lives) -> tuple[object, ...]:
    """What of the lives a status shows."""
    return tuple((life.started_at, life.started, life.ready, life.restarts, life.restart_at) for life in lives.values())


def _read_life(pod: Pod, container: Container, entry: Manifest, now: float, *, scale: float) -> Life:
    state, last = section(entry, "state"), section(entry, "lastState", "terminated")
    restarts: int = entry.get("restartCount", 0)
    before = Life(
        started_at=None,
        restarts=restarts,
        crashes_in_a_row=restarts,
        restart_at=now if pod.restarts else None,
        last_exit=Exit(last["exitCode"], _seconds(last["startedAt"]), _seconds(last["finishedAt"])) if last else None,
    )
    if _has_no_image(pod, container):
        return Life(started_at=None)
    if "waiting" in state or "terminated" in state:
        return before
    started = _seconds(state["running"]["startedAt"]) if "running" in state else now
    life = begin(container, started, scale=scale, life=before)
    if not entry.get("ready"):
        return life
    # it was ready when we last looked: a restart of the simulator must not flap it
    return replace(
        life,
        ready=True,
        startup=life.startup and replace(life.startup, passed=True),
        readiness=life.readiness and replace(life.readiness, passed=True),
    )


def _container_status(pod: Pod, container: Container, life: Life) -> Manifest:
    return {
        "name": container.name,
        "image": container.image,
        "ready": life.ready and pod.termination is None,
        "started": life.started,
        "restartCount": life.restarts,
        "state": _pulling(container) if _has_no_image(pod, container) else _state(life),
        "lastState": _terminated(life.last_exit) if life.last_exit and life.restarts else {},
    }


def _has_no_image(pod: Pod, container: Container) -> bool:
    return container.name == ENGINE and pod.settings.pull is Pull.FAILS


def _pulling(container: Container) -> Manifest:
    """As a kubelet tells it that asks a registry in vain."""
    image = container.image
    error = f'ErrImagePull: failed to pull and unpack image "{image}": failed to resolve reference: {image}: not found'
    return {"waiting": {"reason": "ImagePullBackOff", "message": f'Back-off pulling image "{image}": {error}'}}


def _state(life: Life) -> Manifest:
    if life.started_at is not None:
        return {"running": {"startedAt": _timestamp(life.started_at)}}
    if life.restart_at is None:
        return _terminated(life.last_exit) if life.last_exit else {"waiting": {"reason": "ContainerCreating"}}
    wait = round(life.restart_at - (life.last_exit.finished_at if life.last_exit else life.restart_at))
    return {
        "waiting": {"reason": "CrashLoopBackOff", "message": f"back-off {wait}s restarting failed container"},
    }


def _terminated(ended: Exit) -> Manifest:
    return {
        "terminated": {
            "exitCode": ended.code,
            "reason": "Completed" if ended.code == 0 else "Error",
            "startedAt": _timestamp(ended.started_at),
            "finishedAt": _timestamp(ended.finished_at),
        }
    }


def _changed_conditions(pod: Pod, lives: Lives, status: Manifest, now: float) -> list[Manifest]:
    said = {entry["type"]: entry for entry in entries(status, "conditions")}
    unready = [name for name, life in lives.items() if not life.ready] if pod.termination is None else sorted(lives)
    gates = [gate for gate in pod.gates if said.get(gate, {}).get("status") != "True"]
    wanted = {
        "ContainersReady": _condition("ContainersNotReady", "containers with unready status", unready),
        "Ready": _condition("ContainersNotReady", "containers with unready status", unready)
        if unready
        else _condition("ReadinessGatesNotReady", "the status of pod readiness gates is not True", gates),
    }
    changes: list[Manifest] = []
    for kind, condition in wanted.items():
        before = said.get(kind, {})
        if all(before.get(field) == value for field, value in condition.items()):
            continue
        moved = before.get("status") != condition["status"]
        since = _timestamp(now) if moved else before.get("lastTransitionTime", _timestamp(now))
        changes.append({"type": kind, "lastTransitionTime": since, **condition})
    return changes


def _condition(reason: str, message: str, culprits: list[str]) -> Manifest:
    if not culprits:
        return {"status": "True", "reason": None, "message": None}
    return {"status": "False", "reason": reason, "message": f"{message}: [{' '.join(culprits)}]"}


def _timestamp(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _seconds(timestamp: str) -> float:
    return datetime.fromisoformat(timestamp).timestamp()
