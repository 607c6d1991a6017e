"""What the objects of a hydration tell: how far it is, whether it has ended, and what went wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

from kubeloop.conditions import condition
from kubeloop.objects import Manifest, Section, annotations_of, entries, is_terminating, key_of, section
from kubeloop.remote_messages import is_formed, worded
from kubeloop.words import legible
from modelplane_operator.api import labels
from modelplane_operator.api.model_cache import CacheProgress
from modelplane_operator.models.replica.plan.symptoms import cut, object_in, objects_in, symptoms, told

MOST: Final = 1 << 53  # of anything that is counted
FARTHEST: Final = 10**7  # seconds: nobody waits for a third of a year
SHOWN: Final = 600  # characters of what a cluster says
UNBEGUN: Final = timedelta(minutes=2)  # for a Job to have a pod
SILENT: Final = timedelta(minutes=10)  # for a pod to say how far it is: it does so four times a minute
SPOKEN: Final = frozenset({0, 1, 3})  # exit codes of the hydrator, which has left a word: else it is the kubelet's
DIGEST: Final = re.compile("sha256:[0-9a-f]{64}")
RESOLVED: Final = re.compile(r"[0-9a-f]{40}|sha256:[0-9a-f]{64}")  # a commit, or the hash of all other sources


@dataclass(frozen=True, slots=True)
class Reported:
    """What the hydrator says; nothing of it is taken for more than words."""

    progress: CacheProgress | None = None
    revision: str = ""
    digest: str = ""
    """What the list of the verified files hashes to, once all are there."""
    changed: int = 0
    unlisted: int = 0


# What is kept of them: a cluster may say anything ---------------------------------------------------------------------


def cut_claim(claim: Manifest) -> Manifest:
    """What is judged of a PersistentVolumeClaim."""
    spec = object_in(claim.get("spec"))
    asked = cut(object_in(object_in(spec.get("resources")).get("requests")), ("storage",))
    return {
        "metadata": _metadata(claim),
        "spec": {**cut(spec, ("storageClassName",)), **({"resources": {"requests": asked}} if asked else {})},
        "status": cut(object_in(claim.get("status")), ("phase",)),
    }


def cut_job(job: Manifest) -> Manifest:
    """What is judged of a Job; its spec is ours, and never changes."""
    every = (cut(one, _CONDITION) for one in objects_in(object_in(job.get("status")).get("conditions")))
    conditions = [one for one in every if one.get("type") in _ENDS]
    return {"metadata": _metadata(job), "status": {"conditions": conditions}}


def _metadata(live: Manifest) -> Manifest:
    metadata = section(live, "metadata")
    ours = {name: told[:SHOWN] for name, told in annotations_of(live).items() if name.startswith(labels.PREFIX)}
    kept = {name: metadata[name] for name in _METADATA if is_formed(name, metadata.get(name))}
    return {**kept, **cut(metadata, ("creationTimestamp",)), "annotations": ours}


_METADATA: Final = ("name", "namespace", "uid", "resourceVersion", "labels", "deletionTimestamp")
_CONDITION: Final = ("type", "status", "reason", "message")
_ENDS: Final = frozenset({"Complete", "Failed"})


# What they tell -------------------------------------------------------------------------------------------------------


def succeeded(job: Manifest) -> bool:
    return condition(job, "Complete").is_true


def failed(job: Manifest) -> bool:
    return condition(job, "Failed").is_true


def resolved(told: Any) -> str:
    """The revision that somebody says a volume holds; empty when it is none that a source resolves to."""
    return told if isinstance(told, str) and RESOLVED.fullmatch(told) else ""


def attempt(job: Manifest) -> int:
    """The how manieth it is."""
    text = annotations_of(job).get(labels.ATTEMPT, "")
    return int(text) if re.fullmatch("[1-9][0-9]{0,6}", text) else 1


def reported(job: Manifest, pods: Iterable[Manifest]) -> Reported:
    """The last word of the pod that has succeeded, or what stands on the Job."""
    words = [_last_word(pod) for pod in pods if section(pod, "status").get("phase") == "Succeeded"]
    for text in (*words, _annotated(job)):
        if facts := _read(text):
            return _reported(facts)
    return Reported()


def trouble(pods: Sequence[Manifest]) -> str:
    """What keeps the pods of a Job from ending well; empty when nothing does."""
    alive = [pod for pod in pods if section(pod, "status").get("phase") in {"Pending", "Running"}]
    said = [word for pod in _latest_last(pods) if not is_terminating(pod) and (word := _last_word(pod))]
    before = f"tried again after: {said[-1]}" if said and alive else said[-1] if said else ""
    return legible("; ".join(filter(None, (before, told(symptoms(alive)) if alive else "")))[:SHOWN])


def silence(job: Manifest, pods: Sequence[Manifest], now: datetime) -> tuple[str, datetime | None]:
    """That a Job does not go on, and nobody says why; until that is so, when it would be."""
    key, running = key_of(job), [pod for pod in pods if section(pod, "status").get("phase") == "Running"]
    if pods:
        heard = [_began(pod, "running") for pod in running] + [str(_read(_annotated(job)).get("at"))] * bool(running)
        last = max((found for text in heard if (found := _moment(text))), default=None)
        due = last + SILENT if last else None
        told = f"nothing is heard of the hydrator: see `kubectl logs -n {key.namespace} job/{key.name}` on the cluster"
    else:
        since = _moment(job["metadata"].get("creationTimestamp") or "")
        due = since + UNBEGUN if since else None
        where = f"`kubectl describe job -n {key.namespace} {key.name}` on the cluster"
        told = f"the Job has no pod: {where} says why; it may be a quota"
    return (told, None) if due and due <= now else ("", due)


def _annotated(job: Manifest) -> str:
    return annotations_of(job).get(labels.PROGRESS, "")


def _moment(text: str) -> datetime | None:
    try:
        return datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError):
        return None


def _began(pod: Manifest, state: str) -> str:
    """When the last of its containers in that state has begun."""
    states = (section(one, "state", state) for one in entries(pod, "status", "containerStatuses"))
    return max((str(one.get("startedAt") or "") for one in states), default="")


def _latest_last(pods: Iterable[Manifest]) -> list[Manifest]:
    failed = [pod for pod in pods if section(pod, "status").get("phase") == "Failed"]
    return sorted(failed, key=lambda pod: (_began(pod, "terminated"), pod["metadata"]["name"]))


def _last_word(pod: Manifest) -> str:
    """The termination message of its container, or else how it ended."""
    for container in entries(pod, "status", "containerStatuses"):
        if ended := section(container, "state", "terminated"):
            code, why = ended.get("exitCode"), worded(ended.get("reason"))
            if code in SPOKEN and why in {"", "Error", "Completed"} and ended.get("message"):
                return str(ended["message"]).strip()[:SHOWN]
            return f"exit code {code}{f' ({why})' if why and why != 'Error' else ''}"
    return worded(section(pod, "status").get("reason"), section(pod, "status").get("message"))


def _read(text: str) -> Mapping[str, Any]:
    try:
        facts = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return cast(Section, facts) if isinstance(facts, dict) else {}


def _reported(facts: Mapping[str, Any]) -> Reported:
    def count(name: str) -> int | None:
        found = facts.get(name)
        return found if type(found) is int and 0 <= found <= MOST else None

    there, whole = count("bytes"), count("totalBytes")
    progress = CacheProgress(
        files=count("files"),
        total_files=count("totalFiles"),
        bytes=there,
        total_bytes=whole,
        estimated_completion=_estimate(facts.get("at"), (whole or 0) - (there or 0), count("bytesPerSecond") or 0),
    )
    digest = facts.get("digest")
    return Reported(
        progress if whole else None,
        resolved(facts.get("revision")),
        digest if isinstance(digest, str) and DIGEST.fullmatch(digest) else "",
        count("changed") or 0,
        count("unlisted") or 0,
    )


def _estimate(at: Any, left: int, rate: int) -> datetime | None:
    """To the minute: it is a guess."""
    if left <= 0 or rate <= 0 or left / rate > FARTHEST or not isinstance(at, str):
        return None
    moment = _moment(at)
    return (moment + timedelta(seconds=left / rate)).replace(second=0, microsecond=0) if moment else None
